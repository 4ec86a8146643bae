"""What becomes of an engine: the same program under a manager that believes its policy.

vLLM's managers keep no index of their own: what `get` answers is resident, what `evict`
returns is free. This one makes the calls of the driver's host, believes as much and asserts as
much, and nothing else, so that the damage shows where it would show there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, Generic, TypeVar

from kvoffload import CachePolicy, ChunkStatus, OffloadKey
from stateful_models import operations as op
from stateful_models.drivers import Driver
from stateful_models.engines.runs import PLAIN, Surroundings
from stateful_models.operations import key_text
from stateful_models.policy_subject import context_taken
from stateful_models.programs import HostOperation, Program
from stateful_models.subjects import Contexts, call_if_there
from stateful_models.trial.hang import DidNotReturn

P = TypeVar("P", bound=CachePolicy)


class _EngineDiedError(Exception):
    """The scheduler step raised, and with it the engine."""


class DamageError(Exception):
    """What becomes of the engine, in words, where the scheduler has to deal with it."""


def dies_of(error: BaseException, calling: str) -> str:
    """What becomes of an engine when a call raises."""
    return (
        f"{type(error).__name__} comes out of {calling}: nothing catches it, the scheduler step "
        "dies with it"
    )


def stands_still(calling: str) -> str:
    """What becomes of an engine when a call does not return."""
    return f"{calling} does not return, and the scheduler stands still for good"


def consequence(
    driver: Driver[P],
    program: Program,
    surroundings: Surroundings = PLAIN,
    *,
    clause: str = "",
    safety: bool = False,
    own: bool = False,
) -> str:
    """What happens in the driver's host when a scheduler does this and the policy breaks `clause`.

    `safety`: what is broken is a demand of safety, so that what does not show yet will. `own`: an
    invariant of the author's own objected, so that what does not show is not known; then "".
    """
    surroundings.restart()
    try:
        policy = driver.build(program.capacity)
    except Exception as error:
        return f"the policy cannot be built: {type(error).__name__}"
    manager = _Believer(driver, policy, program, surroundings)
    for operation in program.operations:
        try:
            with surroundings.limit():
                manager.play(operation)
                manager.look_for_damage()
        except DidNotReturn:
            return stands_still(manager.calling)
        except (_EngineDiedError, DamageError) as told:
            return str(told)
        # Out of a hook, whatever it is, it goes through the scheduler's step.
        except (Exception, SystemExit) as error:
            return dies_of(error, manager.calling)
    return manager.in_the_end(clause, safety=safety, own=own)


def quiet_consequence(clause: str) -> str:
    """What becomes of an engine where nothing breaks that a program would show; "" if not known."""
    return _QUIET.get(clause, "")


_QUIET: Final = {
    "POL-4": "memory fills for as long as it runs, until the process of the engine is ended",
    "POL-5": "nothing breaks: which chunks go cannot be foretold, and no run be repeated",
    "POL-8": "nothing breaks: the scheduler step waits for the eviction, the longer the more there "
    "is to go through",
}


class _Believer(Generic[P]):
    def __init__(
        self, driver: Driver[P], policy: P, program: Program, surroundings: Surroundings
    ) -> None:
        self.calling = ""
        self._driver = driver
        self._host = driver.host
        self._slot = driver.types.slot
        self._policy = policy
        insert, touch = context_taken(policy, driver.types)
        self._takes_context = {"insert": insert, "touch": touch}
        self._universe = program.universe
        self._capacity = program.capacity
        self._surroundings = surroundings
        self._contexts = Contexts(surroundings.make_hints, driver.types)
        self._allocated = 0
        self._free: list[int] = []
        self._num_evictable = 0
        self._writing: dict[int, OffloadKey] = {}
        self._pins: Counter[OffloadKey] = Counter()
        self._refused = False
        self._missed: set[tuple[op.RequestId, OffloadKey]] = set()
        self._seen: dict[op.RequestId, dict[OffloadKey, bool]] = {}

    def play(self, operation: HostOperation) -> None:
        match operation:
            case op.NewRequest():
                self.calling = "request_started"
                self._driver.request_started(self._policy, self._contexts.announce(operation))
            case op.SetPositions():
                self._contexts.set_positions(operation)
            case op.Lookup(request, key):
                found = self._get(key) is not None
                self.calling = "looked_up"
                self._driver.looked_up(self._policy, key, found, self._contexts.of(request))
            case op.PrepareStore(request, keys):
                self._offer(request, list(dict.fromkeys(keys)))
            case op.CompleteStore(_, keys, success):
                self._complete(keys, success)
            case op.PrepareLoad(request, keys):
                self._load(request, keys)
            case op.CompleteLoad(_, keys):
                self._release(keys)
            case op.Touch(request, keys):
                self._call("touch", keys, request)
            case op.FinishRequest(request):
                seen = self._seen.pop(request, {})
                groups: dict[bytes, list[OffloadKey]] = {}
                for key in seen:
                    groups.setdefault(key[-4:], []).append(key)
                inserted = {key for key, reused in seen.items() if not reused}
                told = tuple(tuple(groups[group]) for group in sorted(groups))
                if self._host.tells_finish:
                    reused = seen.keys() - inserted
                    self._call("on_request_finished", told, inserted, reused, request)
                self.calling = "request_finished"
                self._driver.request_finished(self._policy, self._contexts.of(request))
            case op.Reset():
                if not self._host.clears:
                    return
                self.calling = "clear"
                self._policy.clear()
                self._allocated, self._free, self._num_evictable = 0, [], 0
                self._writing.clear()
                self._pins.clear()
                self._missed.clear()
                self._seen.clear()
            case op.AdvanceClock(seconds):
                self._surroundings.advance(seconds)
            case op.HostEvent():
                self.calling = operation.name
                self._driver.perform_event(self._policy, operation)
            case _:
                pass

    def look_for_damage(self) -> None:
        """Raise DamageError if two keys are found in one slot."""
        owners: dict[int, OffloadKey] = {}
        for key in self._universe:
            chunk = self._get(key)
            if chunk is None:
                continue
            other = owners.setdefault(self._slot_of(chunk), key)
            if other != key:
                raise DamageError(
                    f"{key_text(other)} and {key_text(key)} share slot {self._slot_of(chunk)}, and "
                    "nothing is said: whoever loads one may read the bytes of the other"
                )

    def in_the_end(self, clause: str, *, safety: bool, own: bool) -> str:
        """What is left, when nothing was raised and nothing is shared."""
        found = {self._slot_of(chunk) for key in self._universe if (chunk := self._get(key))}
        lost = set(range(self._allocated)) - set(self._free) - found
        if lost:
            slots = ", ".join(map(str, sorted(lost)))
            return f"slot {slots} is in no use and never free again: the cache is smaller for good"
        if own:
            return ""
        if safety:
            return (
                "nothing is raised yet; but what the policy keeps and what its manager believes "
                "are no longer the same, and sooner or later a slot is lost or shared"
            )
        if self._refused:
            return "the store is dropped although there was room: hits are lost, nothing breaks"
        return quiet_consequence(clause) or (
            "nothing breaks at once: other choices are made than promised, and hits are lost"
        )

    def _get(self, key: OffloadKey) -> ChunkStatus | None:
        self.calling = "get"
        return self._policy.get(key)

    def _slot_of(self, chunk: ChunkStatus) -> int:
        slot: int = getattr(chunk, self._slot)
        return slot

    def _call(self, hook: str, *values: object) -> None:
        """Call a hook with the context of the request that comes last, where it is given that."""
        self.calling = hook
        *arguments, request = values
        if self._takes_context.get(hook, True):
            arguments.append(self._contexts.of(str(request)))
        call_if_there(self._policy, hook, tuple(arguments))

    def _mark(self, hook: str, key: OffloadKey) -> None:
        if self._host.marks:
            self.calling = hook
            call_if_there(self._policy, hook, (key,))

    def _schedule(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        if self._host.touches_steps:
            self._call("touch", keys, request)

    def _offer(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        self.calling = "before_store"
        self._driver.before_store(self._policy, keys, self._contexts.of(request))
        self._schedule(request, keys)
        chunks = {key: self._get(key) for key in keys}
        new = [key for key, chunk in chunks.items() if chunk is None]
        ready = [key for key, chunk in chunks.items() if chunk is not None and chunk.ref_cnt >= 0]
        missed = [key for key in new if (request, key) not in self._missed]
        if missed and self._host.tells_misses:
            self._missed.update((request, key) for key in missed)
            self._call("on_store_miss", missed, request)
        self._see(request, ready, reused=True)
        self._see(request, new, reused=False)
        if not new:
            return
        lacking = len(new) - (self._capacity - self._allocated + len(self._free))
        if lacking > 0:
            if self._host.marks and lacking > self._num_evictable:
                return
            self.calling = "evict"
            evicted = self._driver.evict(
                self._policy, lacking, set(keys), self._contexts.of(request)
            )
            if evicted is None:
                offered = (chunk for chunk in chunks.values() if chunk is not None)
                idle = self._num_evictable - sum(chunk.ref_cnt == 0 for chunk in offered)
                self._refused = self._refused or lacking <= idle
                return
            self._take_back(evicted, keys)
        slots = self._allocate(len(new))
        if len(slots) < len(new):
            raise _EngineDiedError(
                "AssertionError while allocating (the pool did not give the expected number of "
                "chunks): the engine dies"
            )
        for key, slot in zip(new, slots, strict=True):
            if slot in self._writing:
                raise DamageError(
                    f"nothing is said, and two stores write slot {slot}: those of "
                    f"{key_text(self._writing[slot])} and {key_text(key)}"
                )
            self._writing[slot] = key
            self._insert(key, self._driver.types.chunk(slot), request)

    def _insert(self, key: OffloadKey, chunk: ChunkStatus, request: op.RequestId) -> None:
        context = self._contexts.of(request)
        self.calling = "before_insert"
        self._driver.before_insert(self._policy, key, chunk, context)
        self._call("insert", key, chunk, request)
        self.calling = "after_insert"
        self._driver.after_insert(self._policy, key, chunk, context)

    def _take_back(
        self, evicted: Iterable[tuple[OffloadKey, ChunkStatus]], offer: Sequence[OffloadKey]
    ) -> None:
        pairs = list(evicted)
        self._num_evictable -= len(pairs)
        if self._host.marks and self._num_evictable < 0:
            raise _EngineDiedError("AssertionError in prepare_store (idle chunks below 0): it dies")
        for key, chunk in pairs:
            if self._pins[key]:
                raise DamageError(
                    f"slot {self._slot_of(chunk)} is given away while {key_text(key)} is read from "
                    "it: wrong bytes, and an AssertionError when the load completes"
                )
            self._free.append(self._slot_of(chunk))
            if key in offer:
                raise DamageError(f"{key_text(key)}, which the request offered, is gone")

    def _allocate(self, count: int) -> list[int]:
        fresh = list(range(self._allocated, min(self._capacity, self._allocated + count)))
        self._allocated += len(fresh)
        return fresh + [self._free.pop() for _ in range(min(count - len(fresh), len(self._free)))]

    def _complete(self, keys: Sequence[OffloadKey], success: bool) -> None:
        for key in dict.fromkeys(keys):
            chunk = self._get(key)
            if chunk is None or chunk.ref_cnt >= 0:
                continue
            self._writing.pop(self._slot_of(chunk), None)
            if success:
                chunk.ref_cnt = 0
                self._num_evictable += 1
                self._mark("mark_evictable", key)
            else:
                self.calling = "remove"
                self._policy.remove(key)
                self._free.append(self._slot_of(chunk))

    def _load(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        self._schedule(request, keys)
        for key in keys:
            chunk = self._get(key)
            # A scheduler loads what was just looked up and found.
            if chunk is None or chunk.ref_cnt < 0:
                continue
            self._pins[key] += 1
            if chunk.ref_cnt == 0:
                self._num_evictable -= 1
                self._mark("mark_non_evictable", key)
            chunk.ref_cnt += 1
        self._see(request, keys, reused=True)

    def _release(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            if not self._pins[key]:
                continue
            self._pins[key] -= 1
            chunk = self._get(key)
            if chunk is None or chunk.ref_cnt <= 0:
                raise _EngineDiedError(
                    f"AssertionError in complete_load ({key_text(key)} "
                    f"{'not found' if chunk is None else 'is not pinned'}): the engine dies"
                )
            chunk.ref_cnt -= 1
            if chunk.ref_cnt == 0:
                self._num_evictable += 1
                self._mark("mark_evictable", key)

    def _see(self, request: op.RequestId, keys: Sequence[OffloadKey], *, reused: bool) -> None:
        seen = self._seen.setdefault(request, {})
        first = [key for key in keys if key not in seen]
        for key in keys:
            seen.setdefault(key, reused)
        if first and self._host.tells_accesses:
            self._call("on_request_access", first, request)
