"""Figures of a target that look like durations, for the clock to be moved around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import chain
from math import isfinite
from types import FunctionType
from typing import Final

from stateful_models.trial.codes import (
    attributes_of,
    functions_behind,
    is_a,
    lineage,
    nested_codes,
    package_of,
)

MAX_DURATIONS: Final = 12
"""As many are told; the likeliest, if there are more."""
SHORTEST, LONGEST = 1e-6, 1e9
MAX_OBJECTS: Final = 64
"""As many objects are looked into, beginning with the sample."""
GENERAL: Final = (0.001, 1.0, 60.0, 3_600.0, 86_400.0)
AROUND: Final = (0.5, 1.0, 1.001, 2.0)

_NOT_OF_THE_TARGET = ("abc", "builtins", "collections", "kvoffload", "typing", "typing_extensions")
_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "minutes": 60.0,
    "mins": 60.0,
    "hours": 3_600.0,
    "days": 86_400.0,
}
_WORDS = {
    *_UNITS,
    *("age", "aging", "cooldown", "deadline", "decay", "delay", "gap", "grace", "idle", "interval"),
    *("lease", "life", "lifetime", "halflife", "linger", "period", "s", "sec", "secs", "seconds"),
    *("stale", "staleness", "time", "timeout", "tick", "tau", "ttl", "wait", "window"),
}
_EXACT_CLOCKS = {"time_ns", "monotonic_ns", "perf_counter_ns"}

# How likely a figure is a duration: asked to be slept, named like one, a fraction, anything.
_SLEPT, _NAMED, _FRACTION, _ANY, _SMALL = range(5)


def draws_around(durations: Iterable[float]) -> tuple[float, ...]:
    """Seconds worth letting pass: short of, at, just past and well past each duration, and a few
    general ones; ascending, each once."""
    drawn = {duration * factor for duration in durations for factor in AROUND}
    return tuple(sorted(drawn.union(GENERAL)))


def durations_used(
    target: object, sample: object | None = None, *, slept: Iterable[float] = ()
) -> tuple[float, ...]:
    """Figures that look like durations which the target uses: at most 12, ascending, in seconds.

    `target` is a class or a factory, `sample` something freshly built by it, `slept` what its
    `sleep` was called with. Looked at are constants and defaults of its functions and of those
    that they nest, module constants that they name, and attributes of its class, of the sample
    and of what the sample holds. A name that ends in a unit (`gap_ms`) is converted; figures
    without one count as seconds, or as nanoseconds where the function reads such a clock.
    """
    ranks: dict[float, int] = {}
    sources = [_of_code(target), _of_class(target)]
    if sample is not None:
        sources += [_of_code(type(sample)), _of_class(type(sample)), _of_objects(sample)]
    for name, value in chain([("slept", each) for each in slept], *sources):
        found = _as_seconds(name, value)
        if found is not None:
            seconds, rank = found
            ranks[seconds] = min(rank, ranks.get(seconds, rank))
    likeliest = sorted(ranks, key=lambda seconds: (ranks[seconds], seconds))
    return tuple(sorted(likeliest[:MAX_DURATIONS]))


def _as_seconds(name: str, value: object) -> tuple[float, int] | None:
    """A figure in seconds and how likely it is a duration; None for what can be none."""
    if is_a(value, timedelta):
        seconds, rank = value.total_seconds(), _NAMED
    elif type(value) is int or is_a(value, float):
        words = name.lower().strip("_").split("_")
        try:
            # Its own first: the arithmetic of a subclass could be anything.
            seconds = float.__float__(value) if is_a(value, float) else float(value)
        except OverflowError:
            return None
        rank = _FRACTION if is_a(value, float) else _ANY if value > 2 else _SMALL
        if name == "slept":
            rank = _SLEPT
        elif not _WORDS.isdisjoint(words) or any(word.startswith("expir") for word in words):
            rank = _NAMED
        seconds *= _UNITS.get(words[-1], 1.0)
    else:
        return None
    seconds = float(f"{seconds:.12g}")
    return (seconds, rank) if isfinite(seconds) and SHORTEST <= seconds <= LONGEST else None


def _of_code(target: object) -> Iterator[tuple[str, object]]:
    classes = list(lineage(target, without=_NOT_OF_THE_TARGET))
    parts = chain.from_iterable(list(vars(cls).values()) for cls in classes)
    for part in parts if classes else [target]:
        for function in functions_behind(part):
            yield from _of_function(function)


def _of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    for code in nested_codes(function.__code__):
        exact = not _EXACT_CLOCKS.isdisjoint(code.co_names)
        for constant in code.co_consts:
            # A thousand nanoseconds and less is no time; it may be a number of anything.
            is_exact = exact and type(constant) is int and constant >= 1_000
            yield ("ns" if is_exact else ""), constant
        for name in code.co_names:
            yield name, function.__globals__.get(name)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()


def _of_class(target: object) -> Iterator[tuple[str, object]]:
    for cls in lineage(target, without=_NOT_OF_THE_TARGET):
        # Where the class stands in its file is a number as well.
        yield from [(name, value) for name, value in vars(cls).items() if name[:2] != "__"]


def _of_objects(sample: object) -> Iterator[tuple[str, object]]:
    """Attributes of the sample, of what they hold and so on, nearest first."""
    waiting, seen = [sample], set[int]()
    while waiting:
        holder = waiting.pop(0)
        for name, value in attributes_of(holder):
            yield name, value
            kind = type(value)
            if id(value) not in seen and len(seen) < MAX_OBJECTS and _is_plain(kind):
                seen.add(id(value))
                waiting.append(value)


def _is_plain(kind: type[object]) -> bool:
    return package_of(kind) not in _NOT_OF_THE_TARGET and not issubclass(kind, type)
