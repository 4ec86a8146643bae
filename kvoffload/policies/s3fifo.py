"""S3-FIFO, after J. Yang, Y. Zhang, Z. Qiu, Y. Yue and K. V. Rashmi, "FIFO Queues are All You Need
for Cache Eviction", SOSP 2023.

Three queues in order of entry: S, a tenth of the capacity, which new chunks enter; M, for the
rest, which they enter from S when they were used more than once there, or at once when they had
left S too early; and G, the keys that left S and not yet G, as many as M holds chunks. A use moves
nothing; it counts up to 3, in two bits.

What a use is, and what becomes of what cannot go, is that of `LinePolicy`; what cannot go counts
in the length of its queue. The paper makes room for a chunk and lets it in, one by one; here n are
asked for before they and those that find room come in. So the second victim is chosen as if the
newcomer that the first made way for stood in S already, and so on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import ClassVar, Final

from typing_extensions import override

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.ghosts import GhostList
from kvoffload.policies.lines import Entry, Line, LinePolicy, Victims

MAX_USES: Final = 3
"""Two bits a chunk."""


class S3FIFOCachePolicy(LinePolicy):
    """`uses` of an entry is the paper's freq. `small_share` of the capacity, at least 1, is S."""

    small_share: ClassVar[float] = 0.1

    def __init__(self, cache_capacity: int) -> None:
        self._small = Line()
        self._main = Line()
        self._ghosts = GhostList()
        super().__init__(cache_capacity, [self._small, self._main])
        self._small_size = max(1, int(cache_capacity * self.small_share))
        self._main_size = max(0, cache_capacity - self._small_size)

    @override
    def _admit(self, entry: Entry) -> None:
        # Its insert: "if x in G then insert x to head of M else insert x to head of S".
        if entry.key in self._ghosts.keys:
            self._ghosts.discard_all((entry.key,))
            self._main.append(entry)
        else:
            self._small.append(entry)

    @override
    def _use(self, entry: Entry) -> None:
        # The paper's read: "x.freq <- min(x.freq + 1, 3)".
        entry.uses = min(entry.uses + 1, MAX_USES)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        plan = _Plan(self._small, self._main, self._main_size, protected)
        in_small = len(self._small) + self.cache_capacity - len(self._entries)
        for newcomers in range(n):
            # Its evict: "if S.size >= 0.1 * cache size then evictS() else evictM()".
            from_small = in_small - plan.left_small + newcomers >= self._small_size
            victim = plan.evict_small() if from_small else None
            # Where nothing in M can go S has to give, whatever its length; but that may move all
            # of it to M.
            victim = victim or plan.evict_main() or plan.evict_small() or plan.evict_main()
            if victim is None:
                return None
            plan.victims.append(victim)
        for entry, uses in plan.entering:
            entry.uses = uses
            self._main.append(entry)
        answer = self._depart(plan.victims)
        self._ghosts.extend(plan.ghosts, self._main_size)
        return answer

    @override
    def clear(self) -> None:
        super().clear()
        self._ghosts.clear()

    @override
    def check(self) -> None:
        """Raise InvariantError if a ghost is resident, or there are too many, or a use too much."""
        super().check()
        self._ghosts.check()
        if (
            not self._ghosts.keys.isdisjoint(self._entries)
            or len(self._ghosts) > self._main_size
            or any(not 0 <= entry.uses <= MAX_USES for entry in self._entries.values())
        ):
            raise InvariantError(
                f"S3-FIFO: ghosts {list(self._ghosts)} of {self._main_size}, "
                f"uses {[(key, entry.uses) for key, entry in self._entries.items()]}"
            )


class _Plan:
    """Who goes, and who goes on in M: nothing changes before it is known that enough can go."""

    def __init__(self, small: Line, main: Line, main_size: int, protected: Set[OffloadKey]) -> None:
        self.victims: list[Entry] = []
        self.ghosts: list[OffloadKey] = []
        # What will stand at the head of M, oldest first, each with the freq that it will have.
        self.entering: deque[tuple[Entry, int]] = deque()
        self.left_small = 0
        self._small = small.candidates(protected)
        self._main = main.candidates(protected)
        self._room = main_size - len(main)

    def evict_small(self) -> Entry | None:
        """evictS: the next victim, in most cases from S; None if nothing in it can go."""
        for entry in self._small:
            self.left_small += 1
            if entry.uses <= 1:
                # "else insert t to G; evicted <- true"
                self.ghosts.append(entry.key)
                return entry
            # "if t.freq > 1 then insert t to M", its bits cleared on the way, "if M is full then
            # evictM()". One victim is enough.
            self.entering.append((entry, 0))
            self._room -= 1
            if self._room < 0 and (victim := self.evict_main()) is not None:
                return victim
        return None

    def evict_main(self) -> Entry | None:
        """evictM: the next victim from M; None if nothing in it can go."""
        while (head := self._next_in_main()) is not None:
            entry, uses = head
            if uses == 0:
                # "else remove t from M; evicted <- true"
                self._room += 1
                return entry
            # "if t.freq > 0 then insert t to head of M; t.freq <- t.freq - 1"
            self.entering.append((entry, uses - 1))
        return None

    def _next_in_main(self) -> tuple[Entry, int] | None:
        entry = next(self._main, None)
        if entry is not None:
            return entry, entry.uses
        return self.entering.popleft() if self.entering else None


class S3FIFOTailCachePolicy(S3FIFOCachePolicy):
    """S3-FIFO where what a request inserted enters at its end, the tail of the prefix first."""

    tail_first: ClassVar[bool] = True
