"""The manager machine: any calls, in any order, against a model and the invariants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvoffload import (
    CPUOffloadingManager,
    LookupResult,
    OffloadingManager,
    OffloadKey,
    make_offload_key,
)
from kvoffload.errors import RequestFinishedError
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.invariants import Invariant
from stateful_models.machines.attempts import KEPT_ATTEMPTS, Attempt, Attempts
from stateful_models.machines.trial import ManagerTrial
from stateful_models.machines.universe import (
    HINTS,
    KEYS,
    ManagerConfig,
    Requests,
    configs,
    masked,
    masks,
    request_slots,
    some_keys,
)
from stateful_models.models import (
    ARCModel,
    LRUModel,
    ManagerModel,
    PolicyModel,
)
from stateful_models.reach import Reach
from stateful_models.steps import Delivered, Step, Stored


class ManagerMachine(RuleBasedStateMachine):
    """Subclass it, override `make_manager`, and run it as any state machine of Hypothesis.

    `policy` names the cache policy whose order is predicted: "lru" or "arc". Each step must be
    what the model predicts, break no invariant, those of `make_invariants` included, and leave
    the manager's own `check()` content if it has one.
    """

    policy: ClassVar[str] = "lru"
    reach: ClassVar[Reach] = Reach()
    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "eviction",
        "eviction beside pins",
        "eviction beside pending chunks",
        "eviction beside keys of the offer",
        "refused offer",
        "skipped by the threshold",
        "repetition in an offer",
        "look-up of a pending chunk",
        "failed store",
        "doubled completion",
        "completion of an earlier generation",
        "completion of the present",
        "unknown ticket",
        "refused load",
        "refused release",
        "finished request refused",
        "reset with work in flight",
        "removal after a reset",
    )
    """What a run must come to; `reach.missing(SITUATIONS)` tells what it did not."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.reach = Reach()

    def __init__(self) -> None:
        super().__init__()
        # Nothing to end: not started yet, or failed on the way.
        self.over: bool = True

    def make_manager(self, config: ManagerConfig) -> OffloadingManager:
        """The manager on trial. Override this."""
        return CPUOffloadingManager(
            config.num_chunks,
            self.policy,
            enable_events=config.enable_events,
            store_threshold=config.store_threshold,
            max_tracker_size=config.max_tracker_size,
        )

    def make_policy_model(self, capacity: int) -> PolicyModel:
        """The model of the manager's cache policy."""
        return ARCModel(capacity) if self.policy == "arc" else LRUModel(capacity)

    def make_invariants(self, config: ManagerConfig) -> Sequence[Invariant[Account]]:
        """Invariants that judge beside the usual; new ones each time, as they keep state."""
        return ()

    @initialize(config=configs, filled=st.booleans())
    def start(self, config: ManagerConfig, filled: bool) -> None:
        """Build the manager, its model and its judge; three requests come in, one fills it."""
        self.policy_model: PolicyModel = self.make_policy_model(config.num_chunks)
        self.trial: ManagerTrial = ManagerTrial(
            self.make_manager(config),
            config,
            self.policy_model,
            self.make_invariants(config),
        )
        self.model: ManagerModel = self.trial.model
        self.requests: Requests = Requests()
        self.attempts: Attempts = Attempts()
        self.made: int = 0
        for slot in range(3):
            self._place(slot)
        if filled:
            for _ in range(max(1, config.store_threshold)):
                self._offer(0, KEYS[: config.num_chunks])
            self.settle()

    @rule(slot=request_slots, hints=st.sampled_from(HINTS))
    def new_request(self, slot: int, hints: dict[str, object] | None) -> None:
        """A request announces itself; calling this is optional."""
        self.perform(op.NewRequest(self.requests[slot], hints))

    @rule(slot=request_slots)
    def lookup(self, slot: int) -> None:
        """Look every key up."""
        for key in KEYS:
            step = self.perform(op.Lookup(self.requests[slot], key))
            self.reach.note("look-up of a pending chunk", step.result is LookupResult.HIT_PENDING)

    @rule(slot=request_slots, keys=some_keys)
    def offer(self, slot: int, keys: list[OffloadKey]) -> None:
        """Offer any keys."""
        self._offer(slot, tuple(keys))

    @rule(slot=request_slots, mask=masks, doubled=st.booleans())
    def offer_new(self, slot: int, mask: int, doubled: bool) -> None:
        """Offer keys that are not resident, maybe after one that is."""
        new = masked([key for key in KEYS if key not in self.model.slots], mask)
        resident = tuple(self.model.slots)[:1] if doubled else ()
        self._offer(slot, resident + new)

    @rule(slot=request_slots, first=st.integers(0, len(KEYS) - 1), number=st.integers(1, 2))
    def offer_few(self, slot: int, first: int, number: int) -> None:
        """Offer a key or two, for which there is likely to be room."""
        self._offer(slot, (KEYS + KEYS)[first : first + number])

    @rule()
    def settle(self) -> None:
        """Everything that is in flight ends well."""
        for hold in list(self.model.holds):
            keys = tuple(hold.keys.elements())
            if keys and hold.attempt is not None:
                attempt = Attempt(hold.attempt, hold.request, keys, hold.stores)
                self._complete(attempt, keys, True, hold.attempt)

    @rule(slot=request_slots, keys=some_keys)
    def load(self, slot: int, keys: list[OffloadKey]) -> None:
        """Load any keys, of which most are not ready."""
        self._load(slot, tuple(keys))

    @rule(slot=request_slots, mask=masks, doubled=st.booleans())
    def load_ready(self, slot: int, mask: int, doubled: bool) -> None:
        """Load keys that are ready, maybe one of them twice."""
        keys = masked([key for key in KEYS if self.model.ref_cnt.get(key, -1) >= 0], mask)
        self._load(slot, keys + keys[:1] if doubled else keys)

    @rule(slot=request_slots, index=st.integers(0, len(KEYS) - 1))
    def load_one(self, slot: int, index: int) -> None:
        """Load one key that is ready, so that others remain to be evicted."""
        ready = [key for key in KEYS if self.model.ref_cnt.get(key, -1) >= 0]
        if ready:
            self._load(slot, (ready[index % len(ready)],))

    @rule(slot=request_slots)
    def load_own(self, slot: int) -> None:
        """A request loads what it stored itself: no reuse."""
        record = self.model.records.get(self.requests[slot])
        own = [k for k in KEYS if record and k in record.inserted]
        self._load(slot, tuple(k for k in own if self.model.ref_cnt.get(k, -1) >= 0))

    @precondition(lambda self: self.attempts)
    @rule(back=st.integers(0, KEPT_ATTEMPTS - 1), success=st.sampled_from((True, True, False)))
    def complete(self, back: int, success: bool) -> None:
        """Complete an attempt under its name: perhaps late, again, or of a past generation."""
        attempt = self.attempts.at(back)
        self._complete(attempt, attempt.keys, success, attempt.number)

    @precondition(lambda self: self.attempts)
    @rule(back=st.integers(0, KEPT_ATTEMPTS - 1), success=st.booleans(), keys=some_keys)
    def complete_some(self, back: int, success: bool, keys: list[OffloadKey]) -> None:
        """Complete other keys under the name of an attempt."""
        attempt = self.attempts.at(back)
        self._complete(attempt, (*attempt.keys[:1], *keys), success, attempt.number)

    @precondition(lambda self: self.attempts)
    @rule(back=st.integers(0, KEPT_ATTEMPTS - 1), success=st.booleans())
    def complete_wrong_kind(self, back: int, success: bool) -> None:
        """Complete a load under the name of a store, or the other way round."""
        attempt = self.attempts.at(back)
        wrong = attempt._replace(stores=not attempt.stores)
        self._complete(wrong, attempt.keys, success, attempt.number)

    @precondition(lambda self: self.attempts)
    @rule(back=st.integers(0, KEPT_ATTEMPTS - 1), success=st.booleans(), slot=request_slots)
    def complete_unnamed(self, back: int, success: bool, slot: int) -> None:
        """Complete without a name what an attempt took, for any request."""
        attempt = self.attempts.at(back)._replace(request=self.requests[slot])
        self._complete(attempt, attempt.keys, success, None)

    @rule(slot=request_slots, keys=some_keys, stores=st.booleans(), success=st.booleans())
    def complete_any(self, slot: int, keys: list[OffloadKey], stores: bool, success: bool) -> None:
        """Complete any keys without a name."""
        attempt = Attempt(op.NEVER_MADE, self.requests[slot], tuple(keys), stores)
        self._complete(attempt, attempt.keys, success, None)

    @rule(slot=request_slots, keys=some_keys, stores=st.booleans())
    def complete_unknown(self, slot: int, keys: list[OffloadKey], stores: bool) -> None:
        """Complete under a name that was never given."""
        attempt = Attempt(op.NEVER_MADE, self.requests[slot], tuple(keys), stores)
        self._complete(attempt, attempt.keys, True, op.NEVER_MADE)
        self.reach.note("unknown ticket")

    @rule(slot=request_slots, keys=some_keys)
    def touch(self, slot: int, keys: list[OffloadKey]) -> None:
        """Touch any keys."""
        self.perform(op.Touch(self.requests[slot], tuple(keys)))

    @rule(slot=request_slots, replaced=st.booleans())
    def finish(self, slot: int, replaced: bool) -> None:
        """A request ends, and perhaps makes way for another."""
        self.perform(op.FinishRequest(self.requests[slot]))
        if replaced:
            self.requests.replace(slot)
            self._place(slot)

    @rule()
    def take_events(self) -> None:
        """Drain the events."""
        self.perform(op.TakeEvents())

    @rule()
    def get_stats(self) -> None:
        """Ask for the figures."""
        self.perform(op.GetStats())

    @precondition(lambda self: len(self.trial.program) > 12)
    @rule(dice=st.integers(0, 2))
    def reset(self, dice: int) -> None:
        """Reset, rarely enough for something to be there."""
        if dice:
            return
        in_flight = any(self.model.ref_cnt.values())
        believed = bool(self.model.told)
        self.perform(op.Reset())
        self.reach.note("reset with work in flight", in_flight)
        if believed:
            step = self.perform(op.TakeEvents())
            told = isinstance(step.result, Delivered) and bool(step.result.events)
            self.reach.note("removal after a reset", told)

    @rule(slot=request_slots, flushed=st.booleans())
    def end_step(self, slot: int, flushed: bool) -> None:
        """The scheduler's step ends, or the worker reports what was submitted before a reset."""
        ended = op.ScheduleEnd((self.requests[slot],))
        self.perform(op.ResetFlushed() if flushed else ended)

    @rule(slot=request_slots, keys=some_keys, call=st.integers(0, 4))
    def bad_key(self, slot: int, keys: list[OffloadKey], call: int) -> None:
        """A call with something that is too short for a key."""
        request, bad = self.requests[slot], (*keys, OffloadKey(b"abcd"))
        calls = (
            op.PrepareLoad(request, bad),
            op.CompleteLoad(request, bad),
            op.Touch(request, bad),
            op.PrepareStore(request, bad),
            op.CompleteStore(request, bad),
        )
        self.perform(calls[call])

    def perform(self, operation: op.Operation) -> Step:
        """Perform an operation, and hold what comes of it against everything that is known."""
        self.over = True
        pinned = any(count > 0 for count in self.model.ref_cnt.values())
        pending = any(count < 0 for count in self.model.ref_cnt.values())
        resident = set(self.model.slots)
        skipped = self.model.skipped
        step = self.trial.perform(operation)
        if isinstance(step.result, Stored) and isinstance(operation, op.PrepareStore):
            evicted = bool(step.result.evicted)
            self.reach.note("eviction", evicted)
            self.reach.note("eviction beside pins", evicted and pinned)
            self.reach.note("eviction beside pending chunks", evicted and pending)
            beside_offer = evicted and not resident.isdisjoint(operation.keys)
            self.reach.note("eviction beside keys of the offer", beside_offer)
        self.reach.note("skipped by the threshold", self.model.skipped > skipped)
        finished = isinstance(step.error, RequestFinishedError)
        self.reach.note("finished request refused", finished)
        self.over = False
        return step

    def teardown(self) -> None:
        """Let everything end, and evict what is left one by one: that shows the whole order."""
        if self.over:
            return
        self.settle()
        for slot in range(3):
            self.perform(op.FinishRequest(self.requests[slot]))
        for number in range(self.model.num_chunks):
            for _ in range(max(1, self.model.threshold)):
                last = make_offload_key(b"last%d" % number, 0)
                self.perform(op.PrepareStore("last", (last,)))
        self.perform(op.TakeEvents())
        self.perform(op.GetStats())

    def _place(self, slot: int) -> None:
        if positions := Requests.positions(slot):
            self.perform(op.SetPositions(self.requests[slot], positions))

    def _offer(self, slot: int, keys: tuple[OffloadKey, ...]) -> None:
        self.made += 1
        request = self.requests[slot]
        step = self.perform(op.PrepareStore(request, keys, self.made))
        self.reach.note("repetition in an offer", len(set(keys)) < len(keys))
        self.reach.note("refused offer", step.result is None and step.error is None)
        if isinstance(step.result, Stored) and step.result.keys:
            self.attempts.keep(Attempt(self.made, request, step.result.keys, True))

    def _load(self, slot: int, keys: tuple[OffloadKey, ...]) -> None:
        self.made += 1
        request = self.requests[slot]
        step = self.perform(op.PrepareLoad(request, keys, self.made))
        self.reach.note("refused load", step.error is not None)
        if step.error is None and keys:
            self.attempts.keep(Attempt(self.made, request, keys, False))

    def _complete(
        self,
        attempt: Attempt,
        keys: tuple[OffloadKey, ...],
        success: bool,
        name: op.Attempt | None,
    ) -> None:
        stale, generation = self.model.stale, self.model.generation
        had = set(self.model.slots)
        if attempt.stores:
            step = self.perform(op.CompleteStore(attempt.request, keys, success, name))
            self.reach.note("failed store", bool(had - set(self.model.slots)))
        else:
            step = self.perform(op.CompleteLoad(attempt.request, keys, name))
            self.reach.note("refused release", step.error is not None)
        if name is None:
            self.reach.note("completion of the present", step.error is None)
        elif self.model.stale > stale:
            made_in = self.model.attempts.get(name)
            self.reach.note("doubled completion", made_in == generation)
            self.reach.note("completion of an earlier generation", made_in != generation)


class LRUManagerMachine(ManagerMachine):
    """The CPU manager with LRU."""

    policy: ClassVar[str] = "lru"


class ARCManagerMachine(ManagerMachine):
    """The CPU manager with ARC."""

    policy: ClassVar[str] = "arc"
    SITUATIONS: ClassVar[tuple[str, ...]] = (*ManagerMachine.SITUATIONS, "ghost hit")

    def perform(self, operation: op.Operation) -> Step:
        """As for any policy; hits on ghosts are counted too."""
        before = self.policy_model.ghost_hits if isinstance(self.policy_model, ARCModel) else 0
        step = super().perform(operation)
        after = self.policy_model.ghost_hits if isinstance(self.policy_model, ARCModel) else 0
        self.reach.note("ghost hit", after > before)
        return step
