"""Whose manager is measured, and the calls that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from kvoffload import CPUOffloadingManager, LookupResult, OffloadKey, ReqContext, make_offload_key
from spec_tests.bench.bare import HIT, BareContext, BareManager
from spec_tests.bench.vllm_modules import load_vllm


class Context(Protocol):
    """A request, as a manager is told of it."""

    def set_offload_key_position(self, key: OffloadKey, end_token: int, /) -> None: ...


class StoreOutput(Protocol):
    """An answer of `prepare_store`."""

    @property
    def keys_to_store(self) -> Sequence[OffloadKey]: ...

    @property
    def evicted_keys(self) -> Sequence[OffloadKey]: ...


ContextT = TypeVar("ContextT", bound=Context)
ContextT_contra = TypeVar("ContextT_contra", bound=Context, contravariant=True)


class Manager(Protocol[ContextT_contra]):
    """The calls of a scheduler, in the order in which it makes them for a request."""

    def on_new_request(self, context: ContextT_contra, /) -> object: ...

    def lookup(self, key: OffloadKey, context: ContextT_contra, /) -> object: ...

    def prepare_load(self, keys: list[OffloadKey], context: ContextT_contra, /) -> object: ...

    def complete_load(self, keys: list[OffloadKey], context: ContextT_contra, /) -> object: ...

    def touch(self, keys: list[OffloadKey], context: ContextT_contra, /) -> object: ...

    def prepare_store(
        self, keys: list[OffloadKey], context: ContextT_contra, /
    ) -> StoreOutput | None: ...

    def complete_store(self, keys: Sequence[OffloadKey], context: ContextT_contra, /) -> object: ...

    def on_request_finished(self, context: ContextT_contra, /) -> object: ...


@frozen
class Provider(Generic[ContextT]):
    """How to make one manager, and what it is spoken to with.

    `make_manager` takes the capacity and the name of a policy; `hit` is what `lookup` answers
    for a chunk that can be loaded.
    """

    make_key: Callable[[bytes, int], OffloadKey]
    make_context: Callable[[str], ContextT]
    make_manager: Callable[[int, str], Manager[ContextT]]
    hit: object


def ours() -> Provider[ReqContext]:
    """kvoffload's own manager."""
    return Provider(make_offload_key, ReqContext, CPUOffloadingManager, LookupResult.HIT)


def bare() -> Provider[BareContext]:
    """The floor, which knows one policy."""

    def make_manager(capacity: int, policy: str) -> BareManager:
        return BareManager(capacity)

    return Provider(make_offload_key, BareContext, make_manager, HIT)


def vllm(root: Path) -> Provider[Context]:
    """vLLM's manager, from the modules below `root`.

    Raises VLLMMissingError when they are not there.
    """
    base, manager = load_vllm(root)
    return Provider(
        base.make_offload_key, base.ReqContext, manager.CPUOffloadingManager, base.LookupResult.HIT
    )
