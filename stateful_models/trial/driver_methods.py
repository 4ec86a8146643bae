"""The methods of a driver, held against what they will be called with before anything is tried.

A hook that takes other arguments, or that is named as none is, would speak against the policy,
or make a trial without it that nobody asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from types import CodeType
from typing import Final

from stateful_models.drivers import authored
from stateful_models.loading import TargetError
from stateful_models.operations import HostEvent

LIKE: Final = 0.75
"""As much alike are names, from 0 to 1, of which one may be the other misspelt."""


def check_methods(whose: str, driver: object, base: type) -> list[str]:
    """What a reader should know of the methods that a driver has beside those of its `base`.

    Raises TargetError for one that cannot be called as the base's is, and for one that is called by
    nobody and has nearly the name of one.
    """
    known = dict(_functions(base))
    own = dict(authored(driver, base))
    for name in known:
        if name in own:
            _check_arguments(whose, driver, name, known[name])
    used = {name for value in own.values() for name in _names_in(_code_of(value))}
    spare = [
        name
        for name, value in own.items()
        if _code_of(value) is not None
        and not (name.startswith("_") or isinstance(value, property))
        and not (name in used or hasattr(base, name))
    ]
    for name in spare:
        meant = get_close_matches(name, known, 1, LIKE)
        if meant:
            raise TargetError(
                f"{whose}: {name} overrides nothing and is never called; is {meant[0]} meant? "
                "(what is the driver's own affair may begin with an underscore)"
            )
    return [f"the driver's {name} overrides nothing, and nothing calls it" for name in spare]


def check_event(whose: str, target: str, subject: object, event: HostEvent) -> None:
    """Raise TargetError if the method of its name cannot be called with the values of an event."""
    method: object = getattr(subject, event.name, None)
    if callable(method) and not _binds(method, event.values):
        raise TargetError(
            f"{whose}: host_events calls {event.name} of {target} with "
            f"({', '.join(map(repr, event.values))}), and it takes {arguments_of(method)}"
        )


def mismatch(hook: Callable[..., object], base: type) -> str:
    """What a method of a driver is called with, and what it takes, in words."""
    name = getattr(hook, "__name__", "a hook")
    return _mismatch(name, hook, getattr(base, name, hook))


def arguments_of(method: Callable[..., object]) -> str:
    """The names of what a method takes, as in "(policy, context)"."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except ValueError:
        return "what is not known"
    plain = [str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters]
    return f"({', '.join(plain)})"


def _check_arguments(
    whose: str, driver: object, name: str, expected: Callable[..., object]
) -> None:
    method: object = getattr(driver, name)
    if not callable(method):
        raise TargetError(f"{whose}: {name} is no method but {method!r:.80}")
    if not _binds(method, _given(expected)):
        raise TargetError(f"{whose}: {_mismatch(name, method, expected)}")


def _mismatch(name: str, method: Callable[..., object], expected: Callable[..., object]) -> str:
    given = ", ".join(_given(expected))
    return f"{name} is called with ({given}), and takes {arguments_of(method)}"


def _given(expected: Callable[..., object]) -> list[str]:
    """The names of what a method of a base gets, beside itself."""
    return list(inspect.signature(expected).parameters)[1:]


def _binds(method: Callable[..., object], values: Iterable[object]) -> bool:
    try:
        inspect.signature(method).bind(*values)
    except TypeError:
        return False
    except ValueError:
        # No signature to be had; a call will show it.
        return True
    return True


def _functions(base: type) -> Iterator[tuple[str, Callable[..., object]]]:
    members: Mapping[str, object] = vars(base)
    for name, value in members.items():
        if inspect.isfunction(value) and not name.startswith("_"):
            yield name, value


def _code_of(value: object) -> CodeType | None:
    if isinstance(value, property):
        value = value.fget
    function: object = getattr(value, "__func__", value)
    return function.__code__ if inspect.isfunction(function) else None


def _names_in(code: CodeType | None) -> Iterator[str]:
    """The names that a piece of code, and what is defined in it, asks for."""
    if code is None:
        return
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
