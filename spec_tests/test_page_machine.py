"""The page machine: the reference passes it, and a wrong pool or derivation does not."""

from collections.abc import Sequence

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from typing_extensions import override

from kvoffload import (
    CanonicalPageMapping,
    InvalidValueError,
    KVParallelConfig,
    LatentLayer,
    Layer,
    MappingError,
    PageNotReadyError,
    PagePool,
    PageStore,
    derive_mappings,
)
from stateful_models.machines import PageMachine, machine_test
from stateful_models.models.pages import Spread
from stateful_models.pages import PageMapper


def test_the_reference_under_changing_configurations() -> None:
    """MAP-3, MAP-4, MAP-5, MAP-8, COPY-6; nothing that matters is left out."""
    run_state_machine_as_test(PageMachine)
    assert PageMachine.reach.missing(PageMachine.SITUATIONS) == [], str(PageMachine.reach)


class ReadyWithTheFirst(PagePool):
    """Takes a page for whole when one of its writers has written."""

    @override
    def is_loadable(self, page_id: int) -> bool:
        store = self._stores.get(page_id)
        return store is not None and len(store.awaited) < len(store.elected)


class TakesTheLate(PagePool):
    """Lets a worker of a store that is over write into the page."""

    @override
    def write(self, store: PageStore, rank: int, page: bytes) -> bool:
        current = self._stores.get(store.page_id)
        self._stores[store.page_id] = store
        try:
            return super().write(store, rank, page)
        finally:
            if current is not None:
                self._stores[store.page_id] = current
            else:
                del self._stores[store.page_id]


class CountsWrites(PagePool):
    """Counts writes instead of writers: one that comes twice stands for two."""

    @override
    def write(self, store: PageStore, rank: int, page: bytes) -> bool:
        wrote = super().write(store, rank, page)
        if not wrote and rank in store.elected and store.awaited:
            store.awaited.pop()
        return wrote


class StaysLoadable(PagePool):
    """Lets the old content be loaded while the new one is on its way."""

    @override
    def is_loadable(self, page_id: int) -> bool:
        self._written = getattr(self, "_written", set[int]()) | {
            page for page, store in self._stores.items() if not store.awaited
        }
        return page_id in self._written


class WritesNextDoor(PagePool):
    """Writes a page and the one after it."""

    @override
    def write(self, store: PageStore, rank: int, page: bytes) -> bool:
        wrote = super().write(store, rank, page)
        following = (store.page_id + 1) % self.num_pages
        if wrote:
            self._pages[following][:1] = self._pages[store.page_id][:1]
        return wrote


@pytest.mark.parametrize(
    ("pool", "clause"),
    [
        (ReadyWithTheFirst, "COPY-6"),
        (TakesTheLate, "MAP-3"),
        # Either the page may be loaded too early, or the last writer is turned away.
        (CountsWrites, "MAP-3|COPY-6"),
        (StaysLoadable, "COPY-6"),
        (WritesNextDoor, "MAP-8"),
    ],
)
def test_a_pool_that_is_wrong_is_found_out(pool: type[PagePool], clause: str) -> None:
    class Machine(PageMachine):
        @override
        def make_pool(self, num_pages: int, page_size_bytes: int) -> PagePool:
            return pool(num_pages, page_size_bytes)

    with pytest.raises(AssertionError, match=clause):
        run_quickly(Machine)


def interleave_ignored(layer: Layer, spread: Spread) -> Sequence[CanonicalPageMapping]:
    return derive_mappings(layer, spread._replace(interleave=1).config())


def test_a_derivation_that_is_wrong_is_found_out() -> None:
    class Machine(PageMachine):
        @override
        def make_mapper(self) -> PageMapper:
            return PageMapper(derive=interleave_ignored)

    with pytest.raises(AssertionError, match=r"MAP-8: page . of .*, loaded by rank"):
        run_quickly(Machine)


def run_quickly(machine: type[PageMachine]) -> None:
    """Until it fails; how short the program can be made is nobody's question here."""
    run_state_machine_as_test(
        machine, settings=settings(phases=(Phase.generate,), report_multiple_bugs=False)
    )


test_some_rules_alone = machine_test(PageMachine, only=["store", "write*", "load"])


TWO = derive_mappings(
    LatentLayer(row_elements=4, element_size_bytes=1), KVParallelConfig(block_size=2, tp_size=2)
)


def test_a_pool_says_who_is_awaited() -> None:
    pool = PagePool(2, 8)
    assert (pool.num_pages, pool.page_size_bytes) == (2, 8)
    with pytest.raises(PageNotReadyError, match="page 1 was not stored"):
        pool.load(1, TWO[0])
    store = pool.begin_store(1, TWO)
    assert store.elected == store.awaited == {1}
    with pytest.raises(PageNotReadyError, match=r"page 1 waits for the bytes of ranks \(1,\)"):
        pool.load(1, TWO[0])
    assert not pool.write(store, 0, b"12345678")
    assert pool.write(store, 1, b"abcdefgh")
    assert pool.load(1, TWO[0]) == b"abcdefgh"
    pool.drop(1)
    assert not pool.is_loadable(1)


def test_a_pool_refuses_what_does_not_fit() -> None:
    pool = PagePool(2, 8)
    with pytest.raises(InvalidValueError, match="page_id"):
        pool.begin_store(2, TWO)
    with pytest.raises(MappingError, match="8 bytes in a pool whose pages have 16"):
        PagePool(1, 16).begin_store(0, TWO)
    store = pool.begin_store(0, TWO)
    with pytest.raises(InvalidValueError, match="8 bytes, the page of rank 0, got '3 bytes'"):
        pool.write(store, 0, b"abc")
    with pytest.raises(InvalidValueError, match="rank"):
        pool.write(store, 2, b"abcdefgh")
    assert store.awaited == {0}
    with pytest.raises(InvalidValueError, match="num_pages"):
        PagePool(0, 8)
