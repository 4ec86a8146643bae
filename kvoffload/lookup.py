"""What a look-up can answer."""

from __future__ import annotations

from enum import Enum, auto


class LookupResult(Enum):
    """Answer of `OffloadingManager.lookup` for one key (LOOK-1)."""

    MISS = auto()
    """Not resident."""
    HIT = auto()
    """Resident and readable now."""
    HIT_PENDING = auto()
    """Resident, but its store has not completed."""
    RETRY = auto()
    """Not known yet, ask again; only tiers that look up asynchronously answer so."""
