"""A worker that copies what it is told, over slots of which each holds somebody's bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import define, field

from kvoffload import OffloadKey
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.operations import key_text
from stateful_models.steps import Stored
from stateful_models.trial.consequences import DamageError

WRONG: Final = "the request goes on with wrong tokens, and nothing is said"


@define(eq=False)
class _Transfer:
    """What a worker copies: each key out of its slot or into it."""

    attempt: op.Attempt | None
    request: op.RequestId
    stores: bool
    pairs: list[tuple[OffloadKey, int]] = field(factory=list)


class Worker:
    """Slots as they are: whose bytes each holds, and what is being copied in and out."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._bytes_in: dict[int, OffloadKey] = {}
        self._stale: set[int] = set()
        self._open: list[_Transfer] = []

    def load(self, operation: op.PrepareLoad, slots: Sequence[int]) -> None:
        """Begin to read. Raises DamageError if it is not the bytes of the key."""
        _need_pairs(operation.keys, slots)
        transfer = _Transfer(operation.attempt, operation.request, stores=False)
        self._open.append(transfer)
        for key, slot in zip(operation.keys, slots, strict=True):
            where = self._wrong(key, slot)
            if where:
                raise DamageError(f"{key_text(key)} is loaded from slot {slot}, {where}: {WRONG}")
            transfer.pairs.append((key, slot))

    def store(self, operation: op.PrepareStore, stored: Stored, slots: Sequence[int]) -> None:
        """Begin to write. Raises DamageError if somebody else uses a slot."""
        _need_pairs(stored.keys, slots)
        transfer = _Transfer(operation.attempt, operation.request, stores=True)
        self._open.append(transfer)
        for key, slot in zip(stored.keys, slots, strict=True):
            if not 0 <= slot < self._num_slots:
                raise DamageError(
                    f"{key_text(key)} is copied to slot {slot} of {self._num_slots}: outside the "
                    "memory of the worker"
                )
            reader = self._user(slot, stores=False)
            if reader is not None:
                raise DamageError(
                    f"slot {slot} is overwritten with {key_text(key)} while {key_text(reader)} is "
                    f"read from it: {WRONG}"
                )
            writer = self._user(slot, stores=True)
            if writer is not None:
                raise DamageError(
                    f"two stores write slot {slot}, those of {key_text(writer)} and "
                    f"{key_text(key)}: whoever loads one may read the bytes of the other"
                )
            transfer.pairs.append((key, slot))
            self._bytes_in.pop(slot, None)
            self._stale.discard(slot)

    def complete(self, operation: op.CompleteStore | op.CompleteLoad) -> None:
        """A transfer was reported: its bytes are where they should be, if it went well."""
        stores = isinstance(operation, op.CompleteStore)
        for key in operation.keys:
            pair = self._take(operation, key, stores=stores)
            if pair is not None and isinstance(operation, op.CompleteStore) and operation.success:
                self._bytes_in[pair] = key

    def reset(self) -> None:
        """All transfers are waited for; what the slots hold is of no use to anybody."""
        self._open.clear()
        self._stale.update(self._bytes_in)

    def read_now(self, key: OffloadKey) -> bool:
        """Whether somebody is reading the chunk of a key."""
        return any(key == other for one in self._open if not one.stores for other, _ in one.pairs)

    def holds(self, key: OffloadKey, slot: int | None) -> bool:
        """Whether the slot has the bytes of the key."""
        return slot is not None and not self._wrong(key, slot)

    def _take(
        self, operation: op.CompleteStore | op.CompleteLoad, key: OffloadKey, *, stores: bool
    ) -> int | None:
        same = [one for one in self._open if one.stores == stores]
        if operation.attempt is not None:
            same = [one for one in same if one.attempt == operation.attempt]
        same.sort(key=lambda one: one.request != operation.request)
        for one in same:
            for place, (other, slot) in enumerate(one.pairs):
                if other == key:
                    del one.pairs[place]
                    return slot
        return None

    def _user(self, slot: int, *, stores: bool) -> OffloadKey | None:
        users: Iterator[OffloadKey] = (
            key
            for one in self._open
            if one.stores == stores
            for key, used in one.pairs
            if used == slot
        )
        return next(users, None)

    def _wrong(self, key: OffloadKey, slot: int) -> str:
        """What is wrong with the slot for whoever wants to read the key from it."""
        if not 0 <= slot < self._num_slots:
            return f"of which there are {self._num_slots}"
        writer = self._user(slot, stores=True)
        if writer is not None:
            whose = "its own bytes" if writer == key else f"the bytes of {key_text(writer)}"
            return f"into which {whose} are still being copied"
        holder = self._bytes_in.get(slot)
        if holder is None:
            return "into which nothing was copied"
        if slot in self._stale:
            return "whose bytes are from before the reset"
        return "" if holder == key else f"which holds the bytes of {key_text(holder)}"


def _need_pairs(named: Sequence[OffloadKey], slots: Sequence[int]) -> None:
    if len(named) != len(slots):
        raise DamageError(
            f"the worker is handed {counted(len(named), 'chunk')} and "
            f"{counted(len(slots), 'slot')}, which do not pair: the copy fails, or goes to wrong "
            "places"
        )
