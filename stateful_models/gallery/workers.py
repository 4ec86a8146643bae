"""All exhibits among workers, each broken one with the clause that it must trip.

`stateful_models.workers.check_worker` finds each of them out in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stateful_models.gallery.broken_workers.base import BrokenWorker, LegalWorker
from stateful_models.gallery.broken_workers.legal import LEGAL_WORKERS
from stateful_models.gallery.broken_workers.moving import BROKEN_MOVES
from stateful_models.gallery.broken_workers.ordering import BROKEN_ORDERS
from stateful_models.gallery.broken_workers.reporting import BROKEN_REPORTS

__all__ = [
    "BROKEN_WORKERS",
    "LEGAL_WORKERS",
    "OF_OTHER_PARTS",
    "BrokenWorker",
    "LegalWorker",
]

_ALL: Final = {**BROKEN_MOVES, **BROKEN_REPORTS, **BROKEN_ORDERS}
BROKEN_WORKERS: Final[Mapping[str, BrokenWorker]] = {name: _ALL[name] for name in sorted(_ALL)}
"""By name."""

OF_OTHER_PARTS: Final[Mapping[str, str]] = {
    "COPY-5": "speaks of several ranks, which no single worker sees",
    "W15": "the number of chunks is settled by the spec, before there is a worker",
}
"""Clauses and rows of reports that no single worker can be wrong about, and why."""
