"""Canonical pages in host memory, and which of them may be loaded (MAP-3, COPY-6).

The reference of what workers together have to keep to: a page is written by those whose turn it
is, each its own part, and may be read when the last of them has written. Bytes are copied at once
and by slices; moving many of them fast is a worker's business.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from attrs import define

from kvoffload.canonical.arguments import require_instance, tuple_of
from kvoffload.canonical.pages import MAX_PAGE_SIZE_BYTES, CanonicalPageMapping
from kvoffload.canonical.tiling import verify_page, verify_tiling
from kvoffload.errors import InvalidValueError, MappingError, PageNotReadyError
from kvoffload.validation import require_int


@define(eq=False)
class PageStore:
    """One page being stored, as `PagePool.begin_store` makes it: who has written, who has not."""

    page_id: int
    mappings: tuple[CanonicalPageMapping, ...]
    elected: frozenset[int]
    """Ranks whose turn it is."""
    awaited: set[int]
    """Those of them that have not written yet."""


class PagePool:
    """`num_pages` canonical pages of `page_size_bytes` each; none of them loadable at first.

    Page ids count blocks through all chunks: slot x blocks_per_chunk + sub-block (MAP-3). A page
    takes memory from its first store on.
    """

    def __init__(self, num_pages: int, page_size_bytes: int) -> None:
        require_int("num_pages", num_pages, 1)
        require_int("page_size_bytes", page_size_bytes, 1, MAX_PAGE_SIZE_BYTES)
        self._num_pages = num_pages
        self._size = page_size_bytes
        self._pages = defaultdict[int, bytearray](lambda: bytearray(page_size_bytes))
        # The latest store of each page; one that nobody is awaited for has a loadable page.
        self._stores: dict[int, PageStore] = {}

    @property
    def num_pages(self) -> int:
        """How many pages there are."""
        return self._num_pages

    @property
    def page_size_bytes(self) -> int:
        """Bytes of each page."""
        return self._size

    def begin_store(self, page_id: int, mappings: Iterable[CanonicalPageMapping]) -> PageStore:
        """Let the workers of a configuration write a page; until all have, nobody can load it.

        `mappings` are those of all workers, by rank. An earlier store of the page is over, whoever
        of it is still on the way. Raises InvalidValueError for a page that does not exist and
        MappingError for mappings that do not tile a page of this size; MemoryError where there is
        none for the page.
        """
        self._require_page(page_id)
        mappings = tuple_of("mappings", mappings, CanonicalPageMapping)
        verify_tiling(mappings)
        self._require_size(mappings[0])
        elected = frozenset(
            rank for rank, mapping in enumerate(mappings) if mapping.is_writer(page_id)
        )
        store = PageStore(page_id, mappings, elected, set(elected))
        # Its memory first: what fails leaves the page as it was.
        self._pages[page_id] = self._pages[page_id]
        self._stores[page_id] = store
        return store

    def write(self, store: PageStore, rank: int, page: bytes) -> bool:
        """Take worker `rank`'s part of its `page`, and answer whether bytes were written.

        They are not where it is another worker's turn, where this one has written already, and
        where the store is over: the page is somebody else's by then. Raises InvalidValueError for
        a rank that does not exist, a page of another size, and for what is no store and no bytes.
        """
        require_instance("store", store, PageStore)
        require_instance("page", page, bytes, bytearray)
        require_int("rank", rank, 0, len(store.mappings) - 1)
        mapping = store.mappings[rank]
        if len(page) != mapping.local_page_size_bytes:
            expected = f"{mapping.local_page_size_bytes} bytes, the page of rank {rank}"
            raise InvalidValueError("page", f"{len(page)} bytes", expected)
        if self._stores.get(store.page_id) is not store or rank not in store.awaited:
            return False
        canonical = self._pages[store.page_id]
        for local, there, size in _fragments(mapping):
            canonical[there : there + size] = page[local : local + size]
        store.awaited.remove(rank)
        return True

    def is_loadable(self, page_id: int) -> bool:
        """Whether all workers whose turn it was have written the page since its store began."""
        self._require_page(page_id)
        store = self._stores.get(page_id)
        return store is not None and not store.awaited

    def load(self, page_id: int, mapping: CanonicalPageMapping) -> bytes:
        """The page that the worker of `mapping` gets of a canonical page.

        Raises PageNotReadyError if it is not loadable, and MappingError for a mapping that is of
        another size, leaves bytes of its page out or covers them twice (MAP-2), or is of another
        configuration where pages depend on that (MAP-8).
        """
        require_instance("mapping", mapping, CanonicalPageMapping)
        ready = self.is_loadable(page_id)
        store = self._stores.get(page_id)
        if not ready or store is None:
            raise PageNotReadyError(page_id, tuple(sorted(store.awaited)) if store else None)
        self._require_size(mapping)
        verify_page(mapping)
        stored_by = store.mappings
        agnostic = mapping.parallelism_agnostic and stored_by[0].parallelism_agnostic
        if not agnostic and mapping not in stored_by:
            raise MappingError(
                f"page {page_id}: its bytes depend on the configuration (parallelism_agnostic is "
                "False), and the mapping is none of those that it was stored by"
            )
        canonical = self._pages[page_id]
        page = bytearray(mapping.local_page_size_bytes)
        for local, there, size in _fragments(mapping):
            page[local : local + size] = canonical[there : there + size]
        return bytes(page)

    def drop(self, page_id: int) -> None:
        """Forget a page and whatever store of it is under way."""
        self._require_page(page_id)
        self._stores.pop(page_id, None)

    def _require_page(self, page_id: int) -> None:
        require_int("page_id", page_id, 0, self._num_pages - 1)

    def _require_size(self, mapping: CanonicalPageMapping) -> None:
        if mapping.canonical_page_size_bytes != self._size:
            raise MappingError(
                f"a canonical page of {mapping.canonical_page_size_bytes} bytes in a pool whose "
                f"pages have {self._size}"
            )


def _fragments(mapping: CanonicalPageMapping) -> Iterator[tuple[int, int, int]]:
    """Every fragment: offset in the worker's page, offset in the canonical one, size (MAP-1)."""
    for run in mapping.runs:
        for i in range(run.num_fragments):
            yield (
                run.local_offset + i * run.local_stride,
                run.canonical_offset + i * run.canonical_stride,
                run.fragment_size,
            )
