"""Every program over a tiny universe, the short ones first.

The steps are what a host could do next: store keys, begin a store and complete it later or let
it fail, load, release, touch, finish, reset, let time pass. Steps that come to no call, and those
that differ from others in the name of a key only, are left out.

A policy cannot be copied, so each program is played from its start. Where the driver knows a
canonical state, what leads to a state seen before is not continued, and the enumeration may come
to its end: then every program of any length over the universe has been judged, as far as that
state is all there is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Generic, TypeAlias, TypeVar

from attrs import define, frozen
from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.engines.base import Engine, PolicyTrial
from stateful_models.engines.runs import PolicyRun
from stateful_models.engines.samples import example_events, example_hints
from stateful_models.hosting import PolicyHost
from stateful_models.programs import HostOperation, keys, keys_of

P = TypeVar("P", bound=CachePolicy)

Move: TypeAlias = tuple[HostOperation, ...]
"""One step of an enumeration: operations that are played together."""

REQUESTS: Final = ("r", "s")
EXTRA_EVENTS: Final = 2
LAST: Final = keys("x new0 new1")
"""The keys that are offered at the end of every program."""
MOST_PINS: Final = 2
MOST: Final = 5
"""For each random program of a level so many are played here, at most: in all worlds together, but
as many as there are random ones in each."""

SITUATIONS: Final[Mapping[str, str]] = {
    "POL-1": "eviction",
    "POL-2": "eviction",
    "POL-3": "eviction",
    "POL-6": "reset",
    "POL-7": "pin",
    "TOUCH-1": "touch",
}
"""What must come about for a clause to be tried here."""


@frozen
class World:
    """A universe: its capacity and its keys, which differ in little but their names.

    Keys are first used in their order. `positions` are known to every request. Programs are
    `shallower` by so many steps than the level asks for.
    """

    name: str
    capacity: int
    keys: tuple[OffloadKey, ...]
    positions: tuple[tuple[OffloadKey, int], ...] = ()
    shallower: int = 0

    def usable(self, named: frozenset[OffloadKey], more: int = 1) -> list[OffloadKey]:
        """Keys named already, and so many more."""
        reached = len(named.intersection(self.keys)) + more
        return [key for place, key in enumerate(self.keys) if key in named or place < reached]


WORLDS: Final = (
    World("2 keys in 1 chunk", 1, keys("a b")),
    World("3 keys in 2 chunks", 2, keys("a b c")),
    World(
        "a prefix in 2 groups and 2 chunks",
        2,
        keys("a a/1 b"),
        tuple(zip(keys("a a/1 b"), (16, 16, 32), strict=True)),
        shallower=1,
    ),
)


@define
class _Walk(Generic[P]):
    """What is enumerated of one world, and with what."""

    trial: PolicyTrial[P]
    world: World
    preamble: Move
    extra: Sequence[Move]
    engine: str
    runs: int = 0

    def begin(self) -> PolicyRun[P]:
        """A new policy to which the requests were announced."""
        trial, capacity = self.trial, self.world.capacity
        run = PolicyRun(
            trial.driver,
            capacity,
            trial.make_invariants(capacity),
            surroundings=trial.surroundings,
            reach=trial.reach,
        )
        self.play(run, self.preamble)
        return run

    def play(self, run: PolicyRun[P], move: Move) -> bool:
        """Whether the policy was called, and the run goes on."""
        called = False
        for operation in move:
            goes_on = run.play(operation, keys_of(operation))
            called = called or bool(run.played[-1].steps)
            if not goes_on:
                return False
        return called

    def end(self, run: PolicyRun[P]) -> None:
        """Ask for room beside what is in flight, end that, ask in vain, evict all, and report."""
        host, last = run.host, LAST[: 1 + self.world.capacity]
        if host.idle and (host.pending or host.pinned):
            run.play(op.PrepareStore("end", last[:1]), last)
        if host.pending:
            run.play(op.CompleteStore("end", tuple(host.pending)))
        if host.pinned:
            run.play(op.CompleteLoad("end", tuple(host.pinned)))
        if self.world.capacity == len(host.ready) > 1:
            # All but the first could go, and that does not suffice.
            run.play(op.PrepareStore("end", (host.ready[0], *last[1:])), last)
        run.play(op.PrepareStore("last", last[1:]), last)
        run.end()
        self.runs += 1
        self.trial.count()
        self.trial.judged(run, self.engine)

    def moves(self, run: PolicyRun[P]) -> list[Move]:
        """What could come next."""
        played = run.operations[len(self.preamble) :]
        named = frozenset(key for operation in played for key in keys_of(operation))
        world, last = self.world, played[-1] if played else None
        candidates = _moves(run.host, world.usable(named), world.usable(named, 2), named)
        return [*(move for move in candidates if not _adds_nothing(last, move)), *self.extra]

    def programs(self, depth: int) -> Iterator[None]:
        """Play every program of `depth` steps, or fewer where nothing can come next."""
        path: list[tuple[list[Move], int]] = []
        while True:
            run = self.begin()
            level = 0
            complete = True
            while level < depth:
                if level == len(path):
                    moves = self.moves(run)
                    if not moves:
                        break
                    path.append((moves, 0))
                options, chosen = path[level]
                level += 1
                if not self.play(run, options[chosen]):
                    # What breaks the contract has no continuation; what calls nobody needs none.
                    complete = run.over
                    break
            del path[level:]
            if complete:
                self.end(run)
                yield
            while path and path[-1][1] + 1 == len(path[-1][0]):
                path.pop()
            if not path:
                return
            options, chosen = path[-1]
            path[-1] = (options, chosen + 1)

    def states(self) -> Iterator[int]:
        """Play the steps out of every state once; the number of states, again and again.

        By the length of the programs that lead there, shortest first.
        """
        first = self.begin()
        seen: set[Hashable] = {self._state(first)}
        paths: list[tuple[Move, ...]] = [()]
        for path in paths:
            run = self._replay(path)
            for move in self.moves(run):
                run = self._replay(path)
                if not self.play(run, move):
                    if run.over:
                        self.end(run)
                    continue
                state = self._state(run)
                if state not in seen:
                    seen.add(state)
                    paths.append((*path, move))
                self.end(run)
                yield len(seen)

    def _replay(self, path: tuple[Move, ...]) -> PolicyRun[P]:
        run = self.begin()
        for move in path:
            self.play(run, move)
        return run

    def _state(self, run: PolicyRun[P]) -> Hashable:
        played = run.operations[len(self.preamble) :]
        named = frozenset(key for operation in played for key in keys_of(operation))
        canonical = self.trial.driver.canonical_state(run.policy)
        return canonical, run.host.snapshot(), named


def _moves(
    host: PolicyHost,
    usable: Sequence[OffloadKey],
    pairs: Sequence[OffloadKey],
    named: frozenset[OffloadKey],
) -> Iterator[Move]:
    running = [request for request in REQUESTS if not host.finished(request)]
    resident, pending, ready = host.ref_cnt, host.pending, host.ready
    new = [key for key in usable if key not in resident]
    for request in running[:1]:
        more = [key for key in pairs if key not in resident]
        for offer in _offers(new, more, ready, host.capacity):
            yield op.PrepareStore(request, offer), op.CompleteStore(request, offer)
        for key in new:
            yield (op.PrepareStore(request, (key,)),)
        # One that was never heard of is as good as another, at any time.
        for key in sorted(named) or usable:
            yield (op.Touch(request, (key,)),)
        if len(ready) > 1:
            yield (op.Touch(request, tuple(ready)),)
    for key in pending:
        yield (op.CompleteStore(REQUESTS[0], (key,)),)
        yield (op.CompleteStore(REQUESTS[0], (key,), False),)
    for key in ready:
        # By the request that does not store, for then it is reused.
        if resident[key] < MOST_PINS:
            for request in running[-1:]:
                yield (op.PrepareLoad(request, (key,)),)
    for key in dict.fromkeys(host.pinned):
        yield (op.CompleteLoad(REQUESTS[0], (key,)),)
    for request in running:
        if host.knows(request):
            yield (op.FinishRequest(request),)
    if any(map(host.knows, REQUESTS)):
        yield (op.Reset(),)


def _offers(
    new: Sequence[OffloadKey],
    more: Sequence[OffloadKey],
    ready: Sequence[OffloadKey],
    capacity: int,
) -> Iterator[tuple[OffloadKey, ...]]:
    for key in new:
        yield (key,)
    if capacity > 1:
        if len(more) > 1:
            yield tuple(more[:2])
        # An offer that must not lose what it shares with the cache.
        for key in ready:
            for other in new[:1]:
                yield key, other


def _adds_nothing(last: HostOperation | None, move: Move) -> bool:
    """Whether the same comes about in another program: twice the same, or a store in two steps."""
    match last, move[0]:
        case op.PrepareStore(_, begun), op.CompleteStore(_, ended, True):
            return begun == ended
        case op.Touch(), op.Touch():
            return last == move[0]
        case _:
            return False


class Exhaustive(Engine):
    """Plays every program of up to `level.depth` steps in each world, or all states of it.

    `durations` are the spans of time that matter to the policy.
    """

    name: ClassVar[str] = "exhaustive"
    judges_all: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    clauses: ClassVar[tuple[str, ...]] = tuple(SITUATIONS)

    def __init__(self, durations: Sequence[float] = ()) -> None:
        super().__init__()
        self._durations = durations

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        before = {name: trial.reach[name] for name in SITUATIONS.values()}
        end = trial.now() + trial.level.patience_s
        walks = [self._walk(trial, world) for world in WORLDS]
        knows = trial.driver.canonical_state(walks[0].begin().policy) is not None
        left = MOST * trial.level.programs
        # Where states are known, what counts is whether there are more.
        asked = [1 if knows else trial.level.depth - walk.world.shallower for walk in walks]
        in_time = 0
        for number, walk in enumerate(walks):
            share = number / len(walks)
            # An equal part of what is left: what one world does not use goes to the next ones.
            now = trial.now()
            until = now + max(0.0, end - now) / (len(walks) - number)
            play = self._states if knows else self._programs
            in_time += play(walk, asked[number], share, until, max(left, trial.level.programs))
            left -= walk.runs
        if in_time < sum(asked):
            trial.cut(self, in_time, sum(asked), "worlds" if knows else "depths")
        if not trial.gave_up:
            trial.tried |= {
                clause
                for clause, situation in SITUATIONS.items()
                if trial.reach[situation] > before[situation]
            }

    def _walk(self, trial: PolicyTrial[P], world: World) -> _Walk[P]:
        hints = [None, *(example for example in example_hints(trial) if example)]
        preamble: list[HostOperation] = [
            op.NewRequest(request, hints[place % len(hints)])
            for place, request in enumerate(REQUESTS)
        ]
        if world.positions:
            preamble += [op.SetPositions(request, world.positions) for request in REQUESTS]
        extra: list[Move] = [(event,) for event in example_events(trial)[:EXTRA_EVENTS]]
        if self._durations:
            extra.append((op.AdvanceClock(max(self._durations)),))
        return _Walk(trial, world, tuple(preamble), extra, self.name)

    def _programs(
        self, walk: _Walk[P], deepest: int, share: float, until: float, budget: int
    ) -> int:
        """Play programs; how many depths there was time for."""
        trial, name = walk.trial, walk.world.name
        for depth in range(1, deepest + 1):
            for played, _ in enumerate(walk.programs(depth), 1):
                trial.on_progress(self.name, share)
                late = trial.is_over(until)
                if late or walk.runs >= budget:
                    trial.note(
                        f"{self.name}: {name}: {_every(depth - 1)}; of those of "
                        f"{counted(depth, 'step')} only {played:,}, {_cut_for(late)} "
                        f"({deepest} was asked for)"
                    )
                    return depth - 1 if late else deepest
        trial.note(f"{self.name}: {name}: {_every(deepest)}: {walk.runs:,}")
        return deepest

    def _states(self, walk: _Walk[P], worlds: int, share: float, until: float, budget: int) -> int:
        """Play programs to states; how many worlds there was time for, which is one or none."""
        trial, name = walk.trial, walk.world.name
        states = 1
        for states in walk.states():
            trial.on_progress(self.name, share)
            late = trial.is_over(until)
            if late or walk.runs >= budget:
                trial.note(
                    f"{self.name}: {name}: {counted(states, 'state')} by "
                    f"{counted(walk.runs, 'program')}, and then "
                    f"no further, {_cut_for(late)}: there are more"
                )
                return 0 if late else worlds
        trial.note(f"{self.name}: {name}: closed: all {states:,} states, so programs of any length")
        return worlds


def _cut_for(late: bool) -> str:
    return "for lack of time" if late else "as the level plays no more"


def _every(depth: int) -> str:
    """What was played to the end, in words."""
    return f"every program of up to {counted(depth, 'step')}" if depth else "no depth was completed"
