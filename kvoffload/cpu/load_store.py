"""Where chunks are in the CPU tier, for a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvoffload.transfers import BlockIDsLoadStoreSpec

if TYPE_CHECKING:
    from kvoffload.transfers import BlockIDs


class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Slots of the CPU tier: `block_ids` are chunk ids, not GPU blocks.

    `ticket` names the load that the spec was prepared for (DONE-4); None on the spec of a
    store, whose ticket is on its `PrepareStoreOutput`.
    """

    def __init__(self, block_ids: Sequence[int] | BlockIDs, ticket: int | None = None) -> None:
        super().__init__(block_ids)
        self.ticket = ticket

    @classmethod
    def of_slots(cls, slots: list[int], ticket: int | None = None) -> CPULoadStoreSpec:
        """A spec for slots that a pool handed out, which need no second check."""
        spec = cls.__new__(cls)
        spec._block_ids = slots
        spec.ticket = ticket
        return spec

    @property
    def chunk_ids(self) -> BlockIDs:
        """`block_ids`, under the name of what they are."""
        return self.block_ids
