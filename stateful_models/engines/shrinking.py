"""Making a failing program short: fewer operations, fewer keys, plainer arguments.

Any part of a program is a program, so operations are simply left out, large pieces first, as in
A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from attrs import evolve

from kvoffload import OffloadKey, get_offload_group_idx, make_offload_key
from kvoffload.keys import MIN_KEY_BYTES
from stateful_models import operations as op
from stateful_models.programs import HostOperation, Program, keys_of, with_places

StillFails = Callable[[Program], Program | None]
"""The program itself, perhaps cut where it fails, if it fails as before; else None."""


class _OutOfBudgetError(Exception):
    """As many programs were tried as may be."""


def shrink(
    program: Program,
    still_fails: StillFails,
    budget: int,
    expired: Callable[[], bool] = lambda: False,
    *,
    plainer: Callable[[Program], Iterable[Program]] = lambda program: (),
) -> Program:
    """The shortest program found that still fails, after at most `budget` tries.

    `plainer` gives what is plainer about a program beside its operations.
    """
    tries = 0
    best = program

    def attempt(candidate: Program) -> bool:
        nonlocal tries, best
        if candidate == best:
            return False
        if tries >= budget or expired():
            raise _OutOfBudgetError
        tries += 1
        failing = still_fails(candidate)
        if failing is None:
            return False
        best = failing
        return True

    try:
        while True:
            before = best
            _leave_out(lambda: best, attempt)
            # One that is plainer is the start of the next round.
            while any(map(attempt, chain(plainer(best), _plainer(best)))):
                pass
            _fewer_keys(lambda: best, attempt)
            if best == before:
                break
    except _OutOfBudgetError:
        pass
    # Names are given whatever the budget: they are few, and every reader is glad of them.
    for named in (Program.with_own_completions, Program.with_plain_requests, _renamed):
        candidate = named(best)
        if candidate != best:
            best = still_fails(candidate) or best
    return best


def _leave_out(current: Callable[[], Program], attempt: Callable[[Program], bool]) -> None:
    size = max(1, len(current()) // 2)
    while size:
        # From the end: what comes later depends on what comes earlier.
        start = len(current()) - size
        while start > -size:
            operations = current().operations
            low = max(0, start)
            attempt(current().with_operations(operations[:low] + operations[start + size :]))
            start = min(start, len(current())) - size
        size //= 2


def _plainer(program: Program) -> Iterator[Program]:
    own = program.with_own_completions()
    if own != program:
        yield own
        for place, operation in enumerate(own.operations):
            if operation != program.operations[place]:
                yield _replaced(program, place, operation)
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
            yield _replaced(program, place, simpler)


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


def _fewer_keys(current: Callable[[], Program], attempt: Callable[[Program], bool]) -> None:
    place = 0
    while place < len(current()):
        for index in reversed(range(_num_spare(current().operations[place]))):
            # What still fails is perhaps cut before this place.
            if place >= len(current()):
                break
            operation = current().operations[place]
            others = [other for other in range(len(keys_of(operation))) if other != index]
            attempt(_replaced(current(), place, with_places(operation, others)))
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


def _replaced(program: Program, place: int, operation: HostOperation) -> Program:
    before, after = program.operations[:place], program.operations[place + 1 :]
    return program.with_operations((*before, operation, *after))


def _renamed(program: Program) -> Program:
    """Keys a, b, c and attempts 1, 2, 3 in the order in which they come; groups stay."""
    names: dict[OffloadKey, OffloadKey] = {}
    valid = [key for key in program.universe if len(key) >= MIN_KEY_BYTES]
    for number, key in enumerate(valid):
        name = chr(ord("a") + number) if number < 26 else f"z{number}"
        names[key] = make_offload_key(name.encode(), get_offload_group_idx(key))
    return program.renamed(names).renumbered()
