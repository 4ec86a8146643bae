"""SIEVE, S3-FIFO, W-TinyLFU and segmented LRU, each wrong in one way, and what must notice it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import ClassVar, Final, NamedTuple

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.lines import NOWHERE, Entry, LinePolicy, Victims
from kvoffload.policies.s3fifo import S3FIFOCachePolicy, S3FIFOTailCachePolicy
from kvoffload.policies.segments import Segments
from kvoffload.policies.sieve import SIEVECachePolicy, SIEVETailCachePolicy
from kvoffload.policies.sketch import FrequencySketch
from kvoffload.policies.slru import SLRUCachePolicy, SLRUTailCachePolicy
from kvoffload.policies.wtinylfu import WTinyLFUCachePolicy, WTinyLFUTailCachePolicy
from spec_tests.engines.orders import RoomyS3FIFO, RoomySLRU, RoomyWTinyLFU


class Fault(NamedTuple):
    """A wrong policy, the name of the one that it should be, and what `check` says if it does."""

    policy_cls: type[LinePolicy]
    name: str
    checked: str = ""


# What all of them can have wrong


class InsertionIsAUse(LinePolicy):
    """What a request only inserted counts as used."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        used = insertion_only_keys | reused_keys
        super().on_request_finished(key_groups, set(), used, req_context)


class PendingIsUsed(LinePolicy):
    """A touch uses what is still being stored."""

    @override
    def _use_key(self, key: OffloadKey) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.chunk.ref_cnt < 0:
            self._use(entry)
        else:
            super()._use_key(key)


class HeadFirst(LinePolicy):
    """A request is applied from its head on, where the tail should go first."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        keys = [key for group in key_groups for key in group]
        if (ends := req_context.get_offload_key_positions(keys)) is not None:
            keys = [
                key for _, key in sorted(zip(ends, keys, strict=True), key=lambda each: each[0])
            ]
        # Without positions a single group comes as it is.
        super().on_request_finished(
            [keys[::-1]], insertion_only_keys, reused_keys, ReqContext("nobody")
        )


class ForgetsTheParked(LinePolicy):
    """What was met while it was pinned joins its line no more, but the newest end, when idle."""

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.older is NOWHERE:
            line = entry.line
            line.remove(entry)
            line.append(entry)


# SIEVE


class HandGoesBack(SIEVECachePolicy):
    """The hand begins at the oldest chunk each time."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        self._queue.place_marker(self._hand, None)
        return victims


class HandWaitsForNewcomers(SIEVECachePolicy):
    """A hand that took the newest chunk goes on to what comes after it."""

    @override
    def _rewind(self) -> None:
        pass


class SparesForGood(SIEVECachePolicy):
    """The hand clears no bit: a chunk that was used once goes last for ever."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        visited = [entry for entry in self._entries.values() if entry.uses]
        victims = super().evict(n, protected)
        for entry in visited:
            entry.uses = 1
        return victims


class MovesWhatItSpares(SIEVECachePolicy):
    """What the hand spares moves to the newest end, as in FIFO-Reinsertion."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        visited = [entry for entry in self._entries.values() if entry.uses]
        victims = super().evict(n, protected)
        for entry in visited:
            if not entry.uses and entry.key in self._entries:
                self._queue.append(entry)
                self._entries[entry.key] = self._entries.pop(entry.key)
        return victims


class RefusalClearsBits(SIEVECachePolicy):
    """A hand that finds too few has cleared the bits of all the same."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        if victims is None:
            for key, entry in self._entries.items():
                if entry.chunk.ref_cnt == 0 and key not in protected:
                    entry.uses = 0
        return victims


class RemembersBits(SIEVECachePolicy):
    """What is stored again has the bit that it left with."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._left: dict[OffloadKey, int] = {}

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        # Only on its second round does the hand take what was used.
        uses = {key: entry.uses for key, entry in self._entries.items()}
        victims = super().evict(n, protected)
        self._left.update((key, uses[key]) for key, _ in victims or ())
        return victims

    @override
    def _admit(self, entry: Entry) -> None:
        super()._admit(entry)
        entry.uses = self._left.pop(entry.key, 0)


