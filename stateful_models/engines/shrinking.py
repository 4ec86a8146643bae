"""Making a failing program short: fewer operations, fewer keys, plainer arguments.

Any part of a program is a program, so operations are simply left out, large pieces first, as in
A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from attrs import evolve

from kvoffload import OffloadKey
from stateful_models import operations as op
from stateful_models.engines.searching import OutOfBudgetError, Search, StillFails
from stateful_models.engines.tidying import tidied
from stateful_models.programs import HostOperation, Program, keys_of, with_places


def shrink(
    program: Program,
    still_fails: StillFails,
    budget: int,
    expired: Callable[[], bool] = lambda: False,
    *,
    plainer: Callable[[Program], Iterable[Program]] = lambda program: (),
    any_hints: bool = False,
) -> Program:
    """The shortest program found that still fails, after at most `budget` tries, tidied up then.

    `plainer` gives what is plainer about a program beside its operations. `any_hints`: the failure
    counts with whatever hints a client sends, so that plainer ones will do.
    """
    search = Search(program, still_fails, budget, expired)
    try:
        while True:
            before = search.best
            _leave_out(search)
            # One that is plainer is the start of the next round.
            while any(map(search.attempt, chain(plainer(search.best), _plainer(search.best)))):
                pass
            _fewer_keys(search)
            if search.best == before:
                break
    except OutOfBudgetError:
        pass
    return tidied(search.best, still_fails, budget, expired, any_hints=any_hints)


def _leave_out(search: Search) -> None:
    size = max(1, len(search.best) // 2)
    while size:
        # From the end: what comes later depends on what comes earlier.
        start = len(search.best) - size
        while start > -size:
            operations = search.best.operations
            low = max(0, start)
            left = operations[:low] + operations[start + size :]
            search.attempt(search.best.with_operations(left))
            start = min(start, len(search.best)) - size
        size //= 2


def _plainer(program: Program) -> Iterator[Program]:
    own = program.with_own_completions()
    if own != program:
        yield own
        for place, operation in enumerate(own.operations):
            if operation != program.operations[place]:
                yield program.replaced(place, operation)
    if program.watchful:
        yield evolve(program, watchful=False)
    for capacity in range(1, program.capacity):
        yield evolve(program, capacity=capacity)
    # What only fills the cache goes together with the room that it takes.
    for key in program.universe:
        without = _without(program, key)
        yield without
        if program.capacity > 1:
            yield evolve(without, capacity=program.capacity - 1)
    for place, operation in enumerate(program.operations):
        for simpler in _simpler(operation):
            yield program.replaced(place, simpler)


def _without(program: Program, key: OffloadKey) -> Program:
    """The program without a key, and without the operations that then name none."""
    operations: list[HostOperation] = []
    for operation in program.operations:
        named = keys_of(operation)
        others = [place for place, other in enumerate(named) if other != key]
        if others:
            operations.append(with_places(operation, others))
        elif not named:
            operations.append(operation)
    return program.with_operations(operations)


def _simpler(operation: HostOperation) -> Iterator[HostOperation]:
    match operation:
        case op.NewRequest(_, hints) if hints:
            yield evolve(operation, hints=None)
            for name in hints:
                yield evolve(operation, hints={key: hints[key] for key in hints if key != name})
        case op.CompleteStore(success=False):
            yield evolve(operation, success=True)
        case op.AdvanceClock(seconds) if seconds != round(seconds, 0):
            yield evolve(operation, seconds=float(round(seconds) + 1))
        case _:
            pass


def _fewer_keys(search: Search) -> None:
    place = 0
    while place < len(search.best):
        for index in reversed(range(_num_spare(search.best.operations[place]))):
            # What still fails is perhaps cut before this place.
            if place >= len(search.best):
                break
            operation = search.best.operations[place]
            others = [other for other in range(len(keys_of(operation))) if other != index]
            search.attempt(search.best.replaced(place, with_places(operation, others)))
        place += 1


def _num_spare(operation: HostOperation) -> int:
    """How many of its keys an operation can be tried without, one by one."""
    match operation:
        case op.SetPositions(_, positions):
            return len(positions)
        case op.OfKeys(_, named):
            return len(named) if len(named) > 1 else 0
        case _:
            return 0
