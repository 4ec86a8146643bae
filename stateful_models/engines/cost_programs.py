"""Programs in which evictions are dear in one way or another, for caches of any capacity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kvoffload import OffloadKey, make_offload_key
from stateful_models import operations as op
from stateful_models.programs import HostOperation, Program

FEW: Final = 8
REPEATED: Final = 64
"""How often a program repeats what it is about."""


def _keys(name: str, number: int) -> tuple[OffloadKey, ...]:
    return tuple(make_offload_key(b"%b%d" % (name.encode(), n), 0) for n in range(number))


def _full(capacity: int) -> tuple[tuple[OffloadKey, ...], list[HostOperation]]:
    """A cache that is full of idle chunks, stored by several requests."""
    old = _keys("old", capacity)
    operations: list[HostOperation] = []
    for start in range(0, capacity, 16):
        some = old[start : start + 16]
        operations += _store(f"first{start}", some)
        operations.append(op.FinishRequest(f"first{start}"))
    return old, operations


def _store(request: str, keys: tuple[OffloadKey, ...], success: bool = True) -> list[HostOperation]:
    return [op.PrepareStore(request, keys), op.CompleteStore(request, keys, success)]


def _one_by_one(capacity: int) -> Iterator[HostOperation]:
    for number, key in enumerate(_keys("new", min(capacity, REPEATED))):
        yield from _store(f"one{number}", (key,))


def pinned_cold_end(capacity: int) -> Program:
    """The older half is being read while others come one by one."""
    old, operations = _full(capacity)
    operations.append(op.PrepareLoad("reader", old[: capacity // 2]))
    return Program(capacity, (*operations, *_one_by_one(capacity)))


def pinned_but_few(capacity: int) -> Program:
    """All is being read but for a few, which go and come one by one."""
    old, operations = _full(capacity)
    operations.append(op.PrepareLoad("reader", old[: max(1, capacity - FEW)]))
    return Program(capacity, (*operations, *_one_by_one(capacity)))


def pins_that_come_back(capacity: int) -> Program:
    """The older half is read, released and read again, newest first."""
    old, operations = _full(capacity)
    half = old[: capacity // 2]
    for number, key in enumerate(_keys("new", FEW)):
        operations += [
            op.PrepareLoad(f"reader{number}", half),
            *_store(f"one{number}", (key,)),
            op.CompleteLoad(f"reader{number}", half[::-1]),
        ]
    return Program(capacity, operations)


def large_offers(capacity: int) -> Program:
    """Offers of which the older half of the cache is a part already, and must stay."""
    old, operations = _full(capacity)
    for number, key in enumerate(_keys("new", FEW)):
        operations += _store(f"large{number}", (*old[: capacity // 2], key))
    return Program(capacity, operations)


def one_by_one(capacity: int) -> Program:
    """Nothing is being read, and new ones come one by one."""
    return Program(capacity, (*_full(capacity)[1], *_one_by_one(capacity)))


def by_the_batch(capacity: int) -> Program:
    """Every second chunk is being read, and the others go at once."""
    old, operations = _full(capacity)
    operations.append(op.PrepareLoad("reader", old[::2]))
    return Program(capacity, (*operations, *_store("batch", _keys("new", capacity // 2))))


def in_vain(capacity: int) -> Program:
    """All is being read but for a few, which the offers must not lose: nothing can go."""
    old, operations = _full(capacity)
    few = old[max(1, capacity - FEW) :]
    operations.append(op.PrepareLoad("reader", old[: max(1, capacity - FEW)]))
    for number, key in enumerate(_keys("new", min(capacity, REPEATED))):
        operations.append(op.PrepareStore(f"vain{number}", (*few, key)))
    return Program(capacity, operations)


def after_many_uses(capacity: int) -> Program:
    """Everything was touched and reused many times before one goes."""
    old, operations = _full(capacity)
    for number in range(FEW):
        for start in range(0, capacity, 16):
            some = old[start : start + 16]
            reader = f"reader{number}-{start}"
            operations += [
                op.PrepareLoad(reader, some),
                op.CompleteLoad(reader, some),
                op.FinishRequest(reader),
                op.Touch("toucher", some),
            ]
    return Program(capacity, (*operations, *_one_by_one(min(capacity, FEW))))


SCENARIOS: Final[tuple[Callable[[int], Program], ...]] = (
    pinned_cold_end,
    pinned_but_few,
    pins_that_come_back,
    large_offers,
    one_by_one,
    by_the_batch,
    in_vain,
    after_many_uses,
)
"""Programs for any capacity: what makes evictions dear in one way or another."""
