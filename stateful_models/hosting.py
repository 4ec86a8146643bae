"""The host of a policy: what a scheduler wants, turned into the calls that a policy gets.

`play` takes the operations of a scheduler on a manager and calls the policy as the manager of the
driver's protocol would. What this host could not do in the present state is left out: a load of
what is not ready, a completion of what is not in flight. So any part of a program is a program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from attrs import define, field

from kvoffload import OffloadKey, get_offload_group_idx
from stateful_models import operations as op
from stateful_models.hosts import VLLM_033, HostProtocol
from stateful_models.steps import Step, Victims

Perform = Callable[[op.Operation], Step]


class HostState(NamedTuple):
    """Numbers of chunks: resident ones, those pinned and pending among them, and free slots."""

    resident: int
    pinned: int
    pending: int
    free: int


@define
class _Record:
    seen: dict[OffloadKey, None] = field(factory=dict)
    inserted: set[OffloadKey] = field(factory=set)
    reused: set[OffloadKey] = field(factory=set)
    missed: set[OffloadKey] = field(factory=set)
    finished: bool = False

    def told(self) -> Hashable:
        """What the policy has been told of the request, as far as calls to come depend on it."""
        if self.finished:
            return None
        kinds = tuple(map(frozenset[OffloadKey], (self.inserted, self.reused, self.missed)))
        return tuple(self.seen), kinds


class PolicyHost:
    """Plays for a cache of `capacity` chunks; every call to the policy goes through `perform`.

    Misses are told once a request and key; evict is asked for no more than there are idle
    chunks, with the whole offer protected, so that it may still have to refuse; chunks are
    inserted pending, in the order of the offer; only pending ones are removed; and a finished
    request is told of once. With `asks_in_vain` false, evict is not called when counting the
    idle chunks outside the offer shows that it must refuse.
    """

    def __init__(
        self,
        capacity: int,
        perform: Perform,
        protocol: HostProtocol = VLLM_033,
        *,
        asks_in_vain: bool = True,
    ) -> None:
        self.capacity = capacity
        self.protocol = protocol
        self.ref_cnt: dict[OffloadKey, int] = {}
        self._perform = perform
        self._asks_in_vain = asks_in_vain
        self._positions: dict[op.RequestId, dict[OffloadKey, int]] = {}
        self._slots: dict[OffloadKey, int] = {}
        self._free = list(range(capacity - 1, -1, -1))
        self._records: dict[op.RequestId, _Record] = {}

    @property
    def pending(self) -> list[OffloadKey]:
        """Keys that are being stored."""
        return [key for key, count in self.ref_cnt.items() if count < 0]

    @property
    def ready(self) -> list[OffloadKey]:
        """Keys that can be read."""
        return [key for key, count in self.ref_cnt.items() if count >= 0]

    @property
    def idle(self) -> list[OffloadKey]:
        """Keys that can be evicted."""
        return [key for key, count in self.ref_cnt.items() if count == 0]

    @property
    def pinned(self) -> list[OffloadKey]:
        """Keys that are being read, each as often as it is."""
        return [key for key, count in self.ref_cnt.items() for _ in range(count)]

    @property
    def state(self) -> HostState:
        """The books in numbers."""
        counts = list(self.ref_cnt.values())
        pending = counts.count(-1)
        return HostState(
            len(counts), len(counts) - counts.count(0) - pending, pending, len(self._free)
        )

    def knows(self, request: op.RequestId) -> bool:
        """Whether the request did something in this generation."""
        return request in self._records

    def snapshot(self) -> Hashable:
        """All that the calls to come depend on, but for positions and the numbers of slots."""
        records = sorted(self._records.items())
        return (
            tuple(sorted(self.ref_cnt.items())),
            tuple((request, record.told()) for request, record in records),
        )

    def finished(self, request: op.RequestId) -> bool:
        """Whether the request has ended in this generation."""
        record = self._records.get(request)
        return record is not None and record.finished

    def play(self, operation: op.Operation) -> None:
        """Do what a scheduler asks for, as far as this host could."""
        match operation:
            case op.SetPositions(request, positions):
                self._positions.setdefault(request, {}).update(positions)
                self._perform(operation)
            case op.NewRequest() | op.AdvanceClock() | op.HostEvent():
                self._perform(operation)
            case op.Lookup(request, key):
                self._perform(op.Get(key, request))
            case op.PrepareStore(request, keys):
                self._offer(request, list(dict.fromkeys(keys)))
            case op.CompleteStore(_, keys, success):
                self._complete(keys, success)
            case op.PrepareLoad(request, keys):
                self._load(request, keys)
            case op.CompleteLoad(_, keys):
                self._release(keys)
            case op.Touch(request, keys):
                self._perform(op.TouchKeys(request, keys))
            case op.FinishRequest(request):
                self._finish(request)
            case op.Reset():
                self._reset()
            case op.ScheduleEnd() | op.ResetFlushed() | op.TakeEvents() | op.GetStats():
                pass
            case _:
                raise TypeError(f"{operation} is nothing that a scheduler does")

    def _offer(self, request: op.RequestId, keys: list[OffloadKey]) -> None:
        record = self._record(request)
        if record.finished or not keys:
            return
        self._perform(op.BeforeStore(request, tuple(keys)))
        self._step(request, keys)
        for key in keys:
            self._perform(op.Get(key))
        ready = [key for key in keys if self.ref_cnt.get(key, -1) >= 0]
        admitted = [key for key in keys if key not in self.ref_cnt]
        missed = [key for key in admitted if key not in record.missed]
        if missed:
            record.missed.update(missed)
            if self.protocol.tells_misses:
                self._perform(op.StoreMiss(request, tuple(missed)))
        self._access(request, [key for key in keys if key in ready or key in admitted])
        record.reused.update(key for key in ready if key not in record.inserted)
        lacking = len(admitted) - len(self._free)
        if admitted and lacking > 0 and not self._make_room(lacking, request, keys):
            return
        for key in admitted:
            # A policy that gives too few leaves a host of vLLM without a slot; here as well.
            if not self._free:
                return
            self._slots[key] = self._free.pop()
            self.ref_cnt[key] = -1
            record.inserted.add(key)
            self._perform(op.Insert(key, self._slots[key], request))

    def _make_room(self, lacking: int, request: op.RequestId, keys: Sequence[OffloadKey]) -> bool:
        idle = self.idle
        if lacking > len(idle):
            return False
        if not self._asks_in_vain and lacking > sum(key not in keys for key in idle):
            return False
        victims = self._perform(op.Evict(lacking, frozenset(keys), request)).result
        if not isinstance(victims, Victims):
            return False
        for key in victims.keys:
            self._drop(key)
        return True

    def _complete(self, keys: Iterable[OffloadKey], success: bool) -> None:
        for key in dict.fromkeys(keys):
            if self.ref_cnt.get(key, 0) >= 0:
                continue
            self._perform(op.Get(key))
            if success:
                self.ref_cnt[key] = 0
                self._perform(op.MarkEvictable(key))
            else:
                self._drop(key)
                self._perform(op.Remove(key))

    def _load(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        record = self._record(request)
        keys = [key for key in keys if self.ref_cnt.get(key, -1) >= 0]
        if record.finished or not keys:
            return
        self._step(request, keys)
        for key in keys:
            self._perform(op.Get(key))
            self.ref_cnt[key] += 1
            if self.ref_cnt[key] == 1:
                self._perform(op.MarkNonEvictable(key))
            else:
                self._perform(op.SetRefCount(key, self.ref_cnt[key]))
        self._access(request, keys)
        record.reused.update(key for key in keys if key not in record.inserted)

    def _release(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            if self.ref_cnt.get(key, 0) <= 0:
                continue
            self._perform(op.Get(key))
            self.ref_cnt[key] -= 1
            if self.ref_cnt[key] == 0:
                self._perform(op.MarkEvictable(key))
            else:
                self._perform(op.SetRefCount(key, self.ref_cnt[key]))

    def _finish(self, request: op.RequestId) -> None:
        record = self._records.get(request)
        if record is None or record.finished:
            return
        record.finished = True
        ends = self._positions.get(request, {})
        groups: dict[int, list[OffloadKey]] = {}
        for key in record.seen:
            groups.setdefault(get_offload_group_idx(key), []).append(key)
        for group in groups.values():
            if all(key in ends for key in group):
                group.sort(key=lambda key: ends[key])
        self._perform(
            op.RequestFinished(
                request,
                tuple(tuple(groups[number]) for number in sorted(groups)),
                frozenset(record.inserted - record.reused),
                frozenset(record.reused),
            )
        )

    def _reset(self) -> None:
        # A host that cannot clear its policy cannot be reset.
        if not self.protocol.clears:
            return
        self.ref_cnt.clear()
        self._slots.clear()
        self._records.clear()
        self._free = list(range(self.capacity - 1, -1, -1))
        self._perform(op.Clear())

    def _step(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        """The request is scheduled with these keys."""
        if self.protocol.touches_steps:
            self._perform(op.TouchKeys(request, tuple(keys)))

    def _record(self, request: op.RequestId) -> _Record:
        return self._records.setdefault(request, _Record())

    def _access(self, request: op.RequestId, keys: Iterable[OffloadKey]) -> None:
        seen = self._record(request).seen
        first = [key for key in dict.fromkeys(keys) if key not in seen]
        if first:
            seen.update(dict.fromkeys(first))
            if self.protocol.tells_accesses:
                self._perform(op.RequestAccess(request, tuple(first)))

    def _drop(self, key: OffloadKey) -> None:
        if key in self.ref_cnt:
            del self.ref_cnt[key]
            self._free.append(self._slots.pop(key))
