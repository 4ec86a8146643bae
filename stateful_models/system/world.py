"""The memory of a system: ranks with blocks of their own over slots that they share, and contents.

What a key's chunk holds follows from the key alone, so wherever its bytes turn up they can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias
from zlib import crc32

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from kvoffload import (
    AttentionLayer,
    Encoding,
    LatentLayer,
    OffloadKey,
    derive_mappings,
)
from kvoffload.copying.actions import Chooser
from kvoffload.copying.graph import Stream
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.places import RowBytes, Side
from kvoffload.copying.worker import CopyWorker
from stateful_models.models.pages import Layout, Numbers, Spread, layout, place_in

Bytes: TypeAlias = NDArray[np.uint8]
Worker: TypeAlias = CopyWorker[Stream, OrderedEvent]
MakeWorker: TypeAlias = Callable[[CopyLayout, OrderedDevice], Worker]

LAYERS: Final[dict[str, AttentionLayer | LatentLayer]] = {
    # Two workers keep a head each.
    "spread": AttentionLayer(
        total_kv_heads=2, head_size=2, element_size_bytes=1, encoding=Encoding.PACKED_NHD
    ),
    # Two workers keep the same, and take turns to write.
    "replicated": LatentLayer(row_elements=3, element_size_bytes=1),
}


@frozen
class SystemConfig:
    """How large a system is: few of everything, so that they meet."""

    num_ranks: int = 2
    layers: tuple[str, ...] = ("spread", "replicated")
    blocks_per_chunk: int = 2
    num_blocks: int = 8
    num_slots: int = 3


@frozen
class Rank:
    """One worker process: its GPU blocks, its device, its worker."""

    gpu: list[Bytes]
    device: OrderedDevice
    worker: Worker


@lru_cache(maxsize=4096)
def _drawn(seed: int, size: int) -> Bytes:
    """Bytes for a content; the keys of all systems are much the same, and ask for much the same."""
    content = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    content.flags.writeable = False
    return content


@frozen
class World:
    """All memory. `ranks` share the arrays of host memory; pages there are canonical."""

    config: SystemConfig
    host: list[Bytes]
    ranks: list[Rank]
    layouts: list[Layout] = field(repr=False)
    places: list[list[Numbers]] = field(repr=False)
    """Of each tensor and rank, where the bytes of its page are in the canonical one."""

    @classmethod
    def make(cls, config: SystemConfig, make_worker: MakeWorker, chooser: Chooser) -> World:
        """Blocks and slots full of poison, and a worker for each rank."""
        spread = Spread(block_size=2, tp_size=config.num_ranks)
        layers = [LAYERS[name] for name in config.layers]
        layouts = [layout(layer, spread) for layer in layers]
        mappings = [derive_mappings(layer, spread.config()) for layer in layers]
        host_rows = config.num_slots * config.blocks_per_chunk
        host = [
            np.full((host_rows, len(known.canonical)), 0xEE, dtype=np.uint8) for known in layouts
        ]
        ranks: list[Rank] = []
        for rank in range(config.num_ranks):
            gpu = [
                np.full((config.num_blocks, len(known.pages[rank])), 0xDD, dtype=np.uint8)
                for known in layouts
            ]
            own = [mapping[rank] for mapping in mappings]
            copy_layout = CopyLayout(
                gpu=[Rows(*array.shape) for array in gpu],
                host=[Rows(*array.shape) for array in host],
                groups=(
                    tuple(
                        PageRuns(tensor, m.runs, m.num_writers, m.writer_index)
                        for tensor, m in enumerate(own)
                    ),
                ),
                blocks_per_chunk=config.blocks_per_chunk,
                canonical=True,
            )
            device = OrderedDevice(gpu, host, chooser=chooser)
            ranks.append(Rank(gpu, device, make_worker(copy_layout, device)))
        places = [[place_in(known.canonical, page) for page in known.pages] for known in layouts]
        return cls(config, host, ranks, layouts, places)

    def content(self, rank: int, tensor: int, key: OffloadKey, sub_block: int) -> Bytes:
        """What a worker's page holds of a block of a key, by the oracle of pages."""
        known = self.layouts[tensor]
        canonical = _drawn(crc32(key + bytes([tensor, sub_block])), len(known.canonical))
        return canonical[self.places[tensor][rank]]

    def compute(self, key: OffloadKey, blocks: Sequence[int], name: str) -> None:
        """Enqueue on every rank the kernel that fills a chunk's blocks."""
        for number, rank in enumerate(self.ranks):
            pages = [
                (rank.gpu[tensor], block, self.content(number, tensor, key, sub_block))
                for tensor in range(len(rank.gpu))
                for sub_block, block in enumerate(blocks)
            ]

            def kernel(pages: list[tuple[Bytes, int, Bytes]] = pages) -> None:
                for array, block, page in pages:
                    array[block] = page

            rank.device.launch(
                rank.device.compute_stream,
                kernel,
                writes=[
                    RowBytes(Side.GPU, tensor, block)
                    for tensor in range(len(rank.gpu))
                    for block in blocks
                ],
                name=name,
            )

    def wrong_bytes(self, key: OffloadKey, blocks: Sequence[int]) -> str | None:
        """Where a chunk's blocks do not hold its content, on any rank; None where they do."""
        for number, rank in enumerate(self.ranks):
            for tensor, array in enumerate(rank.gpu):
                for sub_block, block in enumerate(blocks):
                    expected = self.content(number, tensor, key, sub_block)
                    if not np.array_equal(array[block], expected):
                        return (
                            f"rank {number}, tensor {tensor}, block {block} (block {sub_block} of "
                            f"chunk {key!r}): {array[block].tolist()}, not {expected.tolist()}"
                        )
        return None
