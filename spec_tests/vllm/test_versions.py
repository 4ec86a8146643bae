"""What is known of vLLM's releases, and the host protocols that follow from it."""

from __future__ import annotations

import pytest

from kvoffload.errors import UnknownVLLMError
from kvoffload.vllm.versions import NEWEST, VERSIONS, Loading, find_version
from stateful_models.hosts import (
    PROTOCOLS,
    VLLM_021,
    VLLM_023,
    VLLM_030,
    VLLM_032,
    VLLM_033,
    protocol_of,
)

NAMES = [version.name for version in VERSIONS]


def age(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))


def test_every_minor_release_is_in_one_range_and_they_go_back_in_time() -> None:
    minors = [minor for version in VERSIONS for minor in reversed(version.minors)]
    assert minors == [f"0.{number}" for number in range(33, 18, -1)]
    assert [version.name for version in VERSIONS] == [version.minors[-1] for version in VERSIONS]
    assert NEWEST is VERSIONS[0]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("0.33", "0.33"),
        ("0.33.0", "0.33"),
        ("v0.31.0", "0.32"),
        ("0.28", "0.29"),
        ("0.22.1", "0.23"),
        (" 0.19 ", "0.19"),
        ("0.33.1.dev17+g0123456", "0.33"),
        ("0.33.0rc1", "0.33"),
    ],
)
def test_a_release_is_found_by_its_range(asked: str, name: str) -> None:
    assert find_version(asked).name == name


@pytest.mark.parametrize("asked", ["0.18", "0.34.0", "", "0", "33", "newest", "0.3"])
def test_what_is_not_known_is_refused_with_what_is(asked: str) -> None:
    with pytest.raises(UnknownVLLMError, match=r"from 0\.19 to 0\.33"):
        find_version(asked)


def test_variants_only_grow() -> None:
    variants = [version.variant for version in VERSIONS]
    assert variants == sorted(variants, reverse=True)
    assert set(variants) == {1, 2, 3, 4, 5}


def test_a_variant_has_what_makes_it_one() -> None:
    for version in VERSIONS:
        contexts = "req_context" in (version.parameters("touch") or ())
        keys = version.parameters("get") == ("key",)
        at_insertion = "req_context" in (version.parameters("insert") or ())
        hooks = "on_request_finished" in version.hooks
        assert version.variant == 1 + sum((keys, contexts, hooks, at_insertion))


def test_facts_about_one_version() -> None:
    newest = find_version("0.33")
    assert newest.abstract == ("get", "insert", "remove", "touch", "evict", "clear")
    assert newest.hooks == (
        "mark_evictable",
        "mark_non_evictable",
        "on_store_miss",
        "on_request_finished",
        "on_request_access",
    )
    assert newest.parameters("insert") == ("key", "chunk", "req_context")
    assert newest.parameters("open_session") is None
    assert (newest.status, newest.slot) == ("ChunkStatus", "chunk_id")
    assert newest.loading is Loading.MODULE_PATH
    assert str(newest) == "vLLM 0.33"
    oldest = find_version("0.19")
    assert oldest.hooks == ()
    assert oldest.parameters("touch") == ("block_hashes",)
    assert oldest.loading is Loading.TABLE


def test_protocols_follow_from_versions() -> None:
    assert PROTOCOLS == (VLLM_033, VLLM_032, VLLM_030, VLLM_023, VLLM_021)
    assert [host.name for host in PROTOCOLS] == [
        "vLLM 0.33",
        "vLLM 0.31 to 0.32",
        "vLLM 0.24 to 0.30",
        "vLLM 0.22 to 0.23",
        "vLLM 0.19 to 0.21",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_protocol_calls_what_its_versions_have(name: str) -> None:
    version = find_version(name)
    host = protocol_of(version)
    methods = {*version.hooks, *version.abstract}
    assert host.marks == ("mark_non_evictable" in methods)
    assert host.clears == ("clear" in methods)
    assert host.tells_misses == host.tells_finish == ("on_request_finished" in methods)
    assert host.tells_accesses == ("on_request_access" in methods)
    assert host.touches_steps == (age(name) < age("0.31"))
