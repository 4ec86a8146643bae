# SPDX-License-Identifier: Apache-2.0
"""What vLLM 0.33.0's CPU offloading manager does not do; every test says what it should."""

import pytest

from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.factory import CachePolicyFactory
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy

A, B, C, D = (make_offload_key(name, 0) for name in (b"a", b"b", b"c", b"d"))


@pytest.mark.xfail(
    strict=True,
    raises=AttributeError,
    reason="module 'json' has no attribute 'NoSuchPolicy'",
)
def test_a_policy_that_a_module_lacks_is_a_value_error():
    with pytest.raises(ValueError, match="NoSuchPolicy"):
        CachePolicyFactory.get_cache_policy_cls("NoSuchPolicy", "json")


@pytest.mark.xfail(
    strict=True, raises=ModuleNotFoundError, reason="No module named 'no_such_module'"
)
def test_a_policy_of_a_module_that_is_not_there_is_a_value_error():
    with pytest.raises(ValueError, match="NoSuchPolicy"):
        CachePolicyFactory.get_cache_policy_cls("NoSuchPolicy", "no_such_module")


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="assert [b'a\\x00\\x00\\x00\\x00'] == []"
)
def test_a_reset_forgets_what_was_offered():
    manager, request = CPUOffloadingManager(1, store_threshold=2), ReqContext("r")
    manager.prepare_store([A], request)
    manager.reset_cache()
    output = manager.prepare_store([A], request)
    assert output.keys_to_store == []


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="assert set() == {b'a\\x00\\x00\\x00\\x00'}",
)
def test_a_reset_takes_back_what_was_announced():
    manager, request = CPUOffloadingManager(1, enable_events=True), ReqContext("r")
    manager.prepare_store([A], request)
    manager.complete_store([A], request)
    announced = {key for event in manager.take_events() for key in event.keys}
    manager.reset_cache()
    taken_back = {key for event in manager.take_events() for key in event.keys}
    assert taken_back == announced


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="assert [[b'a\\x00\\x00\\x00\\x00']] == []",
)
def test_after_a_reset_nothing_is_announced_that_is_gone():
    manager, request = CPUOffloadingManager(1, enable_events=True), ReqContext("r")
    manager.prepare_store([A], request)
    manager.complete_store([A], request)
    manager.reset_cache()
    assert [event.keys for event in manager.take_events() if not event.removed] == []


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="assert [1] == []")
def test_a_policy_is_not_asked_for_victims_that_cannot_be_there(monkeypatch):
    manager, request = CPUOffloadingManager(1), ReqContext("r")
    asked = []
    monkeypatch.setattr(manager._policy, "evict", lambda n, _: asked.append(n))
    manager.prepare_store([A], request)
    manager.complete_store([A], request)
    manager.prepare_store([A, B], request)
    assert asked == []


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="assert None is not None")
def test_a_load_that_is_refused_pins_nothing():
    manager, request = CPUOffloadingManager(1), ReqContext("r")
    manager.prepare_store([A], request)
    manager.complete_store([A], request)
    with pytest.raises(AssertionError, match="not found"):
        manager.prepare_load([A, B], request)
    assert manager.prepare_store([B], request) is not None


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="assert <LookupResult.MISS: 1> is <LookupResult.HIT: 2>",
)
def test_a_release_that_is_refused_releases_nothing():
    manager, request = CPUOffloadingManager(1), ReqContext("r")
    manager.prepare_store([A], request)
    manager.complete_store([A], request)
    manager.prepare_load([A], request)
    with pytest.raises(AssertionError, match="ref_cnt is already 0"):
        manager.complete_load([A, A], request)
    manager.prepare_store([B], request)
    assert manager.lookup(A, request) is LookupResult.HIT


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="assert None is not None")
def test_a_load_by_a_request_that_has_finished_pins_nothing():
    manager = CPUOffloadingManager(1)
    running, finished = ReqContext("running"), ReqContext("finished")
    manager.prepare_store([A], running)
    manager.complete_store([A], running)
    manager.on_new_request(finished)
    manager.on_request_finished(finished)
    with pytest.raises(AssertionError, match="after request finalization"):
        manager.prepare_load([A], finished)
    assert manager.prepare_store([B], running) is not None


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="assert [b'b\\x00\\x00\\x00\\x00'] == []"
)
def test_an_offer_by_a_request_that_has_finished_does_not_count():
    manager = CPUOffloadingManager(2, store_threshold=2)
    running, finished = ReqContext("running"), ReqContext("finished")
    manager.prepare_store([A], finished)
    manager.on_request_finished(finished)
    with pytest.raises(AssertionError, match="after request finalization"):
        manager.prepare_store([A, B], finished)
    output = manager.prepare_store([B], running)
    assert output.keys_to_store == []


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="assert None is not None")
def test_a_key_that_is_offered_twice_takes_one_slot():
    manager, request = CPUOffloadingManager(2), ReqContext("r")
    manager.prepare_store([A, A], request)
    manager.complete_store([A], request)
    assert manager.prepare_store([B, C], request) is not None


class TwiceTheSame(LRUCachePolicy):
    def evict(self, n, protected):
        victims = super().evict(1, protected)
        return victims and victims * n


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="assert 1 == 2")
def test_a_policy_that_gives_up_a_chunk_twice_does_not_get_two_keys_into_one_slot():
    manager = CPUOffloadingManager(2, "TwiceTheSame", __name__)
    request = ReqContext("r")
    manager.prepare_store([A, B], request)
    manager.complete_store([A, B], request)
    output = manager.prepare_store([C, D], request)
    assert len(set(output.store_spec.block_ids)) == 2


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="assert [[b'a\\x00\\x00\\x00\\x00']] == []",
)
def test_events_are_taken_by_the_call():
    manager, request = CPUOffloadingManager(1, enable_events=True), ReqContext("r")
    manager.prepare_store([A], request)
    manager.complete_store([A], request)
    manager.take_events()
    assert [event.keys for event in manager.take_events()] == []


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="assert [[]] == [[b'a\\x00\\x00\\x00\\x00']]",
)
def test_an_event_keeps_its_keys_whatever_becomes_of_the_answer():
    manager, request = CPUOffloadingManager(1, enable_events=True), ReqContext("r")
    manager.prepare_store([A], request)
    manager.complete_store([A], request)
    output = manager.prepare_store([B], request)
    output.evicted_keys.clear()
    assert [event.keys for event in manager.take_events() if event.removed] == [[A]]
