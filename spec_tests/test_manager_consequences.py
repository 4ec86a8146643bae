"""What becomes of an engine under a manager that errs, program by program."""

from collections.abc import Collection
from typing import NoReturn

import pytest
from typing_extensions import override

from kvoffload import (
    CPULoadStoreSpec,
    CPUOffloadingManager,
    LookupResult,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
)
from stateful_models import operations as op
from stateful_models.engines.runs import Surroundings
from stateful_models.gallery import managers as gallery
from stateful_models.gallery.oddities import ODDITIES
from stateful_models.manager_drivers import ManagerCapabilities, ManagerDriver
from stateful_models.programs import HostOperation, ManagerSettings, Program, keys
from stateful_models.trial.manager_consequences import manager_consequence, quiet_consequence

A, B, C = keys("a b c")
NOTHING = "nothing that the scheduler would notice in this program"
WRONG = "the request goes on with wrong tokens, and nothing is said"


def stored(*named: OffloadKey, attempt: int = 1, request: str = "r0") -> list[HostOperation]:
    return [
        op.PrepareStore(request, named, attempt),
        op.CompleteStore(request, named, attempt=attempt),
    ]


FULL = [*stored(A, B), op.PrepareStore("r1", (C,), 2)]
LOADING = [*stored(A), op.PrepareLoad("r1", (A,), 2), *stored(B, attempt=3)]
LOADED = [*stored(A), op.PrepareLoad("r1", (A,), 2), op.CompleteLoad("r1", (A,), 2)]
FAILED = [op.PrepareStore("r0", (A,), 1), op.CompleteStore("r0", (A,), success=False, attempt=1)]
DRAINED = [*stored(A), op.TakeEvents(), *stored(B, attempt=2)]


def then(
    target: type[CPUOffloadingManager],
    capacity: int,
    operations: list[HostOperation],
    clause: str = "",
    settings: ManagerSettings | None = None,
    surroundings: Surroundings | None = None,
) -> str:
    return manager_consequence(
        ManagerDriver(target),
        Program(capacity, operations, settings=settings),
        surroundings or Surroundings(),
        clause=clause,
    )


class Forgets(CPUOffloadingManager):
    """What was stored is not found again."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        return LookupResult.MISS if answer is LookupResult.HIT else answer


class SaysRetry(CPUOffloadingManager):
    """Asks for patience, for ever."""

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        return LookupResult.RETRY if answer is LookupResult.HIT else answer


class AnswersNothing(CPUOffloadingManager):
    """A new request is not answered."""

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        super().on_new_request(req_context)
        return None  # type: ignore[return-value]  # which is what is wrong with it


class Shrinks(CPUOffloadingManager):
    """Refuses what takes more than half of it."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        return None if len(keys) > 2 else super().prepare_store(keys, req_context)


class StoresOthers(CPUOffloadingManager):
    """Stores what nobody offered."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        return super().prepare_store([*keys, C], req_context)


class ForgetsAtOnce(Forgets):
    """Nor could it be loaded."""

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        raise RuntimeError


class RefusesOnce(CPUOffloadingManager):
    """Refuses the first offer, whatever it is."""

    _asked = False

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        first, self._asked = not self._asked, True
        return None if first else super().prepare_store(keys, req_context)


class NamesOthers(CPUOffloadingManager):
    """Says of what is read that it was given up."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        stored = super().prepare_store(keys, req_context)
        if stored is not None and B in keys:
            stored.evicted_keys.append(A)
        return stored


class Silent(CPUOffloadingManager):
    """Tells of nothing."""

    @override
    def take_events(self) -> list[OffloadingEvent]:
        return []


class Loops(CPUOffloadingManager):
    @override
    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> NoReturn:
        while True:
            pass


