"""MAP-8: one configuration's pages become another's, directly, as through the canonical page."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload import (
    AttentionLayer,
    CanonicalPageMapping,
    DirectRun,
    Encoding,
    InvalidValueError,
    KVParallelConfig,
    LatentLayer,
    Layer,
    MappingError,
    OpaqueLayer,
    PageCopy,
    Resharding,
    TilingError,
    derive_mappings,
)

SPAN = 8
HEADS = 2
LATENT = LatentLayer(row_elements=3, element_size_bytes=1)


def configurations(layer: Layer) -> list[KVParallelConfig]:
    """All legal ones of one span, up to eight workers."""
    found: list[KVParallelConfig] = []
    for tp_size in (1, 2, 4, 8):
        for dcp_size in (1, 2, 4):
            for pcp_size in (1, 2):
                for interleave in (1, 2, 4):
                    cp_size = dcp_size * pcp_size
                    try:
                        one = KVParallelConfig(
                            tp_size=tp_size,
                            dcp_size=dcp_size,
                            pcp_size=pcp_size,
                            interleave=interleave,
                            block_size=SPAN // cp_size,
                        )
                        derive_mappings(layer, one)
                    except MappingError:
                        continue
                    found.append(one)
    return found


ATTENTION: dict[str, Layer] = {
    encoding.value: AttentionLayer(
        total_kv_heads=HEADS, head_size=3, element_size_bytes=1, encoding=encoding
    )
    for encoding in Encoding
}
LAYERS: dict[str, Layer] = {**ATTENTION, "latent": LATENT}
CONFIGURATIONS = {name: configurations(layer) for name, layer in LAYERS.items()}


def cut(canonical: Sequence[int], mapping: CanonicalPageMapping) -> list[int]:
    """What a worker keeps of a canonical page, byte by byte."""
    page = [-1] * mapping.local_page_size_bytes
    for run in mapping.runs:
        for i in range(run.num_fragments):
            for byte in range(run.fragment_size):
                there = run.canonical_offset + i * run.canonical_stride + byte
                page[run.local_offset + i * run.local_stride + byte] = canonical[there]
    return page


@pytest.mark.clause("MAP-8")
@pytest.mark.parametrize("name", list(LAYERS))
@given(data=st.data())
def test_direct_copies_equal_the_way_through(name: str, data: st.DataObject) -> None:
    layer = LAYERS[name]
    one = data.draw(st.sampled_from(CONFIGURATIONS[name]))
    other = data.draw(st.sampled_from(CONFIGURATIONS[name]))
    block = data.draw(st.integers(0, 9))
    source, target = derive_mappings(layer, one), derive_mappings(layer, other)
    canonical = range(source[0].canonical_page_size_bytes)
    pages = [cut(canonical, mapping) for mapping in source]
    wanted = [cut(canonical, mapping) for mapping in target]
    arrived = [[-1] * len(page) for page in wanted]
    for copy in Resharding(source, target).copies(block):
        moved = 0
        for run in copy.runs:
            for i in range(run.num_fragments):
                for byte in range(run.fragment_size):
                    into = run.target_offset + i * run.target_stride + byte
                    # Nobody else brings this byte.
                    assert arrived[copy.target_rank][into] == -1
                    arrived[copy.target_rank][into] = pages[copy.source_rank][
                        run.source_offset + i * run.source_stride + byte
                    ]
                    moved += 1
        assert moved == copy.num_bytes
    assert arrived == wanted


@pytest.mark.clause("MAP-8")
def test_copies_are_merged() -> None:
    split = LAYERS["split-nhd"]
    copies = Resharding(
        derive_mappings(split, KVParallelConfig(block_size=SPAN, tp_size=2)),
        derive_mappings(split, KVParallelConfig(block_size=SPAN)),
    ).copies()
    # K of 8 tokens, then V: 16 vectors of 3 bytes, for each head every other one.
    assert copies == (
        PageCopy(0, 0, (DirectRun(0, 0, 3, 16, 3, 6),)),
        PageCopy(1, 0, (DirectRun(0, 3, 3, 16, 3, 6),)),
    )
    same = derive_mappings(split, KVParallelConfig(block_size=SPAN, tp_size=2))
    assert Resharding(same, same).copies() == (
        PageCopy(0, 0, (DirectRun(0, 0, 48, 1, 48, 48),)),
        PageCopy(1, 1, (DirectRun(0, 0, 48, 1, 48, 48),)),
    )


@pytest.mark.clause("MAP-8")
def test_owners_of_the_same_bytes_share_the_reading() -> None:
    eight = derive_mappings(LATENT, KVParallelConfig(block_size=SPAN, tp_size=8))
    alone = derive_mappings(LATENT, KVParallelConfig(block_size=SPAN))
    by_block = Counter(
        copy.source_rank for block in range(16) for copy in Resharding(eight, alone).copies(block)
    )
    assert by_block == dict.fromkeys(range(8), 2)
    by_target = Counter(copy.source_rank for copy in Resharding(eight, eight).copies())
    assert by_target == dict.fromkeys(range(8), 1)


@pytest.mark.clause("MAP-8")
def test_an_opaque_page_goes_only_to_its_own_configuration() -> None:
    layer = OpaqueLayer(page_size_bytes=12)
    two = derive_mappings(layer, KVParallelConfig(block_size=1, tp_size=2))
    pairs = [(copy.source_rank, copy.target_rank) for copy in Resharding(two, two).copies()]
    assert pairs == [(0, 0), (1, 1)]
    four = derive_mappings(
        OpaqueLayer(page_size_bytes=6), KVParallelConfig(block_size=1, tp_size=4)
    )
    with pytest.raises(MappingError, match="the source's canonical bytes depend on its"):
        Resharding(two, four)
    row = derive_mappings(LATENT, KVParallelConfig(block_size=SPAN))
    with pytest.raises(MappingError, match="the target's canonical bytes depend on its"):
        Resharding(row, two)


@pytest.mark.clause("MAP-8")
def test_what_does_not_fit_together_is_refused() -> None:
    one = derive_mappings(LATENT, KVParallelConfig(block_size=SPAN))
    other = derive_mappings(LATENT, KVParallelConfig(block_size=SPAN * 2))
    with pytest.raises(MappingError, match=r"attn: the source's .* has 24 bytes, the target's 48"):
        Resharding(one, other, "attn")
    halves = derive_mappings(LAYERS["packed-nhd"], KVParallelConfig(block_size=SPAN, tp_size=2))
    with pytest.raises(TilingError, match="layer, target: no elected writer"):
        Resharding(halves, halves[:1])
    with pytest.raises(InvalidValueError, match="block_id"):
        Resharding(one, one).copies(-1)
    with pytest.raises(InvalidValueError, match="source"):
        Resharding([1], one)  # type: ignore[list-item]  # what is refused
