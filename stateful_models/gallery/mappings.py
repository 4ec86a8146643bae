"""All exhibits among page mappers, each broken one with the clause that it must trip.

`stateful_models.pages.check_mapper` finds each of them out in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stateful_models.gallery.broken_mappers.base import BrokenMapper, LegalMapper
from stateful_models.gallery.broken_mappers.claims import BROKEN_CLAIMS
from stateful_models.gallery.broken_mappers.derivations import BROKEN_DERIVATIONS
from stateful_models.gallery.broken_mappers.legal import LEGAL_MAPPERS
from stateful_models.gallery.broken_mappers.others import OTHER_BROKEN
from stateful_models.gallery.broken_mappers.reference import REFERENCE

__all__ = [
    "BROKEN_MAPPERS",
    "LEGAL_MAPPERS",
    "OF_OTHER_PARTS",
    "REFERENCE",
    "BrokenMapper",
    "LegalMapper",
]

_ALL: Final = {**BROKEN_DERIVATIONS, **BROKEN_CLAIMS, **OTHER_BROKEN}
BROKEN_MAPPERS: Final[Mapping[str, BrokenMapper]] = {
    name: _ALL[name] for name in sorted(_ALL, key=lambda name: (_ALL[name].clause == "ID-1", name))
}
"""By name, in the order of the contract."""

OF_OTHER_PARTS: Final[Mapping[str, str]] = {
    "C18": "whether a chunk may be loaded that was written in part is for whoever moves bytes"
}
"""Rows about layouts that no mapping can be wrong about, and why."""
