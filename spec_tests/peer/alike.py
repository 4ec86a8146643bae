"""Managers of vLLM with different policies on the same random programs, all of which must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from attrs import evolve

from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.manager_hosting import ManagerHost
from stateful_models.steps import Step, Stored
from stateful_models.subjects import ManagerSubject
from stateful_models.vllm.manager import VLLMManager
from stateful_models.vllm.pair import FORGET, Outcome
from stateful_models.vllm.traffic import Habits, Traffic, draw_settings


class Alike:
    """What a random program of this name came to on vLLM's manager with each of these policies.

    A policy is a name and the path of its module, as vLLM is configured. `mistakes`: of the host.
    """

    def __init__(
        self, name: str, policies: Sequence[tuple[str, str | None]], *, mistakes: bool
    ) -> None:
        chance = Random(name)
        settings = draw_settings(chance, None, tapped=False)
        habits = Habits.draw(chance, settings)
        if not mistakes:
            habits = evolve(habits, erring=0.0)
        self.met: Counter[str] = Counter()
        self.managers: list[VLLMManager] = [
            VLLMManager(
                habits.capacity,
                *policy,
                enable_events=settings.enable_events,
                store_threshold=settings.store_threshold,
                max_tracker_size=settings.max_tracker_size or 64_000,
            )
            for policy in policies
        ]
        self._subjects = [ManagerSubject(manager) for manager in self.managers]
        self._account = Account(habits.capacity)
        host = ManagerHost(self._perform, self._account, mistakes=True)
        traffic = Traffic(chance, host, habits, settings, lambda: True)
        traffic.play()
        traffic.drain()
        for manager in self.managers:
            # Ours can check themselves.
            getattr(manager.policy, "check", lambda: None)()

    def _perform(self, operation: op.Operation) -> Step:
        steps = [subject.perform(operation) for subject in self._subjects]
        if isinstance(operation, op.HostEvent) and operation.name == FORGET:
            for subject in self._subjects:
                for request in operation.values:
                    subject.contexts.forget(str(request))
        first, *others = [
            Outcome.of(step, manager.take_metadata_only())
            for step, manager in zip(steps, self.managers, strict=True)
        ]
        for number, other in enumerate(others, 1):
            if not first.is_like(other):
                raise AssertionError(f"{operation}: {first}; manager {number}: {other}")
        step = steps[0]
        self._account.read(step)
        self._account.apply(step)
        self.met["steps"] += 1
        self.met["errors"] += step.error is not None
        if isinstance(step.result, Stored):
            self.met["victims"] += len(step.result.evicted)
        self.met["resets"] += isinstance(operation, op.Reset)
        self.met["failed stores"] += isinstance(operation, op.CompleteStore) and (
            not operation.success
        )
        return step
