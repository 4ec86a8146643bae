"""Levels: how long a trial takes. A level is a budget of programs, not of seconds, so that a trial
finds the same on any machine; `patience_s` only ends what takes much longer than it should, and the
report says what was cut."""

from __future__ import annotations

from typing import Final

from attrs import frozen


@frozen(kw_only=True)
class Level:
    """The budgets of one level."""

    name: str
    programs: int
    """Random programs."""
    length: int
    """Operations of a random program, at most."""
    depth: int
    """Operations of the longest program that is enumerated."""
    laws: int
    """Programs for each law."""
    churn: int
    """Distinct keys that pass through the policy when its growth is measured."""
    cost_capacity: int
    """Chunks of the cache in which visits are counted."""
    shrinking: int
    """Programs tried to make one failure short."""
    patience_s: float
    """Seconds of work of one engine after which it is cut, and says so."""


SMOKE: Final = Level(
    name="smoke",
    programs=50,
    length=25,
    depth=2,
    laws=10,
    churn=400,
    cost_capacity=32,
    shrinking=150,
    patience_s=6.0,
)
"""Too little for a verdict on anybody: for tests of the kit itself."""
QUICK: Final = Level(
    name="quick",
    programs=500,
    length=40,
    depth=3,
    laws=40,
    churn=3_000,
    cost_capacity=128,
    shrinking=300,
    patience_s=9.0,
)
CI: Final = Level(
    name="ci",
    programs=1_300,
    length=60,
    depth=5,
    laws=130,
    churn=12_000,
    cost_capacity=1_024,
    shrinking=1_000,
    patience_s=60.0,
)
NIGHTLY: Final = Level(
    name="nightly",
    programs=50_000,
    length=100,
    depth=6,
    laws=5_000,
    churn=200_000,
    cost_capacity=16_384,
    shrinking=5_000,
    patience_s=1_200.0,
)

LEVELS: Final = {level.name: level for level in (SMOKE, QUICK, CI, NIGHTLY)}
"""All levels by name."""
