"""The account: what a host knows that keeps books of its calls and of the answers.

Nothing here is asked of the manager. A key is resident because an offer was answered with it,
pinned because a load was, and so on; so the account is right for every manager that keeps the
contract, and where one does not, the two differ from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from attrs import define, field

from kvoffload.keys import OffloadKey
from stateful_models.operations import (
    Attempt,
    CompleteLoad,
    CompleteStore,
    PrepareLoad,
    PrepareStore,
    RequestId,
    Reset,
)
from stateful_models.steps import Loaded, Step, Stored


@define(eq=False, weakref_slot=False)
class Entry:
    """A resident chunk: its slot, whether and by whom it is being stored, and its pins."""

    slot: int | None
    pending: bool
    storer: Attempt | None
    loaders: list[tuple[RequestId, Attempt | None]] = field(factory=list)

    @property
    def idle(self) -> bool:
        """Whether the chunk may be evicted."""
        return not (self.pending or self.loaders)


class Account:
    """Books over one manager with `num_chunks` slots, None if their number is not known.

    `read` works out what a step means before it is judged, `apply` writes it down afterwards;
    each takes time in proportion to the keys of the call.
    """

    def __init__(self, num_chunks: int | None) -> None:
        self.num_chunks = num_chunks
        self.resident: dict[OffloadKey, Entry] = {}
        self.occupant: dict[int, OffloadKey] = {}
        self.pending: int = 0
        self.pinned: int = 0
        self.generation: int = 0
        # Loads of which nothing is completed yet, with the keys that they began with.
        self._whole: dict[RequestId, dict[Attempt, tuple[OffloadKey, ...]]] = {}
        self.acted: Sequence[OffloadKey] = ()
        """The keys, each as often as it counts, that the step being judged completes."""

    @property
    def idle(self) -> int:
        """How many chunks may be evicted."""
        return len(self.resident) - self.pending - self.pinned

    @property
    def free(self) -> int | None:
        """How many slots are free, None if the number of slots is not known."""
        return None if self.num_chunks is None else self.num_chunks - len(self.resident)

    def ready(self, key: OffloadKey) -> bool:
        """Whether the key can be loaded."""
        entry = self.resident.get(key)
        return entry is not None and not entry.pending

    def pins(self, key: OffloadKey) -> int:
        """How often the key is pinned."""
        entry = self.resident.get(key)
        return 0 if entry is None else len(entry.loaders)

    def is_due(self, completion: CompleteLoad | CompleteStore) -> bool:
        """Whether all that it completes is under way, by its attempt if it names one."""
        if not completion.keys:
            # Whether there was such an attempt is not known here.
            return completion.attempt is None
        if isinstance(completion, CompleteLoad):
            return len(self._released(completion)) == len(completion.keys)
        return len(self._stored(completion)) == len(set(completion.keys))

    def read(self, step: Step) -> None:
        """Work out what the step completes, if it is a completion that was accepted."""
        operation = step.operation
        if step.error is not None:
            self.acted = ()
        elif type(operation) is CompleteStore:
            self.acted = self._stored(operation)
        elif type(operation) is CompleteLoad:
            self.acted = self._released(operation)
        else:
            self.acted = ()

    def apply(self, step: Step) -> None:
        """Write down what the step did. A call that raised did nothing."""
        operation = step.operation
        if step.error is not None:
            return
        if type(operation) is PrepareStore and isinstance(step.result, Stored):
            self._offer(operation, step.result)
        elif type(operation) is PrepareLoad and isinstance(step.result, Loaded):
            self._load(operation)
        elif type(operation) is CompleteLoad:
            attempt = operation.attempt
            if attempt is None:
                attempt = self._attempt_of(operation)
            for key in self.acted:
                self._release(key, operation.request, attempt)
        elif type(operation) is CompleteStore:
            for key in self.acted:
                if operation.success:
                    entry = self.resident[key]
                    entry.pending, entry.storer = False, None
                    self.pending -= 1
                else:
                    self._drop(key)
        elif type(operation) is Reset:
            self.resident.clear()
            self.occupant.clear()
            self._whole.clear()
            self.pending = self.pinned = 0
            self.generation += 1

    def _stored(self, store: CompleteStore) -> list[OffloadKey]:
        keys: list[OffloadKey] = []
        for key in dict.fromkeys(store.keys):
            entry = self.resident.get(key)
            if (
                entry is not None
                and entry.pending
                and (store.attempt is None or entry.storer == store.attempt)
            ):
                keys.append(key)
        return keys

    def _released(self, load: CompleteLoad) -> Sequence[OffloadKey]:
        wanted = Counter(load.keys)
        held: dict[OffloadKey, int] = {}
        for key in wanted:
            entry = self.resident.get(key)
            pins = [] if entry is None else entry.loaders
            held[key] = (
                len(pins)
                if load.attempt is None
                else sum(attempt == load.attempt for _, attempt in pins)
            )
        if all(held[key] >= times for key, times in wanted.items()):
            return load.keys
        return [key for key, times in wanted.items() for _ in range(min(times, held[key]))]

    def _offer(self, offer: PrepareStore, stored: Stored) -> None:
        for key in stored.evicted:
            self._drop(key)
        slots = stored.slots if stored.slots is not None else (None,) * len(stored.keys)
        for key, slot in zip(stored.keys, slots, strict=False):
            self._drop(key)
            self.resident[key] = Entry(slot, True, offer.attempt)
            self.pending += 1
            if slot is not None:
                self.occupant[slot] = key

    def _load(self, load: PrepareLoad) -> None:
        if load.attempt is not None:
            self._whole.setdefault(load.request, {})[load.attempt] = load.keys
        for key in load.keys:
            entry = self.resident.get(key)
            if entry is not None:
                if not entry.loaders and not entry.pending:
                    self.pinned += 1
                entry.loaders.append((load.request, load.attempt))

    def _attempt_of(self, load: CompleteLoad) -> Attempt | None:
        """The attempt meant by a completion that names none: the oldest of just its keys."""
        for attempt, keys in self._whole.get(load.request, {}).items():
            if keys == load.keys:
                return attempt
        return None

    def _release(self, key: OffloadKey, request: RequestId, attempt: Attempt | None) -> None:
        entry = self.resident[key]
        pins = entry.loaders
        # Without an attempt the request's own pins go first, then whoever's is oldest.
        own = (
            n
            for n, (loader, made) in enumerate(pins)
            if (loader == request if attempt is None else made == attempt)
        )
        loader, made = pins.pop(next(own, 0))
        if made is not None and (whole := self._whole.get(loader)) is not None:
            whole.pop(made, None)
            if not whole:
                del self._whole[loader]
        if not pins and not entry.pending:
            self.pinned -= 1

    def _drop(self, key: OffloadKey) -> None:
        entry = self.resident.pop(key, None)
        if entry is None:
            return
        if entry.pending:
            self.pending -= 1
        elif entry.loaders:
            self.pinned -= 1
        if entry.slot is not None and self.occupant.get(entry.slot) == key:
            del self.occupant[entry.slot]
