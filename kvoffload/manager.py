"""The scheduler's side: what every offloading manager can be asked to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext

from kvoffload.events import OffloadingEvent
from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from kvoffload.metrics import OffloadingStats
from kvoffload.requests import ReqContext, RequestOffloadingContext, ScheduleEndContext
from kvoffload.transfers import LoadStoreSpec, PrepareStoreOutput


class OffloadingManager(ABC):
    """Keeps track of which chunks are offloaded, and where.

    Nothing here moves bytes. The scheduler looks keys up, prepares a load or a store, hands the
    resulting spec to an `OffloadingWorker`, and completes the transfer here when the worker has
    reported it: late, in any order, or never. A manager has no clock and starts no thread, so
    its whole behaviour is a function of the calls it was given.

    Four calls are abstract; the others do nothing unless overridden (SPECS-3).
    """

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by callers that need a look-up and the load after it to be one step.

        A no-op unless overridden: the scheduler calls from one thread.
        """
        return nullcontext()

    @abstractmethod
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """A request was first seen; the answer says how its blocks are offloaded (REQ-3)."""

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether the chunk of `key` is offloaded and readable now (LOOK-1)."""

    @abstractmethod
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin ready chunks against eviction and say where they are (LOAD-1, LOAD-2).

        They stay pinned until `complete_load`.
        """

    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        """The load of `keys` is over: release a pin for each occurrence (LOAD-4).

        `ticket` is that of the load's spec, for managers that give tickets (DONE-4).
        """
        return None

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """The keys were used elsewhere, say in the GPU's own cache: refresh them (TOUCH-1)."""
        return None

    @abstractmethod
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        """Make room for those of `keys` that should be stored, or None if there is none.

        The chunks are pending until `complete_store`: not readable, not evictable.
        """

    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        """The store of `keys` is over: they become readable (DONE-1), or go away (DONE-2)."""
        return None

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request will prepare nothing more. Completions may still follow (FIN-1, FIN-2)."""
        return None

    def take_events(self) -> Iterable[OffloadingEvent]:
        """What was stored and removed since the last call (EVT-1..6)."""
        return ()

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """A scheduler step ended."""
        return None

    def has_pending_work(self) -> bool:
        """Whether the engine must keep stepping although it has no request to run."""
        return False

    def reset_cache(self) -> None:
        """Forget every chunk, whatever its pins (GEN-1)."""
        return None

    def on_reset_flushed(self) -> None:
        """Every transfer submitted before the last reset has been reported (GEN-3)."""
        return None

    def get_stats(self) -> OffloadingStats | None:
        """Figures since the last call, None where metrics are disabled (MET-2)."""
        return None

    def shutdown(self) -> None:
        """Release whatever the manager holds; it is not called again."""
        return None