@pytest.mark.parametrize(
    ("target", "capacity", "operations", "told"),
    [
        (gallery.Look1PendingIsHit, 1, [op.PrepareStore("r0", (A,), 1)], "a/0 is a HIT, and so"),
        (
            gallery.Look1AnswersFromMemory,
            1,
            stored(A),
            "once the cache is filled with new keys, a/0 is a HIT, and so it is loaded; "
            "ChunkNotFoundError comes out of prepare_load",
        ),
        (
            gallery.Load2SwapsSlots,
            2,
            [*stored(A, B), op.PrepareLoad("r1", (B, A), 2)],
            f"b/0 is loaded from slot 0, which holds the bytes of a/0: {WRONG}",
        ),
        (
            gallery.Load3ReleasesAtSubmit,
            1,
            LOADING,
            f"slot 0 is overwritten with b/0 while a/0 is read from it: {WRONG}",
        ),
        (
            gallery.Store7SlotTwice,
            2,
            stored(A, B),
            "two stores write slot 0, those of a/0 and b/0: whoever loads one may read the bytes",
        ),
        (
            gallery.Slot1CountsFromOne,
            1,
            stored(A),
            "a/0 is copied to slot 1 of 1: outside the memory of the worker",
        ),
        (
            gallery.Pin1NeverReleases,
            1,
            LOADED,
            "1 of 1 slots can never be stored into again: the cache is smaller for good",
        ),
        (Shrinks, 3, stored(A), "1 of 3 slots can never be stored into again"),
        (
            gallery.Done1ForgetsTheLast,
            2,
            stored(A, B),
            "a look-up of b/0 is answered HIT_PENDING with nothing in flight: the request that "
            "asks waits for good",
        ),
        (SaysRetry, 1, stored(A), "a look-up of a/0 is answered RETRY with nothing in flight"),
        (
            gallery.Done2FailureIsReadable,
            1,
            FAILED,
            "a/0 is a HIT, and so it is loaded; a/0 is loaded from slot 0, into which nothing was "
            "copied",
        ),
        (
            gallery.Gen1KeepsEverything,
            1,
            [*stored(A), op.Reset()],
            "a/0 is a HIT, and so it is loaded; a/0 is loaded from slot 0, whose bytes are from "
            "before the reset",
        ),
        (
            gallery.Gen1KeepsEverything,
            1,
            [op.FinishRequest("r0")],
            "once the cache is filled with new keys and reset, new0/0 is a HIT",
        ),
        (
            gallery.Req3NeedsAnnouncement,
            1,
            LOADED,
            "KeyError comes out of prepare_load: nothing catches it, the scheduler step dies",
        ),
        (AnswersNothing, 1, [op.NewRequest("r0")], "on_new_request answers None"),
        (StoresOthers, 2, stored(A), "[c/0] is to be stored, which the request never offered"),
        (
            gallery.Store5EvictsTheOffer,
            1,
            [*stored(A), op.PrepareStore("r1", (A, B), 2)],
            "[a/0], which the request offered, is gone",
        ),
        (
            gallery.Store4RefusesToEvict,
            2,
            FULL,
            "2 of 2 slots can never be stored into again",
        ),
        (
            Forgets,
            1,
            stored(A),
            "[a/0] was stored and is not found again: it is computed anew, and nothing breaks",
        ),
        (
            gallery.Evt1NoRemovals,
            1,
            DRAINED,
            "a router believes that [a/0] is here, and sends requests that find nothing",
        ),
        (
            gallery.Evt5SilentReset,
            1,
            [*stored(A), op.Reset()],
            "a router believes that [a/0] is here, and sends requests that find nothing, unless "
            "the GPU's cache is reset with it, which vLLM announces itself",
        ),
        (
            Silent,
            1,
            stored(A),
            "a router is never told of [a/0]: requests that would find it are sent elsewhere",
        ),
        (ForgetsAtOnce, 1, LOADED, "[a/0] was stored and is not found again"),
        (
            RefusesOnce,
            1,
            stored(A),
            "the store is dropped although there was room: hits are lost, nothing breaks",
        ),
        (
            NamesOthers,
            2,
            LOADING,
            "[a/0] is given up while it is read: the next store overwrites it under the reader",
        ),
    ],
)
def test_the_damage_is_told(
    target: type[CPUOffloadingManager], capacity: int, operations: list[HostOperation], told: str
) -> None:
    assert then(target, capacity, operations).startswith(told)
    assert then(CPUOffloadingManager, capacity, operations) == NOTHING


def test_a_call_that_does_not_return_stops_the_scheduler() -> None:
    told = then(Loops, 1, [op.Touch("r0", (A,))], surroundings=Surroundings(patience_s=0.05))
    assert told == "touch does not return, and the scheduler stands still for good"


def test_a_manager_that_cannot_be_built_with_these_options_says_so() -> None:
    class Picky(CPUOffloadingManager):
        def __init__(self, num_chunks: int) -> None:
            raise RuntimeError

    assert then(Picky, 1, []) == "the manager cannot be built: RuntimeError"


def test_what_only_a_host_that_errs_would_meet_is_not_made_up() -> None:
    twice: list[HostOperation] = [op.PrepareStore("r0", (A, A), 1)]
    erring = ManagerSettings(mistakes=True)
    told = then(gallery.Store1StoresRepetitions, 2, twice, "STORE-1", erring)
    assert told == "nothing in this program: it takes a call that its scheduler does not make"


@pytest.mark.parametrize(
    ("clause", "words"),
    [
        ("MET-1", "the figures that operators and autoscalers read are not"),
        ("EVT-2", "whoever listens to events is told something else"),
        ("EVT-4", "events that nobody takes pile up"),
        ("FIN-1", "the policy is told something else"),
        ("STORE-6", "victims that are not there"),
        ("LRU-1", "other chunks go than was promised"),
        ("SLOT-1", NOTHING),
        ("OWN-1", NOTHING),
    ],
)
def test_where_nothing_shows_no_more_is_said_than_the_clause_does(clause: str, words: str) -> None:
    assert words in quiet_consequence(clause)
    assert then(CPUOffloadingManager, 2, LOADED, clause) == quiet_consequence(clause)


def test_a_refusal_by_design_is_no_damage() -> None:
    modest = ManagerCapabilities(may_refuse="it keeps half of it free")
    program = Program(3, stored(A))
    driver = ManagerDriver(Shrinks, capabilities=modest)
    assert manager_consequence(driver, program, clause="") == NOTHING


def test_of_whoever_delivers_no_events_nobody_expects_any() -> None:
    driver = ManagerDriver(Silent, capabilities=ManagerCapabilities(events=False))
    assert manager_consequence(driver, Program(1, stored(A)), clause="") == NOTHING
    assert manager_consequence(driver, Program(1, stored(A)), clause="OWN-1", own=True) == ""


@pytest.mark.parametrize("target", ODDITIES)
@pytest.mark.parametrize("operations", [FULL, LOADING, LOADED, FAILED, DRAINED])
def test_what_is_only_odd_does_no_damage(
    target: type[CPUOffloadingManager], operations: list[HostOperation]
) -> None:
    assert then(target, 2, [*operations, op.Reset(), *stored(C, attempt=9)]) == NOTHING
