"""Broken managers, each wrong in one way, and odd ones that break nothing.

Each class can be built like `CPUOffloadingManager`, so `kvoffload replay --check --manager
stateful_models.gallery.managers:NAME` puts it on trial. What is wrong with those in `telling` shows
only where a tap listens to their policy; `managers.SETUPS` says how to build a few others. A suite
is worth what it catches here.
"""

from __future__ import annotations

from stateful_models.gallery.managers import BREAKS
from stateful_models.gallery.oddities import ODDITIES

__all__ = ["BREAKS", "ODDITIES"]
