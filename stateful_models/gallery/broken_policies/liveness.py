"""Calls that do not come back (POL-7). They must be tried in a process that can be ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Set

from typing_extensions import override

from kvoffload import OffloadKey
from stateful_models.gallery.broken_policies.base import Plain, Victims


class Pol7LoopsForEver(Plain):
    """A pinned chunk at the cold end is looked at until it is idle, which nobody can make it
    while `evict` runs."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims: list[OffloadKey] = []
        waiting = list(self.chunks)
        while len(victims) < n and waiting:
            key = waiting[0]
            if self.chunks[key].ref_cnt == 0 or key in protected:
                waiting.pop(0)
                if key not in protected:
                    victims.append(key)
        return self.take(victims) if len(victims) == n else None


class Pol7SleepsForEver(Plain):
    """As many as are pinned at the cold end are slept for, on any clock that can be replaced."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        while any(chunk.ref_cnt > 0 for chunk in list(self.chunks.values())[:1]):
            time.sleep(0.01)
        return super().evict(n, protected)


class Pol7WaitsForReal(Plain):
    """A pinned chunk at the cold end is waited for on an event that nobody sets."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        if any(chunk.ref_cnt > 0 for chunk in list(self.chunks.values())[:1]):
            threading.Event().wait()
        return super().evict(n, protected)
