"""Who last read and wrote each block and slot: what a transfer has to come after (ORD-1, ORD-3)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class Lane(Enum):
    """Transfers of one lane are done one after another; those of different ones side by side."""

    STORE = "store"
    LOAD = "load"
    EXPEDITED = "expedited load"


NEVER: Final = 0


class AccessLedger:
    """The latest access of each lane to each of `num_places` places, by the number of its transfer.

    Numbers begin at 1. As a lane works in order, what comes after its latest transfer comes after
    all before; so one number a lane, place and kind of access is all that there is to remember.
    """

    def __init__(self, num_places: int) -> None:
        import numpy as np

        self._num_places = num_places
        self._reads = {lane: np.zeros(num_places, dtype=np.int64) for lane in Lane}
        self._writes = {lane: np.zeros(num_places, dtype=np.int64) for lane in Lane}

    def places_of(self, ids: Numbers) -> Numbers:
        """The places among ids: others are of groups of which this worker has nothing."""
        return ids[ids < self._num_places]

    def before_read(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        """The transfers of other lanes that must be over before `lane` reads: earlier writes."""
        return _latest((self._writes,), places, lane)

    def before_write(self, places: Numbers, lane: Lane) -> dict[Lane, int]:
        """The same before it writes: earlier writes, and earlier reads."""
        return _latest((self._writes, self._reads), places, lane)

    def note_read(self, places: Numbers, lane: Lane, number: int) -> None:
        """Transfer `number` reads these places."""
        self._reads[lane][places] = number

    def note_write(self, places: Numbers, lane: Lane, number: int) -> None:
        """Transfer `number` writes these places."""
        self._writes[lane][places] = number


def _latest(kinds: Sequence[dict[Lane, Numbers]], places: Numbers, own: Lane) -> dict[Lane, int]:
    if not len(places):
        return {}
    found: dict[Lane, int] = {}
    for lane in Lane:
        if lane is own:
            continue
        latest = max(int(accesses[lane][places].max()) for accesses in kinds)
        if latest != NEVER:
            found[lane] = latest
    return found
