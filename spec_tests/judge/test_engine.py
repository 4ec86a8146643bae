"""The plain engine and the GPU in front of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from kvoffload import CPUOffloadingManager, OffloadKey, PrepareStoreOutput, ReqContext
from kvoffload.errors import TraceError
from kvoffload.judge.engine import Engine
from kvoffload.judge.workload import GPUCache, Workload
from kvoffload.replay import TraceRequest
from spec_tests.judge.test_optimum import of_prompts
from spec_tests.judge.workloads import prompts, workloads


@given(st.lists(prompts(), max_size=20), st.integers(0, 5))
def test_the_gpu_is_a_list_in_order_of_use(asked: list[tuple[int, ...]], chunks: int) -> None:
    gpu = GPUCache(chunks)
    newest_first: list[int] = []
    for blocks in asked:
        hits = next((n for n, b in enumerate(blocks) if b not in newest_first), len(blocks))
        assert gpu.serve(blocks) == hits
        # The head of the latest prompt is the last to go.
        newest_first = [*blocks, *(b for b in newest_first if b not in blocks)][:chunks]


@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(1, 5))
def test_single_blocks_are_served_as_by_any_lru(blocks: list[int], capacity: int) -> None:
    workload = Workload.of([TraceRequest(float(n), (b,)) for n, b in enumerate(blocks)])
    newest_first: list[int] = []
    expected: list[int] = []
    for block in blocks:
        expected.append(block in newest_first)
        newest_first = [block, *(b for b in newest_first if b != block)][:capacity]
    outcome = Engine(CPUOffloadingManager(capacity, "lru"), workload).run()
    assert list(outcome.block_hits) == expected
    assert outcome.stored == len(blocks) - sum(expected)


class Offers(CPUOffloadingManager):
    """Remembers what it is offered, as letters."""

    def __init__(self, num_chunks: int) -> None:
        super().__init__(num_chunks)
        self.offers: list[str] = []
        self.hints: list[object] = []

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        self.offers.append("".join(chr(key[7]) for key in keys))
        self.hints.append(req_context.kv_transfer_params)
        return super().prepare_store(keys, req_context)


@pytest.mark.parametrize(
    ("workload", "offers"),
    [
        (of_prompts("abc", "abd"), ["abc", "d"]),
        (of_prompts("ab", "ab"), ["ab"]),
        # The GPU has the prefix, nothing is loaded: it is offered with the rest.
        (of_prompts("ab", "abc", gpu=2), ["ab", "abc"]),
        # Something is loaded: what lies before it is not offered again.
        (of_prompts("abc", "x", "abcd", gpu=3), ["abc", "x", "d"]),
    ],
)
def test_what_is_offered(workload: Workload, offers: Sequence[str]) -> None:
    manager = Offers(8)
    Engine(manager, workload).run()
    assert manager.offers == offers


def test_hints_and_observers_are_told_of_each_request() -> None:
    manager, seen = Offers(8), list[tuple[int, int, int]]()
    Engine(
        manager,
        of_prompts("ab", "abc", "ab"),
        hints=lambda number: {"turn": number} if number else None,
        observe=lambda number, keys, found: seen.append((number, len(keys), found)),
    ).run()
    assert manager.hints == [None, {"turn": 1}]
    assert seen == [(0, 2, 0), (1, 3, 2), (2, 2, 2)]


@given(workloads(max_requests=20), st.integers(0, 5))
def test_tokens_are_those_of_the_blocks_that_hit(workload: Workload, capacity: int) -> None:
    outcome = Engine(CPUOffloadingManager(capacity), workload).run()
    for number, request in enumerate(workload.requests):
        on_gpu = workload.gpu_hits[number]
        ends = [0, *request.block_ends()]
        found = int(outcome.block_hits[number])
        assert outcome.token_hits[number] == ends[on_gpu + found] - ends[on_gpu]


@pytest.mark.parametrize("prompts_given", [(), ("aba",)])
def test_what_is_no_workload(prompts_given: tuple[str, ...]) -> None:
    with pytest.raises(TraceError):
        of_prompts(*prompts_given)
