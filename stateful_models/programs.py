"""Programs: what a scheduler asks for, as a list of operations that means the same to any subject.

Any part of a program is a program, since hosts leave out what they could not do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from attrs import evolve, field, frozen

from kvoffload import OffloadKey, make_offload_key
from stateful_models import operations as op

HostOperation: TypeAlias = op.ManagerOperation | op.AdvanceClock | op.HostEvent
"""What a scheduler does: calls of a manager, time that passes, and extra hooks."""


def keys(text: str) -> tuple[OffloadKey, ...]:
    """Keys by short names: `keys("a b a/1")` are a and b of group 0, and a of group 1."""
    return tuple(map(_key, text.split()))


def _key(name: str) -> OffloadKey:
    block_hash, _, group = name.partition("/")
    return make_offload_key(block_hash.encode(), int(group or 0))


@frozen(kw_only=True)
class ManagerSettings:
    """How a manager is built beside its capacity, and who calls it.

    `policy` is the name of its cache policy, None for the one it has by itself; `tapped`: the
    policy writes down what it is told; with a `fault` it is one that errs like this. A host that
    makes `mistakes` does what the contract says that a manager must refuse or ignore; any other
    leaves such calls out.
    """

    policy: str | None = None
    store_threshold: int = 1
    enable_events: bool = True
    max_tracker_size: int | None = None
    tapped: bool = False
    mistakes: bool = False
    fault: str | None = None

    def __str__(self) -> str:
        words = [] if self.policy is None else [self.policy]
        words += ["events" if self.enable_events else "no events"]
        if self.store_threshold != 1:
            words.append(f"store_threshold={self.store_threshold}")
        if self.max_tracker_size is not None:
            words.append(f"max_tracker_size={self.max_tracker_size}")
        words += ["a policy that writes down what it is told"] * self.tapped
        words += ["a host that errs"] * self.mistakes
        if self.fault is not None:
            words.append(f"a policy whose {self.fault}")
        return ", ".join(words)


@frozen
class Program:
    """Operations for a cache of `capacity` chunks; of a manager, one built by `settings`.

    A `watchful` host looks every key up after each operation; else it does so at the end only.
    """

    capacity: int
    operations: tuple[HostOperation, ...] = field(converter=tuple[HostOperation, ...])
    watchful: bool = False
    settings: ManagerSettings | None = None

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def universe(self) -> tuple[OffloadKey, ...]:
        """Every key that it names, as first named."""
        return tuple(dict.fromkeys(key for one in self.operations for key in keys_of(one)))

    def cut(self, end: int) -> Program:
        """Its first `end` operations."""
        return evolve(self, operations=self.operations[:end])

    def with_operations(self, operations: Iterable[HostOperation]) -> Program:
        """The same for other operations."""
        return evolve(self, operations=tuple(operations))

    def replaced(self, place: int, operation: HostOperation) -> Program:
        """The same with another operation in this place."""
        before, after = self.operations[:place], self.operations[place + 1 :]
        return self.with_operations((*before, operation, *after))

    def renamed(self, names: dict[OffloadKey, OffloadKey]) -> Program:
        """The same with other keys."""
        return self.with_operations(with_keys(one, names) for one in self.operations)

    def renumbered(self) -> Program:
        """The same with attempts 1, 2, 3 in the order in which they are named."""
        numbers: dict[op.Attempt, op.Attempt] = {}

        def numbered(operation: HostOperation) -> HostOperation:
            match operation:
                case (
                    op.PrepareLoad() | op.CompleteLoad() | op.PrepareStore() | op.CompleteStore()
                ) if operation.attempt not in (None, op.NEVER_MADE):
                    number = numbers.setdefault(operation.attempt, len(numbers) + 1)
                    return evolve(operation, attempt=number)
                case _:
                    return operation

        return self.with_operations(map(numbered, self.operations))

    def without_attempt(self, attempt: op.Attempt) -> Program:
        """The same where nobody names this attempt, so that its end is that of the present one."""

        def unnamed(operation: HostOperation) -> HostOperation:
            match operation:
                case (
                    op.PrepareLoad() | op.CompleteLoad() | op.PrepareStore() | op.CompleteStore()
                ) if operation.attempt == attempt:
                    return evolve(operation, attempt=None)
                case _:
                    return operation

        return self.with_operations(map(unnamed, self.operations))

    def with_own_completions(self) -> Program:
        """The same where each completion comes from the request that began the last such thing."""
        storers: dict[OffloadKey, op.RequestId] = {}
        loaders: dict[OffloadKey, op.RequestId] = {}
        operations: list[HostOperation] = []
        for one in self.operations:
            match one:
                case op.PrepareStore(request, named):
                    storers.update(dict.fromkeys(named, request))
                case op.PrepareLoad(request, named):
                    loaders.update(dict.fromkeys(named, request))
                case op.CompleteStore(request, named) | op.CompleteLoad(request, named):
                    begun = storers if isinstance(one, op.CompleteStore) else loaders
                    owner = next((begun[key] for key in named if key in begun), request)
                    one = with_request(one, owner)
                case _:
                    pass
            operations.append(one)
        return self.with_operations(operations)

    def with_plain_requests(self) -> Program:
        """The same with requests r1, r2, r3 in the order in which they come."""
        names: dict[op.RequestId, op.RequestId] = {}
        for one in self.operations:
            request = request_of(one)
            if request is not None:
                names.setdefault(request, f"r{len(names) + 1}")
        return self.with_operations(
            one if (request := request_of(one)) is None else with_request(one, names[request])
            for one in self.operations
        )


def request_of(operation: op.Operation) -> op.RequestId | None:
    """The request that an operation belongs to, if any."""
    match operation:
        case (
            op.NewRequest(request)
            | op.SetPositions(request)
            | op.Lookup(request)
            | op.Outstanding(request)
            | op.FinishRequest(request)
            | op.OfKeys(request)
        ):
            return request
        case _:
            return None


def with_request(operation: HostOperation, request: op.RequestId) -> HostOperation:
    """The operation for another request, if it belongs to one."""
    match operation:
        case (
            op.NewRequest()
            | op.SetPositions()
            | op.Lookup()
            | op.Outstanding()
            | op.FinishRequest()
            | op.OfKeys()
        ):
            return evolve(operation, request=request)
        case _:
            return operation


def keys_of(operation: op.Operation) -> Sequence[OffloadKey]:
    """The keys that an operation names, each as often as it does."""
    match operation:
        case op.SetPositions(_, positions):
            return [key for key, _ in positions]
        case op.Lookup(_, key):
            return (key,)
        case op.OfKeys(_, named):
            return named
        case _:
            return ()


def with_keys(operation: HostOperation, names: dict[OffloadKey, OffloadKey]) -> HostOperation:
    """The operation with keys renamed."""
    match operation:
        case op.SetPositions(_, positions):
            return evolve(
                operation, positions=tuple((names.get(key, key), end) for key, end in positions)
            )
        case op.Lookup(_, key):
            return evolve(operation, key=names.get(key, key))
        case op.OfKeys(_, named):
            return evolve(operation, keys=tuple(names.get(key, key) for key in named))
        case _:
            return operation


def with_places(operation: HostOperation, places: Sequence[int]) -> HostOperation:
    """The operation with those of its keys alone that stand in these places."""
    match operation:
        case op.SetPositions(_, positions):
            return evolve(operation, positions=tuple(positions[place] for place in places))
        case op.OfKeys(_, named):
            return evolve(operation, keys=tuple(named[place] for place in places))
        case _:
            return operation
