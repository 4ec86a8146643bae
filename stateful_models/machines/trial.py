"""One manager on trial: its model, its judge, and the program so far."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload import CPUOffloadingManager, OffloadingManager
from kvoffload.cpu.open_transfers import TransferKind
from kvoffload.errors import InvariantError
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.invariants import Invariant, manager_invariants
from stateful_models.judge import Judge
from stateful_models.machines.universe import ManagerConfig
from stateful_models.models import ManagerModel, PolicyModel, difference
from stateful_models.steps import Loaded, Step, Stored
from stateful_models.subjects import ManagerSubject

EXACT_BACKLOG = 1_000
"""No run leaves so many keys undelivered that a manager may shorten its events (EVT-4)."""


class ManagerTrial:
    """Performs operations on `manager`, and raises AssertionError at the first step that is wrong.

    Wrong is what the model did not predict, what an invariant objects to (the usual ones, and
    `invariants`), and what the manager's own `check()` finds if it has one.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        config: ManagerConfig,
        policy_model: PolicyModel,
        invariants: Sequence[Invariant[Account]] = (),
    ) -> None:
        self.manager = manager
        self.model: ManagerModel = ManagerModel(
            config.num_chunks,
            policy_model,
            enable_events=config.enable_events,
            store_threshold=config.store_threshold,
            max_tracker_size=config.max_tracker_size,
            exact_backlog=EXACT_BACKLOG,
        )
        self.program: list[Step] = []
        self._last_ticket = -1
        self._tickets: dict[op.Attempt, int] = {}
        self._subject = ManagerSubject(manager)
        self._judge = Judge(
            [
                *manager_invariants(
                    store_threshold=config.store_threshold,
                    enable_events=config.enable_events,
                    max_tracker_size=config.max_tracker_size,
                ),
                *invariants,
            ],
            Account(config.num_chunks),
        )

    def perform(self, operation: op.Operation) -> Step:
        """Perform an operation, and hold what comes of it against everything that is known."""
        step = self._subject.perform(operation)
        self.program.append(step)
        wrong = [difference(self.model.predict(operation), step), self._shown(step)]
        wrong += map(str, self._judge.judge(step))
        wrong += [self._ticket(step), self._inside()]
        found = [text for text in wrong if text]
        if found:
            program = "\n".join(map(str, self.program))
            raise AssertionError("\n".join([*found, "the program:", program]))
        return step

    def _shown(self, step: Step) -> str | None:
        for name, shown, own in (
            ("generation", step.visible.generation, self.model.generation),
            ("stale_completions", step.visible.stale_completions, self.model.stale),
        ):
            if shown is not None and shown != own:
                return f"{step}\n      {name} is {shown}, expected {own}"
        return None

    def _ticket(self, step: Step) -> str | None:
        """Ours gives every attempt a ticket, and counts on for the next (DONE-4)."""
        if not isinstance(self.manager, CPUOffloadingManager):
            return None
        if not isinstance(step.result, Loaded | Stored):
            return None
        last, ticket = self._last_ticket, step.result.ticket
        if ticket is None or ticket <= last:
            return f"{step}\n      its ticket is {ticket}, after {last}"
        self._last_ticket = ticket
        if isinstance(step.operation, op.PrepareLoad | op.PrepareStore):
            if (attempt := step.operation.attempt) is not None:
                self._tickets[attempt] = ticket
        return None

    def _inside(self) -> str | None:
        manager = self.manager
        if not isinstance(manager, CPUOffloadingManager):
            return None
        try:
            manager.check()
        except InvariantError as broken:
            return str(broken)
        named = set(self._tickets.values())
        for request in {hold.request for hold in self.model.holds}:
            held = [
                (
                    # Of an attempt without a name, nobody knows the ticket.
                    transfer.ticket if transfer.ticket in named else None,
                    transfer.kind is TransferKind.STORE,
                    sorted(transfer.keys),
                )
                for transfer in manager.outstanding(request)
            ]
            expected = [
                (
                    None if hold.attempt is None else self._tickets.get(hold.attempt),
                    hold.stores,
                    sorted(hold.keys.elements()),
                )
                for hold in self.model.holds
                if hold.request == request and hold.keys.total()
            ]
            if held != expected:
                return f"{request} holds {held}, expected {expected}"
        return None
