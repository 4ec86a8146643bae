"""The request contexts of vLLM, as policies written against kvoffload know contexts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar
from weakref import ref

from attrs import define, field
from typing_extensions import override

from kvoffload.keys import OffloadKey
from kvoffload.requests import ReqContext
from kvoffload.vllm.interface import Context

T = TypeVar("T")


@define(eq=False)
class BorrowedContext(ReqContext):
    """A context of vLLM for a policy of kvoffload; there is one for each, made by `borrow`.

    Positions and shared state are those of vLLM's context, which has everything else that it has
    under its own names too (`kv_hints`). They are there as long as vLLM keeps its context: a policy
    that holds on to this one does not keep the other alive, and finds no positions afterwards.
    `load_tier_filter` is for managers of several tiers, and says here that all are allowed.
    """

    _origin: ref[Context] | None = field(default=None, init=False, repr=False)

    @classmethod
    def borrow(cls, context: Context) -> BorrowedContext:
        """The context that stands for vLLM's, the same each time."""
        known = context.get_state(cls)
        if known is not None:
            return known
        made = cls(str(context.req_id))
        # Where there is something else, policies here need not expect it (REQ-1).
        if isinstance(context.kv_transfer_params, dict):
            made.kv_transfer_params = context.kv_transfer_params
        # No cycle: with it the positions of thousands of keys would wait for a collection.
        made._origin = ref(context)
        context.set_state(made)
        return made

    if not TYPE_CHECKING:
        # What only vLLM's contexts have is not for those who are checked against ours.
        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(self._there(), name)

    @override
    def set_state(self, val: object) -> None:
        context = self._there()
        if context is None:
            ReqContext.set_state(self, val)
        else:
            context.set_state(val)

    @override
    def get_state(self, cls: type[T]) -> T | None:
        context = self._there()
        return ReqContext.get_state(self, cls) if context is None else context.get_state(cls)

    @override
    def set_offload_key_position(self, key: OffloadKey, end_token: int) -> None:
        context = self._there()
        if context is None:
            ReqContext.set_offload_key_position(self, key, end_token)
        else:
            context.set_offload_key_position(key, end_token)

    @override
    def get_offload_key_position(self, key: OffloadKey) -> int | None:
        context = self._there()
        return None if context is None else context.get_offload_key_position(key)

    @override
    def get_offload_key_positions(self, keys: Iterable[OffloadKey]) -> list[int] | None:
        context = self._there()
        if context is None:
            return None
        ends: list[int] = []
        for end in map(context.get_offload_key_position, keys):
            if end is None:
                return None
            ends.append(end)
        return ends

    @property
    @override
    def offload_key_positions(self) -> Mapping[OffloadKey, int]:
        # vLLM tells the position of a key that is named; all of them have no public name there.
        known: Mapping[OffloadKey, int] = getattr(self._there(), "_offload_key_positions", {})
        return MappingProxyType(dict(known))

    def _there(self) -> Context | None:
        return None if self._origin is None else self._origin()
