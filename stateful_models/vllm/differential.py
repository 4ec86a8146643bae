"""Our manager and vLLM's on the same random programs, until they differ.

A program is a list of typed operations, so that what differs is shown as one, made short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from attrs import define, evolve, field, frozen

from kvoffload import LookupResult, get_offload_group_idx
from kvoffload.vllm.control_plane import ControlPlane
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.engines.shrinking import shrink
from stateful_models.manager_hosting import ManagerHost
from stateful_models.programs import HostOperation, ManagerSettings, Program
from stateful_models.steps import Delivered, Loaded, Step, Stored
from stateful_models.vllm.deviations import DEVIATIONS
from stateful_models.vllm.pair import Deviation, Difference, Pair
from stateful_models.vllm.traffic import Habits, Traffic, draw_settings

TRIES: Final = 2_000
"""How many programs are tried at most to make one short."""
MOST_DIFFERENCES: Final = 3
"""After so many a shard gives up: what comes then is most likely the same."""
EVERY: Final = 16
"""After how many steps what is inside the two is compared."""


@frozen
class Played:
    """What came of a program on both: how they differ if they do, and what was explained."""

    program: Program
    difference: Difference | None
    explained: Counter[str]

    def __str__(self) -> str:
        settings, capacity = self.program.settings, self.program.capacity
        lines = [f"{counted(capacity, 'chunk')}, {settings}"]
        shown = list(self.program.operations)
        if self.difference is not None and shown[-1:] == [self.difference.operation]:
            shown.pop()
        lines += (f"{n:4}  {one}" for n, one in enumerate(shown, 1))
        return "\n".join((*lines, str(self.difference or "no difference")))


def play(
    control_plane: ControlPlane,
    program: Program,
    deviations: Sequence[Deviation] = DEVIATIONS,
    *,
    inside: bool = False,
) -> Played:
    """Play a program on both, up to where they differ or a deviation parts them.

    Completions of attempts that the program does not make are left out. `inside`: after each step
    what is inside the two is compared as well.
    """
    pair = Pair(control_plane, program.capacity, program.settings or ManagerSettings(), deviations)
    made: set[op.Attempt | None] = {None, op.NEVER_MADE}
    for number, operation in enumerate(program.operations, 1):
        if isinstance(operation, (op.PrepareLoad, op.PrepareStore)):
            made.add(operation.attempt)
        elif isinstance(operation, (op.CompleteLoad, op.CompleteStore)):
            if operation.attempt not in made:
                continue
        _, difference = pair.play(operation)
        if inside and difference is None and not pair.over:
            difference = pair.compare_inside()
        if difference is not None:
            return Played(program.cut(number), difference, pair.explained)
        if pair.over:
            break
    return Played(program, None, pair.explained)


def shortened(
    control_plane: ControlPlane,
    played: Played,
    deviations: Sequence[Deviation] = DEVIATIONS,
    tries: int = TRIES,
) -> Played:
    """The shortest program found, in so many tries, that shows a difference at the same call."""
    if played.difference is None:
        return played
    operation = played.difference.operation
    inside = not isinstance(operation, op.ManagerOperation)

    def still_fails(candidate: Program) -> Program | None:
        again = play(control_plane, candidate, deviations, inside=inside)
        if again.difference is None or again.difference.operation.verb != operation.verb:
            return None
        return again.program

    shortest = shrink(played.program, still_fails, tries, plainer=_plainer)
    return play(control_plane, shortest, deviations, inside=inside)


def _plainer(program: Program) -> Iterator[Program]:
    settings = program.settings or ManagerSettings()
    if settings.enable_events:
        yield evolve(program, settings=evolve(settings, enable_events=False))
    if settings.max_tracker_size is not None:
        yield evolve(program, settings=evolve(settings, max_tracker_size=None))
    if settings.store_threshold != 1:
        yield evolve(program, settings=evolve(settings, store_threshold=1))


@frozen
class Shard:
    """A share of the work: programs of one policy, until so many operations are played.

    `tapped`: both managers have the same policy of ours, which listens to what they tell it; with a
    `policy` of None that is one without hooks.
    """

    policy: str | None
    operations: int
    seed: int = 0
    number: int = 0
    tapped: bool = False


@define
class Tally:
    """What was played, what of the differences is explained, and what is not."""

    operations: int = 0
    programs: int = 0
    met: Counter[str] = field(factory=Counter[str])
    """How often what was to come about did."""
    explained: Counter[str] = field(factory=Counter[str])
    differences: list[str] = field(factory=list[str])

    def add(self, other: Tally) -> None:
        """Take in what another process played."""
        self.operations += other.operations
        self.programs += other.programs
        self.met += other.met
        self.explained += other.explained
        self.differences += other.differences

    @property
    def missed(self) -> list[str]:
        """What was to come about and never did."""
        return [what for what in TO_MEET if not self.met[what]]


def run_shard(
    control_plane: ControlPlane,
    shard: Shard,
    deviations: Sequence[Deviation] = DEVIATIONS,
    *,
    tries: int = TRIES,
) -> Tally:
    """Play random programs; equal shards play equal ones.

    `tries`: what it may take to make a program short that shows a difference.
    """
    tally = Tally()
    while tally.operations < shard.operations and len(tally.differences) < MOST_DIFFERENCES:
        tally.programs += 1
        # A text as seed is hashed the same way everywhere.
        name = f"{shard.seed} {shard.policy} {shard.tapped} {shard.number} {tally.programs}"
        played = _play_one(control_plane, Random(name), shard, deviations, tally)
        tally.explained += played.explained
        if played.difference is not None:
            tally.differences.append(str(shortened(control_plane, played, deviations, tries)))
    return tally


def _play_one(
    control_plane: ControlPlane,
    chance: Random,
    shard: Shard,
    deviations: Sequence[Deviation],
    tally: Tally,
) -> Played:
    settings = draw_settings(chance, shard.policy, tapped=shard.tapped)
    habits = Habits.draw(chance, settings)
    pair = Pair(control_plane, habits.capacity, settings, deviations)
    operations: list[HostOperation] = []
    found: list[Difference] = []

    def perform(operation: op.Operation) -> Step:
        if not isinstance(operation, (op.ManagerOperation, op.HostEvent)):
            raise TypeError(f"{operation} is nothing that this host does")
        operations.append(operation)
        step, difference = pair.play(operation)
        if difference is None and not pair.over and pair.steps % EVERY == 0:
            difference = pair.compare_inside()
        if difference is not None:
            found.append(difference)
        tally.met.update(_met(step))
        if isinstance(step.operation, (op.CompleteStore, op.CompleteLoad)):
            tally.met["completions after a finish"] += host.finished(step.operation.request)
        return step

    host = ManagerHost(perform, pair.account, mistakes=True)
    traffic = Traffic(chance, host, habits, settings, lambda: not pair.over)
    traffic.play()
    if not pair.over:
        traffic.drain()
    if not pair.over and (difference := pair.compare_inside()) is not None:
        found.append(difference)
    tally.operations += len(operations)
    program = Program(habits.capacity, operations, settings=settings)
    return Played(program, found[0] if found else None, pair.explained)


TO_MEET: Final = (
    "stores that evict",
    "offers refused",
    "offers of nothing new",
    "stores completed",
    "stores failed",
    "loads",
    "loads released",
    "completions after a finish",
    "offers of several groups",
    "positions told",
    "touches",
    "requests finished",
    "resets",
    "hits",
    "look-ups of what is pending",
    "events delivered",
    "figures compared",
    "errors raised",
)
"""What random programs have to come upon, or they have shown nothing."""


def _met(step: Step) -> Iterator[str]:
    operation, result = step.operation, step.result
    if step.error is not None:
        yield "errors raised"
        return
    match operation:
        case op.SetPositions():
            yield "positions told"
        case op.PrepareStore():
            if len(set(map(get_offload_group_idx, operation.keys))) > 1:
                yield "offers of several groups"
            if not isinstance(result, Stored):
                yield "offers refused"
            elif result.evicted:
                yield "stores that evict"
            elif not result.keys:
                yield "offers of nothing new"
        case op.CompleteStore(success=success):
            yield "stores completed" if success else "stores failed"
        case op.PrepareLoad() if isinstance(result, Loaded) and result.slots:
            yield "loads"
        case op.CompleteLoad():
            yield "loads released"
        case op.Touch():
            yield "touches"
        case op.FinishRequest():
            yield "requests finished"
        case op.Reset():
            yield "resets"
        case op.Lookup() if result is LookupResult.HIT:
            yield "hits"
        case op.Lookup() if result is LookupResult.HIT_PENDING:
            yield "look-ups of what is pending"
        case op.TakeEvents() if isinstance(result, Delivered) and result.events:
            yield "events delivered"
        case op.GetStats():
            yield "figures compared"
        case _:
            pass
