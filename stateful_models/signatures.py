"""What a constructor takes, also where it passes on what it does not name itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter

__all__ = ["parameters_of"]

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
