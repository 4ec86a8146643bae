"""Managers that do legal things in odd ways: no clause that binds others may convict them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from typing_extensions import override

from kvoffload import (
    ChunkNotFoundError,
    ChunkNotReadyError,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    NotPinnedError,
    OffloadingStats,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)


class WithoutTickets(CPUOffloadingManager):
    """Gives no tickets, so that every completion is of the present."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        return CPULoadStoreSpec(spec.block_ids)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            return None
        return PrepareStoreOutput(output.keys_to_store, output.store_spec, output.evicted_keys)


class WithoutFigures(CPUOffloadingManager):
    """Reports nothing under the documented names."""

    @override
    def get_stats(self) -> OffloadingStats:
        super().get_stats()
        return OffloadingStats()


class SlotsFromTheTop(CPUOffloadingManager):
    """Hands out the highest slots first; only claimants owe ascending ones."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        return CPULoadStoreSpec(self._mirrored(spec), spec.ticket)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None or not isinstance(output.store_spec, CPULoadStoreSpec):
            return output
        spec = CPULoadStoreSpec(self._mirrored(output.store_spec))
        return PrepareStoreOutput(output.keys_to_store, spec, output.evicted_keys, output.ticket)

    def _mirrored(self, spec: CPULoadStoreSpec) -> list[int]:
        return [self.num_chunks - 1 - slot for slot in spec.block_ids.tolist()]


class Asserts(CPUOffloadingManager):
    """Refuses misuse with assertions, as vLLM does, instead of named errors."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        try:
            return super().prepare_load(keys, req_context, record_access=record_access)
        except (ChunkNotFoundError, ChunkNotReadyError) as error:
            raise AssertionError(str(error)) from error

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        try:
            super().complete_load(keys, req_context, ticket=ticket)
        except (ChunkNotFoundError, NotPinnedError) as error:
            raise AssertionError(str(error)) from error


ODDITIES: Final[Sequence[type[CPUOffloadingManager]]] = (
    WithoutTickets,
    WithoutFigures,
    SlotsFromTheTop,
    Asserts,
)
"""All of these."""