class CountsUses(SIEVECachePolicy):
    """A bit that counts; `evict` does not mind."""

    @override
    def _use(self, entry: Entry) -> None:
        entry.uses += 1


class SIEVEInsertionIsAUse(InsertionIsAUse, SIEVECachePolicy):
    """SIEVE."""


class SIEVEPendingIsUsed(PendingIsUsed, SIEVECachePolicy):
    """SIEVE."""


class SIEVEForgetsTheParked(ForgetsTheParked, SIEVECachePolicy):
    """SIEVE."""


class SIEVEHeadFirst(HeadFirst, SIEVETailCachePolicy):
    """SIEVE."""


# S3-FIFO


class PromotesAfterOneUse(S3FIFOCachePolicy):
    """One use in S is enough for M."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        for entry in self._small.members():
            entry.uses += 1 if entry.uses == 1 else 0
        return super().evict(n, protected)


class NoGhosts(S3FIFOCachePolicy):
    """What leaves S leaves no ghost."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        self._ghosts.clear()
        return victims


class GhostsOfMain(S3FIFOCachePolicy):
    """What leaves M leaves a ghost as well."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        victims = super().evict(n, protected)
        left = [key for key, _ in victims or () if key not in self._ghosts.keys]
        self._ghosts.extend(left, self._main_size)
        return victims


class GhostsStay(S3FIFOCachePolicy):
    """A ghost that returns stays a ghost."""

    @override
    def _admit(self, entry: Entry) -> None:
        returned = entry.key in self._ghosts.keys
        super()._admit(entry)
        if returned:
            self._ghosts.extend([entry.key], self._main_size)


class GhostsKeepTheirCount(S3FIFOCachePolicy):
    """A ghost returns as if it had been used."""

    @override
    def _admit(self, entry: Entry) -> None:
        super()._admit(entry)
        entry.uses = 1 if entry.line is self._main else 0


class GhostsUnbounded(S3FIFOCachePolicy):
    """As many ghosts as ever left S."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._bound = self._main_size

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        # M runs over as it should only where S gives.
        before = list(self._ghosts)
        victims = super().evict(n, protected)
        lost = [key for key in before if key not in self._ghosts.keys]
        if victims is not None:
            self._ghosts.extend(lost, len(before) + n)
        return victims


class CountsBeyondThree(S3FIFOCachePolicy):
    """More than two bits a chunk."""

    @override
    def _use(self, entry: Entry) -> None:
        entry.uses += 1


class BatchWithoutNewcomers(RoomyS3FIFO):
    """The victims of a batch are chosen as if nobody came in for them."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        self._small_size += n
        victims = super().evict(n, protected)
        self._small_size -= n
        return victims


class S3FIFOInsertionIsAUse(InsertionIsAUse, S3FIFOCachePolicy):
    """S3-FIFO."""


class S3FIFOPendingIsUsed(PendingIsUsed, S3FIFOCachePolicy):
    """S3-FIFO."""


class S3FIFOForgetsTheParked(ForgetsTheParked, S3FIFOCachePolicy):
    """S3-FIFO."""


class S3FIFOHeadFirst(HeadFirst, S3FIFOTailCachePolicy):
    """S3-FIFO."""


# W-TinyLFU


class Lenient(FrequencySketch):
    """A candidate that was used as often as its rival seems to have been used more often."""

    asked: int = 0

    @override
    def estimate(self, key: OffloadKey) -> int:
        # Candidates are asked for before their rivals.
        self.asked += 1
        return 2 * super().estimate(key) + self.asked % 2


class AdmitsTies(WTinyLFUCachePolicy):
    """On a tie the candidate stays."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._sketch = Lenient(cache_capacity)


class NeverHalved(FrequencySketch):
    """Counts for ever."""

    @override
    def _halve(self) -> None:
        self._counted = 0


