"""Drawing programs: a scheduler that does anything its host could do, in proportions of its own.

Every program has its own mixture of operations, and leaves some out altogether (A. Groce et al.,
"Swarm Testing", 2012): what is always there hides what happens without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, Generic, TypeAlias, TypeVar

from kvoffload import CachePolicy, OffloadKey
from stateful_models import operations as op
from stateful_models.engines.runs import PolicyRun
from stateful_models.programs import HostOperation, keys

P = TypeVar("P", bound=CachePolicy)

Hints: TypeAlias = "Mapping[str, object] | None"
"""The `kv_transfer_params` of a request."""

UNIVERSE: Final[tuple[OffloadKey, ...]] = keys(
    "a b c d e f a/1 b/1 g h i j k l m n c/1 o p q r s t u v w x y z"
)
"""The keys of programs, of two groups; a program uses the first few."""

CAPACITIES: Final = (3, 2, 4, 5, 1, 6, 8, 12)
LIVE_REQUESTS: Final = 3
CROWD: Final = 5
"""As many requests are alive at once where many are."""
MAX_OFFER: Final = 5


class Scheduler(Generic[P]):
    """Plays operations that `chance` draws on a run, watching what the host's books say.

    `hints` are what requests carry, `events` the extra calls of the host, `durations` those by
    which time passes. With `churn` there are far more keys than chunks, which come one by one and
    come back: what a policy remembers of those that have gone then decides. With `crowded` as many
    requests as the crowd has are alive at once, each with the next of the `hints` and with chunks
    of its own: what a policy keeps for each then decides.
    """

    def __init__(
        self,
        chance: Random,
        run: PolicyRun[P],
        *,
        hints: Sequence[Hints] = (None,),
        events: Sequence[op.HostEvent] = (),
        durations: Sequence[float] = (),
        churn: bool = False,
        crowded: bool = False,
    ) -> None:
        self._chance = chance
        self._run = run
        self._host = run.host
        capacity = self._host.capacity
        spare = chance.choice((3, 6, 12) if churn else (2, 3, 4, 8))
        self._universe = UNIVERSE[: min(len(UNIVERSE), capacity + spare)]
        self._hints = hints
        self._events = events
        self._durations = durations
        self._requests = [f"r{number}" for number in range(CROWD if crowded else LIVE_REQUESTS)]
        self._crowded = crowded
        self._named = 0
        self._announced: set[op.RequestId] = set()
        if crowded:
            self._moves = self._crowd()
        else:
            self._moves = self._churn() if churn else self._mixture()

    def play(self, length: int) -> None:
        """Play `length` operations, then end everything that is in flight, and evict all."""
        for _ in range(length):
            if not self._chance.choice(self._moves)():
                return
        self._drain()

    def _mixture(self) -> list[Callable[[], bool]]:
        moves: list[tuple[Callable[[], bool], int, bool]] = [
            # The move, its usual weight, and whether a mixture may lack it.
            (self._offer, 6, False),
            (self._offer_new, 6, False),
            (self._offer_in_vain, 3, True),
            (self._complete, 8, False),
            (self._load, 5, True),
            (self._release, 5, False),
            (self._touch, 2, True),
            (self._finish, 4, True),
            (self._lookup, 1, True),
            (self._settle, 2, True),
            (self._reset, 1, True),
        ]
        if self._durations:
            moves.append((self._advance, 3, True))
        if self._events:
            moves.append((self._event, 4, True))
        mixture: list[Callable[[], bool]] = []
        lacking = self._chance.getrandbits(len(moves))
        for place, (move, weight, optional) in enumerate(moves):
            if not (optional and lacking >> place & 1):
                mixture += [move] * weight
        return mixture

    def _churn(self) -> list[Callable[[], bool]]:
        return [
            *[self._store_one] * 12,
            *[self._settle] * 3,
            *[self._reuse] * 4,
            *[self._touch, self._load, self._release],
            *[self._finish] * 2,
        ]

    def _crowd(self) -> list[Callable[[], bool]]:
        return [
            *[self._store_one] * 10,
            *[self._settle, self._touch, self._load, self._release],
            *[self._reuse] * self._chance.choice((0, 2)),
            *[self._finish] * self._chance.choice((0, 1, 2)),
            *([self._event] * self._chance.choice((1, 2)) if self._events else ()),
            *([self._advance] if self._durations else ()),
        ]

    def _store_one(self) -> bool:
        """Store a key that is not resident, and be done with it."""
        new = [key for key in self._universe if key not in self._host.ref_cnt]
        if not new:
            return True
        key = self._chance.choice(new)
        if not self._do(op.PrepareStore(self._request(), (key,))):
            return False
        return self._do(op.CompleteStore(self._requests[0], (key,)))

    def _reuse(self) -> bool:
        """A request that loads one chunk and ends."""
        if not self._host.ready:
            return True
        request, key = self._request(), self._chance.choice(self._host.ready)
        return (
            self._do(op.PrepareLoad(request, (key,)))
            and self._do(op.CompleteLoad(request, (key,)))
            and self._do(op.FinishRequest(request))
        )

    def _do(self, operation: HostOperation) -> bool:
        return self._run.play(operation, self._universe)

    def _request(self) -> op.RequestId:
        slot = self._chance.randrange(len(self._requests))
        request = self._requests[slot]
        if self._host.finished(request):
            self._named += 1
            request = self._requests[slot] = f"r{slot}.{self._named}"
        if request not in self._announced:
            hints = self._next_hints()
            self._announced.add(request)
            self._do(op.NewRequest(request, hints))
            known = self._chance.choice((0, 1, 1, 2))
            if known:
                places = [(key, 16 * (1 + n)) for n, key in enumerate(self._universe)]
                self._do(op.SetPositions(request, tuple(places[::known])))
        return request

    def _next_hints(self) -> Hints:
        if self._crowded:
            return self._hints[len(self._announced) % len(self._hints)]
        return self._chance.choice(self._hints)

    def _some(self, among: Sequence[OffloadKey], most: int) -> tuple[OffloadKey, ...]:
        if not among:
            return ()
        number = self._chance.randint(1, min(most, len(among)))
        return tuple(self._chance.sample(among, number))

    def _offer(self) -> bool:
        return self._do(op.PrepareStore(self._request(), self._some(self._universe, MAX_OFFER)))

    def _offer_new(self) -> bool:
        """Keys that are not resident, for which there is likely to be room."""
        host = self._host
        request = self._request()
        room = max(1, host.state.free + len(host.idle))
        new = [key for key in self._universe if key not in host.ref_cnt]
        chosen = self._some(new, min(room, MAX_OFFER))
        return self._do(op.PrepareStore(request, chosen)) if chosen else True

    def _offer_in_vain(self) -> bool:
        """Enough chunks are idle, but so many of them in the offer that evicting must fail."""
        host, chance = self._host, self._chance
        idle, free = host.idle, host.state.free
        new = [key for key in self._universe if key not in host.ref_cnt]
        most = min(len(idle), len(new) - free)
        if most < 1:
            return self._offer_new()
        lacking = chance.randint(1, most)
        offer = chance.sample(new, free + lacking) + chance.sample(idle, len(idle) - lacking + 1)
        chance.shuffle(offer)
        return self._do(op.PrepareStore(self._request(), tuple(offer)))

    def _complete(self) -> bool:
        pending = self._host.pending
        if not pending:
            return self._offer_new()
        chosen = self._some(pending, len(pending))
        success = self._chance.random() < 0.75
        return self._do(op.CompleteStore(self._requests[0], chosen, success))

    def _load(self) -> bool:
        request = self._request()
        ready = self._host.ready
        chosen = self._some(ready, 3)
        return self._do(op.PrepareLoad(request, chosen)) if chosen else True

    def _release(self) -> bool:
        pinned = list(dict.fromkeys(self._host.pinned))
        if not pinned:
            return True
        return self._do(op.CompleteLoad(self._requests[0], self._some(pinned, len(pinned))))

    def _touch(self) -> bool:
        # Now and then nothing at all, which a host may pass on as well.
        some = self._some(self._universe, MAX_OFFER) if self._chance.random() < 0.9 else ()
        return self._do(op.Touch(self._request(), some))

    def _lookup(self) -> bool:
        key = self._chance.choice(self._universe)
        return self._do(op.Lookup(self._request(), key))

    def _finish(self) -> bool:
        return self._do(op.FinishRequest(self._request()))

    def _settle(self) -> bool:
        """Everything in flight ends well."""
        host = self._host
        if host.pending and not self._do(op.CompleteStore(self._requests[0], tuple(host.pending))):
            return False
        return not host.pinned or self._do(op.CompleteLoad(self._requests[0], tuple(host.pinned)))

    def _reset(self) -> bool:
        if self._chance.randrange(3) or len(self._run.played) < 5:
            return True
        return self._do(op.Reset())

    def _advance(self) -> bool:
        return self._do(op.AdvanceClock(self._chance.choice(self._durations)))

    def _event(self) -> bool:
        return self._do(self._chance.choice(self._events))

    def _drain(self) -> None:
        """End what is in flight, then offer as many new keys as there are chunks; one by one in a
        crowd, for then it shows in which order they go."""
        if not self._settle():
            return
        capacity = self._host.capacity
        fresh = keys(" ".join(f"new{number}" for number in range(capacity)))
        for some in [(key,) for key in fresh] if self._crowded else [fresh]:
            if not self._run.play(op.PrepareStore("last", some), (*self._universe, *fresh)):
                return
