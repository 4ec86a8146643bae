"""What all of these say alike: what an answer is, and who may go."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import TypeAlias

from kvoffload import ChunkStatus, OffloadKey

Victims: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]
"""An answer of `evict`."""


def idle(
    chunks: Iterable[tuple[OffloadKey, ChunkStatus]], protected: Set[OffloadKey]
) -> list[OffloadKey]:
    """The keys of those that may be evicted, in the order given."""
    return [key for key, chunk in chunks if chunk.ref_cnt == 0 and key not in protected]
