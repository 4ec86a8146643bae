"""A policy under load and what it holds, in bytes.

Everything that can be reached from the policy is added up by `sys.getsizeof`, except what its host
has anyway: the keys and chunks that are resident, and what it made for the requests that go on. The
key of a chunk that is gone is the policy's, if it still has it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from statistics import linear_regression
from typing import Final, Literal, NamedTuple, TypeGuard

from attrs import frozen

from kvoffload.judge.hints import HintsFor, RequestFuture
from kvoffload.judge.reachable import reachable
from kvoffload.judge.trend import grows
from kvoffload.judge.under_load import HASH_BYTES, UnderLoad
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import CachePolicy
from kvoffload.requests import ReqContext

SESSION_KEYS: Final = 8
"""Keys of a session's first turn; each later one finds those of the ones before, and adds half."""
TURNS: Final = 2
KEYS_OF_A_SESSION: Final = SESSION_KEYS + (TURNS - 1) * SESSION_KEYS // 2
LIVE: Final = 256
"""So many requests have begun and not finished."""
LONGEST: Final = 4
"""What seems to grow is followed for so many times as long, as it may stop."""
SAMPLES: Final = 16
NOT_YET: Final = 4
"""Bytes that may come to be held for each key or session, and are no growth: half a reference."""
_FEWEST_GHOSTS: Final = 100
"""Ghosts are told singly where they are at least a hundredth of the capacity."""
_OWN_ATTRIBUTES: Final = 1 << 4
"""The flag of classes whose instances may keep their attributes without a dict."""
REFERENCE: Final = 8
"""Bytes."""
ENTRY: Final = 40
"""Bytes of an entry of a dict or set, evenly spread: their tables grow in jumps, and rarely."""

Passing = Literal["key", "session"]


@frozen
class Full:
    """What a policy holds of an empty cache of `size` chunks, and of a full one, in bytes.

    Nothing has been evicted yet. `a_chunk`: what a resident chunk adds.
    """

    size: int
    empty: int
    full: int
    a_chunk: float


@frozen
class Churn:
    """What a policy held while ever new keys, or sessions that end, passed through a full cache.

    `passed` of them; `before` and `after` they did so many bytes were held, and at most `most` in
    the second half. `grows`: that does not come to an end, and `each` is the slope of the second
    half, in bytes for each that passed, an entry of a dict or set taken as ENTRY of them. 0.0 where
    it does not grow.
    """

    of: Passing
    size: int
    passed: int
    before: int
    after: int
    most: int
    grows: bool
    each: float


@frozen
class Ghosts:
    """What came to be held of keys that are gone: `number` of them, told by key or block hash.

    `bytes_more`: what is held after the churn of keys over what was held before it. `a_ghost` is
    that for each, and None where nothing is known by its key; `a_chunk` is it for each chunk of
    the capacity, whatever it is kept for.
    """

    size: int
    number: int
    bytes_more: int
    a_ghost: float | None
    a_chunk: float


@frozen
class Live:
    """What is held for requests that have begun and not finished: in all, and for `each`."""

    requests: int
    bytes_more: int
    each: float


def size_of(thing: object) -> int:
    """The bytes of one object, without what it refers to.

    `sys.getsizeof` leaves out attributes that lie in no dict of their own: a reference each.
    """
    kind = type(thing)
    inside = 0
    if kind.__flags__ & _OWN_ATTRIBUTES and kind.__sizeof__ is object.__sizeof__:
        inside = REFERENCE * (len(gc.get_referents(thing)) - 1)
    return sys.getsizeof(thing) + inside


def is_table(thing: object) -> TypeGuard[Sized]:
    """Whether it is a hash table of Python's."""
    return isinstance(thing, (dict, set, frozenset))


class Held(NamedTuple):
    """What is held, in bytes; `evenly` with ENTRY for each entry of a table, for a trend."""

    size: int
    evenly: int


