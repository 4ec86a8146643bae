"""The engines for what only the reference implementation promises, on the reference.

That they notice what is wrong is what the mutation tests are about: `nox -s mutation`.
"""

from __future__ import annotations

import pytest

from kvoffload import CachePolicyFactory
from spec_tests.engines.backlog import try_backlogs
from spec_tests.engines.construction import try_construction
from spec_tests.engines.faults import try_faults
from spec_tests.engines.orders import try_growth, try_orders
from spec_tests.engines.protocol import try_protocol
from spec_tests.mutation import engines
from stateful_models.roaming import Roaming


@pytest.mark.clause("STORE-8")
def test_protocol() -> None:
    try_protocol(range(3), 100)


@pytest.mark.clause("STORE-10")
def test_faults() -> None:
    try_faults(range(2, 4))


@pytest.mark.clause("POL-2")
@pytest.mark.parametrize("seeds", [10, pytest.param(30, marks=pytest.mark.nightly)])
def test_orders(seeds: int) -> None:
    try_orders(range(seeds), 200)


@pytest.mark.clause("POL-4")
def test_growth() -> None:
    try_growth(range(1), 2000)


@pytest.mark.clause("EVT-4")
def test_backlogs() -> None:
    try_backlogs(range(2))


@pytest.mark.clause("SLOT-1")
def test_damage() -> None:
    engines.damage(range(24))


@pytest.mark.clause("SPECS-4")
def test_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    # It registers names, which are for good.
    registry: dict[str, object] = vars(CachePolicyFactory)["_registry"]
    monkeypatch.setattr(CachePolicyFactory, "_registry", registry.copy())
    try_construction(range(30))


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_roaming(policy: str) -> None:
    for seed in range(6):
        Roaming(engines.try_manager(policy, seed), seed=seed).run(100)