class NeverForgets(WTinyLFUCachePolicy):
    """What is long past weighs as much as what is new."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._sketch = NeverHalved(cache_capacity)


class Salted(FrequencySketch):
    """Hashes as Python does, where other processes agree with nobody."""

    @override
    def count(self, key: OffloadKey) -> None:
        super().count(OffloadKey(hash(key).to_bytes(16, "big", signed=True)))

    @override
    def estimate(self, key: OffloadKey) -> int:
        return super().estimate(OffloadKey(hash(key).to_bytes(16, "big", signed=True)))


class HashesAsPython(WTinyLFUCachePolicy):
    """Choices hang on PYTHONHASHSEED."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._sketch = Salted(cache_capacity)


class CountsNoMisses(WTinyLFUCachePolicy):
    """Only hits are counted."""

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        pass


class CountsResidentsOnly(WTinyLFUCachePolicy):
    """A use of what is not resident is not counted."""

    @override
    def _use_key(self, key: OffloadKey) -> None:
        if key in self._entries:
            super()._use_key(key)


class SketchSurvivesClear(WTinyLFUCachePolicy):
    """Counts outlive a reset."""

    @override
    def clear(self) -> None:
        LinePolicy.clear(self)


class WindowInOrderOfEntry(RoomyWTinyLFU):
    """A use in the window moves nothing."""

    @override
    def _use(self, entry: Entry) -> None:
        if entry.line is not self._window:
            super()._use(entry)


class MainIsNotFilled(WTinyLFUCachePolicy):
    """The window keeps what it cannot hold until something must go."""

    @override
    def _admit(self, entry: Entry) -> None:
        self._window.append(entry)


class Flat(FrequencySketch):
    """Everything was used as often."""

    @override
    def estimate(self, key: OffloadKey) -> int:
        return 0


