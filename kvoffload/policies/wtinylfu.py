"""W-TinyLFU, after G. Einziger, R. Friedman and B. Manes, "TinyLFU: A Highly Efficient Cache
Admission Policy", ACM Transactions on Storage 13(4), 2017.

Two parts: a window of 1% of the capacity, in order of use, which new chunks enter, and the main
part, a segmented LRU cache (`segments`) of which 80% are protected. What the window cannot hold
enters the main part while that has room; when it has none it has to have been used more often of
late than the chunk that the main part would give, for one of the two goes. How often keys were
used, resident or not, a `FrequencySketch` counts; there is no doorkeeper.

What a use is, and what becomes of what cannot go, is that of `LinePolicy`; a key that a request
wanted and did not find was used too, for the counts. The paper lets a chunk in before the window
gives one, and need not keep it; here newcomers come in together, after n were asked to go for
them, and stay. So the window gives a candidate for each, as it will when they push it out; and
where it has none left the main part gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from typing import ClassVar

from typing_extensions import override

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.lines import Entry, Line, LinePolicy, Victims
from kvoffload.policies.segments import Segments
from kvoffload.policies.sketch import FrequencySketch
from kvoffload.requests import ReqContext


class WTinyLFUCachePolicy(LinePolicy):
    """`window_share` of the capacity, at least 1, is window; `protected_share` is of the rest."""

    window_share: ClassVar[float] = 0.01
    protected_share: ClassVar[float] = 0.8

    def __init__(self, cache_capacity: int) -> None:
        self._window_size = max(1, int(cache_capacity * self.window_share))
        self._main_size = max(0, cache_capacity - self._window_size)
        self._window = window = Line()
        self._main = main = Segments(int(self._main_size * self.protected_share))
        self._sketch = FrequencySketch(cache_capacity)
        super().__init__(cache_capacity, [window, main.probation, main.protected])

    @override
    def _admit(self, entry: Entry) -> None:
        self._window.append(entry)
        # The window's victim enters the main part, whatever its frequency: that has room, as for
        # all for whom there was none somebody went.
        if len(self._window) > self._window_size:
            self._main.probation.append(self._window.oldest())

    @override
    def _use(self, entry: Entry) -> None:
        if entry.line is self._window:
            self._window.append(entry)
        else:
            self._main.use(entry)

    @override
    def _use_key(self, key: OffloadKey) -> None:
        self._sketch.count(key)
        super()._use_key(key)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        # TinyLFU counts misses too: how else could what is not resident be compared with what is?
        for key in keys:
            self._sketch.count(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        window = self._window.candidates(protected)
        main = _MainVictims(self._main, protected)
        room = self._main_size - len(self._main)
        estimate = self._sketch.estimate
        victims: list[Entry] = []
        while len(victims) < n:
            candidate = next(window, None)
            if candidate is None:
                # There are more newcomers than chunks in the window that can go.
                victim = main.take()
                if victim is None:
                    return None
                victims.append(victim)
            elif room > 0:
                room -= 1
                main.entering.append(candidate)
            elif (rival := main.look()) is not None and (
                # "If the frequency of the new item is higher than that of the victim ..."
                estimate(candidate.key) > estimate(rival.key)
            ):
                main.take()
                victims.append(rival)
                main.entering.append(candidate)
            else:
                victims.append(candidate)
        for entry in main.entering:
            self._main.probation.append(entry)
        return self._depart(victims)

    @override
    def clear(self) -> None:
        super().clear()
        self._sketch.clear()

    @override
    def check(self) -> None:
        """Raise InvariantError if a part is too long, or a counter is out of its bounds."""
        super().check()
        self._main.check()
        self._sketch.check()
        if len(self._main) > self._main_size:
            raise InvariantError(
                f"W-TinyLFU: {len(self._main)} chunks in a main part for {self._main_size}"
            )


class WTinyLFUTailCachePolicy(WTinyLFUCachePolicy):
    """W-TinyLFU where the tail of a request goes first in the window and in either segment."""

    tail_first: ClassVar[bool] = True


class _MainVictims:
    """Who the main part gives, one by one: nothing changes before it is known that enough can go.

    `entering` is what enters it meanwhile, at the newest end of probation.
    """

    def __init__(self, main: Segments, protected: Set[OffloadKey]) -> None:
        self.entering: deque[Entry] = deque()
        self._probation = main.probation.candidates(protected)
        self._protected = main.protected.candidates(protected)
        self._next: Entry | None = None

    def look(self) -> Entry | None:
        """The next victim, None if nothing can go."""
        if self._next is None:
            self._next = next(self._probation, None)
        if self._next is None and self.entering:
            self._next = self.entering[0]
        if self._next is None:
            self._next = next(self._protected, None)
        return self._next

    def take(self) -> Entry | None:
        """The next victim, which goes."""
        victim = self.look()
        if self.entering and self.entering[0] is victim:
            self.entering.popleft()
        self._next = None
        return victim
