"""Tidying up a short failing program: plain names, one request, no numbers that do not matter."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast

from attrs import evolve

from kvoffload import (
    OffloadKey,
    TierFilter,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from kvoffload.keys import MIN_KEY_BYTES
from stateful_models import operations as op
from stateful_models.engines.searching import OutOfBudgetError, Search, StillFails
from stateful_models.programs import (
    HostOperation,
    Program,
    keys_of,
    request_of,
    with_places,
    with_request,
)

TRIES: Final = 50
"""As many programs are tried at most, beside those that give names."""
NAMINGS: Final = 10
"""Names are given whatever the budget: they are few, and every reader is glad of them."""
BLOCK: Final = 16
"""Tokens of a block, as positions are drawn."""
PLAIN_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1_000.0, 10_000.0)
MOST_PLAIN: Final = 9
"""Up to here a number is as plain as any."""


def tidied(
    program: Program,
    still_fails: StillFails,
    budget: int,
    expired: Callable[[], bool] = lambda: False,
    *,
    any_hints: bool = False,
) -> Program:
    """The program with plain names and figures, as far as it still fails with them.

    Beside names at most `budget` programs are tried, and no more than `TRIES`. `any_hints` is that
    of `shrink`.
    """
    named = _named(program, still_fails)
    search = Search(named, still_fails, min(budget, TRIES), expired)
    try:
        for candidate in (_without_attempts, _in_order, _with_plain_ends, _for_all):
            search.attempt(candidate(search.best))
        for candidates in (_fewer_attempts, _one_request_less, _one_in_order, _plainer_clock):
            _each(search, candidates)
        _each(search, _same_hints)
        if any_hints:
            _each(search, _plainer_hints)
    except OutOfBudgetError:
        pass
    return named if search.best == named else _named(search.best, still_fails)


def _each(search: Search, candidates: Callable[[Program], Iterable[Program]]) -> None:
    """Try what is plainer in one way, again after each success, as long as there is any."""
    while any(map(search.attempt, candidates(search.best))):
        pass


def _named(program: Program, still_fails: StillFails) -> Program:
    search = Search(program, still_fails, NAMINGS)
    try:
        search.attempt(search.best.with_own_completions())
        search.attempt(search.best.with_plain_requests())
        search.attempt(search.best.renumbered())
        for names in _key_names(search.best.universe):
            # The first ones are the plainest.
            renamed = search.best.renamed(names)
            if renamed == search.best or search.attempt(renamed):
                break
    except OutOfBudgetError:
        pass
    return search.best


def _key_names(universe: Iterable[OffloadKey]) -> Iterator[dict[OffloadKey, OffloadKey]]:
    """Names a, b, c, in the order in which keys come, or else in that of their bytes.

    First all in group 0, then in groups that are numbered like this too, where hashes that are the
    same stay the same, then in their own groups.
    """
    valid = [key for key in universe if len(key) >= MIN_KEY_BYTES]
    orders = (valid, sorted(valid))
    for order in orders:
        yield {key: make_offload_key(_letters(n), 0) for n, key in enumerate(order)}
    for regrouped in (True, False):
        for order in orders:
            hashes = list(dict.fromkeys(map(get_offload_block_hash, order)))
            groups = list(dict.fromkeys(map(get_offload_group_idx, order)))
            yield {
                key: make_offload_key(
                    _letters(hashes.index(get_offload_block_hash(key))),
                    groups.index(get_offload_group_idx(key))
                    if regrouped
                    else get_offload_group_idx(key),
                )
                for key in order
            }


def _letters(number: int) -> bytes:
    name = string.ascii_lowercase[number] if number < 26 else f"z{number}"
    return name.encode()


def _attempts(program: Program) -> list[op.Attempt]:
    """The attempts that are named, as first named."""
    named = [
        one.attempt
        for one in program.operations
        if isinstance(one, (op.PrepareLoad, op.CompleteLoad, op.PrepareStore, op.CompleteStore))
    ]
    return [one for one in dict.fromkeys(named) if one not in (None, op.NEVER_MADE)]


def _without_attempts(program: Program) -> Program:
    for attempt in _attempts(program):
        program = program.without_attempt(attempt)
    return program


def _fewer_attempts(program: Program) -> Iterator[Program]:
    return (program.without_attempt(attempt) for attempt in _attempts(program))


def _in_order(program: Program) -> Program:
    return program.with_operations(map(_sorted, program.operations))


def _one_in_order(program: Program) -> Iterator[Program]:
    return (program.replaced(n, _sorted(one)) for n, one in enumerate(program.operations))


def _sorted(operation: HostOperation) -> HostOperation:
    named = keys_of(operation)
    return with_places(operation, sorted(range(len(named)), key=named.__getitem__))


def _with_plain_ends(program: Program) -> Program:
    """The program where positions are those of the first blocks, in the same order."""
    told = [one for one in program.operations if isinstance(one, op.SetPositions)]
    ends = sorted({end for one in told for _, end in one.positions})
    plain = {end: BLOCK * n for n, end in enumerate(ends, 1)}
    return program.with_operations(
        evolve(one, positions=tuple((key, plain[end]) for key, end in one.positions))
        if isinstance(one, op.SetPositions)
        else one
        for one in program.operations
    )


def _for_all(program: Program) -> Program:
    """The program without what only some hosts do: filters of tiers, transfers of their own."""
    return program.with_operations(map(_usual, program.operations))


def _usual(operation: HostOperation) -> HostOperation:
    match operation:
        case op.NewRequest():
            return evolve(operation, load_tier_filter=TierFilter.ALL)
        case op.PrepareLoad():
            return evolve(operation, internal=False)
        case op.ScheduleEnd():
            return op.ScheduleEnd()
        case _:
            return operation


def _one_request_less(program: Program) -> Iterator[Program]:
    """One request does what another one did before; no request is announced late, or twice."""
    requests = [
        each for each in dict.fromkeys(map(request_of, program.operations)) if each is not None
    ]
    announced = {one.request for one in program.operations if isinstance(one, op.NewRequest)}
    for place, request in enumerate(requests):
        for earlier in requests[:place]:
            if request in announced and earlier not in announced:
                continue
            merged = program.with_operations(
                with_request(one, earlier) if request_of(one) == request else one
                for one in program.operations
                if not (isinstance(one, op.NewRequest) and one.request == request)
            )
            yield merged.with_plain_requests()


def _plainer_clock(program: Program) -> Iterator[Program]:
    for place, one in enumerate(program.operations):
        if isinstance(one, op.AdvanceClock):
            for seconds in PLAIN_SECONDS:
                if seconds < one.seconds:
                    yield program.replaced(place, evolve(one, seconds=seconds))


def _same_hints(program: Program) -> Iterator[Program]:
    """A request has the hints of an earlier one."""
    known: dict[str, Mapping[str, object]] = {}
    for place, one in enumerate(program.operations):
        if isinstance(one, op.NewRequest) and one.hints and repr(one.hints) not in known:
            for earlier in known.values():
                yield program.replaced(place, evolve(one, hints=earlier))
            known[repr(one.hints)] = one.hints


def _plainer_hints(program: Program) -> Iterator[Program]:
    """A value of hints is plainer wherever it stands; it stays one of its type."""
    values: dict[str, object] = {}
    for one in program.operations:
        if isinstance(one, op.NewRequest):
            values.update((repr(value), value) for value in _leaves(one.hints))
    for value in values.values():
        for plain in _plainer_values(value):
            if repr(plain) not in values:
                yield program.with_operations(
                    _with_value(one, value, plain) for one in program.operations
                )


def _leaves(value: object) -> Iterator[object]:
    # What a client sends may be anything.
    if isinstance(value, Mapping):
        for each in cast("Mapping[object, object]", value).values():
            yield from _leaves(each)
    elif isinstance(value, (list, tuple)):
        for each in cast("list[object] | tuple[object, ...]", value):
            yield from _leaves(each)
    else:
        yield value


def _plainer_values(value: object) -> Iterator[object]:
    if type(value) is str and not (value.isidentifier() and value.isascii()):
        yield from ("x", "y", "z")
    elif type(value) is int and abs(value) > MOST_PLAIN:
        yield from (1, 2, 3)
    elif type(value) is float and not (abs(value) <= MOST_PLAIN and value.is_integer()):
        yield from (1.0, 2.0, 3.0)


def _with_value(operation: HostOperation, value: object, plain: object) -> HostOperation:
    """The operation with another value in its hints, or among those of its event."""
    match operation:
        case op.NewRequest(_, hints) if hints:
            changed = {name: _exchanged(each, value, plain) for name, each in hints.items()}
            return evolve(operation, hints=changed)
        case op.HostEvent(_, values):
            exchanged = tuple(_exchanged(each, value, plain) for each in values)
            return evolve(operation, values=exchanged)
        case _:
            return operation


def _exchanged(within: object, value: object, plain: object) -> object:
    if isinstance(within, dict):
        items = cast("dict[object, object]", within).items()
        return {name: _exchanged(each, value, plain) for name, each in items}
    if isinstance(within, list):
        return [_exchanged(each, value, plain) for each in cast("list[object]", within)]
    if isinstance(within, tuple):
        held = cast("tuple[object, ...]", within)
        return tuple(_exchanged(each, value, plain) for each in held)
    return plain if type(within) is type(value) and repr(within) == repr(value) else within
