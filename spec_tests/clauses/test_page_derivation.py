"""MAP-1, MAP-4, MAP-5, MAP-8: which byte of a worker's page is which of the canonical page."""

import pytest

from kvoffload import (
    AttentionLayer,
    CopyRun,
    Encoding,
    HeadShare,
    InvalidValueError,
    KVParallelConfig,
    LatentLayer,
    Layer,
    MappingError,
    OffloadingParallelConfig,
    OpaqueLayer,
    PackedLayers,
    derive_mapping,
    derive_mappings,
)


def attention(
    heads: int, encoding: Encoding | None = Encoding.PACKED_NHD, **more: int
) -> AttentionLayer:
    """Heads whose K has one byte, so that offsets can be counted by hand."""
    return AttentionLayer(
        total_kv_heads=heads, head_size=1, element_size_bytes=1, encoding=encoding, **more
    )


def parallel(block_size: int, **more: int) -> KVParallelConfig:
    return KVParallelConfig(block_size=block_size, **more)


@pytest.mark.clause("MAP-4")
@pytest.mark.parametrize(
    ("encoding", "runs"),
    [
        # Two heads of four a worker: 4 of 8 bytes of a token, three tokens.
        (Encoding.PACKED_NHD, (CopyRun(0, 4, 4, 3, 4, 8),)),
        # Each head's tokens together: the last two heads are the last half.
        (Encoding.PACKED_HND, (CopyRun(0, 12, 12, 1, 12, 12),)),
        # 2 of 4 bytes of a token's K, three tokens, then of V: as far apart as K's tokens are.
        (Encoding.SPLIT_NHD, (CopyRun(0, 2, 2, 6, 2, 4),)),
        # The last half of K, then that of V.
        (Encoding.SPLIT_HND, (CopyRun(0, 6, 6, 2, 6, 12),)),
    ],
)
def test_a_worker_keeps_its_part_of_the_heads(
    encoding: Encoding, runs: tuple[CopyRun, ...]
) -> None:
    mapping = derive_mapping(attention(4, encoding), parallel(3, tp_size=2, rank=1))
    assert mapping.runs == runs
    assert (mapping.local_page_size_bytes, mapping.canonical_page_size_bytes) == (12, 24)
    assert (mapping.num_writers, mapping.writer_index) == (1, 0)
    assert mapping.parallelism_agnostic


@pytest.mark.clause("MAP-4")
def test_tokens_go_to_workers_in_turns() -> None:
    # One head on four workers, two of them a decode group, two prefill groups: interleave 2.
    layout = parallel(4, tp_size=2, dcp_size=2, pcp_size=2, interleave=2)
    starts = [[at.canonical_token(token) for token in range(4)] for at in layout.ranks()]
    assert starts == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    runs = [mapping.runs for mapping in derive_mappings(attention(1), layout)]
    assert runs == [(CopyRun(0, start, 4, 2, 4, 16),) for start in (0, 4, 8, 12)]


@pytest.mark.clause("MAP-4")
def test_interleave_means_nothing_without_context_parallelism() -> None:
    odd = parallel(4, tp_size=2, interleave=3)
    assert derive_mappings(attention(2), odd) == derive_mappings(
        attention(2), parallel(4, tp_size=2)
    )


@pytest.mark.clause("MAP-4")
def test_workers_that_keep_the_same_heads_take_turns() -> None:
    # Eight workers, two heads: four keep each; two decode groups among them.
    mappings = derive_mappings(attention(2), parallel(1, tp_size=8, dcp_size=2))
    turns = [(mapping.num_writers, mapping.writer_index) for mapping in mappings]
    assert turns == [(2, 0), (2, 0), (2, 1), (2, 1)] * 2
    share = HeadShare(2, 8, 2)
    assert (share.num_shards, share.local_heads, share.replication) == (2, 1, 4)
    assert [share.shard(tp_rank) for tp_rank in range(8)] == [0] * 4 + [1] * 4


