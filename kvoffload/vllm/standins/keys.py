"""The keys of vLLM, which it does not check as kvoffload checks its own."""

from __future__ import annotations

from typing import NewType

from kvoffload.keys import OffloadKey

BlockHash = NewType("BlockHash", bytes)

_GROUP_BYTES = 4


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """The key of a block hash in a group. Raises OverflowError for a group outside [0, 2**32)."""
    return OffloadKey(block_hash + group_idx.to_bytes(_GROUP_BYTES, "big"))


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """The block hash of a key."""
    return key[:-_GROUP_BYTES]


def get_offload_group_idx(key: OffloadKey) -> int:
    """The group of a key."""
    return int.from_bytes(key[-_GROUP_BYTES:], "big")
