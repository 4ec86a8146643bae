"""Which memory a worker copies between: rows of pages on either side, and the runs between them.

A row is one block of one tensor. On the GPU a block has one row in every tensor of its group; in
host memory a slot has `blocks_per_chunk` rows one after another, so the block at sub-block s of
slot c is row c x blocks_per_chunk + s (COPY-2), which is also the id by which workers that keep
the same bytes take turns (MAP-3).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import field, frozen

from kvoffload.canonical.pages import CanonicalKVCacheRef, CanonicalKVCaches, CopyRun
from kvoffload.canonical.tiling import doubled_bytes, verify_page
from kvoffload.errors import InvalidValueError, MappingError
from kvoffload.validation import each_instance, instance, int_at_least, require_each


@frozen
class Rows:
    """The rows of one tensor on one side: how many, and the bytes of each that may be touched."""

    num_rows: int = field(validator=int_at_least(0))
    row_size_bytes: int = field(validator=int_at_least(1))


@frozen
class PageRuns:
    """What of a layer's page is copied: from a row of the GPU's to one of the host's.

    `runs` have the GPU's page on their local side and the host's on the canonical one. On stores
    this worker writes rows r with r % num_writers == writer_index, on loads it reads all.
    """

    tensor: int = field(validator=int_at_least(0))
    runs: tuple[CopyRun, ...] = field(
        converter=tuple[CopyRun, ...], validator=each_instance(CopyRun)
    )
    num_writers: int = field(default=1, validator=int_at_least(1))
    writer_index: int = field(default=0, validator=int_at_least(0))

    def __attrs_post_init__(self) -> None:
        if self.writer_index >= self.num_writers:
            # Nobody would write, and every store would be reported as good.
            raise InvalidValueError(
                "writer_index", self.writer_index, f"below num_writers, {self.num_writers}"
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of one block."""
        return sum(run.fragment_size * run.num_fragments for run in self.runs)


def _pages_of_groups(
    groups: Collection[Collection[PageRuns]],
) -> tuple[tuple[PageRuns, ...], ...]:
    require_each("groups", groups, Collection)
    for pages in groups:
        require_each("groups", pages, PageRuns)
    return tuple(map(tuple[PageRuns, ...], groups))


@frozen
class CopyLayout:
    """Everything about a worker's memory that planning a transfer needs; made once.

    `gpu[t]` and `host[t]` are the two sides of tensor t, `groups[g]` the pages of a block of
    KV-cache group g; a group of which this worker has no layer has no pages. Raises MappingError
    for a run that leaves a row, and for bytes of a row that two fragments cover (COPY-3, MAP-2).
    """

    gpu: tuple[Rows, ...] = field(converter=tuple[Rows, ...], validator=each_instance(Rows))
    host: tuple[Rows, ...] = field(converter=tuple[Rows, ...], validator=each_instance(Rows))
    groups: tuple[tuple[PageRuns, ...], ...] = field(converter=_pages_of_groups)
    blocks_per_chunk: int = field(default=1, validator=int_at_least(1))
    canonical: bool = field(default=False, validator=instance(bool))

    def __attrs_post_init__(self) -> None:
        if len(self.gpu) != len(self.host):
            raise MappingError(
                f"{len(self.gpu)} tensors on the GPU and {len(self.host)} in host memory"
            )
        for tensor, rows in enumerate(self.host):
            if rows.num_rows % self.blocks_per_chunk:
                raise MappingError(
                    f"tensor {tensor} has {rows.num_rows} rows in host memory, no multiple of "
                    f"{self.blocks_per_chunk} blocks a chunk"
                )
        # Layers mostly have the same runs, and are then looked at once.
        apart: set[tuple[CopyRun, ...]] = set()
        for group, pages in enumerate(self.groups):
            for page in pages:
                self._require_rows(group, page)
                if page.runs not in apart:
                    _require_apart(group, page)
                    apart.add(page.runs)
            tensors = [page.tensor for page in pages]
            if len(set(tensors)) < len(tensors):
                raise MappingError(
                    f"group {group} has several pages in one row of a tensor (of tensors "
                    f"{tensors}): describe layers that share a block as packed"
                )

    def _require_rows(self, group: int, page: PageRuns) -> None:
        if page.tensor >= len(self.gpu):
            raise MappingError(
                f"group {group} refers to tensor {page.tensor}, there are {len(self.gpu)}"
            )
        gpu, host = self.gpu[page.tensor], self.host[page.tensor]
        for run in page.runs:
            if run.local_end > gpu.row_size_bytes:
                raise MappingError(
                    f"group {group}, tensor {page.tensor}: {run} ends {run.local_end} bytes into a "
                    f"row of {gpu.row_size_bytes} on the GPU"
                )
            if run.canonical_end > host.row_size_bytes:
                raise MappingError(
                    f"group {group}, tensor {page.tensor}: {run} ends {run.canonical_end} bytes "
                    f"into a row of {host.row_size_bytes} in host memory"
                )

    @property
    def num_blocks(self) -> int:
        """How many blocks the largest tensor on the GPU has."""
        return max((rows.num_rows for rows in self.gpu), default=0)

    @property
    def num_slots(self) -> int:
        """How many chunks host memory has room for."""
        return min((rows.num_rows for rows in self.host), default=0) // self.blocks_per_chunk

    @property
    def most_slots(self) -> int:
        """How many chunks the tensor with the most rows in host memory has room for."""
        return max((rows.num_rows for rows in self.host), default=0) // self.blocks_per_chunk

    @classmethod
    def direct(
        cls, kv_caches: CanonicalKVCaches, *, num_slots: int, blocks_per_chunk: int = 1
    ) -> CopyLayout:
        """Pages as they are on the GPU, each worker with host memory of its own."""
        return _layout(kv_caches, num_slots, blocks_per_chunk, canonical=False)

    @classmethod
    def canonical_of(
        cls, kv_caches: CanonicalKVCaches, *, num_slots: int, blocks_per_chunk: int = 1
    ) -> CopyLayout:
        """Canonical pages, which all workers share. Raises MappingError for a layer without one."""
        return _layout(kv_caches, num_slots, blocks_per_chunk, canonical=True)


