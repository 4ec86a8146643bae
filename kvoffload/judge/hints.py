"""Hints: what they are worth to a policy when they are true, and what they cost when they are not.

Clients send hints and nothing checks them. Here they come from the trace's own future, as if the
client knew it, and are then spoilt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

import numpy as np
from attrs import frozen

from kvoffload.errors import InvalidValueError
from kvoffload.judge.attempts import Failure, Hints, attempt, beforehand
from kvoffload.judge.engine import Engine
from kvoffload.judge.outcome import Demand, Outcome
from kvoffload.judge.resampling import Interval, share_of
from kvoffload.judge.sessions import NOBODY, Sessions
from kvoffload.judge.workload import Workload
from kvoffload.manager import OffloadingManager

PROBED_REQUESTS: Final = 1_000
"""So many requests at least carry a malformed value, to find out which values a policy bears."""


@frozen(kw_only=True)
class RequestFuture:
    """What the rest of the trace tells of one request; see `Sessions` for what continues what.

    `turn` counts from 1. `turns_left`: the length of the longest chain of requests that continue
    this one. `expected_gap`: seconds until the first of them arrives, None if none does.
    `reused_blocks`: how many blocks at the head of the prompt some later request begins with.
    """

    request: int
    session_id: str
    turn: int
    turns_left: int
    expected_gap: float | None
    reused_blocks: int

    @property
    def last_turn(self) -> bool:
        """Whether no request continues this one."""
        return not self.turns_left

    @property
    def priority(self) -> int:
        """1 if some request continues this one, else 0."""
        return int(not self.last_turn)


HintsFor = Callable[[RequestFuture], Hints]
"""What a policy's clients would send. Picklable, where runs go to other processes."""


def common_hints(future: RequestFuture) -> Mapping[str, object]:
    """What a request carries by default, under the names that clients commonly use."""
    hints: dict[str, object] = {
        "session_id": future.session_id,
        "turn": future.turn,
        "last_turn": future.last_turn,
        "priority": future.priority,
    }
    if future.expected_gap is not None:
        hints["expected_gap"] = future.expected_gap
    return hints


def futures_of(workload: Workload) -> tuple[RequestFuture, ...]:
    """What the trace tells of each request's future."""
    requests = workload.requests
    sessions = Sessions.of(requests)
    left = [0] * len(requests)
    gap: list[float | None] = [None] * len(requests)
    reused = [0] * len(requests)
    seen: set[int] = set()
    for number in range(len(requests) - 1, -1, -1):
        request = requests[number]
        while reused[number] < len(request.blocks) and request.blocks[reused[number]] in seen:
            reused[number] += 1
        seen.update(request.blocks)
        before = int(sessions.previous[number])
        if before != NOBODY:
            left[before] = max(left[before], left[number] + 1)
            # Going backwards, the first to arrive comes last. Traces need not be in order of time.
            gap[before] = max(request.arrival - requests[before].arrival, 0.0)
    return tuple(
        RequestFuture(
            request=number,
            session_id=f"session-{sessions.session[number]}",
            turn=int(sessions.turn[number]),
            turns_left=left[number],
            expected_gap=gap[number],
            reused_blocks=reused[number],
        )
        for number in range(len(requests))
    )


class HintKind(Enum):
    """What becomes of the hints."""

    NONE = "none"
    TRUE = "true"
    FIFTH_WRONG = "a fifth wrong"
    ALL_WRONG = "all wrong"
    MALFORMED = "malformed"


class _LeftOut:
    """Stands for a hint that is not sent at all."""


LEFT_OUT: Final = _LeftOut()

HostileValues = Callable[[], Sequence[object]]
"""Makes values that a hint may have where another kind is expected: new ones each time, the same
in number and order."""


