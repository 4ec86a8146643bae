"""What stands behind a class, a factory or an object, found without running any of its code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial, partialmethod
from inspect import getattr_static
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import Final, TypeVar

from typing_extensions import TypeIs

T = TypeVar("T")

_HELD: Final[Sequence[tuple[type[object], str]]] = (
    (MethodType, "__func__"),
    (classmethod, "__func__"),
    (staticmethod, "__func__"),
    (cached_property, "func"),
    (partial, "func"),
    (partialmethod, "func"),
    (property, "fget"),
    (property, "fset"),
    (property, "fdel"),
)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """The code itself and what it nests: inner functions, class bodies, comprehensions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested_codes(constant)


def behind(value: object) -> list[object]:
    """What stands one step behind a callable or a descriptor: the function that it wraps,
    what a closure keeps, the getter of a property; nothing behind anything else."""
    kind = type(value)
    held = [attribute_of(value, name) for holder, name in _HELD if issubclass(kind, holder)]
    if is_a(value, FunctionType):
        held += [cell_contents(cell) for cell in value.__closure__ or ()]
    return [*held, wrapped_by(value)]


def is_a(value: object, kind: type[T]) -> TypeIs[T]:
    """Like isinstance, without asking the value, which might answer with an exception."""
    return issubclass(type(value), kind)


def wrapped_by(value: object) -> object:
    """What `functools.wraps`, or a cache, or a decorator that is a class, says that it wraps."""
    return getattr_static(value, "__wrapped__", None)


def functions_behind(value: object) -> Iterator[FunctionType]:
    """Every Python function that calling or reading `value` may run, decorators included."""
    waiting, seen = [value], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if is_a(found, FunctionType):
            yield found
        waiting += behind(found)


def lineage(target: object, *, without: tuple[str, ...] = ()) -> Iterator[type[object]]:
    """The class and its bases, less `object` and what packages named in `without` define.

    Of a target that is no class, nothing. The class itself is there wherever it is from.
    """
    if is_a(target, type):
        for base in target.__mro__:
            if base is target or (base is not object and package_of(base) not in without):
                yield base


def package_of(cls: type[object]) -> str:
    """The top-level package of a class."""
    return str(cls.__module__).partition(".")[0]


def cell_contents(cell: CellType) -> object:
    """What a closure keeps, None while it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def attribute_of(value: object, name: str) -> object:
    """An attribute of an object that may raise anything instead of having it; then None."""
    try:
        found: object = getattr(value, name, None)
    except Exception:
        return None
    return found


def attributes_of(holder: object) -> list[tuple[str, object]]:
    """What an object keeps under names, in its dict or in slots; no code of its own runs."""
    found: list[tuple[str, object]] = []
    try:
        kept: dict[str, object] = object.__getattribute__(holder, "__dict__")
        found += [(f"{name}", value) for name, value in list(kept.items())]
    except Exception:
        # None, or no dict, or a property that raises.
        found = []
    for cls in type(holder).__mro__:
        slots = [name for name, at in vars(cls).items() if is_a(at, MemberDescriptorType)]
        found += [(name, attribute_of(holder, name)) for name in slots]
    return found
