"""Which clause a wrong look-up breaks, and with which settings it is shown."""

from collections.abc import Collection
from typing import Any

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import CPUOffloadingManager, LookupResult, OffloadKey, ReqContext
from stateful_models.checking import BrokenClauseError, check_manager, keys, op
from stateful_models.contract import Kind
from stateful_models.engines.manager_runs import usual_invariants
from stateful_models.engines.managers import ManagerTrial
from stateful_models.levels import QUICK
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.programs import ManagerSettings, Program
from stateful_models.signatures import parameters_of

A, B = keys("a b")


class Memo(CPUOffloadingManager):
    """What it has answered to a request is answered for as long as the request lives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.memo: set[tuple[str, OffloadKey]] = set()

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        at = req_context.req_id, key
        if at not in self.memo:
            found = super().lookup(key, req_context)
            if found is not LookupResult.HIT:
                return found
            self.memo.add(at)
        return LookupResult.HIT


class StaysPending(CPUOffloadingManager):
    """Of a store of several keys only the first gets ready."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        some = list(keys)[:1] if success else keys
        super().complete_store(some, req_context, success, ticket=ticket)


def stored(request: str, key: OffloadKey, attempt: int) -> list[op.ManagerOperation]:
    return [
        op.PrepareStore(request, (key,), attempt),
        op.CompleteStore(request, (key,), attempt=attempt),
    ]


def clauses_told(target: type[CPUOffloadingManager], program: list[op.ManagerOperation]) -> str:
    with pytest.raises(BrokenClauseError) as broken:
        check_manager(target, 1, program, watchful=True)
    return " ".join(
        line.split(":")[0] for line in str(broken.value).splitlines() if line[:5].isupper()
    )


def test_a_store_that_did_succeed_is_not_to_blame_for_what_comes_later() -> None:
    evicted = [*stored("r1", A, 1), op.PrepareStore("r2", (B,), 2)]
    assert clauses_told(Memo, evicted) == "LOOK-1"


def test_nor_is_the_refusal_of_a_key_that_had_gone_before() -> None:
    unseen = [
        *stored("r1", A, 1),
        op.Lookup("r1", A),
        *stored("r2", B, 2),
        op.PrepareLoad("r2", (B,), 3),
        op.PrepareStore("r3", (A,), 4),
        op.Lookup("r1", A),
    ]
    with pytest.raises(BrokenClauseError) as broken:
        check_manager(Memo, 1, unseen)
    assert str(broken.value).startswith("LOOK-1")
    assert "STORE-4" not in str(broken.value)


def test_a_store_that_leaves_a_key_pending_is() -> None:
    with pytest.raises(BrokenClauseError, match="DONE-1: b/0 is answered HIT_PENDING after its"):
        check_manager(
            StaysPending,
            2,
            [op.PrepareStore("r1", (A, B), 1), op.CompleteStore("r1", (A, B), attempt=1)],
        )


def test_settings_are_made_the_usual_ones_with_what_only_they_need() -> None:
    driver = ManagerDriver(Memo)
    trial = ManagerTrial(
        driver,
        usual_invariants(driver.capabilities),
        capabilities=driver.capabilities,
        level=evolve(QUICK, patience_s=1_000.0),
    )
    program = Program(
        1,
        (
            op.PrepareStore("r1", (A,), 1),
            op.PrepareStore("r1", (A,), 2),
            op.CompleteStore("r1", (A,), attempt=2),
            op.PrepareStore("r2", (B,), 3),
            op.PrepareStore("r2", (B,), 4),
        ),
        watchful=True,
        settings=ManagerSettings(
            policy="arc", store_threshold=2, enable_events=False, max_tracker_size=7
        ),
    )
    trial.judged(trial.run(program), "random")
    shown = trial.breaches["LOOK-1", Kind.HOST].program
    assert shown is not None
    assert shown.settings == ManagerSettings()
    assert len(shown) == 3


def test_what_a_constructor_passes_on_is_read_from_the_next() -> None:
    assert set(parameters_of(Memo)) == set(parameters_of(CPUOffloadingManager))

    class Named(Memo):
        def __init__(self, *args: Any, depth: int = 3, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    assert set(parameters_of(Named)) == {*parameters_of(CPUOffloadingManager), "depth"}

    class Fixed(CPUOffloadingManager):
        def __init__(self, num_chunks: int) -> None:
            super().__init__(num_chunks)

    class Swallows(Fixed):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    assert list(parameters_of(Swallows)) == ["num_chunks"]
    # So that it is not given what it would choke on.
    assert not ManagerDriver(Swallows).capabilities.events
    assert ManagerDriver(Memo).capabilities.tap

    # What is nobody's to say stays open.
    def takes_anything(**kwargs: object) -> None:
        return None

    assert "kwargs" in parameters_of(takes_anything)
