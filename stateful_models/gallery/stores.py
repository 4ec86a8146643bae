"""Managers that are wrong about offers, victims and slots."""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)


def _slots_of(output: PrepareStoreOutput) -> list[int]:
    spec = output.store_spec
    return [int(slot) for slot in spec.block_ids] if isinstance(spec, CPULoadStoreSpec) else []


class Store1StoresRepetitions(CPUOffloadingManager):
    """A key that an offer repeats is stored as often."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            return None
        slots = dict(zip(output.keys_to_store, _slots_of(output), strict=True))
        stored = [key for key in keys if key in slots]
        spec = CPULoadStoreSpec([slots[key] for key in stored])
        return PrepareStoreOutput(stored, spec, output.evicted_keys, output.ticket)


class Store2StoresAgain(CPUOffloadingManager):
    """Keys that are resident are stored once more."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        ready = [k for k in dict.fromkeys(keys) if self.lookup(k, req_context) is LookupResult.HIT]
        output = super().prepare_store(keys, req_context)
        if output is None or not ready:
            return output
        where = super().prepare_load(ready, req_context, record_access=False)
        super().complete_load(ready, req_context, ticket=where.ticket)
        spec = CPULoadStoreSpec(where.block_ids.tolist() + _slots_of(output))
        stored = ready + output.keys_to_store
        return PrepareStoreOutput(stored, spec, output.evicted_keys, output.ticket)


class Store3AdmitsAtOnce(CPUOffloadingManager):
    """The threshold is taken, and not kept."""

    def __init__(
        self,
        num_chunks: int,
        cache_policy: str | type[CachePolicy] = "lru",
        cache_policy_module_path: str | None = None,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
    ) -> None:
        super().__init__(
            num_chunks,
            cache_policy,
            cache_policy_module_path,
            enable_events,
            min(store_threshold, 1),
            max_tracker_size,
        )


class Store4EvictsTooMany(CPUOffloadingManager):
    """One chunk more goes than is needed."""

    _more = 0

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None or not output.evicted_keys:
            return output
        self._more += 1
        extra = OffloadKey(b"extra%d" % self._more + bytes(4))
        spare = super().prepare_store([extra], ReqContext("spare"))
        if spare is None:
            return output
        super().complete_store([extra], ReqContext("spare"), False, ticket=spare.ticket)
        gone = output.evicted_keys + spare.evicted_keys
        return PrepareStoreOutput(output.keys_to_store, output.store_spec, gone, output.ticket)


class Store4RefusesToEvict(CPUOffloadingManager):
    """A full cache takes nothing any more, though everything in it is idle."""

    _room: int | None = None

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        room = self.num_chunks if self._room is None else self._room
        new = [k for k in dict.fromkeys(keys) if self.lookup(k, req_context) is LookupResult.MISS]
        if len(new) > room:
            return None
        output = super().prepare_store(keys, req_context)
        self._room = room - (0 if output is None else len(output.keys_to_store))
        return output


class Store4RefusalEvicts(CPUOffloadingManager):
    """An offer that is refused has cost a chunk all the same."""

    _refused = 0

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            self._refused += 1
            extra = OffloadKey(b"extra%d" % self._refused + bytes(4))
            spare = super().prepare_store([extra], ReqContext("spare"))
            if spare is not None:
                super().complete_store([extra], ReqContext("spare"), False, ticket=spare.ticket)
        return output


class Store4RefusedIsThere(CPUOffloadingManager):
    """What a full cache has refused counts as held, with nothing behind it."""

    _refused: frozenset[OffloadKey] = frozenset()

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        return LookupResult.HIT if key in self._refused else answer

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        self._refused = self._refused.difference(keys)
        if output is None:
            self._refused |= {key for key in keys if self._find(key) is None}
        return output


class Store5EvictsTheOffer(CPUOffloadingManager):
    """Only the new keys of an offer are protected, so that the others may go."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        new = [k for k in keys if self.lookup(k, req_context) is LookupResult.MISS]
        return super().prepare_store(new, req_context)


class Store7SlotTwice(CPUOffloadingManager):
    """The first and the last key of an offer share a slot."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            return None
        slots = _slots_of(output)
        spec = CPULoadStoreSpec(slots[:-1] + slots[:1])
        return PrepareStoreOutput(output.keys_to_store, spec, output.evicted_keys, output.ticket)


class Store7FreesTwice(CPUOffloadingManager):
    """The slots of a failed store are freed by both who stored and who cleans up."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        slots = {key: chunk.chunk_id for key in keys if (chunk := self._find(key)) is not None}
        super().complete_store(keys, req_context, success, ticket=ticket)
        self._pool.free([slot for key, slot in slots.items() if self._find(key) is None])


class Slot1CountsFromOne(CPUOffloadingManager):
    """Slots are numbered from 1, so that the last lies outside the cache."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is None:
            return None
        spec = CPULoadStoreSpec([slot + 1 for slot in _slots_of(output)])
        return PrepareStoreOutput(output.keys_to_store, spec, output.evicted_keys, output.ticket)

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        return CPULoadStoreSpec([slot + 1 for slot in spec.block_ids.tolist()], spec.ticket)


class Store9RefusesNothing(CPUOffloadingManager):
    """An offer with nothing to store is refused instead of answered with nothing."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        return output if output is not None and output.keys_to_store else None