class HintGiver:
    """What each request carries under one kind of hints, as the `hints` of an Engine.

    Wrong hints are those of another request: the requests that get wrong ones are drawn, and pass
    theirs around in one ring, so that none keeps its own. Malformed are true ones of which one is
    left out or has a hostile value, request by request another one.
    """

    def __init__(
        self,
        futures: Sequence[RequestFuture],
        kind: HintKind,
        *,
        hints_for: HintsFor = common_hints,
        seed: int = 0,
        hostile: HostileValues = lambda: (),
        values: Sequence[int] | None = None,
    ) -> None:
        """`values`: the malformed values that are used, by number; 0 stands for leaving a hint
        out, those of `hostile` follow. All of them by default."""
        self._kind = kind
        self._hints_for = hints_for
        self._hostile = hostile
        self._values = tuple(range(len(hostile()) + 1)) if values is None else tuple(values)
        if kind is HintKind.MALFORMED and not self._values:
            raise InvalidValueError("values", values, "at least one malformed value")
        self._futures = list(futures)
        for taker, giver in _ring(len(futures), kind, seed):
            self._futures[taker] = futures[giver]

    def __call__(self, number: int) -> dict[str, object] | None:
        """What request `number` carries; None for no hints."""
        if self._kind is HintKind.NONE:
            return None
        given = self._hints_for(self._futures[number])
        hints = None if given is None else dict(given)
        if self._kind is not HintKind.MALFORMED or not hints:
            return hints
        turn, at = divmod(number, len(self._values))
        # A name further each time the values begin anew, so that every value meets every name.
        name = sorted(hints)[(turn + at) % len(hints)]
        value = self.value(self._values[at])
        if value is LEFT_OUT:
            del hints[name]
        else:
            hints[name] = value
        return hints

    def value(self, which: int) -> object:
        """The malformed value of this number, LEFT_OUT for 0."""
        return self._hostile()[which - 1] if which else LEFT_OUT


