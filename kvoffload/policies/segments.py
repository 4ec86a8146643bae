"""The two segments of a segmented LRU cache, after Karedla, Love and Wherry (see `slru`)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from kvoffload.errors import InvariantError
from kvoffload.keys import OffloadKey
from kvoffload.policies.lines import Entry, Line


class Segments:
    """Probation, for any number of entries, and the protected segment, for a number of them."""

    def __init__(self, protected_size: int) -> None:
        self.protected_size: int = protected_size
        self.probation: Line = Line()
        self.protected: Line = Line()

    def __len__(self) -> int:
        return len(self.probation) + len(self.protected)

    def use(self, entry: Entry) -> None:
        """An entry was used, which may be in either segment."""
        # "Hits are removed from wherever they currently reside and added to the most recently
        # accessed end of the protected segment."
        self.protected.append(entry)
        if len(self.protected) > self.protected_size:
            # "... may force the migration of the LRU line in the protected segment to the most
            # recently used end of the probationary segment."
            self.probation.append(self.protected.oldest())

    def candidates(self, protected: Set[OffloadKey]) -> Iterator[Entry]:
        """Who can go, first who should first."""
        # "Lines are obtained from the LRU end of the probationary segment." Only when nothing in
        # it can go has the other to give.
        yield from self.probation.candidates(protected)
        yield from self.protected.candidates(protected)

    def check(self) -> None:
        """Raise InvariantError if the protected segment is too long."""
        if len(self.protected) > self.protected_size:
            raise InvariantError(
                f"protected segment: {len(self.protected)} of {self.protected_size} chunks"
            )
