"""Predictions, and how a step is held against one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isclose
from typing import TypeAlias

from attrs import frozen

from kvoffload.events import OffloadingEvent
from kvoffload.keys import OffloadKey
from stateful_models.steps import Delivered, Loaded, Reported, Result, Step, Stored


@frozen
class Refusal:
    """An error of just this type that says what was wrong.

    `names` are attributes with their values; `begins` is how its words begin: with the call.
    """

    error: type[Exception]
    names: tuple[tuple[str, object], ...] = ()
    begins: str = ""

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.names)
        return f"{self.error.__name__}({shown})"

    def fits(self, error: BaseException | None) -> bool:
        """Whether a call was refused like this."""
        if type(error) is not self.error or not str(error).startswith(self.begins):
            return False
        return all(getattr(error, name, None) == value for name, value in self.names)


@frozen
class Raises:
    """The call fails in one of these ways: several when it is wrong in several."""

    refusals: frozenset[Refusal]

    def __str__(self) -> str:
        return "raises " + " or ".join(sorted(map(str, self.refusals)))


@frozen
class Announced:
    """Events, of which a store and a later removal of a key may both be missing.

    For a backlog that has grown long enough to be shortened (EVT-4).
    """

    events: tuple[OffloadingEvent, ...]

    def __str__(self) -> str:
        return f"{Delivered(self.events)}, or fewer that add up to the same"


Prediction: TypeAlias = Result | Raises | Announced


def difference(prediction: Prediction, step: Step) -> str | None:
    """What is wrong with a step, in words; None if it is as predicted.

    Tickets are the subject's own business: no prediction names one.
    """
    if isinstance(prediction, Raises):
        agrees = any(refusal.fits(step.error) for refusal in prediction.refusals)
    elif step.error is not None:
        agrees = False
    elif isinstance(prediction, Announced):
        agrees = isinstance(step.result, Delivered) and _adds_up(
            prediction.events, step.result.events
        )
    elif isinstance(prediction, Reported):
        agrees = isinstance(step.result, Reported) and _same_figures(prediction, step.result)
    else:
        agrees = _without_ticket(step.result) == prediction
    return None if agrees else f"{step}\n      expected {prediction}"


def _without_ticket(result: Result) -> Result:
    if isinstance(result, Loaded):
        return Loaded(result.slots)
    if isinstance(result, Stored):
        return Stored(result.keys, result.slots, result.evicted)
    return result


def _same_figures(expected: Reported, got: Reported) -> bool:
    # A histogram without samples may be left out; a name that is not expected may not appear.
    return set(got.values) <= set(expected.values) and all(
        isclose(value, got.values.get(name, 0.0), abs_tol=1e-9)
        and (name in got.values or name.endswith(("_count", "_sum")))
        for name, value in expected.values.items()
    )


def _adds_up(expected: Sequence[OffloadingEvent], got: Sequence[OffloadingEvent]) -> bool:
    happened, told = _changes(expected), _changes(got)
    remaining = iter(happened)
    in_order = all(change in remaining for change in told)
    return in_order and all(
        _shortens([r for k, r in happened if k == key], [r for k, r in told if k == key])
        for key in {key for key, _ in happened}
    )


def _changes(events: Sequence[OffloadingEvent]) -> list[tuple[OffloadKey, bool]]:
    return [(key, event.removed) for event in events for key in event.keys]


def _shortens(happened: list[bool], told: list[bool]) -> bool:
    """Whether dropping stores with the removal after them makes `told` of `happened`."""
    alternates = all(before != after for before, after in pairwise(told))
    keeps_first = not happened[0] or told[:1] == [True]
    keeps_last = happened[-1] or told[-1:] == [False]
    return alternates and keeps_first and keeps_last and (len(happened) - len(told)) % 2 == 0
