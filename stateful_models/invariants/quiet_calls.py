"""Quiet calls: those of which the policy hears nothing, or one thing only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from kvoffload.errors import InvalidKeyError, PolicyContractError, RequestFinishedError
from kvoffload.keys import MIN_KEY_BYTES, OffloadKey
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    Clear,
    CompleteLoad,
    CompleteStore,
    Lookup,
    Operation,
    PolicyOperation,
    PrepareLoad,
    PrepareStore,
    Reset,
    Touch,
    TouchKeys,
    keys_text,
)
from stateful_models.steps import NOTHING_VISIBLE, Step, Visible

_NOTHING: tuple[Finding, ...] = ()


class QuietCalls(Invariant[Account]):
    """LOOK-2 and TOUCH-1, what a reset tells (GEN-1), and that what is refused tells nothing.

    What a call shows of the manager is judged always, what it tells the policy where there is a
    tap. A refused call breaks KEY-2, FIN-2, LOAD-1, LOAD-4 or DONE-4 by leaving traces.
    """

    clauses: ClassVar[tuple[str, ...]] = (
        "LOOK-2",
        "TOUCH-1",
        "GEN-1",
        "KEY-2",
        "FIN-2",
        "LOAD-1",
        "LOAD-4",
        "DONE-4",
    )

    def __init__(self) -> None:
        self._visible: Visible = NOTHING_VISIBLE

    def judge(self, step: Step, books: Account) -> Iterable[Finding]:
        kind = type(step.operation)
        if kind is Lookup:
            # By far the most frequent step, and hardly ever of interest.
            if not step.told and (step.visible is NOTHING_VISIBLE or step.visible == self._visible):
                return _NOTHING
            return self._looked_up(step)
        if kind is Touch:
            return self._touched(step, books)
        self._visible = step.visible
        if step.told is None:
            return _NOTHING
        if step.error is not None:
            return _refused(step, step.error) if step.told else _NOTHING
        if kind is Reset and not any(isinstance(call, Clear) for call in step.told):
            return (Finding("GEN-1", "a reset did not clear the policy"),)
        return _NOTHING

    def _looked_up(self, step: Step) -> Iterator[Finding]:
        if step.told and not isinstance(step.error, PolicyContractError):
            yield Finding("LOOK-2", f"a look-up told the policy {_calls_text(step.told)}")
        yield from self._shown("LOOK-2", step)

    def _touched(self, step: Step, books: Account) -> Iterator[Finding]:
        yield from self._shown("TOUCH-1", step)
        touch, told = step.operation, step.told
        if not isinstance(touch, Touch) or told is None:
            return
        if step.error is not None:
            if told:
                yield from _refused(step, step.error)
            return
        if not all(isinstance(call, TouchKeys) for call in told):
            yield Finding("TOUCH-1", f"a touch told the policy {_calls_text(told)}")
        reached = [key for call in told if isinstance(call, TouchKeys) for key in call.keys]
        if reached == list(touch.keys):
            return
        resident = books.resident
        missing = [key for key in touch.keys if key in resident and key not in reached]
        if missing:
            yield Finding("TOUCH-1", f"a touch of {keys_text(missing)} did not reach the policy")
        surplus = list(Counter(reached) - Counter(touch.keys))
        if surplus:
            yield Finding("TOUCH-1", f"one touch of {keys_text(surplus)} reached it as several")
        remaining = iter(touch.keys)
        if not (surplus or all(key in remaining for key in reached)):
            yield Finding(
                "TOUCH-1",
                f"a touch of {keys_text(touch.keys)} reached the policy as {keys_text(reached)}",
            )

    def _shown(self, clause: str, step: Step) -> Iterator[Finding]:
        """What a call that changes nothing has changed of what the manager shows."""
        now, before = step.visible, self._visible
        if now is NOTHING_VISIBLE:
            return
        if before is not NOTHING_VISIBLE and now != before:
            yield Finding(
                clause,
                f"{step.operation.verb} changed what the manager shows from {tuple(before)} to "
                f"{tuple(now)} (generation, stale completions)",
            )
        self._visible = now


def _refused(step: Step, error: BaseException) -> Iterator[Finding]:
    operation = step.operation
    if isinstance(error, PolicyContractError) or step.told is None:
        return
    if isinstance(error, InvalidKeyError) or not all(map(_valid, _keys_of(operation))):
        clause = "KEY-2"
    elif isinstance(error, RequestFinishedError):
        clause = "FIN-2"
    elif isinstance(operation, PrepareLoad):
        clause = "LOAD-1"
    elif isinstance(operation, CompleteLoad):
        clause = "LOAD-4"
    elif isinstance(operation, CompleteStore):
        clause = "DONE-4"
    else:
        # Why it raised is judged elsewhere; a policy that fails on its own is none of these.
        return
    yield Finding(
        clause,
        f"{operation.verb} raised {type(error).__name__}, and had told the policy "
        f"{_calls_text(step.told)}",
    )


def _calls_text(told: Sequence[PolicyOperation]) -> str:
    return ", ".join(map(str, told[:4])) + (" and more" if len(told) > 4 else "")


def _keys_of(operation: Operation) -> Sequence[OffloadKey]:
    if isinstance(operation, (PrepareLoad, CompleteLoad, Touch, PrepareStore, CompleteStore)):
        return operation.keys
    return ()


def _valid(key: object) -> bool:
    return isinstance(key, bytes) and len(key) >= MIN_KEY_BYTES
