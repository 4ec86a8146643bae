"""The CPU manager by its contract, on plain lists and dictionaries.

Right because each operation is the clauses that speak of it, in order, and nothing is kept
twice: whether a chunk is pending, idle or pinned is read off the pins every time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import define, field

from kvoffload.errors import (
    ChunkNotFoundError,
    ChunkNotReadyError,
    InvalidKeyError,
    NotPinnedError,
    RequestFinishedError,
    UnknownTicketError,
)
from kvoffload.events import OffloadingEvent
from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from kvoffload.requests import RequestOffloadingContext
from kvoffload.tiers import Medium
from stateful_models import operations as op
from stateful_models.models.comparison import Announced, Prediction, Raises, Refusal
from stateful_models.models.policy import PolicyModel
from stateful_models.steps import Delivered, Loaded, Reported, Stored

PREFIX = "vllm:kv_offload_"
PENDING = -1


@define
class Record:
    """What one request did in this generation."""

    seen: list[OffloadKey] = field(factory=list)
    inserted: set[OffloadKey] = field(factory=set)
    reused: set[OffloadKey] = field(factory=set)
    missed: set[OffloadKey] = field(factory=set)
    finished: bool = False


@define
class Hold:
    """What an attempt still holds: keys and how often."""

    attempt: op.Attempt | None
    request: op.RequestId
    stores: bool
    began_with: tuple[OffloadKey, ...]
    keys: Counter[OffloadKey]


class ManagerModel:
    """Predicts what a manager of `num_chunks` slots answers to each operation.

    `exact_backlog`: with how many undelivered keys a manager must not yet shorten its events
    (EVT-4); by default its capacity.
    """

    def __init__(
        self,
        num_chunks: int,
        policy: PolicyModel,
        *,
        enable_events: bool = False,
        store_threshold: int = 1,
        max_tracker_size: int = 64_000,
        exact_backlog: int | None = None,
    ) -> None:
        self.num_chunks = num_chunks
        self.policy = policy
        self.enable_events = enable_events
        self.threshold = store_threshold
        self.max_tracker_size = max_tracker_size
        self.ends: dict[op.RequestId, dict[OffloadKey, int]] = {}
        self.exact_backlog: int = num_chunks if exact_backlog is None else exact_backlog
        self.attempts: dict[op.Attempt, int] = {}
        self.told: list[OffloadKey] = []
        self.backlog: list[OffloadingEvent] = []
        self.samples: list[int] = []
        self.skipped: int = 0
        self.stale: int = 0
        self.generation: int = 0
        self.start_anew()

    def start_anew(self) -> None:
        """The state of a new manager (GEN-1)."""
        self.slots: dict[OffloadKey, int] = {}
        self.ref_cnt: dict[OffloadKey, int] = {}
        self.fresh: list[int] = list(range(self.num_chunks))
        self.freed: list[int] = []
        self.holds: list[Hold] = []
        self.records: dict[op.RequestId, Record] = {}
        self.tracker: dict[OffloadKey, int] = {}

    def predict(self, operation: op.Operation) -> Prediction:
        """Perform an operation, and say what comes of it."""
        keys = getattr(operation, "keys", ())
        if isinstance(operation, op.Lookup):
            keys = (operation.key,)
        if short := [key for key in keys if len(key) < 5]:
            return Raises(frozenset({Refusal(InvalidKeyError, (("key", short[0]),))}))
        match operation:
            case op.NewRequest(request):
                self.records.setdefault(request, Record())
                return RequestOffloadingContext()
            case op.SetPositions(request, positions):
                self.ends.setdefault(request, {}).update(positions)
            case op.Lookup(_, key):
                return self.lookup(key)
            case op.PrepareLoad():
                return self.prepare_load(operation)
            case op.CompleteLoad():
                return self.complete_load(operation)
            case op.Touch(_, touched):
                self.policy.touch(touched)
            case op.PrepareStore():
                return self.prepare_store(operation)
            case op.CompleteStore():
                return self.complete_store(operation)
            case op.FinishRequest(request):
                self.finish(request)
            case op.TakeEvents():
                return self.take_events()
            case op.GetStats():
                return self.get_stats()
            case op.Reset():
                self.reset()
            case _:
                pass
        return None

    def lookup(self, key: OffloadKey) -> LookupResult:
        """LOOK-1."""
        if key not in self.slots:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if self.ref_cnt[key] == PENDING else LookupResult.HIT

    def prepare_load(self, load: op.PrepareLoad) -> Prediction:
        """LOAD-1, LOAD-2, LOAD-5, FIN-2."""
        # An internal transfer leaves no trace on the request (LOAD-5).
        record = Record() if load.internal else self.records.get(load.request, Record())
        wrong: list[Refusal] = []
        for key in load.keys:
            if key not in self.slots:
                wrong.append(_refusal(load, ChunkNotFoundError, key=key))
            elif self.ref_cnt[key] == PENDING:
                wrong.append(_refusal(load, ChunkNotReadyError, key=key))
        if record.finished:
            wrong += _unseen(record, load, load.keys)
        if wrong:
            return Raises(frozenset(wrong))
        for key in load.keys:
            if self.ref_cnt[key] == 0:
                self.policy.mark_non_evictable(key)
            self.ref_cnt[key] += 1
        if not load.internal:
            self.records[load.request] = record
            self.see(load.request, load.keys)
            record.reused |= set(load.keys) - record.inserted
        self.hold(Hold(load.attempt, load.request, False, load.keys, Counter(load.keys)))
        return Loaded(tuple(self.slots[key] for key in load.keys))

    def complete_load(self, load: op.CompleteLoad) -> Prediction:
        """LOAD-4, DONE-4."""
        if load.attempt is not None:
            if load.attempt not in self.attempts:
                return Raises(frozenset({_refusal(load, UnknownTicketError)}))
            released = self.take(load.attempt, load.keys, stores=False)
            self.stale += len(released) < len(load.keys)
        else:
            wrong: list[Refusal] = []
            for key, times in Counter(load.keys).items():
                if key not in self.slots:
                    wrong.append(_refusal(load, ChunkNotFoundError, key=key))
                elif self.ref_cnt[key] < times:
                    pins = max(self.ref_cnt[key], 0)
                    wrong.append(_refusal(load, NotPinnedError, key=key, held=pins, released=times))
            if wrong:
                return Raises(frozenset(wrong))
            released = list(load.keys)
            self.take_from_any(load.request, load.keys, released, stores=False)
        for key in released:
            self.ref_cnt[key] -= 1
            if self.ref_cnt[key] == 0:
                self.policy.mark_evictable(key)
        return None

    def prepare_store(self, offer: op.PrepareStore) -> Prediction:
        """STORE-1 to STORE-9, LOAD-5, FIN-2."""
        keys = list(dict.fromkeys(offer.keys))
        candidates = [key for key in keys if key not in self.slots]
        ready = [key for key in keys if self.ref_cnt.get(key, PENDING) != PENDING]
        tracker = self.tracked(keys)
        admitted = [
            key for key in candidates if self.threshold < 2 or tracker.get(key, 0) >= self.threshold
        ]
        seen_now = [key for key in keys if key in admitted or key in ready]
        record = self.records.setdefault(offer.request, Record())
        if record.finished and (unseen := _unseen(record, offer, seen_now)):
            return Raises(frozenset(unseen))

        self.tracker = tracker
        self.skipped += len(candidates) - len(admitted)
        missed = [key for key in admitted if key not in record.missed]
        self.policy.miss(missed)
        record.missed |= set(missed)
        self.see(offer.request, seen_now)
        record.reused |= set(ready) - record.inserted
        if not admitted:
            # An attempt like any other, of which a completion is not of the unknown.
            self.hold(Hold(offer.attempt, offer.request, True, (), Counter()))
            return Stored((), (), ())
        self.samples.append(len(admitted))

        free = len(self.fresh) + len(self.freed)
        evicted = self.policy.evict(max(0, len(admitted) - free), keys)
        if evicted is None:
            return None
        for key in evicted:
            self.freed.append(self.slots.pop(key))
            del self.ref_cnt[key]
        self.announce(evicted, removed=True)
        for key in admitted:
            self.slots[key] = self.fresh.pop(0) if self.fresh else self.freed.pop()
            self.ref_cnt[key] = PENDING
            self.policy.insert(key, offer.request, self.ends.get(offer.request, {}))
        record.inserted |= set(admitted)
        self.hold(Hold(offer.attempt, offer.request, True, tuple(admitted), Counter(admitted)))
        return Stored(tuple(admitted), tuple(self.slots[key] for key in admitted), tuple(evicted))

    def complete_store(self, store: op.CompleteStore) -> Prediction:
        """DONE-1 to DONE-4."""
        if store.attempt is not None:
            if store.attempt not in self.attempts:
                return Raises(frozenset({_refusal(store, UnknownTicketError)}))
            done = self.take(store.attempt, store.keys, stores=True)
            self.stale += len(done) < len(store.keys)
        else:
            done = [k for k in dict.fromkeys(store.keys) if self.ref_cnt.get(k) == PENDING]
            self.take_from_any(store.request, store.keys, done, stores=True)
        for key in done:
            if store.success:
                self.ref_cnt[key] = 0
                self.policy.mark_evictable(key)
            else:
                self.policy.remove(key)
                self.freed.append(self.slots.pop(key))
                del self.ref_cnt[key]
        if store.success:
            self.announce(done, removed=False)
        return None

    def finish(self, request: op.RequestId) -> None:
        """FIN-1."""
        record = self.records.get(request)
        if record is None or record.finished:
            return
        record.finished = True
        ends = self.ends.get(request, {})
        groups: list[list[OffloadKey]] = []
        for number in sorted({key[-4:] for key in record.seen}):
            group = [key for key in record.seen if key[-4:] == number]
            if all(key in ends for key in group):
                group.sort(key=lambda key: ends[key])
            groups.append(group)
        self.policy.finish(groups, record.inserted - record.reused, record.reused, ends)

    def reset(self) -> None:
        """GEN-1, EVT-5."""
        self.policy.clear()
        self.start_anew()
        self.generation += 1
        self.backlog = []
        self.announce(self.told, removed=True)

    def take_events(self) -> Prediction:
        """EVT-1 to EVT-4."""
        events, self.backlog = self.backlog, []
        for event in events:
            if event.removed:
                self.told = [key for key in self.told if key not in event.keys]
            else:
                self.told += event.keys
        if sum(len(event.keys) for event in events) > self.exact_backlog:
            return Announced(tuple(events))
        return Delivered(tuple(events))

    def get_stats(self) -> Reported:
        """MET-1, MET-2."""
        slots = max(1, self.num_chunks)
        pending = sum(count == PENDING for count in self.ref_cnt.values())
        pinned = sum(count > 0 for count in self.ref_cnt.values())
        values: dict[str, float] = {
            PREFIX + "cpu_cache_usage_perc": (pending + pinned) / slots,
            PREFIX + "cpu_cache_write_usage_perc": pending / slots,
            PREFIX + "cpu_cache_read_usage_perc": pinned / slots,
            PREFIX + "cpu_allocation_size_count": len(self.samples),
            PREFIX + "cpu_allocation_size_sum": sum(self.samples),
        }
        if self.threshold >= 2:
            values[PREFIX + "stores_skipped"] = self.skipped
        self.samples, self.skipped = [], 0
        return Reported(values)

    def tracked(self, keys: Sequence[OffloadKey]) -> dict[OffloadKey, int]:
        """The reuse tracker after an offer of `keys`, oldest first (STORE-3)."""
        if self.threshold < 2:
            return {}
        known = [key for key in keys if key in self.tracker]
        tracker = {key: n for key, n in self.tracker.items() if key not in known}
        droppable = list(tracker)
        tracker |= {key: self.tracker[key] + 1 for key in known}
        for key in (key for key in keys if key not in known):
            if len(tracker) >= self.max_tracker_size:
                if not droppable:
                    break
                del tracker[droppable.pop(0)]
            tracker[key] = 1
        return tracker

    def see(self, request: op.RequestId, keys: Iterable[OffloadKey]) -> None:
        """Record the keys that a request sees, and tell the policy of new ones (STORE-8)."""
        seen = self.records[request].seen
        new = [key for key in dict.fromkeys(keys) if key not in seen]
        seen += new
        if new:
            self.policy.access(new, request, self.ends.get(request, {}))

    def hold(self, hold: Hold) -> None:
        """Note what an attempt holds from now on."""
        self.holds.append(hold)
        if hold.attempt is not None:
            self.attempts[hold.attempt] = self.generation

    def take(
        self, attempt: op.Attempt, keys: Iterable[OffloadKey], *, stores: bool
    ) -> list[OffloadKey]:
        """Those of `keys` that an attempt holds, as often as it does; it no longer does then."""
        own = [h for h in self.holds if h.attempt == attempt and h.stores == stores]
        return [key for key in keys if _take_one(own, key)]

    def take_from_any(
        self,
        request: op.RequestId,
        named: tuple[OffloadKey, ...],
        keys: Sequence[OffloadKey],
        *,
        stores: bool,
    ) -> None:
        """Take keys from who holds them, for a completion that names no attempt.

        That is the request's oldest attempt of just what is named, if nothing of it is
        completed yet; else for each key the request itself first, then others, oldest first.
        """
        holds = [hold for hold in self.holds if hold.stores == stores]
        holds.sort(key=lambda hold: hold.request != request)
        for hold in holds:
            whole = hold.keys == Counter(named) and hold.began_with == named
            if whole and hold.request == request:
                hold.keys.clear()
                return
        for key in keys:
            _take_one(holds, key)

    def announce(self, keys: Sequence[OffloadKey], *, removed: bool) -> None:
        """Queue an event, unless it would be empty (EVT-2)."""
        if keys and self.enable_events:
            self.backlog.append(OffloadingEvent(list(keys), Medium.CPU, removed))


def _refusal(call: op.Operation, error: type[Exception], **names: object) -> Refusal:
    return Refusal(error, tuple(names.items()), f"{call.verb}: ")


def _unseen(
    record: Record, call: op.PrepareLoad | op.PrepareStore, keys: Iterable[OffloadKey]
) -> list[Refusal]:
    """The ways to refuse a finished request that would see keys for the first time (FIN-2)."""
    return [
        _refusal(call, RequestFinishedError, request_id=call.request, key=key)
        for key in keys
        if key not in record.seen
    ]


def _take_one(holds: Iterable[Hold], key: OffloadKey) -> bool:
    for hold in holds:
        if hold.keys[key]:
            hold.keys[key] -= 1
            return True
    return False
