"""Random traffic for two managers side by side: a scheduler with habits, and sometimes a mistake.

Every program has its own mixture: how many requests live at once, whether keys have positions and
tie in them, how often stores fail, whether anybody drains events. What comes next is drawn from
what the books say is possible, so that few calls come to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from attrs import frozen

from kvoffload import LookupResult, OffloadKey, TierFilter, make_offload_key
from stateful_models import operations as op
from stateful_models.engines.manager_drawing import ELSEWHERE, SHORT
from stateful_models.manager_hosting import InFlight, ManagerHost
from stateful_models.programs import HostOperation, ManagerSettings
from stateful_models.steps import Step, Stored
from stateful_models.vllm.pair import FORGET, UNREAD

CAPACITIES: Final = (*range(1, 13), 0, 3, 4, 5)
LARGE: Final = 64
THRESHOLDS: Final = (1, 1, 1, 1, 0, 2, 2, 3)
TRACKERS: Final = (None, None, 1, 3, 8)
TOKENS: Final = 16


@frozen
class Habits:
    """What a program is like."""

    capacity: int
    num_keys: int
    num_groups: int
    live: int
    positions: int
    offer: int
    failing: float
    touching: bool
    resetting: bool
    draining: bool
    erring: float
    length: int

    @classmethod
    def draw(cls, chance: Random, settings: ManagerSettings) -> Habits:
        """Habits for managers of these settings."""
        large = chance.random() < 0.02
        draining = chance.random() < (0.5 if large else 0.8)
        # Where a long backlog was cut short before a reset dropped it, nothing could be compared.
        lengths = (30, 60, 120, 250) if draining else (30, 60, 120)
        return cls(
            capacity=LARGE if large else chance.choice(CAPACITIES),
            num_keys=200 if large else chance.choice((6, 10, 16, 20)),
            num_groups=chance.choice((1, 1, 2, 3)),
            live=chance.randint(1, 6),
            positions=chance.choice((0, 1, 1, 1, 2, 3)),
            offer=40 if large else chance.choice((2, 4, 6, 10)),
            failing=chance.choice((0.0, 0.1, 0.4)),
            touching=chance.random() < 0.4,
            resetting=not large and chance.random() < 0.3,
            draining=draining,
            erring=0.0 if large else chance.choice((0.0, 0.02)),
            length=2_000 if large else chance.choice(lengths),
        )


def draw_settings(chance: Random, policy: str | None, *, tapped: bool) -> ManagerSettings:
    """How the two managers are built."""
    threshold = chance.choice(THRESHOLDS)
    return ManagerSettings(
        policy=policy,
        store_threshold=threshold,
        max_tracker_size=chance.choice(TRACKERS) if threshold >= 2 else None,
        enable_events=chance.random() < 0.9,
        tapped=tapped,
    )


class Traffic:
    """A scheduler that calls managers through `host`, whose `account` are its books.

    `going` tells whether there is any point in going on.
    """

    def __init__(
        self,
        chance: Random,
        host: ManagerHost,
        habits: Habits,
        settings: ManagerSettings,
        going: Callable[[], bool],
    ) -> None:
        self._chance = chance
        self._host = host
        self._account = host.account
        self._habits = habits
        self._settings = settings
        self._going = going
        self._keys = tuple(
            make_offload_key(b"k%03d" % number, number % habits.num_groups)
            for number in range(habits.num_keys)
        )
        self._requests: list[op.RequestId] = []
        self._named = 0
        self._attempt = 0
        self._seen: dict[op.RequestId, dict[OffloadKey, None]] = {}
        self._moves = self._mixture()

    def play(self) -> None:
        """Go on until the program is as long as it is to be, or over."""
        moves, weights = zip(*self._moves, strict=True)
        for move in self._chance.choices(moves, weights, k=self._habits.length):
            move()
            if not self._going():
                return

    def drain(self) -> None:
        """End everything that is in flight, then push all out key by key."""
        for one in tuple(self._host.open):
            self._completed(one, one.keys_left, success=True)
        for number in range(self._habits.capacity):
            for _ in range(max(1, self._settings.store_threshold)):
                if not self._going():
                    return
                self._offer("last", (make_offload_key(b"new%d" % number, 0),))
        self._take_events()
        self._do(op.GetStats())

    def _mixture(self) -> list[tuple[Callable[[], object], float]]:
        habits = self._habits
        moves: list[tuple[Callable[[], object], float]] = [
            (self._offer_some, 26),
            (self._complete, 20),
            (self._load, 14),
            (self._release, 14),
            (self._lookup, 3),
            (self._finish, 7),
            (self._forget, 2),
            (self._arrive, 3),
            (self._move_positions, 1),
            (self._take_events, 3 if habits.draining else 0),
            (lambda: self._do(op.GetStats()), 3),
            (lambda: self._do(op.ScheduleEnd(tuple(self._requests[-1:]))), 0.5),
            (self._touch, 5 if habits.touching else 0),
            (self._reset, 1 if habits.resetting else 0),
        ]
        for mistake in (
            self._load_anything,
            self._release_anything,
            self._complete_late,
            self._offer_twice,
            self._offer_after_finish,
            self._name_no_key,
            self._leave_unread,
        ):
            moves.append((mistake, 100 * habits.erring / 7))
        return moves

    def _do(self, operation: HostOperation) -> Step | None:
        return self._host.play(operation) if self._going() else None

    def _next_attempt(self) -> op.Attempt:
        self._attempt += 1
        return self._attempt

    # Requests

    def _arrive(self) -> op.RequestId:
        chance, habits = self._chance, self._habits
        self._named += 1
        request = f"r{self._named}"
        self._requests.append(request)
        if len(self._requests) > habits.live:
            self._drop(self._requests[0])
        if chance.random() < 0.7:
            tiers = ELSEWHERE if chance.random() < 0.1 else TierFilter.ALL
            self._do(op.NewRequest(request, load_tier_filter=tiers))
        ends = [(key, end) for n, key in enumerate(self._keys) if (end := self._end(n)) is not None]
        if ends:
            self._do(op.SetPositions(request, tuple(ends)))
        return request

    def _end(self, number: int) -> int | None:
        """Where a key ends: nowhere, tied with those of other groups, with any, or perhaps."""
        match self._habits.positions:
            case 1:
                return TOKENS * (number // self._habits.num_groups + 1)
            case 2:
                return TOKENS * self._chance.randrange(4)
            case 3:
                return TOKENS * (number + 1) if self._chance.random() < 0.6 else None
            case _:
                return None

    def _move_positions(self) -> None:
        if self._habits.positions:
            key, end = self._chance.choice(self._keys), TOKENS * self._chance.randrange(6)
            self._do(op.SetPositions(self._request(), ((key, end),)))

    def _request(self) -> op.RequestId:
        if not self._requests:
            return self._arrive()
        request = self._chance.choice(self._requests)
        if self._host.finished(request) and self._chance.random() < 0.6:
            request = self._chance.choice(self._requests)
        return request

    def _finish(self) -> None:
        request = self._request()
        self._do(op.FinishRequest(request))
        if self._chance.random() < 0.4:
            self._drop(request)

    def _forget(self) -> None:
        if self._requests:
            self._drop(self._chance.choice(self._requests))

    def _drop(self, request: op.RequestId) -> None:
        """Let go of a request's context, whatever it still has in flight."""
        self._requests.remove(request)
        self._seen.pop(request, None)
        self._do(op.HostEvent(FORGET, (request,)))

    # Offers

    def _offer_some(self) -> None:
        chance, habits = self._chance, self._habits
        request = self._request()
        if self._host.finished(request):
            # A finished request may offer again what it has seen.
            offered = self._some(list(self._seen.get(request, ())), habits.offer)
        elif chance.random() < 0.6:
            offered = self._stretch()
        else:
            offered = self._some(self._keys, habits.offer)
        if offered or chance.random() < 0.05:
            self._offer(request, offered)

    def _offer(self, request: op.RequestId, offered: Sequence[OffloadKey]) -> None:
        resident = self._account.resident
        seen = [key for key in offered if key in resident and not resident[key].pending]
        step = self._do(op.PrepareStore(request, tuple(offered), self._next_attempt()))
        if step is not None and isinstance(step.result, Stored):
            self._sees(request, [*seen, *step.result.keys])

    def _sees(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        self._seen.setdefault(request, {}).update(dict.fromkeys(keys))

    def _stretch(self) -> list[OffloadKey]:
        """Keys that follow each other, as those of a prompt do."""
        chance, keys = self._chance, self._keys
        start, length = chance.randrange(len(keys)), chance.randint(1, self._habits.offer)
        chosen = [keys[(start + n) % len(keys)] for n in range(min(length, len(keys)))]
        if chance.random() < 0.3:
            chance.shuffle(chosen)
        return chosen

    def _some(self, among: Sequence[OffloadKey], most: int) -> list[OffloadKey]:
        if not among:
            return []
        return self._chance.sample(among, self._chance.randint(1, min(most, len(among))))

    def _complete(self) -> None:
        """A store that is in flight ends, or any keys that are pending."""
        chance = self._chance
        stores = [one for one in self._host.open if one.stores]
        success = chance.random() >= self._habits.failing
        if stores and chance.random() < 0.6:
            one = chance.choice(stores)
            keys = one.keys_left
            if chance.random() < 0.3:
                keys = tuple(self._some(keys, len(keys)))
            self._completed(one, keys, success=success)
            return
        pending = [key for key, entry in self._account.resident.items() if entry.pending]
        if not pending:
            return
        named = self._some(pending, len(pending)) if chance.random() < 0.7 else pending
        if chance.random() < 0.15:
            # Of keys that are not pending nobody takes notice.
            named += self._some(self._keys, 3)
        self._do(op.CompleteStore(self._request(), tuple(named), success))

    def _completed(self, one: InFlight, keys: tuple[OffloadKey, ...], *, success: bool) -> None:
        attempt = one.attempt if self._chance.random() < 0.7 else None
        if one.stores:
            self._do(op.CompleteStore(one.request, keys, success, attempt))
        else:
            self._do(op.CompleteLoad(one.request, keys, attempt))

    # Loads

    def _load(self) -> None:
        chance = self._chance
        request = self._request()
        ready = self._host.ready
        if self._host.finished(request):
            ready = [key for key in ready if key in self._seen.get(request, ())]
        chosen = self._some(ready, 6)
        if chance.random() < 0.6:
            chosen.sort()
        if chosen and chance.random() < 0.15:
            chosen.append(chance.choice(chosen))
        if not chosen and chance.random() < 0.95:
            return
        internal = chance.random() < 0.1
        attempt = self._next_attempt()
        self._do(op.PrepareLoad(request, tuple(chosen), attempt, internal=internal))
        if not internal:
            self._sees(request, chosen)

    def _release(self) -> None:
        chance = self._chance
        loads = [one for one in self._host.open if not one.stores]
        if loads and chance.random() < 0.5:
            one = chance.choice(loads)
            keys = one.keys_left
            if chance.random() < 0.2:
                keys = tuple(self._some(keys, len(keys)))
            self._completed(one, keys, success=True)
            return
        pins = [
            key for key, entry in self._account.resident.items() for _ in range(len(entry.loaders))
        ]
        if pins:
            self._do(op.CompleteLoad(self._request(), tuple(self._some(pins, len(pins)))))

    # The rest

    def _lookup(self) -> None:
        step = self._do(op.Lookup(self._request(), self._chance.choice(self._keys)))
        if step is not None and step.result is LookupResult.HIT and self._chance.random() < 0.3:
            self._load()

    def _touch(self) -> None:
        self._do(op.Touch(self._request(), tuple(self._some(self._keys, 6))))

    def _take_events(self) -> None:
        first = self._habits.erring and self._chance.random() < 0.1
        self._do(op.TakeFirstEvent() if first else op.TakeEvents())

    def _reset(self) -> None:
        if self._chance.random() < 0.4:
            self._do(op.TakeEvents())
        self._do(op.Reset())
        self._seen.clear()
        if self._chance.random() < 0.5:
            self._do(op.ResetFlushed())

    # Mistakes

    def _load_anything(self) -> None:
        self._do(
            op.PrepareLoad(self._request(), tuple(self._some(self._keys, 4)), self._next_attempt())
        )

    def _release_anything(self) -> None:
        pinned = [key for key in self._account.resident if self._account.pins(key)]
        named = self._some(pinned, 2) + self._some(self._keys, 2)
        self._do(op.CompleteLoad(self._request(), tuple(named)))

    def _complete_late(self) -> None:
        if self._host.past:
            self._completed(self._chance.choice(self._host.past), self._named_late(), success=True)

    def _named_late(self) -> tuple[OffloadKey, ...]:
        one = self._chance.choice(self._host.past)
        return tuple(dict.fromkeys(one.began_with)) or tuple(self._some(self._keys, 2))

    def _offer_twice(self) -> None:
        request, offered = self._request(), self._stretch()
        # One mistake at a time, so that each can be told.
        if not self._host.finished(request):
            again = self._some(offered, 2)
            self._do(op.PrepareStore(request, (*offered, *again), self._next_attempt()))

    def _offer_after_finish(self) -> None:
        over = [request for request in self._requests if self._host.finished(request)]
        if over:
            request = self._chance.choice(over)
            named = tuple(self._some(self._keys, 3))
            ready = tuple(self._some(self._host.ready, 2))
            if ready and self._chance.random() < 0.6:
                self._do(op.PrepareLoad(request, ready, self._next_attempt()))
            else:
                self._do(op.PrepareStore(request, named, self._next_attempt()))

    def _name_no_key(self) -> None:
        request, some = self._request(), self._some(self._keys, 2)
        calls: tuple[HostOperation, ...] = (
            op.Lookup(request, SHORT),
            op.Touch(request, (SHORT, *some)),
            op.PrepareStore(request, (*some, SHORT), self._next_attempt()),
            op.PrepareLoad(request, (SHORT,), self._next_attempt()),
            op.CompleteStore(request, (*some, SHORT)),
        )
        self._do(self._chance.choice(calls))

    def _leave_unread(self) -> None:
        if self._chance.random() < 0.3:
            self._do(op.HostEvent(UNREAD))
