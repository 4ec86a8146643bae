"""Invariants of an author's own, as they are named: classes or factories, and what they are given.

What makes one may ask, by the names of its parameters, for the `capacity` of the run and for what
the target is built with. A promise about at most 16 sessions then follows the target to 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Final, get_args, get_origin

from attrs import evolve, field, frozen
from typing_extensions import get_original_bases

from stateful_models.invariants import Invariant
from stateful_models.loading import TargetError, describe, find
from stateful_models.operations import Operation
from stateful_models.signatures import named_parameters_of

CAPACITY: Final = "capacity"
"""The parameter that gets the number of chunks of the run."""
SAMPLE_CAPACITY: Final = 4
"""That of the one which is made to see what it is."""


@frozen
class OwnInvariant:
    """What makes an invariant: its `name` on the command line, and `given` by parameter.

    `clauses`, `promise` (the first line of its docstring) and `cls` (its class) are those of one
    that was made as a sample.
    """

    name: str
    _make: Callable[..., object]
    given: Mapping[str, object] = field(factory=dict)
    clauses: tuple[str, ...] = ()
    promise: str = ""
    cls: type[object] = object

    @property
    def kind(self) -> str:
        """The name of its class."""
        return self.cls.__name__

    def arguments(self, capacity: int) -> dict[str, object]:
        """What it is made with in a run of so many chunks. Raises TargetError."""
        return _arguments(self.name, self._make, self.given, capacity)

    # Of which subject's books it is an invariant shows when it judges.
    def make(self, capacity: int) -> Invariant[Any]:
        """A new one. Raises TargetError for what is none."""
        made = self._make(**self.arguments(capacity))
        if not isinstance(made, Invariant):
            raise TargetError(
                f"{self.name}: it makes no invariant of stateful_models but {type(made).__name__}"
            )
        return made


def find_own(
    name: str, given: Mapping[str, object] | None = None, calls: tuple[type[Operation], ...] = ()
) -> OwnInvariant:
    """What makes the invariant of this name, tried once to see that it can be made.

    `given` is what the target is built with, `calls` what its subject is called with. Raises
    TargetError, also for one that is concerned with none of these calls.
    """
    make = _maker(name)
    plain = OwnInvariant(name, make, given or {})
    try:
        sample = plain.make(SAMPLE_CAPACITY)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(f"{name}: cannot be built: {describe(error)}") from error
    check_concerns(name, sample, calls)
    cls = type(sample)
    return evolve(plain, clauses=tuple(sample.clauses), promise=promise_of(cls), cls=cls)


def check_concerns(
    name: str, invariant: Invariant[Any], calls: tuple[type[Operation], ...]
) -> None:
    """Raise TargetError for one that is never told of anything by who makes these calls."""
    concerns = invariant.concerns
    if calls and concerns and not _meet(calls, concerns):
        told = ", ".join(each.__name__ for each in concerns)
        raise TargetError(
            f"{name}: it is concerned with {told} only, which its subject is never called with"
        )


def is_over(cls: type[object], books: type[object]) -> bool:
    """Whether a class, or one that it derives from, says that it is an Invariant of these books."""
    return any(
        books in get_args(base)
        for each in cls.__mro__
        for base in get_original_bases(each)
        if isinstance(origin := get_origin(base), type) and issubclass(origin, Invariant)
    )


def class_of_own(
    name: str, given: Mapping[str, object] | None = None
) -> tuple[type[object], tuple[str, ...]]:
    """The class of an invariant, and its clauses; a class need not be built for that.

    Raises TargetError.
    """
    make = _maker(name)
    if isinstance(make, type) and issubclass(make, Invariant):
        cls: type[Invariant[Any]] = make
        return cls, tuple(cls.clauses)
    own = find_own(name, given)
    return own.cls, own.clauses


def built_with(target: object, arguments: Mapping[str, object]) -> dict[str, object]:
    """By parameter, what a target is built with: its own defaults, and the arguments over them."""
    defaults = {
        one.name: one.default
        for one in named_parameters_of(target)
        if one.default is not Parameter.empty
    }
    return {**defaults, **arguments}


def promise_of(cls: type[object]) -> str:
    """The sentence of an invariant's clauses: the first line of its docstring."""
    return (cls.__doc__ or "").strip().partition("\n")[0]


def _maker(name: str) -> Callable[..., object]:
    found = find(name)
    if not callable(found):
        raise TargetError(f"{name}: neither a class nor a factory")
    if isinstance(found, type):
        if not issubclass(found, Invariant):
            raise TargetError(f"{name}: not a subclass of stateful_models' Invariant")
        lacking = sorted(found.__abstractmethods__)
        if lacking:
            raise TargetError(f"{name}: it lacks {', '.join(lacking)}")
    return found


def _arguments(
    name: str, make: Callable[..., object], given: Mapping[str, object], capacity: int
) -> dict[str, object]:
    known = {**given, CAPACITY: capacity}
    chosen: dict[str, object] = {}
    for one in named_parameters_of(make):
        if one.name in known:
            chosen[one.name] = known[one.name]
        elif one.default is Parameter.empty:
            raise TargetError(
                f"{name}: cannot be built: it takes {one.name}, which is neither the capacity nor "
                "what the target is built with (--arg, or the arguments of its driver)"
            )
    return chosen


def _meet(calls: tuple[type[Operation], ...], concerns: tuple[type[Operation], ...]) -> bool:
    return any(
        issubclass(call, concerns) or issubclass(each, call) for call in calls for each in concerns
    )
