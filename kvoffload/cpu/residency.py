"""Which chunks are resident, and how many of them are idle or pending.

The authority: a policy orders what is here, and is not asked what is (STORE-10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvoffload.errors import InvariantError, NotPinnedError
from kvoffload.keys import OffloadKey, values_at
from kvoffload.policies.base import ChunkStatus


class ResidencyIndex:
    """Chunks by key. `get` is the dict's own: it is called for every block looked up.

    The counts are kept by those who change a chunk's `ref_cnt`, and `check` recounts them.
    """

    def __init__(self) -> None:
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        self.get: Callable[[OffloadKey], ChunkStatus | None] = self._chunks.get
        self.is_disjoint: Callable[[Iterable[OffloadKey]], bool] = self._chunks.keys().isdisjoint
        """Whether none of the keys is resident."""
        self.num_idle: int = 0
        self.num_pending: int = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def chunks_of(self, keys: Sequence[OffloadKey]) -> list[ChunkStatus] | None:
        """The chunk of each key, None unless every one is resident."""
        try:
            return values_at(self._chunks, keys)
        except KeyError:
            return None

    @property
    def num_pinned(self) -> int:
        return len(self._chunks) - self.num_idle - self.num_pending

    def pin(self, chunks: Sequence[ChunkStatus]) -> None:
        """Add a pin for each occurrence of a ready chunk."""
        # What is counted is the rare case, here and in `unpin`: most chunks have one reader.
        pinned_before = 0
        for chunk in chunks:
            if chunk.ref_cnt:
                chunk.ref_cnt += 1
                pinned_before += 1
            else:
                chunk.ref_cnt = 1
        self.num_idle -= len(chunks) - pinned_before

    def unpin(self, keys: Sequence[OffloadKey], chunks: Sequence[ChunkStatus]) -> list[OffloadKey]:
        """Release a pin for each occurrence and return the keys that became idle, in order.

        Raises NotPinnedError, having released none, if a chunk has fewer (LOAD-4).
        """
        still_pinned: set[int] = set()
        for released, chunk in enumerate(chunks):
            if chunk.ref_cnt == 1:
                chunk.ref_cnt = 0
            elif chunk.ref_cnt > 1:
                chunk.ref_cnt -= 1
                still_pinned.add(released)
            else:
                key = keys[released]
                held = max(chunk.ref_cnt, 0) + keys[:released].count(key)
                for earlier in chunks[:released]:
                    earlier.ref_cnt += 1
                raise NotPinnedError("complete_load", key, held, keys.count(key))
        became_idle = list(keys)
        if still_pinned:
            became_idle = [key for at, key in enumerate(keys) if at not in still_pinned]
        self.num_idle += len(became_idle)
        return became_idle

    def make_ready(self, chunks: Sequence[ChunkStatus]) -> None:
        """The stores of pending chunks have completed."""
        for chunk in chunks:
            chunk.ref_cnt = 0
        self.num_pending -= len(chunks)
        self.num_idle += len(chunks)

    def make_pending(self, chunks: Sequence[ChunkStatus]) -> None:
        """Undo `make_ready`."""
        for chunk in chunks:
            chunk.ref_cnt = -1
        self.num_pending += len(chunks)
        self.num_idle -= len(chunks)

    def add_pending(self, keys: Sequence[OffloadKey], chunks: Sequence[ChunkStatus]) -> None:
        """The keys become resident, their stores pending."""
        self._chunks.update(zip(keys, chunks, strict=True))
        self.num_pending += len(keys)

    def remove_idle(self, keys: Sequence[OffloadKey]) -> None:
        """Idle chunks leave."""
        chunks = self._chunks
        for key in keys:
            del chunks[key]
        self.num_idle -= len(keys)

    def remove_pending(self, keys: Sequence[OffloadKey]) -> None:
        """Pending chunks leave: their stores failed."""
        for key in keys:
            del self._chunks[key]
        self.num_pending -= len(keys)

    def clear(self) -> None:
        self._chunks.clear()
        self.num_idle = 0
        self.num_pending = 0

    def items(self) -> Iterable[tuple[OffloadKey, ChunkStatus]]:
        return self._chunks.items()

    def check(self) -> None:
        """Raise InvariantError unless the counts equal a recount."""
        refs = [chunk.ref_cnt for chunk in self._chunks.values()]
        if (
            refs.count(0) != self.num_idle
            or refs.count(-1) != self.num_pending
            or min(refs, default=0) < -1
        ):
            raise InvariantError(
                f"residency: {self.num_idle} idle and {self.num_pending} pending of "
                f"{ {key: chunk.ref_cnt for key, chunk in self._chunks.items()} }"
            )
