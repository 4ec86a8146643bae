"""KEY-1 and KEY-2: how a key is made, taken apart, and refused."""

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from kvoffload import (
    CPUOffloadingManager,
    InvalidKeyError,
    InvalidValueError,
    KVOffloadError,
    OffloadKey,
    ReqContext,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from spec_tests.clauses.helpers import A, B, books, pin, put, request
from spec_tests.clauses.policies import recorded

SHORT = OffloadKey(b"1234")
NO_KEYS = [OffloadKey(b""), SHORT]

TakesKeys = Callable[[CPUOffloadingManager, Sequence[OffloadKey], ReqContext], object]
CALLS: dict[str, TakesKeys] = {
    "prepare_load": CPUOffloadingManager.prepare_load,
    "complete_load": CPUOffloadingManager.complete_load,
    "touch": CPUOffloadingManager.touch,
    "prepare_store": CPUOffloadingManager.prepare_store,
    "complete_store": CPUOffloadingManager.complete_store,
}


@pytest.mark.clause("KEY-1")
@pytest.mark.parametrize(
    ("group", "suffix"),
    [
        (0, b"\0\0\0\0"),
        (1, b"\0\0\0\x01"),
        (0x01020304, b"\x01\x02\x03\x04"),
        (2**31, b"\x80\0\0\0"),
        (2**32 - 1, b"\xff\xff\xff\xff"),
    ],
)
def test_a_key_is_the_hash_then_the_group_big_endian(group: int, suffix: bytes) -> None:
    assert make_offload_key(b"hash", group) == b"hash" + suffix


@pytest.mark.clause("KEY-1")
def test_an_empty_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="block_hash"):
        make_offload_key(b"", 0)


@pytest.mark.clause("KEY-1")
@pytest.mark.parametrize("group", [-1, 2**32, 2**40])
def test_a_group_outside_32_bits_is_refused(group: int) -> None:
    with pytest.raises(InvalidValueError, match=f"group_idx.*{group}") as caught:
        make_offload_key(b"hash", group)
    assert isinstance(caught.value, ValueError)
    assert caught.value.value == group


@pytest.mark.clause("KEY-2")
@pytest.mark.parametrize("block_hash", [b"h", b"\0", b"\0\0\0\0\0", bytes(range(32))])
@pytest.mark.parametrize("group", [0, 7, 2**32 - 1])
def test_hash_and_group_are_read_back(block_hash: bytes, group: int) -> None:
    made = make_offload_key(block_hash, group)
    assert get_offload_block_hash(made) == block_hash
    assert get_offload_group_idx(made) == group


@pytest.mark.clause("KEY-2")
@pytest.mark.parametrize("short", NO_KEYS)
def test_what_is_too_short_cannot_be_taken_apart(short: OffloadKey) -> None:
    for take_apart in (get_offload_block_hash, get_offload_group_idx):
        with pytest.raises(ValueError, match="5 bytes"):
            take_apart(short)


@pytest.mark.clause("KEY-2")
def test_five_bytes_are_enough() -> None:
    assert get_offload_block_hash(OffloadKey(b"h\0\0\0\x02")) == b"h"
    assert get_offload_group_idx(OffloadKey(b"h\0\0\0\x02")) == 2


@pytest.mark.clause("KEY-2")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_every_call_validates_all_keys_before_anything_changes(call: str, at: int) -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A, B])
    pin(manager, [A, B], context)
    before, told = books(manager), len(policy.calls)
    offered = [A, B]
    offered.insert(at, SHORT)
    with pytest.raises(InvalidKeyError) as caught:
        CALLS[call](manager, offered, context)
    assert caught.value.key == SHORT
    assert isinstance(caught.value, (KVOffloadError, ValueError))
    assert books(manager) == before
    assert len(policy.calls) == told


@pytest.mark.clause("KEY-2")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("other", ["a text", memoryview(A)])
def test_every_call_refuses_what_is_not_bytes(call: str, other: object) -> None:
    """A view of the bytes of a key is equal to it, and no key all the same."""
    manager = CPUOffloadingManager(4)
    context = request()
    put(manager, [A, B])
    pin(manager, [A, B], context)
    before = books(manager)
    # The types forbid it; callers without types do it.
    with pytest.raises(InvalidKeyError):
        CALLS[call](manager, [B, cast("OffloadKey", other)], context)
    assert books(manager) == before


@pytest.mark.clause("KEY-2")
def test_an_invalid_key_in_an_offer_is_not_counted_towards_admission() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    with pytest.raises(InvalidKeyError):
        manager.prepare_store([A, SHORT], request())
    output = manager.prepare_store([A], request())
    assert output is not None
    assert output.keys_to_store == []


@pytest.mark.clause("KEY-2")
@pytest.mark.parametrize("call", ["complete_load", "complete_store"])
def test_a_completion_under_a_ticket_validates_too(call: str) -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A])
    context = request()
    if call == "complete_load":
        ticket = pin(manager, [A], context).ticket
    else:
        output = manager.prepare_store([B], context)
        assert output is not None
        ticket = output.ticket
    before = books(manager)
    complete = manager.complete_load if call == "complete_load" else manager.complete_store
    with pytest.raises(InvalidKeyError):
        complete([A, B, SHORT], context, ticket=ticket)
    assert books(manager) == before
    assert manager.stale_completions == 0


@pytest.mark.clause("KEY-2")
@pytest.mark.parametrize("short", NO_KEYS)
def test_a_look_up_refuses_what_is_no_key(short: OffloadKey) -> None:
    with pytest.raises(InvalidKeyError):
        CPUOffloadingManager(4).lookup(short, request())
