"""MAP-7: runs in normal form, against a form made fragment by fragment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload import (
    AttentionLayer,
    CopyRun,
    Encoding,
    KVParallelConfig,
    derive_mappings,
    normal_form,
)


def slow_normal_form(runs: list[CopyRun]) -> list[CopyRun]:
    """Write all fragments out, join neighbours, then take equal steps from the left."""
    pieces = sorted(
        (
            run.local_offset + i * run.local_stride,
            run.canonical_offset + i * run.canonical_stride,
            run.fragment_size,
        )
        for run in runs
        for i in range(run.num_fragments)
    )
    joined = [pieces[0]]
    for local, canonical, size in pieces[1:]:
        last_local, last_canonical, last_size = joined[-1]
        if (last_local + last_size, last_canonical + last_size) == (local, canonical):
            joined[-1] = (last_local, last_canonical, last_size + size)
        else:
            joined.append((local, canonical, size))
    found: list[CopyRun] = []
    while joined:
        local, canonical, size = joined[0]
        number = 1
        steps = (size, size)
        if len(joined) > 1 and joined[1][2] == size and joined[1][1] - canonical >= size:
            steps = joined[1][0] - local, joined[1][1] - canonical
            while number < len(joined) and joined[number] == (
                local + number * steps[0],
                canonical + number * steps[1],
                size,
            ):
                number += 1
        found.append(CopyRun(local, canonical, size, number, *steps))
        joined = joined[number:]
    return found


@st.composite
def pages(draw: st.DrawFn) -> list[CopyRun]:
    """A page cut into fragments, in some order canonically, with gaps there."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=12))
    order = draw(st.permutations(range(len(sizes))))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    canonical = [0] * len(sizes)
    at = 0
    for index in order:
        canonical[index] = at
        at += sizes[index] + gaps[index]
    runs: list[CopyRun] = []
    local = 0
    for size, there in zip(sizes, canonical, strict=True):
        runs.append(CopyRun(local, there, size, 1, 0, 0))
        local += size
    return runs


@pytest.mark.clause("MAP-7")
@given(pages())
def test_any_runs_have_one_normal_form(runs: list[CopyRun]) -> None:
    normal = normal_form(runs)
    assert list(normal) == slow_normal_form(runs)
    assert normal_form(normal) == normal
    assert normal_form(reversed(runs)) == normal


@pytest.mark.clause("MAP-7")
@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("interleave", [1, 2, 4])
@pytest.mark.parametrize(("heads", "tp_size", "dcp_size"), [(4, 2, 1), (1, 4, 2), (2, 4, 2)])
def test_derived_runs_are_in_normal_form(
    encoding: Encoding, interleave: int, heads: int, tp_size: int, dcp_size: int
) -> None:
    layer = AttentionLayer(
        total_kv_heads=heads, head_size=3, element_size_bytes=1, encoding=encoding
    )
    layout = KVParallelConfig(
        tp_size=tp_size, dcp_size=dcp_size, pcp_size=2, interleave=interleave, block_size=8
    )
    for mapping in derive_mappings(layer, layout):
        assert list(mapping.runs) == slow_normal_form(list(mapping.runs))


@pytest.mark.clause("MAP-7")
@pytest.mark.parametrize("encoding", list(Encoding))
def test_the_page_of_a_single_worker_is_one_fragment(encoding: Encoding) -> None:
    layer = AttentionLayer(total_kv_heads=4, head_size=2, element_size_bytes=2, encoding=encoding)
    (mapping,) = derive_mappings(layer, KVParallelConfig(block_size=8))
    assert mapping.runs == (CopyRun(0, 0, 256, 1, 256, 256),)


@pytest.mark.clause("MAP-7")
def test_a_run_that_goes_back_is_cut_into_lone_fragments() -> None:
    runs = [CopyRun(0, 4, 2, 1, 2, 2), CopyRun(2, 2, 2, 1, 2, 2), CopyRun(4, 0, 2, 1, 2, 2)]
    assert list(normal_form(runs)) == runs
    assert normal_form([]) == ()


@pytest.mark.clause("MAP-7")
def test_fragments_that_meet_canonically_are_no_run() -> None:
    """Such a mapping is wrong, but that is for the proof to say."""
    runs = [CopyRun(0, 0, 4, 1, 4, 4), CopyRun(4, 2, 4, 1, 4, 4)]
    assert list(normal_form(runs)) == runs
