"""A stream of ever new keys, requests and hint values through a policy, and what it still holds.

Whatever can be reached from the policy is counted: keys, requests, chunks, and objects of any
kind. Whenever it is counted, every request is over and nothing is in flight.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from kvoffload import CachePolicy, OffloadKey, make_offload_key
from kvoffload.judge.reachable import reachable
from stateful_models import operations as op
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.fresh_values import FreshValues
from stateful_models.engines.runs import PolicyRun
from stateful_models.engines.samples import example_events, example_hints
from stateful_models.host_types import OWN_TYPES, HostTypes
from stateful_models.programs import HostOperation
from stateful_models.reach import Reach

P = TypeVar("P", bound=CachePolicy)

CAPACITY: Final = 16
KEYS_OF_A_REQUEST: Final = 4
SLACK: Final = 64
"""What may come to be held in half of a churn and is no growth yet."""


class Held(NamedTuple):
    """Distinct things that can be reached."""

    keys: int
    requests: int
    chunks: int
    values: int
    """Of hints."""
    objects: int


class Sample(NamedTuple):
    """What was held when so many keys had passed."""

    passed: int
    held: Held


class Passed:
    """The keys, requests and hint values that passed, told by value; `held_by` finds them again."""

    def __init__(self, types: HostTypes = OWN_TYPES) -> None:
        self._types = types
        self._keys: dict[bytes, OffloadKey] = {}
        self._requests: set[str] = set()
        self._values: dict[object, str] = {}

    def __len__(self) -> int:
        return len(self._keys) // 2

    def key(self, key: OffloadKey) -> OffloadKey:
        """One more key; also its block hash alone counts as holding it."""
        self._keys[key] = self._keys[key[:-4]] = key
        return key

    def request(self, request: op.RequestId) -> op.RequestId:
        """One more request."""
        self._requests.add(request)
        return request

    def value(self, name: str, value: object) -> None:
        """One more value of the hint of this name."""
        self._values[value] = name

    def values_held_by(self, root: object, beside: Sequence[object]) -> dict[object, str]:
        """The values of hints that can be reached, with their names."""
        leaves = (self._types.context, self._types.chunk)
        return {
            thing: self._values[thing]
            for thing in reachable(root, beside=beside, leaves=leaves)
            if isinstance(thing, (str, int)) and thing in self._values
        }

    def held_by(self, *roots: object, beside: Sequence[object] = ()) -> Held:
        """What can be reached from the roots.

        Not by weak references, and not through modules, classes or what functions find in their
        modules, nor through what is the host's: chunks, contexts, and `beside`.
        """
        keys: set[OffloadKey] = set()
        requests: set[str] = set()
        values: set[object] = set()
        chunks = 0
        objects = 0
        types = self._types
        for thing in reachable(*roots, beside=beside, leaves=(types.context, types.chunk)):
            objects += 1
            if isinstance(thing, bytes):
                if thing in self._keys:
                    keys.add(self._keys[thing])
            elif isinstance(thing, str):
                if thing in self._requests:
                    requests.add(thing)
                elif thing in self._values:
                    values.add(thing)
            elif type(thing) is int:
                if thing in self._values:
                    values.add(thing)
            elif isinstance(thing, types.context):
                # In some vLLM nothing in it tells whose it is.
                request: object = getattr(thing, "req_id", None)
                if isinstance(request, str) and request in self._requests:
                    requests.add(request)
            elif isinstance(thing, types.chunk):
                chunks += 1
        return Held(len(keys), len(requests), chunks, len(values), objects)


class Churn(Generic[P]):
    """A policy through which a stream passes, request by request.

    A `plain` stream has nothing but new keys; in others some come again and again. With `fresh`
    values two requests share what no other has: a session, say. What the second one says beside is
    one of `endings`, in turn, and where `events_tell` the events that the host has for it follow.
    """

    def __init__(
        self,
        trial: PolicyTrial[P],
        step_s: float,
        *,
        plain: bool,
        fresh: FreshValues | None = None,
        endings: Sequence[Mapping[str, object]] = ({},),
        events_tell: bool = True,
    ) -> None:
        self.passed: Passed = Passed(trial.driver.types)
        self.reach: Reach = Reach()
        # New values come with every second request, and keys with each.
        self.times: int = 1 if fresh is None else 2
        self._trial = trial
        self.run: PolicyRun[P] = PolicyRun(
            trial.driver, CAPACITY, (), surroundings=trial.surroundings, reach=self.reach
        )
        self._hints: list[Mapping[str, object] | None] = example_hints(trial)
        self._events = example_events(trial)
        self._step_s = step_s
        self._plain = plain
        self._fresh = fresh
        self._endings = endings
        self._events_tell = events_tell
        self._requests = 0
        # Of which session each value is.
        self._sessions_of: dict[object, int] = {}
        self._named = 0
        self._lasting = tuple(make_offload_key(b"lasting%d" % n, 0) for n in range(3))
        self._earlier: list[OffloadKey] = []

    @property
    def sessions(self) -> int:
        """How many fresh values of each name passed."""
        return (self._requests + 1) // 2

    def until(self, passed: int) -> bool:
        """Let requests pass until so many keys have; False if the policy fails before."""
        while len(self.passed) < passed and not self.run.over:
            self._request()
            # The steps of a run are kept for those who judge it.
            self.run.played.clear()
        return not self.run.over

    def reset(self) -> None:
        """Clear the policy."""
        self.run.play(op.Reset())
        self._earlier.clear()

    def held(self) -> Held:
        """What the policy holds now."""
        return self.passed.held_by(self.run.policy, beside=self._hosts())

    def most_in(self, kind: int) -> str:
        """Which attribute of the policy most of what `Held` counts there is in, in words."""
        attributes: dict[str, object] = dict(getattr(self.run.policy, "__dict__", {}))
        for cls in type(self.run.policy).__mro__:
            for name in getattr(cls, "__slots__", ()):
                attributes.setdefault(name, getattr(self.run.policy, name, None))
        beside = [self.run.policy, *self._hosts()]
        most = {
            name: self.passed.held_by(value, beside=beside)[kind]
            for name, value in attributes.items()
        }
        if not any(most.values()):
            return ""
        return f", most of them in `{max(most, key=most.__getitem__)}`"

    def names_held(self) -> list[str]:
        """The hints of which the policy holds many values."""
        values = self.passed.values_held_by(self.run.policy, self._hosts())
        return [name for name, count in Counter(values.values()).items() if count > SLACK]

    def most_kept_ending(self) -> Mapping[str, object]:
        """That of the endings after which most values are still held; of equals the first."""
        values = self.passed.values_held_by(self.run.policy, self._hosts())
        kept = Counter(self._sessions_of[value] % len(self._endings) for value in values)
        return max(enumerate(self._endings), key=lambda one: kept[one[0]])[1]

    def bound_beyond(self, held: int) -> str:
        """A number that the policy has and that may be a bound which was not come to yet."""
        attributes: dict[str, object] = dict(getattr(self.run.policy, "__dict__", {}))
        for name, value in attributes.items():
            if type(value) is int and held <= value < sys.maxsize // 2:
                return f"`{name}` of {value:,}"
        return ""

    def _hosts(self) -> list[object]:
        run = self.run
        return [run, run.subject, run.host, run.subject.driver, run.subject.contexts, self._trial]

    def _new(self, number: int) -> tuple[OffloadKey, ...]:
        self._named += number
        numbers = range(self._named - number, self._named)
        return tuple(
            self.passed.key(make_offload_key(b"passing%d" % n, n // KEYS_OF_A_REQUEST % 2))
            for n in numbers
        )

    def _request(self) -> None:
        number = self._requests
        self._requests += 1
        request = self.passed.request(f"passing-{number}")
        for operation in self._life(number, request):
            if not self.run.play(operation):
                return
        self.run.subject.contexts.forget(request)
        if self._fresh is not None and number % 2:
            for event in self._fresh.events(number // 2, telling=self._events_tell):
                self.run.play(event)

    def _hints_of(self, number: int) -> Mapping[str, object] | None:
        fresh, at = self._fresh, number // 2
        if fresh is None:
            return self._hints[number % len(self._hints)]
        if number % 2:
            return fresh.last_hints(at, self._endings[at % len(self._endings)])
        for name, value in fresh.of(at).items():
            self.passed.value(name, value)
            self._sessions_of[value] = at
        return fresh.hints(at)

    def _life(self, number: int, request: op.RequestId) -> Iterator[HostOperation]:
        """All that a request does. Its kind is one of eight, by its number."""
        kind, host = 0 if self._plain else number % 8, self.run.host
        yield op.NewRequest(request, self._hints_of(number))
        new = self._new(KEYS_OF_A_REQUEST)
        if number % 3:
            ends = tuple((key, 16 * (1 + place)) for place, key in enumerate(new))
            yield op.SetPositions(request, ends)
        yield op.Lookup(request, new[0])
        offer = new
        if kind in (1, 4):
            offer = (*self._lasting[: 1 + kind // 4], *new)
        elif kind == 2 and self._earlier:
            # What was evicted not long ago may be remembered.
            offer = (*self._earlier[:2], *new)
        elif kind == 3:
            # More than there is room for: misses that are never stored.
            offer = (*new, *self._new(CAPACITY - 3))
        elif kind == 6:
            ready = tuple(host.ready[:2])
            yield op.PrepareLoad(request, ready)
        elif kind == 7:
            yield op.Touch(request, self._new(2))
        yield op.PrepareStore(request, offer)
        if number % 2:
            yield op.FinishRequest(request)
        if host.pending:
            yield op.CompleteStore(request, tuple(host.pending), kind != 5)
        if host.pinned:
            yield op.CompleteLoad(request, tuple(host.pinned))
        if not number % 2:
            yield op.FinishRequest(request)
        self._earlier = [*self._earlier[-CAPACITY:], *new]
        if kind == 0:
            yield op.AdvanceClock(self._step_s)
        if self._events and self._fresh is None and kind in (1, 5):
            yield self._events[number % len(self._events)]
