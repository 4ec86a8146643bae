"""What a constructor takes, also where it passes on what it does not name itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter

from stateful_models.loading import describe

__all__ = ["named_parameters_of", "not_taken", "parameters_of", "why_not_built"]

_ANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def parameters_of(make: Callable[..., object]) -> dict[str, Parameter]:
    """The parameters of a class, function or factory by name; none where no signature is to be had.

    A class with `**kwargs` in its constructor passes them to the next one of its bases, and so it
    takes what that one names. `**kwargs` is only among the parameters if nobody says what they are.
    """
    try:
        found = dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):
        return {}
    if not isinstance(make, type):
        return found
    constructors = [vars(cls)["__init__"] for cls in make.__mro__ if "__init__" in vars(cls)]
    own = getattr(make, "__init__", None)
    if not constructors or own is not constructors[0]:
        return found
    for constructor in constructors[1:]:
        if not any(one.kind is Parameter.VAR_KEYWORD for one in found.values()):
            break
        if constructor is object.__init__:
            break
        try:
            _, *theirs = inspect.signature(constructor).parameters.values()
        except (TypeError, ValueError):
            break
        named = {name: one for name, one in found.items() if one.kind not in _ANY}
        found = {**{one.name: one for one in theirs}, **named}
    return found


def named_parameters_of(make: object) -> list[Parameter]:
    """The parameters that can be given by name; none where no signature is to be had."""
    if not callable(make):
        return []
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [one for one in parameters_of(make).values() if one.kind in by_name]


def not_taken(make: object, names: Iterable[str]) -> str:
    """What to say of names that a constructor does not take: what it takes; empty if it takes all.

    Of one that takes whatever it is given, and of one that does not tell, nothing is known.
    """
    if not callable(make) or any(
        one.kind is Parameter.VAR_KEYWORD for one in parameters_of(make).values()
    ):
        return ""
    taken = [one.name for one in named_parameters_of(make)]
    strange = [name for name in names if name not in taken]
    if not taken or not strange:
        return ""
    return f"it takes {', '.join(taken)}, and no {', '.join(strange)}"


def why_not_built(make: object, arguments: Iterable[str], error: BaseException) -> str:
    """What a constructor raised, in a line; or, where it was given what it does not take, that.

    `arguments` are the names of what an author gave.
    """
    strange = not_taken(make, arguments) if isinstance(error, TypeError) else ""
    return strange or describe(error)
