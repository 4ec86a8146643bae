"""Managers that are wrong about completions, resets and the end of requests."""

from __future__ import annotations

from collections.abc import Collection

from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)


class Done1ForgetsTheLast(CPUOffloadingManager):
    """The last key of a store stays pending for ever."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        done = list(keys)[:-1] if success and len(keys) > 1 else keys
        super().complete_store(done, req_context, success, ticket=ticket)


class Done2FailureIsReadable(CPUOffloadingManager):
    """A store that failed becomes readable as if it had not."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        super().complete_store(keys, req_context, True, ticket=ticket)


class Done3RaisesWhenNotPending(CPUOffloadingManager):
    """Completing a store raises for keys that are not pending any more."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        for key in keys:
            if self.lookup(key, req_context) is LookupResult.HIT:
                raise KeyError(key)
        super().complete_store(keys, req_context, success, ticket=ticket)


class Done4IgnoresTickets(CPUOffloadingManager):
    """Completions act on whatever has the key now, whoever prepared it."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        super().complete_store(keys, req_context, success)


class Gen1KeepsEverything(CPUOffloadingManager):
    """A reset is put off for ever."""

    @override
    def reset_cache(self) -> None:
        return None


class Gen2CompletesOldStores(CPUOffloadingManager):
    """A store from before a reset completes what is being stored since."""

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
            store_threshold,
            max_tracker_size,
        )
        self._current: set[int | None] = {None}

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is not None:
            self._current.add(output.ticket)
        return output

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        own = ticket if ticket in self._current else None
        super().complete_store(keys, req_context, success, ticket=own)

    @override
    def reset_cache(self) -> None:
        super().reset_cache()
        self._current = {None}


class Fin2SeesAfterFinish(CPUOffloadingManager):
    """Finishing a request is forgotten at once."""

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        return None
