"""Offload keys for the block numbers of a trace."""

from __future__ import annotations

from kvoffload.keys import OffloadKey, make_offload_key

HASH_BYTES = 8
GROUP = 0


class KeyTable(dict[int, OffloadKey]):
    """The key of each block number met so far; subscripting makes a missing one.

    Numbers are in [0, 2**64) and become the block hash as they are, so that equal blocks have
    equal keys in every run.
    """

    def __missing__(self, block: int) -> OffloadKey:
        key = make_offload_key(block.to_bytes(HASH_BYTES, "big"), GROUP)
        self[block] = key
        return key
