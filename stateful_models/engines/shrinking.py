"""Making a failing program short: fewer operations, fewer keys, plainer arguments.

Any part of a program is a program, so operations are simply left out, large pieces first, as in
A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, combinations
from typing import Final

from attrs import evolve

from kvoffload import OffloadKey
from stateful_models import operations as op
from stateful_models.engines.searching import OutOfBudgetError, Search, StillFails
from stateful_models.engines.tidying import tidied
from stateful_models.programs import (
    HostOperation,
    Program,
    keys_of,
    request_of,
    with_places,
    with_request,
)

SHORT: Final = 12
"""Of a program of so many operations any two are left out at once."""
COMPACTING: Final = 60
"""As many programs more are tried to join what is left of it."""
_ENDS: Final[Mapping[type[op.OfKeys], type[op.OfKeys]]] = {
    op.PrepareLoad: op.CompleteLoad,
    op.PrepareStore: op.CompleteStore,
}


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
            # Where no small step is left, a larger one is the start of the next round.
            if search.best == before and not any(map(search.attempt, _leaps(search.best))):
                break
    except OutOfBudgetError:
        pass
    compact = Search(search.best, still_fails, min(budget, COMPACTING), expired)
    try:
        # Those are few, and most often missed where the budget went into a long program.
        while any(map(compact.attempt, _compacter(compact.best))):
            pass
    except OutOfBudgetError:
        pass
    return tidied(compact.best, still_fails, budget, expired, any_hints=any_hints)


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
    yield from _without_hints(program)
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


def _without_hints(program: Program) -> Iterator[Program]:
    """Without any hints, or without one name of theirs, wherever it stands."""
    hinted = [one.hints or {} for one in program.operations if isinstance(one, op.NewRequest)]
    yield program.with_operations(map(_hintless, program.operations))
    for name in dict.fromkeys(name for hints in hinted for name in hints):
        yield program.with_operations(_hintless(one, name) for one in program.operations)


def _hintless(operation: HostOperation, name: str | None = None) -> HostOperation:
    """The operation without this hint, or without any."""
    match operation:
        case op.NewRequest(_, hints) if hints is not None and (name is None or name in hints):
            left = {other: hints[other] for other in hints if name not in (None, other)}
            return evolve(operation, hints=left or None)
        case _:
            return operation


def _leaps(program: Program) -> Iterator[Program]:
    """What is shorter by two changes at once, neither of which will do alone."""
    requests = [one for one in map(request_of, program.operations) if one is not None]
    for earlier, later in combinations(dict.fromkeys(requests), 2):
        yield from _merged(program, earlier, later)
    for first, second in combinations(range(len(program)), 2):
        yield from _joined(program, first, second)
    # By its last operation it fails.
    places = range(len(program) - 1)
    if program.capacity > 1:
        for place in places:
            yield evolve(_without_places(program, place), capacity=program.capacity - 1)
    if len(program) <= SHORT:
        for pair in combinations(places, 2):
            yield _without_places(program, *pair)


def _compacter(program: Program) -> Iterator[Program]:
    """What has fewer operations: the keys of two calls in one, or one operation less."""
    for first, second in combinations(range(len(program)), 2):
        yield from _joined(program, first, second)
    for place in range(len(program) - 1):
        yield _without_places(program, place)


def _merged(program: Program, earlier: op.RequestId, later: op.RequestId) -> Iterator[Program]:
    """One request does what two did, with the hints of the later or else of the earlier one.

    It is announced before all that it does, and ends once: what one of them did after that is done
    by a request that nobody announced. What others do between is left there, or else comes after.
    """
    own = [request_of(one) in (earlier, later) for one in program.operations]
    begin = own.index(True)
    ends = [
        place
        for place, one in enumerate(program.operations)
        if own[place] and isinstance(one, op.FinishRequest)
    ]
    last = ends[-1] if ends else len(program) - 1
    announced: list[op.NewRequest] = []
    left: list[HostOperation] = []
    merged: list[HostOperation] = []
    between: list[HostOperation] = []
    for place, one in enumerate(program.operations):
        if not own[place]:
            left.append(one)
            between += [one] * (begin < place)
        elif isinstance(one, op.NewRequest):
            announced.append(evolve(one, request=earlier))
        elif place > last:
            left.append(with_request(one, later))
            between.append(left[-1])
        elif place not in ends[:-1]:
            left.append(with_request(one, earlier))
            merged.append(left[-1])
    for first in [[one] for one in reversed(announced)] or [[]]:
        yield program.with_operations((*left[:begin], *first, *left[begin:]))
        if ends:
            yield program.with_operations((*left[:begin], *first, *merged, *between))


def _joined(program: Program, first: int, second: int) -> Iterator[Program]:
    """One call about the keys of two, if it is the same call, and perhaps one end of both."""
    one, other = program.operations[first], program.operations[second]
    if not (isinstance(one, op.OfKeys) and isinstance(other, op.OfKeys)):
        return
    if type(one) is not type(other):
        return
    joined = _without_places(
        program.replaced(first, evolve(one, keys=tuple(dict.fromkeys((*one.keys, *other.keys))))),
        second,
    )
    yield joined
    end = _ENDS.get(type(one))
    if end is None:
        return
    ends = [
        [
            place
            for place, each in enumerate(joined.operations)
            if isinstance(each, end) and set(each.keys) & set(begun.keys)
        ]
        for begun in (one, other)
    ]
    if ends[0] and ends[1] and ends[0][0] != ends[1][0]:
        yield next(_joined(joined, *sorted((ends[0][0], ends[1][0]))))


def _without_places(program: Program, *places: int) -> Program:
    return program.with_operations(
        one for place, one in enumerate(program.operations) if place not in places
    )


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
        case op.NewRequest(_, hints) if hints is not None:
            yield from (_hintless(operation, name) for name in (None, *hints))
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
