"""The status objects that vLLM's managers hand to a policy, one for each slot in use."""

from __future__ import annotations

import ctypes


class SlotStatus(ctypes.Structure):
    """The part that both classes share. `ref_cnt` is -1 while the slot is being written (pending),
    else the number of loads that read it."""

    _fields_ = [("ref_cnt", ctypes.c_int32)]

    ref_cnt: int

    @property
    def is_ready(self) -> bool:
        """Whether the slot can be read."""
        return self.ref_cnt >= 0


class BlockStatus(SlotStatus):
    """The status class up to 0.29; new ones are pending."""

    _fields_ = [("block_id", ctypes.c_int64)]

    block_id: int

    def __init__(self, block_id: int) -> None:
        super().__init__(ref_cnt=-1, block_id=block_id)


class ChunkStatus(SlotStatus):
    """The status class since 0.30; new ones are pending."""

    _fields_ = [("chunk_id", ctypes.c_int64)]

    chunk_id: int

    def __init__(self, chunk_id: int) -> None:
        super().__init__(ref_cnt=-1, chunk_id=chunk_id)
