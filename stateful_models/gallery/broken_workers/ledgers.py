"""Workers whose books of who comes after whom are wrong (ORD-1, ORD-3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from kvoffload.copying.graph import Stream
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ledger import AccessLedger, Lane
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.worker import CopyWorker

if TYPE_CHECKING:
    from kvoffload.copying.ledger import Numbers


class _NeverReadFirst(AccessLedger):
    """Reads need not come after anything."""

    @override
    def before_read(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        return {}


class _ForgetsReads(AccessLedger):
    """Writes need not come after reads."""

    @override
    def before_write(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        return self.before_read(places, lane)


class _ForgetsWrites(AccessLedger):
    """Writes need not come after writes."""

    @override
    def before_write(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        kept = {one: array.copy() for one, array in self._writes.items()}
        for array in self._writes.values():
            array[:] = 0
        try:
            return super().before_write(places, lane)
        finally:
            self._writes = kept


class _NotesTheFirstOnly(AccessLedger):
    """Of a transfer, only the first place is remembered."""

    @override
    def note_write(self, places: Numbers, lane: Lane, number: int) -> None:
        super().note_write(places[:1], lane, number)

    @override
    def note_read(self, places: Numbers, lane: Lane, number: int) -> None:
        super().note_read(places[:1], lane, number)


class _OtherLedgers(CopyWorker[Stream, OrderedEvent]):
    """The reference with other books of what has to come after what."""

    blocks: ClassVar[type[AccessLedger]] = AccessLedger
    slots: ClassVar[type[AccessLedger]] = AccessLedger

    def __init__(self, layout: CopyLayout, device: OrderedDevice) -> None:
        super().__init__(layout, device)
        self._blocks = self.blocks(max(rows.num_rows for rows in layout.gpu))
        self._slots = self.slots(layout.num_slots)


class StoreBesideLoad(_OtherLedgers):
    """Stores do not wait for loads of their blocks."""

    blocks: ClassVar[type[AccessLedger]] = _NeverReadFirst


class LoadOverStore(_OtherLedgers):
    """Loads do not wait for stores of their blocks."""

    blocks: ClassVar[type[AccessLedger]] = _ForgetsReads


class LoadsInAnyOrder(_OtherLedgers):
    """Loads do not wait for loads of their blocks."""

    blocks: ClassVar[type[AccessLedger]] = _ForgetsWrites


class LoadBesideStore(_OtherLedgers):
    """Loads do not wait for stores of their slots."""

    slots: ClassVar[type[AccessLedger]] = _NeverReadFirst


class StoreOverLoad(_OtherLedgers):
    """Stores do not wait for loads of their slots."""

    slots: ClassVar[type[AccessLedger]] = _ForgetsReads


class FirstSlotOnly(_OtherLedgers):
    """Of a transfer, only the first slot is remembered."""

    slots: ClassVar[type[AccessLedger]] = _NotesTheFirstOnly


class FirstBlockOnly(_OtherLedgers):
    """The same of blocks."""

    blocks: ClassVar[type[AccessLedger]] = _NotesTheFirstOnly


class _NothingBeforeExpedited(AccessLedger):
    @override
    def before_read(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        return {} if lane is Lane.EXPEDITED else super().before_read(places, lane)

    @override
    def before_write(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        return {} if lane is Lane.EXPEDITED else super().before_write(places, lane)


class _ExpeditedUnknown(AccessLedger):
    @override
    def note_read(self, places: Numbers, lane: Lane, number: int) -> None:
        if lane is not Lane.EXPEDITED:
            super().note_read(places, lane, number)

    @override
    def note_write(self, places: Numbers, lane: Lane, number: int) -> None:
        if lane is not Lane.EXPEDITED:
            super().note_write(places, lane, number)


class _OneLane(AccessLedger):
    @override
    def before_write(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        return dict(list(super().before_write(places, lane).items())[:1])


class ExpeditedJumpsConflicts(_OtherLedgers):
    """Expedited loads wait for nobody."""

    blocks: ClassVar[type[AccessLedger]] = _NothingBeforeExpedited
    slots: ClassVar[type[AccessLedger]] = _NothingBeforeExpedited


class NobodyWaitsForExpedited(_OtherLedgers):
    """Nobody waits for expedited loads."""

    blocks: ClassVar[type[AccessLedger]] = _ExpeditedUnknown
    slots: ClassVar[type[AccessLedger]] = _ExpeditedUnknown


class OneLaneOfTwo(_OtherLedgers):
    """Of several lanes that must be waited for, a store waits for one."""

    slots: ClassVar[type[AccessLedger]] = _OneLane
