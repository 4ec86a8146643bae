"""Policies of kvoffload inside vLLM's own manager, by configuration alone."""

from __future__ import annotations

from collections import Counter

import pytest

from kvoffload import make_offload_key
from kvoffload.vllm import policies
from kvoffload.vllm.control_plane import ControlPlane
from spec_tests.peer.alike import Alike

MODULE = "kvoffload.vllm.policies"
PROGRAMS = 400
A, B, C = (make_offload_key(bytes([n]) * 4, 0) for n in (1, 2, 3))


@pytest.mark.parametrize(
    ("theirs", "ours", "mistakes"),
    [
        ("lru", "LRUCachePolicy", True),
        ("lru", "kvoffload.policies.lru:LRUCachePolicy", False),
        ("arc", "ARCCachePolicy", False),
    ],
)
def test_ours_give_the_victims_that_theirs_give(
    control_plane: ControlPlane, theirs: str, ours: str, mistakes: bool
) -> None:
    """Every answer, event, figure and exception of their manager is the same."""
    met: Counter[str] = Counter()
    for number in range(PROGRAMS):
        sides = [(theirs, None), (ours, MODULE)]
        met += Alike(f"{theirs} {number}", sides, mistakes=mistakes).met
    assert met["steps"] > 30_000
    assert met["victims"] > 5_000
    assert min(met["resets"], met["failed stores"]) > 50
    assert (met["errors"] > 20) is mistakes


def test_a_class_that_they_took_is_one_of_theirs(control_plane: ControlPlane) -> None:
    found = control_plane.policy_factory.get_cache_policy_cls("LRUCachePolicy", MODULE)
    # As vLLM asks: `issubclass` of the class itself, not of the protocol that it is typed as.
    base: type = control_plane.policy_base
    assert issubclass(found, base)
    assert policies.hosted(policies.find_policy("lru")) is found
    # Their own short names come first.
    assert control_plane.policy_factory.get_cache_policy_cls("lru", MODULE) is (
        control_plane.lru_class
    )


def test_an_offer_that_names_a_key_twice_is_survived_and_arc_ranks_it_by_the_second(
    control_plane: ControlPlane,
) -> None:
    """Their manager inserts such a key twice. Their ARC keeps its first place, ours its second."""
    victims: dict[str, list[bytes]] = {}
    for name, path in (("arc", None), ("ARCCachePolicy", MODULE)):
        manager = control_plane.manager_class(4, name, path)
        first, second = (control_plane.context_class(req_id=name) for name in ("r", "s"))
        output = manager.prepare_store([A, B, A], first)
        assert output is not None
        assert output.keys_to_store == [A, B, A]
        manager.complete_store([A, B], first)
        assert manager.prepare_store([C], second) is not None
        output = manager.prepare_store([make_offload_key(b"last", 0)], second)
        assert output is not None
        victims[name] = output.evicted_keys
    assert victims == {"arc": [A], "ARCCachePolicy": [B]}
