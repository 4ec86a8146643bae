"""TIER-1 to TIER-3 and REQ-1 to REQ-3: filters, and what a request carries."""

from itertools import product

import pytest

from kvoffload import (
    CPUOffloadingManager,
    InvalidValueError,
    Locality,
    LookupResult,
    Medium,
    OffloadPolicy,
    ReqContext,
    RequestOffloadingContext,
    TierFilter,
    TierMatcher,
)
from spec_tests.clauses.helpers import A, B, C, pin, put, request, slots
from spec_tests.clauses.policies import recorded

MEDIA = (None, *Medium)
LOCALITIES = (None, *Locality)


@pytest.mark.clause("TIER-1")
def test_a_matcher_is_a_named_tuple_of_two_wildcards() -> None:
    medium, locality = matcher = TierMatcher()
    assert (medium, locality) == (None, None)
    assert isinstance(matcher, tuple)
    assert TierMatcher(Medium.CPU, Locality.REMOTE) == (Medium.CPU, Locality.REMOTE)
    assert TierMatcher._fields == ("medium", "locality")


@pytest.mark.clause("TIER-1")
@pytest.mark.parametrize(("own_medium", "own_locality"), list(product(MEDIA, LOCALITIES)))
def test_a_matcher_compares_field_by_field_with_wildcards_on_either_side(
    own_medium: Medium | None, own_locality: Locality | None
) -> None:
    matcher = TierMatcher(own_medium, own_locality)
    for medium, locality in product(MEDIA, LOCALITIES):
        clash = (own_medium, medium) in [
            (Medium.CPU, Medium.STORAGE),
            (Medium.STORAGE, Medium.CPU),
        ] or (own_locality, locality) in [
            (Locality.LOCAL, Locality.REMOTE),
            (Locality.REMOTE, Locality.LOCAL),
        ]
        assert matcher.matches(medium, locality) is not clash


@pytest.mark.clause("TIER-2")
def test_a_filter_allows_what_any_of_its_matchers_matches() -> None:
    either = TierFilter((TierMatcher(Medium.CPU), TierMatcher(locality=Locality.REMOTE)))
    assert either.allows(Medium.CPU, Locality.LOCAL)
    assert either.allows(Medium.STORAGE, Locality.REMOTE)
    assert not either.allows(Medium.STORAGE, Locality.LOCAL)


@pytest.mark.clause("TIER-2")
def test_a_filter_without_matchers_allows_nothing() -> None:
    for medium, locality in product(MEDIA, LOCALITIES):
        assert not TierFilter().allows(medium, locality)


@pytest.mark.clause("TIER-2")
@pytest.mark.parametrize("everything", [TierFilter.ALL, TierFilter((TierMatcher(None, None),))])
def test_all_and_its_equals_allow_everything(everything: TierFilter) -> None:
    assert everything == TierFilter.ALL
    for medium, locality in product(MEDIA, LOCALITIES):
        assert everything.allows(medium, locality)


@pytest.mark.clause("TIER-3")
@pytest.mark.parametrize(
    "tier_filter", [TierFilter(), TierFilter((TierMatcher(Medium.STORAGE, Locality.REMOTE),))]
)
def test_a_single_tier_ignores_the_filter(tier_filter: TierFilter) -> None:
    manager = CPUOffloadingManager(2)
    context = ReqContext("r", load_tier_filter=tier_filter)
    put(manager, [A], context)
    assert manager.lookup(A, context) is LookupResult.HIT
    assert slots(manager.prepare_load([A], context)) == [0]


@pytest.mark.clause("REQ-1")
def test_a_request_has_an_id_and_defaults() -> None:
    context = ReqContext("r")
    assert context.req_id == "r"
    assert context.kv_transfer_params is None
    assert context.load_tier_filter is TierFilter.ALL


@pytest.mark.clause("REQ-1")
def test_a_request_carries_what_it_is_given() -> None:
    params: dict[str, object] = {"session": 3}
    context = ReqContext("r", params, TierFilter())
    assert context.kv_transfer_params is params
    assert context.load_tier_filter == TierFilter()


@pytest.mark.clause("REQ-1")
def test_state_is_kept_by_type() -> None:
    context = ReqContext("r")
    assert context.get_state(int) is None
    context.set_state(1)
    context.set_state("text")
    assert context.get_state(int) == 1
    assert context.get_state(str) == "text"
    context.set_state(2)
    assert context.get_state(int) == 2
    assert context.get_state(float) is None


@pytest.mark.clause("REQ-1")
def test_state_belongs_to_one_request() -> None:
    first, second = ReqContext("r"), ReqContext("r")
    first.set_state(1)
    assert second.get_state(int) is None


@pytest.mark.clause("REQ-2")
def test_a_position_is_known_once_set() -> None:
    context = ReqContext("r")
    assert context.get_offload_key_position(A) is None
    context.set_offload_key_position(A, 32)
    assert context.get_offload_key_position(A) == 32
    assert context.get_offload_key_position(B) is None
    assert ReqContext("r").get_offload_key_position(A) is None


@pytest.mark.clause("REQ-2")
@pytest.mark.parametrize("end", [-1, True])
def test_a_position_that_is_none_is_refused(end: int) -> None:
    context = ReqContext("r")
    with pytest.raises(InvalidValueError, match=f"end_token.*{end}"):
        context.set_offload_key_position(A, end)
    assert context.get_offload_key_position(A) is None


@pytest.mark.clause("REQ-3")
def test_a_new_request_is_offloaded_block_by_block() -> None:
    answer = CPUOffloadingManager(2).on_new_request(request())
    assert answer == RequestOffloadingContext()
    assert answer.policy is OffloadPolicy.BLOCK_LEVEL


@pytest.mark.clause("REQ-3")
def test_the_policies_have_their_documented_values() -> None:
    assert OffloadPolicy("block_level") is OffloadPolicy.BLOCK_LEVEL
    assert OffloadPolicy("request_level") is OffloadPolicy.REQUEST_LEVEL
    assert OffloadPolicy["CHUNK_LEVEL"] is OffloadPolicy.BLOCK_LEVEL
    assert list(OffloadPolicy) == [OffloadPolicy.BLOCK_LEVEL, OffloadPolicy.REQUEST_LEVEL]


@pytest.mark.clause("REQ-3")
def test_announcing_a_request_is_optional() -> None:
    announced, silent = CPUOffloadingManager(2), CPUOffloadingManager(2)
    context = request()
    announced.on_new_request(context)
    other = request()
    outputs = [put(announced, [A, B], context), put(silent, [A, B], other)]
    assert outputs[0].keys_to_store == outputs[1].keys_to_store == [A, B]
    assert slots(pin(announced, [B], context)) == slots(pin(silent, [B], other)) == [1]


@pytest.mark.clause("REQ-3")
def test_finishing_an_unknown_request_does_nothing() -> None:
    manager, policy = recorded(2)
    put(manager, [A])
    told = len(policy.calls)
    manager.on_request_finished(request("never seen"))
    assert len(policy.calls) == told
    # Nor is it held against the request afterwards.
    late = request("late")
    manager.on_request_finished(late)
    assert put(manager, [C], late).keys_to_store == [C]
