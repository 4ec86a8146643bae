"""The host of a manager: a scheduler that keeps a table of what it has in flight.

`play` takes the operations of a scheduler and passes on what this host could do in the present
state: no load of what is not ready, no completion of what is not in flight, no offer by a request
that has finished; what is partly possible is trimmed. So any part of a program is a program. A
host that makes mistakes passes everything on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from attrs import define, evolve, field

from kvoffload import OffloadKey
from kvoffload.keys import MIN_KEY_BYTES
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.programs import HostOperation
from stateful_models.steps import Loaded, Step, Stored

Perform: TypeAlias = Callable[[op.Operation], Step]

KeysT = TypeVar(
    "KeysT",
    op.PrepareLoad,
    op.CompleteLoad,
    op.Touch,
    op.PrepareStore,
    op.CompleteStore,
    op.CompleteLoad | op.CompleteStore,
)

KEPT_PAST: Final = 8
"""How many transfers that are over are remembered, for mistakes about them."""


@define(eq=False)
class InFlight:
    """A transfer that was prepared: what it began with, and what of it is not completed yet."""

    attempt: op.Attempt | None
    request: op.RequestId
    stores: bool
    began_with: tuple[OffloadKey, ...]
    left: Counter[OffloadKey] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.left = Counter(self.began_with)

    @property
    def keys_left(self) -> tuple[OffloadKey, ...]:
        """The keys that are not completed yet, each as often as it is held, in order."""
        left = self.left.copy()
        keys: list[OffloadKey] = []
        for key in self.began_with:
            if left[key]:
                left[key] -= 1
                keys.append(key)
        return tuple(keys)

    def take(self, keys: Iterable[OffloadKey]) -> Iterator[OffloadKey]:
        """Complete those of the keys that it still holds, and give them."""
        for key in keys:
            if self.left[key]:
                self.left[key] -= 1
                yield key


class ManagerHost:
    """Calls a manager through `perform`; `account` says what it must be like by now.

    With `internal_loads` false, loads that are no access by a request are left out, for managers
    that do not know them.
    """

    def __init__(
        self,
        perform: Perform,
        account: Account,
        *,
        mistakes: bool = False,
        internal_loads: bool = True,
    ) -> None:
        self.account = account
        self.mistakes = mistakes
        self.open: list[InFlight] = []
        self.past: deque[InFlight] = deque(maxlen=KEPT_PAST)
        self._perform = perform
        self._internal_loads = internal_loads
        self._attempts: set[op.Attempt] = set()
        self._known: set[op.RequestId] = set()
        self._finished: set[op.RequestId] = set()
        self._unflushed = False

    @property
    def ready(self) -> list[OffloadKey]:
        """Keys that can be loaded."""
        return [key for key, entry in self.account.resident.items() if not entry.pending]

    def finished(self, request: op.RequestId) -> bool:
        """Whether the request has ended."""
        return request in self._finished

    def play(self, operation: HostOperation) -> Step | None:
        """Do what a scheduler asks for, as far as this host does; None if not at all."""
        if isinstance(operation, (op.PrepareLoad, op.PrepareStore)):
            if operation.attempt in self._attempts:
                return None
            if isinstance(operation, op.PrepareLoad) and operation.internal:
                if not self._internal_loads:
                    return None
        called = operation if self.mistakes else self._possible(operation)
        if called is None:
            return None
        step = self._perform(called)
        if step.error is None:
            # Where a mistake was made, what counts is how the manager was really called.
            self._note(step.operation if self.mistakes else called, step)
        return step

    def settle(self) -> Iterator[Step]:
        """Let everything in flight end well."""
        for one in tuple(self.open):
            keys = one.keys_left
            if keys:
                completion = op.CompleteStore if one.stores else op.CompleteLoad
                step = self.play(completion(one.request, keys, attempt=one.attempt))
                if step is not None:
                    yield step

    def _possible(self, operation: HostOperation) -> HostOperation | None:
        match operation:
            case op.NewRequest(request):
                return None if request in self._known else operation
            case op.PrepareLoad(request, keys):
                ready = tuple(key for key in keys if self.account.ready(key))
                return None if request in self._finished else _with_keys(operation, ready)
            case op.PrepareStore(request, keys):
                distinct = tuple(dict.fromkeys(filter(_valid, keys)))
                return None if request in self._finished else _with_keys(operation, distinct)
            case op.CompleteStore() | op.CompleteLoad():
                return self._in_flight(operation)
            case op.Touch(_, keys):
                return _with_keys(operation, tuple(filter(_valid, keys)))
            case op.Lookup(_, key):
                return operation if _valid(key) else None
            case op.FinishRequest(request):
                return None if request in self._finished else operation
            case op.ResetFlushed():
                return operation if self._unflushed else None
            case op.Outstanding() | op.TakeFirstEvent():
                # Beyond what the field's managers have.
                return None
            case _:
                return operation

    def _in_flight(
        self, completion: op.CompleteStore | op.CompleteLoad
    ) -> op.CompleteStore | op.CompleteLoad | None:
        left: Counter[OffloadKey] = Counter()
        for one in self._meant(completion):
            left += one.left
        keys: list[OffloadKey] = []
        for key in completion.keys:
            if left[key]:
                left[key] -= 1
                keys.append(key)
        return _with_keys(completion, tuple(keys))

    def _meant(self, completion: op.CompleteStore | op.CompleteLoad) -> Sequence[InFlight]:
        """The transfers that a completion may be of.

        One that names no attempt is of the request's oldest transfer of just its keys, if there
        is one; else of its oldest ones, then of anybody's.
        """
        stores = isinstance(completion, op.CompleteStore)
        same_kind = [one for one in self.open if one.stores == stores]
        if completion.attempt is not None:
            return [one for one in same_kind if one.attempt == completion.attempt]
        same_kind.sort(key=lambda one: one.request != completion.request)
        for one in same_kind:
            if one.request == completion.request and one.keys_left == completion.keys:
                return [one]
        return same_kind

    def _note(self, operation: op.Operation, step: Step) -> None:
        request: object = getattr(operation, "request", None)
        if isinstance(request, str):
            self._known.add(request)
        match operation:
            case op.PrepareLoad(request, keys, attempt) if isinstance(step.result, Loaded):
                self._begin(InFlight(attempt, request, False, keys))
            case op.PrepareStore(request, _, attempt) if isinstance(step.result, Stored):
                self._begin(InFlight(attempt, request, True, step.result.keys))
            case op.CompleteStore() | op.CompleteLoad():
                self._end(operation)
            case op.FinishRequest(request):
                self._finished.add(request)
            case op.Reset():
                self.past.extend(self.open)
                self.open.clear()
                self._unflushed = True
            case op.ResetFlushed():
                self._unflushed = False
            case _:
                pass

    def _begin(self, transfer: InFlight) -> None:
        if transfer.attempt is not None:
            self._attempts.add(transfer.attempt)
        if transfer.began_with:
            self.open.append(transfer)

    def _end(self, completion: op.CompleteStore | op.CompleteLoad) -> None:
        keys = list(completion.keys)
        for one in self._meant(completion):
            for key in one.take(tuple(keys)):
                keys.remove(key)
        over = [one for one in self.open if not one.left.total()]
        if over:
            self.past.extend(over)
            self.open = [one for one in self.open if one.left.total()]


def _with_keys(operation: KeysT, keys: tuple[OffloadKey, ...]) -> KeysT | None:
    if not keys:
        return None
    return operation if keys == operation.keys else evolve(operation, keys=keys)


def _valid(key: OffloadKey) -> bool:
    return len(key) >= MIN_KEY_BYTES
