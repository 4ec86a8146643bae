"""The page machine: workers of changing configurations store and load over one pool of pages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import ClassVar, Final, Protocol

from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvoffload import (
    AttentionLayer,
    CanonicalPageMapping,
    CopyRun,
    Encoding,
    LatentLayer,
    Layer,
    PageNotReadyError,
    PagePool,
    PageStore,
    derive_mappings,
)
from stateful_models.machines.testing import refuse_lost_rules
from stateful_models.models.pages import Layout, Numbers, Spread, contradictions, layout
from stateful_models.pages.mapper import PageMapper, PageMapping
from stateful_models.reach import Reach

SPAN: Final = 8
NUM_PAGES: Final = 4
KEPT_STORES: Final = 6
"""Stores that a worker may still be late for."""

LAYERS: Final[tuple[Layer, ...]] = (
    *(
        AttentionLayer(total_kv_heads=heads, head_size=2, element_size_bytes=1, encoding=encoding)
        for heads in (2, 4)
        for encoding in Encoding
    ),
    LatentLayer(row_elements=3, element_size_bytes=1, second_row_bytes=1),
)


class Pool(Protocol):
    """What holds the pages; `kvoffload.PagePool` is one."""

    def begin_store(self, page_id: int, mappings: Sequence[CanonicalPageMapping]) -> PageStore:
        """Let the workers of a configuration write a page."""
        ...

    def write(self, store: PageStore, rank: int, page: bytes) -> bool:
        """Take a worker's part of its page; whether bytes were written."""
        ...

    def is_loadable(self, page_id: int) -> bool:
        """Whether all writers have written."""
        ...

    def load(self, page_id: int, mapping: CanonicalPageMapping) -> bytes:
        """What a worker gets of the page; PageNotReadyError if it is not loadable."""
        ...

    def drop(self, page_id: int) -> None:
        """Forget the page."""
        ...


@define(eq=False)
class _Store:
    """One store under way or over: what the pool made of it, and what is known of it here."""

    number: int
    handle: PageStore
    page_id: int
    spread: Spread
    elected: frozenset[int]
    awaited: set[int]

    def __repr__(self) -> str:
        """Short, for it is part of every failing program."""
        return f"<store {self.number}: page {self.page_id} under {self.spread}>"


