"""Every small program: all that a host can do with a chunk or two and a few keys, to a depth.

A program that a host would not play to its end is a shorter one, and is not gone on with. Keys are
alike to a manager, so that each program names them in one order only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple, TypeVar

from attrs import frozen
from typing_extensions import override

from kvoffload import OffloadingManager, OffloadKey
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.engines.manager_runs import ManagerRun
from stateful_models.engines.managers import (
    BY_LAWS,
    MANAGER_SITUATIONS,
    ManagerEngine,
    ManagerTrial,
)
from stateful_models.programs import HostOperation, ManagerSettings, Program, keys, keys_of

M = TypeVar("M", bound=OffloadingManager)

_A: Final = keys("a")
_FILLED: Final = (
    op.PrepareStore("r0", _A, 1),
    op.CompleteStore("r0", _A, attempt=1),
)
_TOLD: Final = (*_FILLED, op.TakeEvents(), op.PrepareStore("r0", keys("b"), 4))


class _World(NamedTuple):
    """Where programs begin: a cache, its keys in order of their names, and what was done."""

    capacity: int
    universe: tuple[OffloadKey, ...]
    begin: tuple[HostOperation, ...]


WORLDS: Final = (
    _World(1, keys("a b"), ()),
    _World(1, keys("a b"), _FILLED),
    _World(2, keys("a b c"), _FILLED),
    _World(2, keys("a b c"), _TOLD),
)
"""From an empty cache, from a full one, from one with room, and from one that was drained since and
is being filled."""


@frozen
class _Node:
    operations: tuple[HostOperation, ...]
    named: int
    """How many keys of the universe were named; the next new one is the one behind."""


class SmallManagerPrograms(ManagerEngine):
    """Tries every small program, the shorter ones first.

    They go on from each of the `WORLDS` by up to `level.depth` - 2 operations, at least 2, on a
    manager with events and with its first policy.
    """

    name: ClassVar[str] = "exhaustive"
    judges_all: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    clauses: ClassVar[tuple[str, ...]] = tuple(
        clause for clause in MANAGER_SITUATIONS if clause not in BY_LAWS
    )

    @override
    def run(self, trial: ManagerTrial[M]) -> None:
        policies = trial.driver.policies
        settings = ManagerSettings(
            policy=policies[0] if policies else None,
            enable_events=trial.capabilities.events,
            tapped=trial.capabilities.tap,
            mistakes=trial.mistakes,
        )
        depth = max(2, trial.level.depth - 2)
        until = trial.now() + trial.level.patience_s
        layers = [(world, [_Node(world.begin, len(_named(world.begin)))]) for world in WORLDS]
        tried = 0
        for reached in range(1, depth + 1):
            for number, (world, nodes) in enumerate(layers):
                further: list[_Node] = []
                for node in nodes:
                    for after in _after(node, world, mistakes=trial.mistakes):
                        if trial.is_over(until):
                            played = counted(tried, "program")
                            trial.note(f"{self.name}: depth {reached} was begun, {played}")
                            trial.cut(self, reached - 1, depth, "depths")
                            trial.has_tried(self.clauses)
                            return
                        trial.on_progress(self.name, (reached - 1) / depth)
                        tried += 1
                        run = trial.run(Program(world.capacity, after.operations, False, settings))
                        trial.judged(run, self.name)
                        if _goes_on(run, after):
                            further.append(after)
                layers[number] = (world, further)
        trial.note(f"{self.name}: closed at depth {depth}, {counted(tried, 'program')}")
        trial.has_tried(self.clauses)


def _goes_on(run: ManagerRun[M], node: _Node) -> bool:
    """Whether the whole program was played, its last operation in a form of its own."""
    if run.violations or len(run.played) < len(node.operations):
        return False
    # What the host did in the end is among the steps of the last operation.
    steps = run.played[-1].steps
    last = node.operations[-1]
    return bool(steps) and (
        type(steps[0].operation) is type(last) and keys_of(steps[0].operation) == keys_of(last)
    )


def _after(node: _Node, world: _World, *, mistakes: bool) -> Iterator[_Node]:
    """The programs that are longer by one operation."""
    # One more key than was named may be named, and keys come in order.
    known = world.universe[: node.named + 1]
    for operation in _moves(node, known, mistakes=mistakes):
        operations = (*node.operations, operation)
        yield _Node(operations, len(_named((operation,)).union(known[: node.named])))


def _moves(
    node: _Node, known: tuple[OffloadKey, ...], *, mistakes: bool
) -> Iterator[HostOperation]:
    number = len(node.operations) + 1
    some: list[tuple[OffloadKey, ...]] = [(key,) for key in known]
    if len(known) > 1:
        some.append(known)
    for named in some:
        yield op.PrepareStore("r1", named, number)
        yield op.PrepareLoad("r0", named, number)
    open_ = dict.fromkeys(
        (one.attempt, one) for one in node.operations if isinstance(one, _PREPARES)
    )
    over = {one.attempt for one in node.operations if isinstance(one, _COMPLETES)}
    for attempt, one in open_:
        if attempt in over and not mistakes:
            continue
        if isinstance(one, op.PrepareLoad):
            yield op.CompleteLoad(one.request, one.keys, attempt)
        else:
            yield op.CompleteStore(one.request, one.keys, True, attempt)
            yield op.CompleteStore(one.request, one.keys, False, attempt)
    if number > 1:
        yield op.FinishRequest("r1")
        yield op.Reset()
    if node.operations and not isinstance(node.operations[-1], op.TakeEvents):
        yield op.TakeEvents()


_PREPARES = (op.PrepareLoad, op.PrepareStore)
_COMPLETES = (op.CompleteLoad, op.CompleteStore)


def _named(operations: tuple[HostOperation, ...]) -> set[OffloadKey]:
    return {key for one in operations for key in keys_of(one)}
