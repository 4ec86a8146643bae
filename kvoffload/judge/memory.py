"""What a policy holds in memory: for what is resident, what is gone, who goes on and who is done.

`kvoffload.judge.held` says what counts as held. The calls are those of a manager, and the same in
every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

from kvoffload.errors import InvalidValueError
from kvoffload.judge.blame import spare_the_policy
from kvoffload.judge.cost import REQUEST_KEYS, MakePolicy
from kvoffload.judge.held import KEYS_OF_A_SESSION, Churn, Full, Ghosts, Live, Passing, Watched
from kvoffload.judge.hints import HintsFor, common_hints
from kvoffload.judge.own_process import Failed, run_in_own_process

SIZES: Final = (10_000, 100_000)
BUDGET_S: Final = 30.0
SESSIONS: Final = 1_000
CAPACITIES: Final = 8
"""The churn of keys is so many times the capacity."""


@frozen
class MemoryReport:
    """What a policy holds. `problem`: how the policy failed. What is None was not measured.

    `full` by size ascending; all else at the smallest. `left_out` says what there was no time for,
    within `budget_s` seconds.
    """

    sizes: tuple[int, ...]
    budget_s: float
    full: tuple[Full, ...] = ()
    keys: Churn | None = None
    ghosts: Ghosts | None = None
    live: Live | None = None
    sessions: Churn | None = None
    left_out: tuple[str, ...] = ()
    problem: str = ""


@frozen
class _Plan:
    """What is measured, in words that another process is told."""

    make_policy: MakePolicy
    sizes: tuple[int, ...]
    budget_s: float
    request_keys: int
    sessions: int
    hints_for: HintsFor


_Answer = Full | Churn | Ghosts | Live | Failed


def measure_memory(
    make_policy: MakePolicy,
    sizes: Sequence[int] = SIZES,
    budget_s: float = BUDGET_S,
    *,
    request_keys: int = REQUEST_KEYS,
    sessions: int = SESSIONS,
    hints_for: HintsFor = common_hints,
    own_process: bool = True,
) -> MemoryReport:
    """Measure the bytes of a resident chunk, a ghost, a live request and a dead session.

    Requests of `request_keys` keys fill the cache and churn it; then `sessions` sessions of two
    turns begin and end. They carry what `hints_for` says. In a process of its own, which is started
    anew and is ended when `budget_s` seconds have passed, whatever the policy is doing; otherwise
    here, where a call that takes too long is waited for. A policy that fails is no error here:
    `problem` tells of it.

    Raises InvalidValueError for no size, one that is less than twice a request or a session, and
    for what is not picklable; HostFailedError where what calls the policy fails.
    """
    ordered = tuple(sorted(set(sizes)))
    least = 2 * max(request_keys, KEYS_OF_A_SESSION)
    if not ordered or ordered[0] < least:
        raise InvalidValueError("sizes", tuple(sizes), f"one or more, each at least {least}")
    plan = _Plan(make_policy, ordered, budget_s, request_keys, sessions, hints_for)
    answers = run_in_own_process(_measured, plan, budget_s) if own_process else _measured(plan)
    full: list[Full] = []
    churns: dict[Passing, Churn] = {}
    ghosts: Ghosts | None = None
    live: Live | None = None
    problem = ""
    for answer in answers:
        if isinstance(answer, Full):
            full.append(answer)
        elif isinstance(answer, Churn):
            churns[answer.of] = answer
        elif isinstance(answer, Ghosts):
            ghosts = answer
        elif isinstance(answer, Live):
            live = answer
        else:
            problem = answer.why
    had = (churns.get("key"), ghosts, live, churns.get("session"))
    names = ("churn of keys", "a ghost", "a live request", "a dead session")
    missing = [name for name, one in zip(names, had, strict=True) if one is None]
    told = {one.size for one in full}
    missing += [f"a resident chunk of {size:,}" for size in ordered if size not in told]
    return MemoryReport(
        ordered,
        budget_s,
        tuple(full),
        churns.get("key"),
        ghosts,
        live,
        churns.get("session"),
        tuple(missing),
        problem,
    )


def _measured(plan: _Plan) -> Iterator[_Answer]:
    """Each figure as soon as it is known; if the policy fails, how, and then nothing more."""
    for number, size in enumerate(plan.sizes):
        doing = "it was filled"
        try:
            policy = plan.make_policy(size)
            watched = Watched(policy, size, plan.request_keys, plan.hints_for)
            yield watched.fill()
            if number:
                continue
            doing = "keys passed through"
            keys = watched.churn("key", CAPACITIES * size, watched.request)
            yield keys
            yield watched.ghosts(keys)
            doing = "sessions passed through"
            # What came of longer requests goes first.
            for _ in range(0, 2 * size, KEYS_OF_A_SESSION):
                watched.session()
            yield watched.churn("session", plan.sessions, watched.session)
            doing = "many requests went on"
            yield watched.live()
        except Exception as error:
            spare_the_policy(error)
            raised = f"{type(error).__name__}: {error}"
            yield Failed(f"with {size:,} chunks, when {doing}, it raised {raised}")
            return
