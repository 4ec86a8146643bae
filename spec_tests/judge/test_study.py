"""A judgement comes to the same whatever carries its runs out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from kvoffload import CachePolicy, CPUOffloadingManager, OffloadingManager
from kvoffload.cli.executors import executor_for
from kvoffload.errors import InvalidValueError, TraceError
from kvoffload.judge.attempts import Failure
from kvoffload.judge.guarded import GuardedExecutor
from kvoffload.judge.outcome import ratio
from kvoffload.judge.study import Run, Source, Study, workload_of
from kvoffload.judge.value import INFINITE, OPTIMUM, Plan, TraceValue, plan_value
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.judge.traces import REQUESTS, write_trace

CAPACITIES = (3, 10, 30, 100)


@frozen
class Made:
    """Makes managers, and goes through a pickle."""

    policy: str | type[CachePolicy]

    def __call__(self, capacity: int) -> OffloadingManager:
        return CPUOffloadingManager(capacity, self.policy)


class Tires(LRUCachePolicy):
    """Raises at its tenth eviction."""

    evictions = 0

    def evict(self, n: int, protected: Any) -> Any:
        self.evictions += 1
        if self.evictions == 10:
            raise SystemExit("tired\nof it")
        return super().evict(n, protected)


class NeverMade(LRUCachePolicy):
    def __init__(self, cache_capacity: int) -> None:
        raise RuntimeError("not today")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(write_trace(tmp_path_factory.mktemp("traces") / "small.jsonl"))


def plan(source: Source, **policies: str | type[CachePolicy]) -> Plan:
    makers = {name: Made(policy) for name, policy in policies.items()}
    return Plan(
        source=source,
        policies={**makers, "lru": Made("lru")},
        capacities=CAPACITIES,
        gpu_chunks=(0, 5),
        warm_up=30,
        chunk_bytes=1000,
        prefill_rate=1000.0,
        transfer_rate=1e9,
    )


def judged(plan: Plan, executor: Executor | None = None) -> TraceValue:
    study = Study()
    value = plan_value(study, plan)
    told: list[int] = []
    study.carry_out(executor, told.append)
    assert told == list(range(1, len(study) + 1))
    return value()


def processes() -> Executor:
    return GuardedExecutor(2)


@contextmanager
def dask() -> Generator[Executor]:
    if find_spec("distributed") is None:
        pytest.skip("distributed is not installed (extra dask)")
    distributed: Any = import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        executor_for(None, cluster.scheduler_address) as executor,
    ):
        assert executor is not None
        yield executor


class TestExecutors:
    @pytest.mark.filterwarnings("default")
    @pytest.mark.parametrize("begin", [lambda: ThreadPoolExecutor(3), processes, dask])
    def test_results_are_equal_whatever_runs_them(
        self, source: Source, begin: Callable[[], Any]
    ) -> None:
        wanted = plan(source, arc="arc", tires=Tires)
        serial = judged(wanted)
        with begin() as executor:
            assert judged(wanted, executor) == serial
        assert any(point.problem for point in serial.tiers[0].points)

    def test_runs_go_through_a_pickle(self, source: Source) -> None:
        run = Run(Made("arc"), source, 5, 10)
        assert pickle.loads(pickle.dumps(run)) == run

    def test_equal_runs_are_carried_out_once(self, source: Source) -> None:
        study = Study()
        first = study.add(Run(Made("arc"), source, 0, 10))
        again = study.add(Run(Made("arc"), source, 0, 10))
        assert len(study) == 1
        with pytest.raises(LookupError):
            first()
        study.carry_out()
        assert first() is again()

    def test_a_file_that_changes_is_read_again(self, tmp_path: Path) -> None:
        changing = Source(write_trace(tmp_path / "small.jsonl", seed=1))
        before = workload_of(changing, 0)
        assert workload_of(changing, 0) is before
        text = changing.path.read_text()
        changing.path.write_text(text[: text.index("\n") + 1])
        assert len(workload_of(changing, 0).requests) == 1

    def test_what_a_run_raises_is_raised(self, tmp_path: Path) -> None:
        study = Study()
        study.add(Run(Made("lru"), Source(tmp_path / "none.jsonl"), 0, 10))
        for executor in (None, ThreadPoolExecutor(1)):
            with pytest.raises(TraceError):
                study.carry_out(executor)


class TestFailures:
    def test_a_policy_that_raises_is_told_of(self, source: Source) -> None:
        failure = Run(Made(Tires), source, 0, 10)()
        assert isinstance(failure, Failure)
        assert failure.what == "SystemExit: tired of it"
        assert 0 < failure.request < REQUESTS

    def test_and_so_is_one_that_cannot_be_made(self, source: Source) -> None:
        failure = Run(Made(NeverMade), source, 0, 10)()
        assert failure == Failure("RuntimeError: not today", -1)

    def test_the_others_have_their_figures(self, source: Source) -> None:
        value = judged(plan(source, tires=Tires))
        tier = value.tiers[0]
        assert "tired" in tier.of("tires")[1].problem
        assert tier.of("tires")[1].token_hits is None
        assert all(point.token_hits for point in (*tier.of("lru"), *tier.of(OPTIMUM)))
        assert value.problems


class TestFigures:
    def test_they_are_those_of_the_runs(self, source: Source) -> None:
        value = judged(plan(source, arc="arc"))
        reached = 0
        for tier in value.tiers:
            workload = workload_of(source, tier.gpu_chunks)
            tokens = [request.input_tokens or 0 for request in workload.requests]
            for point in (*tier.of("arc"), *tier.of("lru")):
                outcome = Run(Made(point.policy), source, tier.gpu_chunks, point.capacity)()
                assert not isinstance(outcome, Failure)
                hits = point.token_hits
                assert hits is not None
                assert hits.low is not None
                assert hits.high is not None
                assert hits.value == pytest.approx(sum(outcome.token_hits[30:]) / sum(tokens[30:]))
                assert hits.low <= hits.value <= hits.high
                assert point.whole_token_hits == pytest.approx(
                    sum(outcome.token_hits) / sum(tokens)
                )
                assert point.written_bytes == 1000 * outcome.stored
                assert point.refused == outcome.refused
                # A model: 512 tokens a chunk of 1,000 bytes.
                found = sum(outcome.token_hits[30:]) / (REQUESTS - 30)
                assert point.saved_s == pytest.approx(found / 1000 - found * 1000 / 512 / 1e9)
                reached += hits.value > 0
        assert reached > 6

    def test_lru_is_at_the_beginning_of_the_gap_and_the_optimum_at_its_end(
        self, source: Source
    ) -> None:
        value = judged(plan(source, arc="arc"))
        closed = 0
        for tier in value.tiers:
            by_size = zip(tier.of("arc"), tier.of("lru"), tier.of(OPTIMUM), strict=True)
            for arc, lru, best in by_size:
                assert lru.gap_closed is None
                assert lru.over_lru is None
                assert arc.token_hits
                assert lru.token_hits
                assert best.token_hits
                assert arc.over_lru
                assert arc.token_hits.value <= best.token_hits.value
                assert best.token_hits.value <= (
                    tier.infinite.token_hits.value if tier.infinite.token_hits else 0
                )
                over = arc.token_hits.value - lru.token_hits.value
                assert arc.over_lru.value == pytest.approx(over)
                way = best.token_hits.value - lru.token_hits.value
                if way:
                    assert arc.gap_closed is not None
                    assert arc.gap_closed.value == pytest.approx(over / way)
                    closed += 1
                else:
                    assert arc.gap_closed is None
            assert tier.infinite.policy == INFINITE
        assert closed

    def test_what_the_gpu_serves_is_its_own(self, source: Source) -> None:
        tier = judged(plan(source, arc="arc")).tiers[1]
        workload = workload_of(source, 5)
        demand = sum(len(request.blocks) for request in workload.requests[30:])
        assert tier.gpu_block_hits == sum(workload.gpu_hits[30:]) / demand > 0

    @pytest.mark.parametrize("warm_up", [-1, REQUESTS])
    def test_something_is_left_after_the_warm_up(self, source: Source, warm_up: int) -> None:
        wanted = Plan(
            source=source,
            policies={"lru": Made("lru")},
            capacities=[3],
            gpu_chunks=[0],
            warm_up=warm_up,
            chunk_bytes=1,
        )
        with pytest.raises(InvalidValueError, match="warm-up"):
            plan_value(Study(), wanted)

    def test_ratio_to_nothing(self, source: Source) -> None:
        outcome = Run(Made("lru"), source, 0, 3)()
        assert not isinstance(outcome, Failure)
        assert ratio(outcome.block_hits[:0], outcome.block_hits[:0]) == 0
