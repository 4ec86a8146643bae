"""Drivers: a host that calls a policy as a manager of vLLM 0.33 does, and in no other way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import define, field

from kvoffload import OffloadKey, get_offload_group_idx
from stateful_models import operations as op
from stateful_models.steps import Step, Victims

Perform = Callable[[op.Operation], Step]


@define
class _Record:
    seen: dict[OffloadKey, None] = field(factory=dict)
    inserted: set[OffloadKey] = field(factory=set)
    reused: set[OffloadKey] = field(factory=set)
    missed: set[OffloadKey] = field(factory=set)
    finished: bool = False


class PolicyHost:
    """Turns what a scheduler wants into the calls that a policy gets.

    Every call goes through `perform`. Misses are told once a request and key; evict is asked
    for no more than there are idle chunks, with the whole offer protected, so that it may still
    have to refuse; chunks are inserted pending, in the order of the offer; only pending ones
    are removed; and a finished request is told of once.
    """

    def __init__(self, capacity: int, perform: Perform) -> None:
        self.capacity = capacity
        self.ref_cnt: dict[OffloadKey, int] = {}
        self._perform = perform
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
    def pinned(self) -> list[OffloadKey]:
        """Keys that are being read, each as often as it is."""
        return [key for key, count in self.ref_cnt.items() for _ in range(count)]

    def place(self, request: op.RequestId, positions: Iterable[tuple[OffloadKey, int]]) -> None:
        """Say where keys of the request end."""
        known = tuple(positions)
        self._positions.setdefault(request, {}).update(known)
        self._perform(op.SetPositions(request, known))

    def get(self, key: OffloadKey) -> None:
        """Look a key up."""
        self._perform(op.Get(key))

    def offer(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> bool:
        """Offer keys for storing; whether room was found for those that are not resident."""
        record = self._record(request)
        keys = list(dict.fromkeys(keys))
        ready = [key for key in keys if self.ref_cnt.get(key, -1) >= 0]
        admitted = [key for key in keys if key not in self.ref_cnt]
        if record.finished and not record.seen.keys() >= {*ready, *admitted}:
            return False
        missed = [key for key in admitted if key not in record.missed]
        if missed:
            record.missed.update(missed)
            self._perform(op.StoreMiss(request, tuple(missed)))
        self._access(request, [key for key in keys if key in ready or key in admitted])
        record.reused.update(key for key in ready if key not in record.inserted)
        lacking = len(admitted) - len(self._free)
        idle = sum(count == 0 for count in self.ref_cnt.values())
        if admitted and lacking > 0:
            if lacking > idle:
                return False
            victims = self._perform(op.Evict(lacking, frozenset(keys))).result
            if not isinstance(victims, Victims):
                return False
            for key in victims.keys:
                self._drop(key)
        for key in admitted:
            self._slots[key] = self._free.pop()
            self.ref_cnt[key] = -1
            record.inserted.add(key)
            self._perform(op.Insert(key, self._slots[key], request))
        return True

    def complete(self, keys: Iterable[OffloadKey], *, success: bool = True) -> None:
        """The stores of those keys that are pending are over."""
        for key in keys:
            if self.ref_cnt.get(key, 0) < 0:
                if success:
                    self.ref_cnt[key] = 0
                    self._perform(op.MarkEvictable(key))
                else:
                    self._drop(key)
                    self._perform(op.Remove(key))

    def load(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> bool:
        """Pin keys for a load; whether all were ready."""
        record = self._record(request)
        if not all(self.ref_cnt.get(key, -1) >= 0 for key in keys):
            return False
        if record.finished and not record.seen.keys() >= set(keys):
            return False
        for key in keys:
            self.ref_cnt[key] += 1
            if self.ref_cnt[key] == 1:
                self._perform(op.MarkNonEvictable(key))
            else:
                self._perform(op.SetRefCount(key, self.ref_cnt[key]))
        self._access(request, keys)
        record.reused.update(key for key in keys if key not in record.inserted)
        return True

    def release(self, keys: Iterable[OffloadKey]) -> None:
        """Release a pin of each of those keys that is pinned."""
        for key in keys:
            if self.ref_cnt.get(key, 0) > 0:
                self.ref_cnt[key] -= 1
                if self.ref_cnt[key] == 0:
                    self._perform(op.MarkEvictable(key))
                else:
                    self._perform(op.SetRefCount(key, self.ref_cnt[key]))

    def touch(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        """Refresh keys, resident or not."""
        self._perform(op.TouchKeys(request, tuple(keys)))

    def finish(self, request: op.RequestId) -> None:
        """The request is over: tell what it saw, unless it did nothing in this generation."""
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

    def reset(self) -> None:
        """Forget everything."""
        self.ref_cnt.clear()
        self._slots.clear()
        self._records.clear()
        self._free = list(range(self.capacity - 1, -1, -1))
        self._perform(op.Clear())

    def _record(self, request: op.RequestId) -> _Record:
        return self._records.setdefault(request, _Record())

    def _access(self, request: op.RequestId, keys: Iterable[OffloadKey]) -> None:
        seen = self._record(request).seen
        first = [key for key in dict.fromkeys(keys) if key not in seen]
        if first:
            seen.update(dict.fromkeys(first))
            self._perform(op.RequestAccess(request, tuple(first)))

    def _drop(self, key: OffloadKey) -> None:
        del self.ref_cnt[key]
        self._free.append(self._slots.pop(key))
