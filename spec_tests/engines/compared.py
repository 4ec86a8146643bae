"""A manager beside its model, without the invariants: for policies that the models know."""

from __future__ import annotations

from kvoffload import CachePolicy, CPUOffloadingManager
from kvoffload.policies.factory import check_policy_cls
from spec_tests.engines.fifo import FIFOModel
from stateful_models import operations as op
from stateful_models.machines import ManagerConfig
from stateful_models.models import ManagerModel, difference
from stateful_models.steps import Step
from stateful_models.subjects import ManagerSubject

EXACT_BACKLOG = 1_000
"""No run leaves so many keys undelivered that a manager may shorten its events (EVT-4)."""


class Compared:
    """A manager over FIFO in the class `policy`, and the model of both."""

    def __init__(
        self,
        policy: type[object],
        config: ManagerConfig,
        *,
        refuses: bool = False,
        exact_backlog: int = EXACT_BACKLOG,
    ) -> None:
        policy_cls: type[CachePolicy] = check_policy_cls(policy)
        self.order = FIFOModel(config.num_chunks, refuses=refuses)
        self.model = ManagerModel(
            config.num_chunks,
            self.order,
            enable_events=config.enable_events,
            store_threshold=config.store_threshold,
            max_tracker_size=config.max_tracker_size,
            exact_backlog=exact_backlog,
        )
        self.manager = CPUOffloadingManager(
            config.num_chunks,
            policy_cls,
            enable_events=config.enable_events,
            store_threshold=config.store_threshold,
            max_tracker_size=config.max_tracker_size,
        )
        self.subject = ManagerSubject(self.manager)
        self.program: list[Step] = []

    def call(self, operation: op.Operation) -> Step:
        """Perform an operation; what comes of it is not judged."""
        step = self.subject.perform(operation)
        self.program.append(step)
        return step

    def judge(self, step: Step) -> None:
        """Hold a step against the model. Raises AssertionError."""
        self.order.request = getattr(step.operation, "request", "")
        wrong = difference(self.model.predict(step.operation), step)
        if wrong is not None:
            raise AssertionError("\n".join([wrong, "the program:", *map(str, self.program)]))

    def perform(self, operation: op.Operation) -> Step:
        """Perform an operation. Raises AssertionError when it does not go as predicted."""
        step = self.call(operation)
        self.judge(step)
        return step