class NeverAdmits(WTinyLFUCachePolicy):
    """No candidate stays."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._sketch = Flat(cache_capacity)


class WTinyLFUHeadFirst(HeadFirst, WTinyLFUTailCachePolicy):
    """W-TinyLFU."""


class WTinyLFUForgetsTheParked(ForgetsTheParked, WTinyLFUCachePolicy):
    """W-TinyLFU."""


# Segmented LRU


class OtherSegments(SLRUCachePolicy):
    """Has segments of another class."""

    segments_cls: ClassVar[type[Segments]]

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._segments = self.segments_cls(self._segments.protected_size)
        self._lines = (self._segments.probation, self._segments.protected)


class EntersProtected(SLRUCachePolicy):
    """New chunks enter the protected segment."""

    @override
    def _admit(self, entry: Entry) -> None:
        self._segments.use(entry)


class NoSecondChance(Segments):
    """The protected segment keeps all that was used."""

    @override
    def use(self, entry: Entry) -> None:
        self.protected.append(entry)


class ProtectsEverything(OtherSegments, RoomySLRU):
    """The protected segment has no bound."""

    segments_cls = NoSecondChance


class OldChance(Segments):
    """What the protected segment cannot hold becomes the oldest in the other one."""

    @override
    def use(self, entry: Entry) -> None:
        super().use(entry)
        others = self.probation.members()
        if others and others[-1] is not entry:
            for other in others[:-1]:
                self.probation.append(other)


class ChanceAtTheOldEnd(OtherSegments):
    """A key that leaves the protected segment goes next."""

    segments_cls = OldChance


class SparesPinned(Segments):
    """The oldest that is not parked gets another chance: pins decide which."""

    @override
    def use(self, entry: Entry) -> None:
        self.protected.append(entry)
        if len(self.protected) > self.protected_size:
            oldest = next((each for each in self.protected if each.chunk.ref_cnt == 0), None)
            self.probation.append(oldest or self.protected.oldest())


class PinsDecide(OtherSegments, RoomySLRU):
    """What is pinned stays protected."""

    segments_cls = SparesPinned


class ProtectedFirst(SLRUCachePolicy):
    """The protected segment gives first."""

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        segments = self._segments
        segments.probation, segments.protected = segments.protected, segments.probation
        victims = super().evict(n, protected)
        segments.probation, segments.protected = segments.protected, segments.probation
        return victims


class EntersTwice(SLRUCachePolicy):
    """A key that is stored again is in line twice."""

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._segments.probation.append(Entry(key, chunk))


class SLRUInsertionIsAUse(InsertionIsAUse, SLRUCachePolicy):
    """Segmented LRU."""


class SLRUPendingIsUsed(PendingIsUsed, SLRUCachePolicy):
    """Segmented LRU."""


class SLRUForgetsTheParked(ForgetsTheParked, SLRUCachePolicy):
    """Segmented LRU."""


class SLRUHeadFirst(HeadFirst, SLRUTailCachePolicy):
    """Segmented LRU."""


FAULTS: Final[Sequence[Fault]] = (
    Fault(HandGoesBack, "sieve"),
    Fault(HandWaitsForNewcomers, "sieve", "hand at"),
    Fault(SparesForGood, "sieve"),
    Fault(MovesWhatItSpares, "sieve"),
    Fault(RefusalClearsBits, "sieve"),
    Fault(RemembersBits, "sieve"),
    Fault(CountsUses, "sieve", "SIEVE: hand at"),
    Fault(SIEVEInsertionIsAUse, "sieve"),
    Fault(SIEVEPendingIsUsed, "sieve"),
    Fault(SIEVEForgetsTheParked, "sieve"),
    Fault(SIEVEHeadFirst, "sieve-tail"),
    Fault(SIEVECachePolicy, "sieve-tail"),
    Fault(PromotesAfterOneUse, "s3fifo"),
    Fault(NoGhosts, "s3fifo"),
    Fault(GhostsOfMain, "s3fifo"),
    Fault(GhostsStay, "s3fifo", "S3-FIFO: ghosts"),
    Fault(GhostsKeepTheirCount, "s3fifo"),
    Fault(GhostsUnbounded, "s3fifo", "S3-FIFO: ghosts"),
    Fault(CountsBeyondThree, "s3fifo", "S3-FIFO: ghosts"),
    Fault(BatchWithoutNewcomers, "roomy s3fifo"),
    Fault(S3FIFOInsertionIsAUse, "s3fifo"),
    Fault(S3FIFOPendingIsUsed, "s3fifo"),
    Fault(S3FIFOForgetsTheParked, "s3fifo"),
    Fault(S3FIFOHeadFirst, "s3fifo-tail"),
    Fault(S3FIFOCachePolicy, "s3fifo-tail"),
    Fault(AdmitsTies, "wtinylfu"),
    Fault(NeverForgets, "wtinylfu"),
    Fault(HashesAsPython, "wtinylfu"),
    Fault(CountsNoMisses, "wtinylfu"),
    Fault(CountsResidentsOnly, "wtinylfu"),
    Fault(SketchSurvivesClear, "wtinylfu"),
    Fault(WindowInOrderOfEntry, "roomy wtinylfu"),
    Fault(MainIsNotFilled, "wtinylfu"),
    Fault(NeverAdmits, "wtinylfu"),
    Fault(WTinyLFUForgetsTheParked, "wtinylfu"),
    Fault(WTinyLFUHeadFirst, "wtinylfu-tail"),
    Fault(WTinyLFUCachePolicy, "wtinylfu-tail"),
    Fault(EntersProtected, "slru"),
    Fault(ProtectsEverything, "roomy slru", "protected segment"),
    Fault(ChanceAtTheOldEnd, "slru"),
    Fault(PinsDecide, "roomy slru"),
    Fault(ProtectedFirst, "slru"),
    Fault(EntersTwice, "slru", "SLRU|EntersTwice"),
    Fault(SLRUInsertionIsAUse, "slru"),
    Fault(SLRUPendingIsUsed, "slru"),
    Fault(SLRUForgetsTheParked, "slru"),
    Fault(SLRUHeadFirst, "slru-tail"),
    Fault(SLRUCachePolicy, "slru-tail"),
)
