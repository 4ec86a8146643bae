"""A pytest plugin, for a process of its own: a test that imports vLLM runs, and sees more policies.

`python -m pytest -p spec_tests.vllm.in_tree FILE`. The variable `REGISTERED` has lines of a short
name and of what `kvoffload.vllm.policies` knows as a policy. With `KVOFFLOAD_PEER_ROOT` set it
is vLLM's own control plane that they are registered in, else the stand-ins for vLLM 0.33, with a
manager that calls policies as vLLM's does. Only every `EVERY`th program is played.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from importlib import import_module
from typing import Final, cast

import pytest
from attrs import define, field

from kvoffload.vllm.interface import Context, Policy, PolicyFactory
from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.standins.factory import FACTORY
from kvoffload.vllm.standins.status import ChunkStatus
from kvoffload.vllm.versions import NEWEST
from spec_tests.peer.root import VARIABLE, peer

REGISTERED: Final = "KVOFFLOAD_TEST_REGISTERED"
EVERY: Final = "KVOFFLOAD_TEST_EVERY"
POLICIES: Final = "kvoffload.vllm.policies"


@define
class _Seen:
    """What a request has seen, kept on its context."""

    keys: dict[bytes, None] = field(factory=dict)
    missed: set[bytes] = field(factory=set)
    inserted: set[bytes] = field(factory=set)
    reused: set[bytes] = field(factory=set)

    @classmethod
    def of(cls, context: Context) -> _Seen:
        """That of a request, an empty one at first."""
        seen = context.get_state(cls)
        if seen is None:
            seen = cls()
            context.set_state(seen)
        return seen


class CPUOffloadingManager:
    """Calls its policy in the order of vLLM's manager, and does no more than that takes."""

    _policy: Policy

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks
        self._slots = list(range(num_chunks))
        self._idle = 0

    def prepare_store(self, keys: Collection[bytes], context: Context) -> None:
        policy, seen = self._policy, _Seen.of(context)
        chunks = {key: policy.get(key) for key in keys}
        new = [key for key in keys if chunks[key] is None]
        ready = [key for key, chunk in chunks.items() if chunk is not None and chunk.is_ready]
        if missed := [key for key in new if key not in seen.missed]:
            policy.on_store_miss(missed, context)
            seen.missed.update(missed)
        self._see([key for key in keys if key in new or key in ready], ready, context)
        lacking = len(new) - len(self._slots)
        if not new or lacking > self._idle:
            return
        if lacking > 0:
            victims = policy.evict(lacking, set(keys))
            if victims is None:
                return
            self._idle -= len(victims)
            self._slots += [chunk.chunk_id for _, chunk in victims]
        for key in new:
            policy.insert(key, ChunkStatus(self._slots.pop()), context)
        seen.inserted.update(new)

    def complete_store(self, keys: Collection[bytes], context: Context, success: bool) -> None:
        for key in keys:
            chunk = self._policy.get(key)
            if chunk is None or chunk.is_ready:
                continue
            if success:
                chunk.ref_cnt = 0
                self._idle += 1
                self._policy.mark_evictable(key)
            else:
                self._policy.remove(key)
                self._slots.append(chunk.chunk_id)

    def prepare_load(self, keys: Collection[bytes], context: Context) -> None:
        for key in keys:
            chunk = self._policy.get(key)
            assert chunk is not None
            if chunk.ref_cnt == 0:
                self._policy.mark_non_evictable(key)
                self._idle -= 1
            chunk.ref_cnt += 1
        self._see(keys, keys, context)

    def complete_load(self, keys: Collection[bytes], context: Context) -> None:
        for key in keys:
            chunk = self._policy.get(key)
            assert chunk is not None
            chunk.ref_cnt -= 1
            if chunk.ref_cnt == 0:
                self._idle += 1
                self._policy.mark_evictable(key)

    def touch(self, keys: Collection[bytes], context: Context) -> None:
        self._policy.touch(keys, context)

    def on_request_finished(self, context: Context) -> None:
        seen = _Seen.of(context)
        groups = [[key for key in seen.keys if key[-1] == group] for group in (0, 1)]
        self._policy.on_request_finished(
            [sorted(keys) for keys in groups if keys],
            seen.inserted - seen.reused,
            seen.reused,
            context,
        )

    def reset_cache(self) -> None:
        self._policy.clear()
        self._slots, self._idle = list(range(self._num_chunks)), 0

    def _see(self, keys: Collection[bytes], reused: Collection[bytes], context: Context) -> None:
        seen = _Seen.of(context)
        if new := [key for key in keys if key not in seen.keys]:
            self._policy.on_request_access(new, context)
        seen.keys.update(dict.fromkeys(new))
        seen.reused.update(key for key in reused if key not in seen.inserted)


def pytest_configure() -> None:
    """Before any test is imported."""
    factory = peer().policy_factory if os.environ.get(VARIABLE) else _stand_in_factory()
    for line in os.environ.get(REGISTERED, "").splitlines():
        name, target = line.split()
        factory.register_cache_policy(name, POLICIES, target)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is left of the programs is played."""
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    for module in modules - {None}:
        names = vars(module)
        names["SIZES"] = names["SIZES"][:: int(os.environ.get(EVERY, "1"))]


def _stand_in_factory() -> PolicyFactory:
    StandIns(NEWEST).install()
    vars(import_module("vllm.v1.kv_offload.cpu.manager"))["CPUOffloadingManager"] = (
        CPUOffloadingManager
    )
    # Which is a class whose methods are class methods.
    return cast("PolicyFactory", import_module(FACTORY).CachePolicyFactory)
