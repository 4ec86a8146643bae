"""The differential for managers that claim to be the reference: every answer is predicted.

The model says what comes of each call. Which clause a wrong answer breaks is read off the call and
off what differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from attrs import evolve

from kvoffload.errors import (
    InvalidKeyError,
    RequestFinishedError,
    UnknownTicketError,
)
from stateful_models import operations as op
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.judge import Judge, Violation
from stateful_models.models import (
    ARCModel,
    LRUModel,
    ManagerModel,
    PolicyModel,
    Prediction,
    Raises,
    difference,
)
from stateful_models.programs import ManagerSettings
from stateful_models.steps import Delivered, Held, Loaded, Reported, Step, Stored

TRACKER_SIZE: Final = 64_000
"""How many keys the tracker of a manager holds that is not told."""

_CLAUSE_OF: Final[dict[type[op.Operation], str]] = {
    op.NewRequest: "REQ-3",
    op.Lookup: "LOOK-1",
    op.PrepareLoad: "LOAD-2",
    op.CompleteLoad: "LOAD-4",
    op.Touch: "TOUCH-1",
    op.PrepareStore: "STORE-4",
    op.CompleteStore: "DONE-3",
    op.FinishRequest: "FIN-1",
    op.TakeEvents: "EVT-2",
    op.TakeFirstEvent: "EVT-3",
    op.GetStats: "MET-2",
    op.Reset: "GEN-1",
    op.Outstanding: "PIN-2",
}
"""The clause that a wrong answer to each call breaks, where what differs does not say more."""

_ORDER_OF: Final = {"arc": "ARC-3", "lru": "LRU-1"}


class _NoBooks:
    def read(self, step: Step) -> None:
        """The model has books of its own."""

    def apply(self, step: Step) -> None:
        """The model has books of its own."""


class Predictions:
    """Holds steps against what `model` predicts; `order` is the clause of the eviction order."""

    def __init__(self, model: ManagerModel, order: str) -> None:
        self._judge = Judge([_AsPredicted(model, order)], _NoBooks())

    def judge(self, step: Step) -> Sequence[Violation]:
        """What is not as predicted."""
        return self._judge.judge(step)


def predictions_for(capacity: int, settings: ManagerSettings) -> Predictions | None:
    """The predictions for a manager of this capacity and these settings, None if there are none."""
    if settings.fault is not None:
        return None
    policy = settings.policy or "lru"
    tracked = settings.max_tracker_size
    policy_model: PolicyModel = ARCModel(capacity) if policy == "arc" else LRUModel(capacity)
    model = ManagerModel(
        capacity,
        policy_model,
        enable_events=settings.enable_events,
        store_threshold=settings.store_threshold,
        max_tracker_size=TRACKER_SIZE if tracked is None else tracked,
    )
    return Predictions(model, _ORDER_OF[policy])


class _AsPredicted(Invariant[_NoBooks]):
    """Every answer is the one that the model of the reference predicts."""

    clauses: ClassVar[tuple[str, ...]] = (*dict.fromkeys(_CLAUSE_OF.values()), *_ORDER_OF.values())

    def __init__(self, model: ManagerModel, order: str) -> None:
        self._model = model
        self._order = order

    def judge(self, step: Step, books: _NoBooks) -> Iterator[Finding]:
        prediction = self._predict(step.operation)
        if isinstance(step.result, Held) and isinstance(prediction, Held):
            # In which order they are listed is the manager's own business.
            prediction, step = _sorted(prediction), evolve(step, result=_sorted(step.result))
        if difference(prediction, step) is None:
            return
        clause, kind = self._broken(prediction, step)
        answer = str(step).split(" -> ", 1)[1]
        yield Finding(
            clause, f"{step.operation} was answered {answer}, and the model has {prediction}", kind
        )

    def _predict(self, operation: op.Operation) -> Prediction:
        model = self._model
        if isinstance(operation, op.TakeFirstEvent):
            backlog = model.backlog[:1]
            model.predict(op.TakeEvents())
            return Delivered(tuple(backlog))
        if isinstance(operation, op.Outstanding):
            held = [hold for hold in model.holds if hold.request == operation.request]
            loads, stores = (
                tuple(key for hold in held if hold.stores == stored for key in hold.keys.elements())
                for stored in (False, True)
            )
            return Held(loads, stores)
        return model.predict(operation)

    def _broken(self, prediction: Prediction, step: Step) -> tuple[str, Kind | None]:
        clause = _CLAUSE_OF.get(type(step.operation), "SPECS-3")
        if isinstance(prediction, Raises):
            return _refusal_clause(prediction, step), None
        if step.error is not None:
            return clause, None
        result = step.result
        if isinstance(prediction, Loaded) or isinstance(result, Loaded):
            return "LOAD-2", None
        if isinstance(prediction, Stored) and isinstance(result, Stored):
            return self._store_clause(prediction, result)
        if isinstance(prediction, Reported) and isinstance(result, Reported):
            gauges = any(
                name.endswith("_perc") and abs(value - result.values.get(name, -1.0)) > 1e-9
                for name, value in prediction.values.items()
            )
            return ("MET-1", Kind.SAFETY) if gauges else ("MET-2", None)
        return clause, None

    def _store_clause(self, expected: Stored, got: Stored) -> tuple[str, Kind | None]:
        if got.keys != expected.keys:
            return "STORE-3" if self._model.threshold >= 2 else "STORE-2", None
        if len(got.evicted) != len(expected.evicted):
            return "STORE-4", None
        if got.evicted != expected.evicted:
            return self._order, Kind.CLAIM
        return "STORE-7", Kind.CLAIM


def _refusal_clause(expected: Raises, step: Step) -> str:
    errors = {refusal.error for refusal in expected.refusals}
    if InvalidKeyError in errors:
        return "KEY-2"
    if UnknownTicketError in errors:
        return "DONE-4"
    if errors == {RequestFinishedError}:
        return "FIN-2"
    if isinstance(step.operation, op.CompleteLoad):
        return "LOAD-4"
    return "LOAD-1"


def _sorted(held: Held) -> Held:
    return Held(tuple(sorted(held.loads)), tuple(sorted(held.stores)))