def legal_spreads(layer: Layer) -> list[Spread]:
    """All configurations of one span that MAP-4 allows, with up to eight workers."""
    found: list[Spread] = []
    for tp, dcp, pcp, interleave in product((1, 2, 4, 8), (1, 2, 4), (1, 2), (1, 2, 4)):
        if SPAN % (dcp * pcp) or tp * pcp > 8:
            continue
        spread = Spread(SPAN // (dcp * pcp), tp, dcp, pcp, interleave)
        if not contradictions(layer, spread):
            found.append(spread)
    return found


def as_bytes(numbers: Numbers, content: int) -> bytes:
    """Bytes of some content, by their numbers: neighbours differ, and so do contents."""
    mixed = numbers * 167 + (numbers >> 6) * 59 + content * 101
    return bytes(((mixed ^ mixed >> 8) & 0xFF).tolist())


class PageMachine(RuleBasedStateMachine):
    """Subclass it, override `make_mapper` or `make_pool`, and run it with `machine_test`.

        class TestMine(PageMachine):
            def make_mapper(self) -> PageMapper:
                return PageMapper(derive=my_derivation)

        test_mine = machine_test(TestMine)

    Blocks of one layer are stored by all workers of a configuration, which write when they come
    to it, late, twice or never, and loaded by workers of others. What a worker loads must be, byte
    by byte, what the oracle cuts from the stored content (MAP-4, MAP-5, MAP-8); a page may be
    loaded exactly when every worker whose turn it was has written since its store began (MAP-3,
    COPY-6); and storing one page changes no other. As it is, it tries the reference.
    """

    # Classes of machines are no classes of tests, whatever they are called.
    __test__: ClassVar[bool] = False
    reach: ClassVar[Reach] = Reach()
    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "loaded under the configuration that stored",
        "loaded under another configuration",
        "load refused while writers are awaited",
        "load of a page never stored",
        "wrote out of turn",
        "wrote twice",
        "wrote after its store was over",
        "stored again before all had written",
        "last of several writers",
        "turn of a second writer",
        "dropped with a store under way",
    )
    """What a run must come to; `reach.missing(SITUATIONS)` tells what it did not."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.reach = Reach()
        refuse_lost_rules(cls)

    def make_mapper(self) -> PageMapper:
        """The derivation on trial."""
        return PageMapper(
            derive=lambda layer, spread: derive_mappings(layer, spread.config()),
        )

    def make_pool(self, num_pages: int, page_size_bytes: int) -> Pool:
        """The pool on trial."""
        return PagePool(num_pages, page_size_bytes)

    @initialize(layer=st.sampled_from(LAYERS))
    def start(self, layer: Layer) -> None:
        """One layer and an empty pool."""
        self.layer = layer
        self.mapper: PageMapper = self.make_mapper()
        self.spreads: list[Spread] = legal_spreads(layer)
        size = len(self._layout(self.spreads[0]).canonical)
        self.pool: Pool = self.make_pool(NUM_PAGES, size)
        self.stores: list[_Store] = []
        self.latest: dict[int, _Store] = {}
        self.num_stores: int = 0

    @rule(page_id=st.integers(0, NUM_PAGES - 1), data=st.data())
    def store(self, page_id: int, data: st.DataObject) -> None:
        """Begin to store new content, under any configuration."""
        spread = data.draw(st.sampled_from(self.spreads), label="configuration")
        mappings = self._mappings(spread)
        elected = frozenset(
            rank for rank, mapping in enumerate(mappings) if mapping.is_writer(page_id)
        )
        before = self.latest.get(page_id)
        self.reach.note("stored again before all had written", bool(before and before.awaited))
        self.reach.note("turn of a second writer", 0 not in elected)
        handle = self.pool.begin_store(page_id, mappings)
        self.num_stores += 1
        store = _Store(self.num_stores, handle, page_id, spread, elected, set(elected))
        self.latest[page_id] = store
        self.stores = [*self.stores[1 - KEPT_STORES :], store]
        self._check(page_id)

    @precondition(lambda self: bool(self.stores))
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """A worker comes to write: of the present store or one long over, elected or not."""
        store = data.draw(st.sampled_from(self.stores[::-1]), label="store")
        rank = data.draw(st.integers(0, store.spread.num_ranks - 1), label="rank")
        self._write(store, rank)

    @precondition(lambda self: bool(self.stores))
    @rule(data=st.data())
    def write_all(self, data: st.DataObject) -> None:
        """All workers but perhaps one come to write, in any order."""
        store = data.draw(st.sampled_from(self.stores[::-1]), label="store")
        order = data.draw(st.permutations(range(store.spread.num_ranks)), label="order")
        missing = data.draw(st.booleans(), label="one is missing")
        for rank in order[1:] if missing else order:
            self._write(store, rank)

    @rule(page_id=st.integers(0, NUM_PAGES - 1), data=st.data())
    def load(self, page_id: int, data: st.DataObject) -> None:
        """A worker of any configuration loads."""
        spread = data.draw(self._loaders(page_id), label="configuration")
        rank = data.draw(st.integers(0, spread.num_ranks - 1), label="rank")
        self._load(page_id, spread, rank)

    @rule(page_id=st.integers(0, NUM_PAGES - 1), data=st.data())
    def load_all(self, page_id: int, data: st.DataObject) -> None:
        """All workers of a configuration load."""
        spread = data.draw(self._loaders(page_id), label="configuration")
        for rank in range(spread.num_ranks):
            self._load(page_id, spread, rank)

    @rule(page_id=st.integers(0, NUM_PAGES - 1))
    def drop(self, page_id: int) -> None:
        """The page is forgotten."""
        before = self.latest.pop(page_id, None)
        self.reach.note("dropped with a store under way", bool(before and before.awaited))
        self.pool.drop(page_id)
        self._check(page_id)

    def _loaders(self, page_id: int) -> st.SearchStrategy[Spread]:
        """Any configuration, and that which stored the page as often as all others together."""
        store = self.latest.get(page_id)
        anyone = st.sampled_from(self.spreads)
        return anyone if store is None else st.just(store.spread) | anyone

    def _write(self, store: _Store, rank: int) -> None:
        over = self.latest.get(store.page_id) is not store
        in_turn = rank in store.elected
        expected = not over and rank in store.awaited
        self.reach.note("wrote out of turn", not in_turn)
        self.reach.note("wrote after its store was over", over)
        self.reach.note("wrote twice", in_turn and not over and rank not in store.awaited)
        page = as_bytes(self._layout(store.spread).pages[rank], store.number)
        wrote = self.pool.write(store.handle, rank, page)
        if wrote != expected:
            why = "its store is over" if over else f"ranks {sorted(store.awaited)} are awaited"
            raise AssertionError(
                f"MAP-3: rank {rank} of {store.spread} {'wrote' if wrote else 'did not write'} "
                f"page {store.page_id}, though {why}"
            )
        store.awaited.discard(rank)
        self.reach.note(
            "last of several writers",
            wrote and not store.awaited and len(store.elected) > 1,
        )
        self._check(store.page_id)

    def _load(self, page_id: int, spread: Spread, rank: int) -> None:
        store = self.latest.get(page_id)
        ready = store is not None and not store.awaited
        try:
            page = self.pool.load(page_id, self._mappings(spread)[rank])
        except PageNotReadyError:
            if ready:
                raise
            self.reach.note("load of a page never stored", store is None)
            self.reach.note("load refused while writers are awaited", store is not None)
            return
        if store is None or not ready:
            awaited = "nobody stored" if store is None else f"waits for ranks {store.awaited}"
            raise AssertionError(f"COPY-6: page {page_id} was loaded, which {awaited}")
        same = spread == store.spread
        self.reach.note("loaded under the configuration that stored", same)
        self.reach.note("loaded under another configuration", not same)
        expected = as_bytes(self._layout(spread).pages[rank], store.number)
        if page != expected:
            wrong = [at for at, (a, b) in enumerate(zip(page, expected, strict=False)) if a != b]
            where = f"byte {wrong[0]}" if wrong else f"{len(page)} for {len(expected)} bytes"
            raise AssertionError(
                f"MAP-8: page {page_id} of {self.layer}, stored under {store.spread}, loaded by "
                f"rank {rank} of {spread}: {len(wrong)} bytes are wrong, the first is {where}"
            )

    def _check(self, changed: int) -> None:
        """Every page may be loaded or not as it should, and those not just changed are intact."""
        for page_id in range(NUM_PAGES):
            store = self.latest.get(page_id)
            ready = store is not None and not store.awaited
            if self.pool.is_loadable(page_id) != ready:
                said = "not loadable" if ready else "loadable"
                raise AssertionError(f"COPY-6: page {page_id} is {said}, which it should not be")
            if ready and page_id != changed:
                self._load(page_id, self.spreads[0], 0)

    def _layout(self, spread: Spread) -> Layout:
        return layout(self.layer, spread)

    def _mappings(self, spread: Spread) -> list[CanonicalPageMapping]:
        return [_checked(mapping) for mapping in self.mapper.derive(self.layer, spread)]


def _checked(mapping: PageMapping) -> CanonicalPageMapping:
    """The same as a value of ours, so that any implementation's can be given to a pool."""
    if isinstance(mapping, CanonicalPageMapping):
        return mapping
    return CanonicalPageMapping(
        mapping.canonical_page_size_bytes,
        mapping.local_page_size_bytes,
        tuple(
            CopyRun(
                run.local_offset,
                run.canonical_offset,
                run.fragment_size,
                run.num_fragments,
                run.local_stride,
                run.canonical_stride,
            )
            for run in mapping.runs
        ),
        mapping.num_writers,
        mapping.writer_index,
        mapping.parallelism_agnostic,
    )
