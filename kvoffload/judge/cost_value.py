"""What the calls of a policy cost and what it holds in memory, beside what others do."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from attrs import frozen

from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.judge import cost, memory
from kvoffload.judge.cost import CostReport, measure_cost, policy_in
from kvoffload.judge.hints import HintsFor, common_hints
from kvoffload.judge.memory import MemoryReport, measure_memory

SECONDS: Final = 24.0
"""For each policy."""
_FOR_COST: Final = 2 / 3


@frozen(kw_only=True)
class PolicyCost:
    """What one policy costs."""

    policy: str
    cost: CostReport
    memory: MemoryReport

    @property
    def problems(self) -> tuple[str, ...]:
        """How the policy failed, each way once."""
        told = dict.fromkeys((self.cost.problem, self.memory.problem))
        return tuple(problem for problem in told if problem)


@frozen(kw_only=True)
class CostValue:
    """What policies cost, each measured alone, for `seconds` at most. `machine`: on which."""

    seconds: float
    machine: str
    policies: tuple[PolicyCost, ...]

    def of(self, policy: str) -> PolicyCost:
        """What the policy of this name costs. Raises KeyError if it was not measured."""
        return {each.policy: each for each in self.policies}[policy]


def measure_all(
    policies: Mapping[str, Callable[[int], CPUOffloadingManager]],
    seconds: float = SECONDS,
    *,
    hints_for: HintsFor = common_hints,
    proceed: Callable[[int], object] = lambda done: None,
) -> CostValue:
    """Measure the policies of managers, one after the other and each in processes of its own.

    Nothing else should run meanwhile. `proceed` is told how many are done. Raises InvalidValueError
    for what is not picklable, and HostFailedError where what calls a policy fails.
    """
    measured: list[PolicyCost] = []
    for name, make in policies.items():
        make_policy = partial(policy_in, make)
        one = PolicyCost(
            policy=name,
            cost=measure_cost(make_policy, cost.SIZES, _FOR_COST * seconds),
            memory=measure_memory(
                make_policy, memory.SIZES, (1 - _FOR_COST) * seconds, hints_for=hints_for
            ),
        )
        measured.append(one)
        proceed(len(measured))
    return CostValue(seconds=seconds, machine=_machine(), policies=tuple(measured))


def _machine() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