class Watched:
    """A policy under load whose bytes are counted."""

    def __init__(
        self, policy: CachePolicy, size: int, request_keys: int, hints_for: HintsFor
    ) -> None:
        self._request_keys = request_keys
        self._hints_for = hints_for
        self._load = UnderLoad(policy, size)
        self._live: list[ReqContext] = []
        self._passed: list[OffloadKey] = []
        self._sessions = 0

    def fill(self) -> Full:
        """Fill the empty cache."""
        load, size = self._load, self._load.capacity
        empty = self.held().size
        while len(load.chunks) < size:
            self._request(min(self._request_keys, size - len(load.chunks)))
        full = self.held().size
        return Full(size, empty, full, (full - empty) / size)

    def churn(self, of: Passing, passing: int, step: Callable[[], int]) -> Churn:
        """Take steps until so many keys or sessions passed, or more if what is held may grow."""
        samples = [(0, self.held())]
        passed, growing = 0, False
        for longest in (passing, LONGEST * passing):
            while passed < longest:
                passed += step()
                if passed - samples[-1][0] >= longest / SAMPLES or passed >= longest:
                    samples.append((passed, self.held()))
            trend = [(number, held.evenly) for number, held in samples]
            growing = grows(trend, NOT_YET * passed // 2)
            if not growing:
                break
        late = [(number, held) for number, held in samples if 2 * number > passed]
        slope = linear_regression([n for n, _ in late], [held.evenly for _, held in late]).slope
        return Churn(
            of,
            self._load.capacity,
            passed,
            before=samples[0][1].size,
            after=samples[-1][1].size,
            most=max(held.size for _, held in late),
            grows=growing,
            each=slope if growing else 0.0,
        )

    def request(self) -> int:
        """A large request: half of its keys are new, the others are resident or come back."""
        load, size, number = self._load, self._load.capacity, self._request_keys
        gone = [key for key in self._passed[-2 * size :] if key not in load.chunks]
        middle = len(gone) // 2
        self._request(number // 2, load.some_idle(number // 4), gone[middle : middle + number // 4])
        return number // 2

    def session(self) -> int:
        """A session from its first turn to its last."""
        load = self._load
        prompt: list[OffloadKey] = []
        for turn in range(1, TURNS + 1):
            fresh = load.new_keys(SESSION_KEYS if turn == 1 else SESSION_KEYS // 2)
            load.serve(0, prompt, offered=fresh, hints=self._hints(turn, TURNS, len(prompt)))
            prompt += fresh
        self._sessions += 1
        return 1

    def live(self) -> Live:
        """Requests begin, load and store, and do not finish before all of them have."""
        load, half = self._load, SESSION_KEYS // 2
        before = self.held().size
        stored: list[tuple[Sequence[OffloadKey], Sequence[OffloadKey]]] = []
        for _ in range(LIVE):
            prefix, fresh = load.some_idle(half), load.new_keys(half)
            context = load.begin([*prefix, *fresh], self._hints(1, TURNS, half))
            self._live.append(context)
            stored.append((fresh if load.run(prefix, fresh, context) else (), prefix))
            self._sessions += 1
        more = self.held().size - before
        for context, (inserted, reused) in zip(self._live, stored, strict=True):
            load.finish(context, inserted, reused)
        self._live.clear()
        return Live(LIVE, more, more / LIVE)

    def ghosts(self, keys: Churn) -> Ghosts:
        """What is kept of keys that are not resident, whole or by their block hash."""
        size = self._load.capacity
        resident = {key[:HASH_BYTES] for key in self._load.chunks}
        lengths = (HASH_BYTES, len(self._passed[0]))
        held = {
            thing[:HASH_BYTES]
            for thing in self._own()
            if isinstance(thing, bytes) and len(thing) in lengths
        }
        number, more = len(held - resident), keys.after - keys.before
        each = more / number if _FEWEST_GHOSTS * number >= size else None
        return Ghosts(size, number, more, each, more / size)

    def held(self) -> Held:
        """What the policy holds."""
        total = evenly = 0
        for thing in self._own():
            size = size_of(thing)
            total += size
            evenly += ENTRY * len(thing) if is_table(thing) else size
        return Held(total, evenly)

    def _own(self) -> Iterator[object]:
        """All that the policy holds and its host does not have anyway."""
        load, front = self._load, self._load.front
        of_host: list[object] = [*load.chunks, *load.chunks.values()]
        of_host += () if front is None else front.host_objects()
        of_requests = [one for context in self._live for one in _made_by_host(context)]
        known = set(map(id, of_requests))
        # A key that is gone is a ghost all the same while a request has it.
        of_host += [one for one in of_requests if not isinstance(one, bytes)]
        # What a policy keeps in a context is its own, and goes when that goes.
        kept = [
            one
            for thing in of_requests
            if isinstance(thing, dict)
            for one in gc.get_referents(thing)
            if id(one) not in known
        ]
        root = load.policy if front is None else front.policy
        return reachable(root, *kept, beside=of_host)

    def _request(
        self,
        new: int,
        reused: Sequence[OffloadKey] = (),
        returning: Sequence[OffloadKey] = (),
    ) -> None:
        """A session of one request."""
        keys = self._load.new_keys(new)
        self._passed += keys
        hints = self._hints(1, 1, len(reused))
        self._load.serve(0, reused, offered=[*keys, *returning], hints=hints)
        self._sessions += 1

    def _hints(self, turn: int, turns: int, found: int) -> Mapping[str, object] | None:
        future = RequestFuture(
            request=self._load.requests,
            session_id=f"session-{self._sessions}",
            turn=turn,
            turns_left=turns - turn,
            expected_gap=1.0 if turn < turns else None,
            reused_blocks=found,
        )
        return self._hints_for(future)


def _made_by_host(context: ReqContext) -> Iterator[object]:
    """What a host made for a request: the context, what it knows, and what its client sent."""
    yield context
    yield from gc.get_referents(context)
    yield from chain.from_iterable(context.offload_key_positions.items())
    yield from reachable(context.kv_transfer_params)
