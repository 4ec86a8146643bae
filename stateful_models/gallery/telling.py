"""Managers that tell their policy what is not so, or not in time, or not at all."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set

from typing_extensions import override

from kvoffload import (
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from kvoffload.cpu.policy_guard import PolicyGuard
from kvoffload.cpu.request_access import RequestAccess
from kvoffload.policies.lru import LRUCachePolicy


class Key2ValidatesAsItGoes(CPUOffloadingManager):
    """Keys are touched one after the other, those before a bad one too."""

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        for key in keys:
            super().touch([key], req_context)


class Look2TouchesWhatItFinds(CPUOffloadingManager):
    """Whatever is found counts as used, though nobody has loaded it."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        if answer is LookupResult.HIT:
            super().touch([key], req_context)
        return answer


class Load3OffersPinned(CPUOffloadingManager):
    """For the policy, chunks are evictable again as soon as their load is submitted."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        for key in dict.fromkeys(keys):
            self.policy.mark_evictable(key)
        return spec


class Load5CountsInternalLoads(CPUOffloadingManager):
    """The host's own transfers count as accesses by the request."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        return super().prepare_load(keys, req_context)


class Load5ForgetsReuse(CPUOffloadingManager):
    """What a request loads is no access by it."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        return super().prepare_load(keys, req_context, record_access=False)


class Load5TellsEveryLoad(CPUOffloadingManager):
    """Each load is told as a first access, so that one request looks like many."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        self.policy.on_request_access(list(keys), req_context)
        return spec


class Touch1TouchesTwice(CPUOffloadingManager):
    """A touch reaches the policy twice, and adapts it twice."""

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        super().touch(keys, req_context)
        super().touch(keys, req_context)


class Touch1Backwards(CPUOffloadingManager):
    """A touch reaches the policy from the tail of the prefix."""

    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        super().touch(list(keys)[::-1], req_context)


class Pin1NeverTellsIdle(CPUOffloadingManager):
    """For the policy, a chunk that was read once is being read for ever."""

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        super().complete_load(keys, req_context, ticket=ticket)
        for key in dict.fromkeys(keys):
            chunk = self._find(key)
            if chunk is not None and chunk.ref_cnt == 0:
                self.policy.mark_non_evictable(key)


class _AsksAgain(CPUOffloadingManager):
    """Knows how many slots a refused offer lacks."""

    def _lacking(self, keys: Collection[OffloadKey]) -> int:
        return sum(self._find(key) is None for key in set(keys)) - self._pool.num_free


class Store6AsksAnyway(_AsksAgain):
    """The policy looks for victims even where the counts say that there are too few."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        lacking = self._lacking(keys)
        if output is None and lacking > self._index.num_idle:
            self.policy.evict(lacking, set(keys))
        return output


class Store6CountsTheOffer(_AsksAgain):
    """Idle chunks that the offer itself names count as room, so that the policy searches."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        lacking = self._lacking(keys)
        if output is None and lacking <= self._index.num_idle:
            self.policy.evict(lacking, set(keys))
        return output


class Store8TellsMissesAgain(CPUOffloadingManager):
    """Every offer tells of all its misses, those that the request had before as well."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        new = [k for k in dict.fromkeys(keys) if self.lookup(k, req_context) is LookupResult.MISS]
        if new:
            self.policy.on_store_miss(new, req_context)
        return super().prepare_store(keys, req_context)


class Store8InsertsBackwards(CPUOffloadingManager):
    """The policy gets the tail of an offer first."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(list(dict.fromkeys(keys))[::-1], req_context)
        if output is None or not isinstance(output.store_spec, CPULoadStoreSpec):
            return output
        spec = CPULoadStoreSpec(output.store_spec.block_ids.tolist()[::-1])
        stored = output.keys_to_store[::-1]
        return PrepareStoreOutput(stored, spec, output.evicted_keys, output.ticket)


class _ReportsItself(CPUOffloadingManager):
    """Tells the policy of the end of a request in its own way."""

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        access = self._accesses.get(req_context)
        if access is not None and not access.finished:
            access.finished = True
            self.policy.on_request_finished(
                self._groups(access, req_context),
                self._inserted(access),
                access.reused,
                req_context,
            )

    def _groups(
        self, access: RequestAccess, req_context: ReqContext
    ) -> Sequence[Sequence[OffloadKey]]:
        return access.key_groups(req_context)

    def _inserted(self, access: RequestAccess) -> Set[OffloadKey]:
        return access.inserted - access.reused


class Fin1MixesGroups(_ReportsItself):
    """All that a request saw is told as one group."""

    @override
    def _groups(
        self, access: RequestAccess, req_context: ReqContext
    ) -> Sequence[Sequence[OffloadKey]]:
        return [list(access.seen)]


class Fin1ForgetsPositions(_ReportsItself):
    """A group is told as it was first seen, though the positions are known."""

    @override
    def _groups(
        self, access: RequestAccess, req_context: ReqContext
    ) -> Sequence[Sequence[OffloadKey]]:
        return access.key_groups(ReqContext(req_context.req_id))


class Fin1CountsReusedAsInserted(_ReportsItself):
    """All that a request saw is told as inserted only, what it reused too."""

    @override
    def _inserted(self, access: RequestAccess) -> Set[OffloadKey]:
        return access.inserted | access.reused


class Fin1TellsTwice(CPUOffloadingManager):
    """Finishing a request twice tells the policy twice."""

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        access = self._accesses.get(req_context)
        super().on_request_finished(req_context)
        if access is not None:
            groups = access.key_groups(req_context)
            inserted = access.inserted - access.reused
            self.policy.on_request_finished(groups, inserted, access.reused, req_context)


class Gen1LeavesThePolicy(CPUOffloadingManager):
    """A reset empties the books and not the policy."""

    @override
    def reset_cache(self) -> None:
        own = self._policy
        self._policy = PolicyGuard(LRUCachePolicy, self.num_chunks, self._find)
        super().reset_cache()
        self._policy = own