def _require_apart(group: int, page: PageRuns) -> None:
    for side, local in (("on the GPU", True), ("in host memory", False)):
        doubled = doubled_bytes(page.runs, local=local)
        if doubled is not None:
            raise MappingError(
                f"group {group}, tensor {page.tensor}: two fragments cover bytes "
                f"[{doubled[0]}, {doubled[1]}) of a row {side}"
            )


def _layout(
    kv_caches: CanonicalKVCaches, num_slots: int, blocks_per_chunk: int, *, canonical: bool
) -> CopyLayout:
    sizes = [0] * len(kv_caches.tensors)
    groups: list[tuple[PageRuns, ...]] = []
    for group, refs in enumerate(kv_caches.group_data_refs):
        pages: list[PageRuns] = []
        for ref in refs:
            page, size = _page(ref, group, canonical=canonical)
            sizes[ref.tensor_idx] = max(sizes[ref.tensor_idx], size)
            pages.append(page)
        groups.append(tuple(pages))
    return CopyLayout(
        gpu=_gpu_rows(kv_caches),
        # A tensor that no group refers to has rows all the same: numbers of tensors stay.
        host=[Rows(num_slots * blocks_per_chunk, size or 1) for size in sizes],
        groups=tuple(groups),
        blocks_per_chunk=blocks_per_chunk,
        canonical=canonical,
    )


def _gpu_rows(kv_caches: CanonicalKVCaches) -> Sequence[Rows]:
    for number, one in enumerate(kv_caches.tensors):
        if not len(one.tensor.shape):
            raise MappingError(f"tensor {number} has no dimension that counts blocks")
    return [Rows(one.tensor.shape[0], one.page_size_bytes) for one in kv_caches.tensors]


def _page(ref: CanonicalKVCacheRef, group: int, *, canonical: bool) -> tuple[PageRuns, int]:
    """A layer's runs, and how many bytes its page has in host memory."""
    if not canonical:
        size = ref.page_size_bytes
        return PageRuns(ref.tensor_idx, (CopyRun(0, 0, size, 1, size, size),)), size
    mapping = ref.mapping
    if mapping is None:
        raise MappingError(
            f"group {group}, tensor {ref.tensor_idx}: a layer without a mapping has no canonical "
            "page; copy directly, or describe the layer as opaque"
        )
    verify_page(mapping, name=f"group {group}, tensor {ref.tensor_idx}")
    page = PageRuns(ref.tensor_idx, mapping.runs, mapping.num_writers, mapping.writer_index)
    return page, mapping.canonical_page_size_bytes
