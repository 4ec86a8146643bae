"""What a policy is worth on one trace: its figures, those of others beside it, and the optimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import frozen

from kvoffload.errors import InvalidValueError
from kvoffload.judge.attempts import Failure
from kvoffload.judge.outcome import Demand, Outcome, ratio
from kvoffload.judge.resampling import Interval, Sums, resampled, share_of
from kvoffload.judge.study import Best, MakeManager, Run, Source, Study, workload_of

BASELINE = "lru"
OPTIMUM = "optimum"
INFINITE = "infinite"


@frozen(kw_only=True)
class Plan:
    """What is run for the value of a policy on one trace.

    `policies`: what makes the manager of each, by name; the one that is judged comes first, and
    one is called `lru`. `capacities` in chunks, `gpu_chunks` for each tier in front (0: none).
    Of the first `warm_up` requests no figure is taken. A chunk has `chunk_bytes`.
    """

    source: Source
    policies: Mapping[str, MakeManager]
    capacities: Sequence[int]
    gpu_chunks: Sequence[int]
    warm_up: int
    chunk_bytes: int
    prefill_rate: float | None = None
    transfer_rate: float | None = None


@frozen(kw_only=True)
class Point:
    """One policy at one capacity.

    `token_hits` and `block_hits` are shares of all that arrives after the warm-up, with intervals;
    `whole_*` the same over the whole trace, without. `stored` chunks, `written_bytes` and `refused`
    offers are of the whole trace. `gap_closed` is the share of the way from LRU to the optimum, and
    `over_lru` the difference to LRU, both in tokens; `*_blocks` in blocks. `saved_s` is a model's:
    seconds a request. What does not apply, or is unknown, is None. `problem` says what ended the
    run, of which there are then no figures.
    """

    policy: str
    gpu_chunks: int
    capacity: int
    of_working_set: float
    token_hits: Interval | None = None
    block_hits: Interval | None = None
    whole_token_hits: float | None = None
    whole_block_hits: float | None = None
    stored: int | None = None
    written_bytes: int | None = None
    refused: int | None = None
    gap_closed: Interval | None = None
    over_lru: Interval | None = None
    gap_closed_blocks: Interval | None = None
    over_lru_blocks: Interval | None = None
    saved_s: float | None = None
    problem: str = ""


@frozen(kw_only=True)
class TierValue:
    """Behind one GPU tier: what that serves itself, what an infinite CPU tier would add, and a
    point for each policy and capacity, the optimum among them."""

    gpu_chunks: int
    gpu_token_hits: float
    gpu_block_hits: float
    infinite: Point
    points: tuple[Point, ...]

    def of(self, policy: str) -> tuple[Point, ...]:
        """The points of one policy, by capacity."""
        return tuple(point for point in self.points if point.policy == policy)


@frozen(kw_only=True)
class TraceValue:
    """One trace and what the policies are worth on it.

    `tokens_known`: else blocks are counted in place of tokens. Of `requests`, the first `warm_up`
    are left out of what has no `whole` in its name.
    """

    trace: str
    requests: int
    blocks: int
    working_set: int
    block_tokens: int | None
    tokens_known: bool
    warm_up: int
    chunk_bytes: int
    prefill_rate: float | None
    transfer_rate: float | None
    tiers: tuple[TierValue, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """What ended runs."""
        points = [point for tier in self.tiers for point in tier.points]
        return tuple(point.problem for point in points if point.problem)


def plan_value(study: Study, plan: Plan) -> Callable[[], TraceValue]:
    """Ask a study for all that the value on a trace takes; what is returned computes it then.

    Raises TraceError, and InvalidValueError where a plan has no capacity or warms up for ever.
    """
    workload = workload_of(plan.source, 0)
    if not plan.capacities:
        raise InvalidValueError("capacities", 0, "at least one")
    if not 0 <= plan.warm_up < len(workload.requests):
        raise InvalidValueError(
            "warm-up", plan.warm_up, f"less than the {len(workload.requests)} requests of the trace"
        )
    tiers = [_plan_tier(study, plan, gpu_chunks) for gpu_chunks in plan.gpu_chunks]

    def value() -> TraceValue:
        return TraceValue(
            trace=plan.source.path.name,
            requests=len(workload.requests),
            blocks=sum(len(request.blocks) for request in workload.requests),
            working_set=workload.distinct_blocks,
            block_tokens=workload.requests[0].block_tokens,
            tokens_known=workload.has_tokens,
            warm_up=plan.warm_up,
            chunk_bytes=plan.chunk_bytes,
            prefill_rate=plan.prefill_rate,
            transfer_rate=plan.transfer_rate,
            tiers=tuple(tier() for tier in tiers),
        )

    return value


def _plan_tier(study: Study, plan: Plan, gpu_chunks: int) -> Callable[[], TierValue]:
    source = plan.source
    workload = workload_of(source, gpu_chunks)
    infinite = study.add(Best(source, gpu_chunks, workload.distinct_blocks))
    best = {size: study.add(Best(source, gpu_chunks, size)) for size in plan.capacities}
    runs = {
        (name, size): study.add(Run(make, source, gpu_chunks, size))
        for size in plan.capacities
        for name, make in plan.policies.items()
    }

    def value() -> TierValue:
        figures = _Figures(plan, gpu_chunks)
        demand = figures.demand
        points: list[Point] = []
        for size in plan.capacities:
            optimum = best[size]()
            lru = runs[BASELINE, size]()
            base = lru if isinstance(lru, Outcome) else None
            for name in plan.policies:
                outcome = runs[name, size]()
                points.append(figures.point(name, size, outcome, base, optimum))
            points.append(figures.point(OPTIMUM, size, optimum, base, None))
        served = np.array(workload.gpu_hits, np.int64)
        tokens = [workload.tokens_of(i, 0, hits) for i, hits in enumerate(workload.gpu_hits)]
        return TierValue(
            gpu_chunks=gpu_chunks,
            gpu_token_hits=ratio(np.array(tokens, np.int64), demand.tokens, plan.warm_up),
            gpu_block_hits=ratio(served, demand.blocks, plan.warm_up),
            infinite=figures.point(INFINITE, workload.distinct_blocks, infinite(), None, None),
            points=tuple(points),
        )

    return value


class _Figures:
    """Turns outcomes behind one GPU tier into points."""

    def __init__(self, plan: Plan, gpu_chunks: int) -> None:
        self._plan = plan
        self._gpu_chunks = gpu_chunks
        workload = workload_of(plan.source, gpu_chunks)
        self._working_set = workload.distinct_blocks
        block_tokens = workload.requests[0].block_tokens
        self._token_bytes = plan.chunk_bytes / block_tokens if block_tokens else None
        self.demand: Demand = Demand.of(workload)

    def point(
        self,
        policy: str,
        capacity: int,
        outcome: Outcome | Failure,
        lru: Outcome | None,
        optimum: Outcome | None,
    ) -> Point:
        """The figures of one run, beside LRU and the optimum where these are given."""
        share = capacity / self._working_set
        if isinstance(outcome, Failure):
            return Point(
                policy=policy,
                gpu_chunks=self._gpu_chunks,
                capacity=capacity,
                of_working_set=share,
                problem=outcome.where,
            )
        demand, warm = self.demand, self._plan.warm_up
        blocks, tokens = outcome.block_hits, outcome.token_hits
        ran = policy not in (OPTIMUM, INFINITE)
        gap = gap_blocks = over = over_blocks = None
        if lru is not None and policy != BASELINE:
            over = resampled(
                _difference, tokens[warm:], lru.token_hits[warm:], demand.tokens[warm:]
            )
            over_blocks = resampled(
                _difference, blocks[warm:], lru.block_hits[warm:], demand.blocks[warm:]
            )
            if optimum is not None:
                gap = resampled(
                    _share, tokens[warm:], lru.token_hits[warm:], optimum.token_hits[warm:]
                )
                gap_blocks = resampled(
                    _share, blocks[warm:], lru.block_hits[warm:], optimum.block_hits[warm:]
                )
        return Point(
            policy=policy,
            gpu_chunks=self._gpu_chunks,
            capacity=capacity,
            of_working_set=share,
            token_hits=_known(share_of(tokens[warm:], demand.tokens[warm:])),
            block_hits=_known(share_of(blocks[warm:], demand.blocks[warm:])),
            whole_token_hits=ratio(tokens, demand.tokens),
            whole_block_hits=ratio(blocks, demand.blocks),
            stored=outcome.stored if ran else None,
            written_bytes=outcome.stored * self._plan.chunk_bytes if ran else None,
            refused=outcome.refused if ran else None,
            gap_closed=_known(gap),
            over_lru=_known(over),
            gap_closed_blocks=_known(gap_blocks),
            over_lru_blocks=_known(over_blocks),
            saved_s=self._saved(outcome),
        )

    def _saved(self, outcome: Outcome) -> float | None:
        """Seconds a request by the model: what is found need not be computed, but loaded."""
        prefill, transfer = self._plan.prefill_rate, self._plan.transfer_rate
        if prefill is None or transfer is None or self._token_bytes is None:
            return None
        found = outcome.token_hits[self._plan.warm_up :]
        return float(found.mean()) * (1 / prefill - self._token_bytes / transfer)


def _known(interval: Interval | None) -> Interval | None:
    """The interval; None where its figure is a ratio to nothing."""
    return interval if interval is not None and np.isfinite(interval.value) else None


def _difference(sums: Sums) -> Sums:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((sums[:, 0] - sums[:, 1]) / sums[:, 2], np.float64)


def _share(sums: Sums) -> Sums:
    """Of the way from LRU to the optimum; what is a share of nothing is no number."""
    way = sums[:, 2] - sums[:, 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((sums[:, 0] - sums[:, 1]) / np.where(way == 0, np.nan, way), np.float64)
