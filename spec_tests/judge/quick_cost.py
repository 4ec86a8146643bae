"""Cost and memory measured in small caches and in this process, for tests of what is made of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvoffload.judge.cost import CostReport, MakePolicy, measure_cost
from kvoffload.judge.hints import HintsFor
from kvoffload.judge.memory import MemoryReport, measure_memory

SIZES = (64, 128)


def measure_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on `kvoffload.judge.cost_value` measures so."""

    def cost(make_policy: MakePolicy, _: Sequence[int], budget_s: float) -> CostReport:
        return measure_cost(
            make_policy, SIZES, budget_s, batch=8, request_keys=16, calls=5, own_process=False
        )

    def memory(
        make_policy: MakePolicy, _: Sequence[int], budget_s: float, *, hints_for: HintsFor
    ) -> MemoryReport:
        return measure_memory(
            make_policy,
            SIZES,
            budget_s,
            request_keys=16,
            sessions=64,
            hints_for=hints_for,
            own_process=False,
        )

    monkeypatch.setattr("kvoffload.judge.cost_value.measure_cost", cost)
    monkeypatch.setattr("kvoffload.judge.cost_value.measure_memory", memory)