@pytest.mark.clause("MAP-4")
@pytest.mark.parametrize(
    ("heads", "options", "arithmetic"),
    [
        (3, {"tp_size": 2}, r"neither of 3 KV heads and tp_size 2 .*: 3 % 2 = 1, 2 % 3 = 2"),
        (4, {"tp_size": 6}, r"4 % 6 = 4, 6 % 4 = 2"),
        (4, {"tp_size": 4, "dcp_size": 2}, r"max\(1, tp_size 4 // 4 KV heads\).*: 1 % 2 = 1"),
        (2, {"tp_size": 4, "dcp_size": 4}, r"2 % 4 = 2"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_arithmetic(
    heads: int, options: dict[str, int], arithmetic: str
) -> None:
    with pytest.raises(MappingError, match=arithmetic):
        derive_mappings(attention(heads), parallel(4, **options))


@pytest.mark.clause("MAP-4")
def test_a_configuration_that_cannot_be_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(MappingError, match=r"rank 4 is not below tp_size 2 x pcp_size 2 = 4"):
        parallel(1, tp_size=2, pcp_size=2, rank=4)
    with pytest.raises(MappingError, match=r"interleave 3 .* block_size 4: 4 % 3 = 1"):
        parallel(4, pcp_size=2, interleave=3)
    with pytest.raises(MappingError, match=r"interleave 8 .* block_size 4: 4 % 8 = 4"):
        parallel(4, pcp_size=2, interleave=8)
    with pytest.raises(InvalidValueError, match="block_size"):
        parallel(0)


@pytest.mark.clause("MAP-4")
def test_the_workers_are_exactly_those_of_tensor_and_prefill_parallelism() -> None:
    engine = OffloadingParallelConfig(rank=3, world_size=4, tp_size=2, pcp_size=2, dcp_size=2)
    mine = KVParallelConfig.from_offloading(engine, block_size=8, interleave=4)
    assert mine == parallel(8, tp_size=2, dcp_size=2, pcp_size=2, interleave=4, rank=3)
    piped = OffloadingParallelConfig(world_size=4, tp_size=2, pp_size=2)
    with pytest.raises(MappingError, match="world_size 4 is not tp_size 2 x pcp_size 1 = 2"):
        KVParallelConfig.from_offloading(piped, block_size=8)


@pytest.mark.clause("MAP-5")
def test_a_latent_row_is_the_same_for_every_worker() -> None:
    layer = LatentLayer(row_elements=3, element_size_bytes=2, second_row_bytes=1)
    assert layer.row_size_bytes == 7
    mappings = derive_mappings(layer, parallel(2, tp_size=4, dcp_size=2))
    assert [m.runs for m in mappings] == [
        (CopyRun(0, 0, 7, 2, 7, 14),),
        (CopyRun(0, 7, 7, 2, 7, 14),),
    ] * 2
    assert {m.canonical_page_size_bytes for m in mappings} == {28}
    assert [m.writer_index for m in mappings] == [0, 0, 1, 1]


@pytest.mark.clause("MAP-5")
def test_an_opaque_page_stays_its_workers_own() -> None:
    mappings = derive_mappings(OpaqueLayer(page_size_bytes=10), parallel(1, tp_size=2, pcp_size=2))
    assert [m.runs for m in mappings] == [(CopyRun(0, r * 10, 10, 1, 10, 10),) for r in range(4)]
    assert {(m.canonical_page_size_bytes, m.num_writers) for m in mappings} == {(40, 1)}
    assert not any(m.parallelism_agnostic for m in mappings)


@pytest.mark.clause("MAP-5")
def test_layers_packed_in_a_block_follow_each_other() -> None:
    block = PackedLayers(layers=(attention(2, Encoding.PACKED_HND), attention(4)))
    mappings = derive_mappings(block, parallel(2, tp_size=2))
    # The first layer has 8 canonical bytes, of which each worker has 4; the second 16 and 8.
    assert [m.runs for m in mappings] == [
        (CopyRun(0, 0, 4, 3, 4, 8),),
        (CopyRun(0, 4, 4, 3, 4, 8),),
    ]
    assert {(m.local_page_size_bytes, m.canonical_page_size_bytes) for m in mappings} == {(12, 24)}
    assert all(m.parallelism_agnostic for m in mappings)
    mixed = PackedLayers(layers=(attention(2), OpaqueLayer(page_size_bytes=3)))
    assert not any(m.parallelism_agnostic for m in derive_mappings(mixed, parallel(2, tp_size=2)))


@pytest.mark.clause("MAP-5")
def test_layers_of_a_block_take_turns_together() -> None:
    block = PackedLayers(layers=(attention(1), attention(2)))
    with pytest.raises(MappingError, match=r"\[2, 1\] workers that keep the same bytes"):
        derive_mappings(block, parallel(2, tp_size=2))


@pytest.mark.clause("MAP-5")
def test_what_has_no_mapping_is_refused_by_name() -> None:
    with pytest.raises(MappingError, match="value_head_size 2 is not head_size 1"):
        attention(1, value_head_size=2)
    with pytest.raises(MappingError, match=r"element_size_bytes 0\.5: elements smaller"):
        AttentionLayer(
            total_kv_heads=1,
            head_size=2,
            element_size_bytes=0.5,  # type: ignore[arg-type]  # what is refused
            encoding=None,
        )
    with pytest.raises(MappingError, match="encoding is None"):
        derive_mappings(attention(1, None), parallel(1))
    with pytest.raises(MappingError, match=r"layers\[0\] has a padded size of 8 bytes"):
        PackedLayers(layers=(attention(1, padded_page_size_bytes=8),))
    with pytest.raises(InvalidValueError, match="at least one layer"):
        PackedLayers(layers=())
    with pytest.raises(InvalidValueError, match="head_size"):
        AttentionLayer(total_kv_heads=1, head_size=0, element_size_bytes=1, encoding=None)
    with pytest.raises(InvalidValueError, match="element_size_bytes"):
        LatentLayer(row_elements=1, element_size_bytes=0)


@pytest.mark.clause("MAP-2")
@pytest.mark.parametrize(
    "layer",
    [
        attention(2, padded_page_size_bytes=16),
        LatentLayer(row_elements=4, element_size_bytes=2, padded_page_size_bytes=32),
        PackedLayers(layers=(attention(2), attention(2)), padded_page_size_bytes=32),
    ],
)
def test_padding_is_no_part_of_a_page(layer: Layer) -> None:
    real = 16 if not isinstance(layer, AttentionLayer) else 8
    (mapping,) = derive_mappings(layer, parallel(2))
    assert mapping.runs == (CopyRun(0, 0, real, 1, real, real),)
    assert mapping.local_page_size_bytes == mapping.canonical_page_size_bytes == real


@pytest.mark.clause("MAP-2")
def test_a_page_is_not_shorter_with_padding() -> None:
    with pytest.raises(MappingError, match="padded_page_size_bytes 7 < 8 bytes"):
        derive_mappings(attention(2, padded_page_size_bytes=7), parallel(2))
    with pytest.raises(MappingError, match="padded_page_size_bytes 7 < 8 bytes"):
        OpaqueLayer(page_size_bytes=8, padded_page_size_bytes=7)


@pytest.mark.clause("MAP-8")
@pytest.mark.parametrize("encoding", list(Encoding))
def test_every_recognised_page_is_agnostic_also_under_context_parallelism(
    encoding: Encoding,
) -> None:
    layout = parallel(2, tp_size=2, dcp_size=2, pcp_size=2)
    assert all(m.parallelism_agnostic for m in derive_mappings(attention(1, encoding), layout))


@pytest.mark.clause("MAP-1")
def test_offsets_of_a_run_are_where_its_numbers_say() -> None:
    run = CopyRun(3, 10, 2, 4, 5, 7)
    assert (run.local_end, run.canonical_end) == (3 + 3 * 5 + 2, 10 + 3 * 7 + 2)