def _ring(requests: int, kind: HintKind, seed: int) -> list[tuple[int, int]]:
    """Who gets whose hints, wrongly: pairs of requests, none of them twice."""
    if kind not in (HintKind.FIFTH_WRONG, HintKind.ALL_WRONG):
        return []
    count = requests if kind is HintKind.ALL_WRONG else max(-(-requests // 5), 2)
    drawn = [int(n) for n in np.random.default_rng(seed).permutation(requests)[:count]]
    # A single request has nobody to take from.
    return list(zip(drawn, [*drawn[1:], *drawn[:1]], strict=True)) if len(drawn) > 1 else []


@frozen
class Raised:
    """A policy raised: at which request, what (in one line), and the malformed value that every
    request carried then; None where it was no such run."""

    request: int
    error: str
    value: str | None = None

    @classmethod
    def by(cls, failure: Failure, value: str | None = None) -> Raised:
        """What ended a run, in short."""
        return cls(max(failure.request, 0), _in_short(failure.what, 100), value)


@frozen
class HintRun:
    """A run under one kind of hints. Without an outcome it did not come to its end.

    `raised`: what the policy raised under this kind. Malformed values on which it raises are
    found one by one, and left out of the run that `outcome` is of.
    """

    kind: HintKind
    outcome: Outcome | None
    raised: tuple[Raised, ...] = ()


def run_kind(
    make_manager: Callable[[int], OffloadingManager],
    capacity: int,
    workload: Workload,
    kind: HintKind,
    *,
    futures: Sequence[RequestFuture] | None = None,
    hints_for: HintsFor = common_hints,
    seed: int = 0,
    hostile: HostileValues = lambda: (),
) -> HintRun:
    """Run a workload under one kind of hints. What the policy raises is part of the answer."""
    known = futures_of(workload) if futures is None else futures

    def tried(values: Sequence[int] | None, requests: int | None = None) -> Outcome | Raised:
        giver = HintGiver(
            known, kind, hints_for=hints_for, seed=seed, hostile=hostile, values=values
        )
        value = None
        if values is not None and len(values) == 1:
            malformed = giver.value(values[0])
            value = "left out" if malformed is LEFT_OUT else _shown(malformed)
        # What building the manager raises is no matter of hints, and passes through.
        manager = beforehand(lambda: make_manager(capacity))
        head = _head(workload, requests)
        found = attempt(lambda hints: Engine(manager, head, hints=hints).run(), giver)
        if isinstance(found, Outcome):
            return found
        return Raised.by(found, value)

    found = tried(None)
    if isinstance(found, Outcome):
        return HintRun(kind, found)
    if kind is not HintKind.MALFORMED:
        return HintRun(kind, None, (found,))
    # Which values it was: each alone, as far as it took with all of them.
    far = max(PROBED_REQUESTS, found.request + 1)
    numbers = range(len(hostile()) + 1)
    alone = {number: tried([number], far) for number in numbers}
    raised = [one for one in alone.values() if isinstance(one, Raised)]
    borne = [number for number, one in alone.items() if isinstance(one, Outcome)]
    if not raised or not borne:
        return HintRun(kind, None, tuple(raised) or (found,))
    again = tried(borne)
    if isinstance(again, Raised):
        return HintRun(kind, None, (*raised, again))
    return HintRun(kind, again, tuple(raised))


def _head(workload: Workload, requests: int | None) -> Workload:
    if requests is None:
        return workload
    return Workload(workload.requests[:requests], workload.gpu_hits[:requests], workload.has_tokens)


def _in_short(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = ""
    return _in_short(" ".join(text.split()), 30)


@frozen(kw_only=True)
class HintFigures:
    """One kind of hints: shares of all tokens that arrive (blocks, where a trace has no tokens).

    `value`: what the CPU tier serves; `over_none`: the difference to no hints, above 0 where hints
    help. None where the policy did not come to the end of one of the runs.
    """

    kind: HintKind
    value: Interval | None
    over_none: Interval | None
    raised: tuple[Raised, ...]


@frozen(kw_only=True)
class HintReport:
    """What hints do to a policy, after the warm-up.

    `reads_hints`: whether true hints change what any request hits; None if that is not known.
    `base`: the policy that it should equal without hints, `over_base` the difference of values
    then, and `unlike_base` how many requests hit something else. `costs_at_most` is the most that
    wrong or malformed hints take from what it is worth without any, at the upper end of their
    intervals, never below 0; None if a run did not come to its end.
    """

    kinds: tuple[HintFigures, ...]
    reads_hints: bool | None
    base: str
    over_base: Interval | None
    unlike_base: int | None
    costs_at_most: float | None

    @property
    def equals_base(self) -> bool | None:
        """Whether without hints it serves every request what its base does."""
        return None if self.unlike_base is None else not self.unlike_base


def report_of(
    runs: Sequence[HintRun], demand: Demand, base: str, base_outcome: Outcome, after: int = 0
) -> HintReport:
    """What runs under several kinds of hints say, beside a run of the base policy.

    `after`: the requests of the warm-up. Raises InvalidValueError if a kind is there twice.
    """
    outcomes = {run.kind: run.outcome for run in runs}
    if len(outcomes) < len(runs):
        raise InvalidValueError("runs", [run.kind.value for run in runs], "one a kind")
    none, true = outcomes.get(HintKind.NONE), outcomes.get(HintKind.TRUE)
    kinds = tuple(
        HintFigures(
            kind=run.kind,
            value=_difference(run.outcome, None, demand, after),
            over_none=None if none is None else _difference(run.outcome, none, demand, after),
            raised=run.raised,
        )
        for run in runs
    )
    spoilt = (HintKind.FIFTH_WRONG, HintKind.ALL_WRONG, HintKind.MALFORMED)
    costs = [_cost(one.over_none) for one in kinds if one.kind in spoilt]
    known = [cost for cost in costs if cost is not None]
    return HintReport(
        kinds=kinds,
        reads_hints=None if none is None or true is None else bool(_unlike(none, true, after)),
        base=base,
        over_base=None if none is None else _difference(none, base_outcome, demand, after),
        unlike_base=None if none is None else _unlike(none, base_outcome, after),
        costs_at_most=max([0.0, *known]) if known and len(known) == len(costs) else None,
    )


def _cost(over_none: Interval | None) -> float | None:
    if over_none is None:
        return None
    return -(over_none.value if over_none.low is None else over_none.low)


def _unlike(one: Outcome, other: Outcome, after: int) -> int:
    return int((one.block_hits != other.block_hits)[after:].sum())


def _difference(
    one: Outcome | None, other: Outcome | None, demand: Demand, after: int
) -> Interval | None:
    """Of the share of tokens that is served; to nothing without another."""
    if one is None or not len(demand.tokens[after:]):
        return None
    served = one.token_hits if other is None else one.token_hits - other.token_hits

    return share_of(served[after:], demand.tokens[after:])


def ablate(
    make_manager: Callable[[int], OffloadingManager],
    capacity: int,
    workload: Workload,
    *,
    base: str,
    make_base: Callable[[int], OffloadingManager],
    hints_for: HintsFor = common_hints,
    hostile: HostileValues = lambda: (),
    after: int = 0,
    seed: int = 0,
) -> HintReport:
    """Run all kinds of hints one after the other, and the base, and say what they show."""
    futures = futures_of(workload)
    runs = [
        run_kind(
            make_manager,
            capacity,
            workload,
            kind,
            futures=futures,
            hints_for=hints_for,
            seed=seed,
            hostile=hostile,
        )
        for kind in HintKind
    ]
    alone = Engine(make_base(capacity), workload).run()
    return report_of(runs, Demand.of(workload), base, alone, after)
