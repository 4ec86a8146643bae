"""Drawing programs for managers: a scheduler in whose traffic requests share prefixes.

As in `drawing`, every program has its own mixture of operations, and leaves some out altogether.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from kvoffload import LookupResult, Medium, OffloadingManager, OffloadKey, TierFilter, TierMatcher
from stateful_models import operations as op
from stateful_models.engines.drawing import LIVE_REQUESTS, MAX_OFFER, UNIVERSE, Hints
from stateful_models.engines.manager_runs import ManagerRun
from stateful_models.manager_hosting import InFlight
from stateful_models.programs import HostOperation, ManagerSettings, keys

M = TypeVar("M", bound=OffloadingManager)

MANAGER_CAPACITIES: Final = (3, 2, 4, 5, 1, 6, 8, 12, 0)
THRESHOLDS: Final = (1, 1, 1, 2, 2, 0, 3)
SMALL_TRACKERS: Final = (None, None, None, 3, 1)
ELSEWHERE: Final = TierFilter(matchers=(TierMatcher(Medium.STORAGE),))
"""The filter of a request that wants nothing from this tier."""
SHORT: Final = OffloadKey(b"abcd")
"""No key, since it has a group and no hash."""

Move = Callable[[], bool]


class ManagerScheduler(Generic[M]):
    """Plays operations that `chance` draws on a run, watching what the host's books say.

    `hints` are what requests carry, `events` the extra calls of the host, `durations` those by
    which time passes. Attempts are numbered from `first_attempt` on.
    """

    def __init__(
        self,
        chance: Random,
        run: ManagerRun[M],
        *,
        hints: Sequence[Hints] = (None,),
        events: Sequence[op.HostEvent] = (),
        durations: Sequence[float] = (),
        first_attempt: op.Attempt = 1,
    ) -> None:
        self._chance = chance
        self._run = run
        self._host = run.host
        spare = chance.choice((2, 3, 4, 8))
        self._universe = UNIVERSE[: min(len(UNIVERSE), run.capacity + spare)]
        self._prompts = self._draw_prompts()
        self._hints = hints
        self._events = events
        self._durations = durations
        self._requests = [f"r{number}" for number in range(LIVE_REQUESTS)]
        self._over: list[op.RequestId] = []
        self._named = 0
        self._announced: set[op.RequestId] = set()
        self._attempt = first_attempt
        self._moves = self._mixture()

    def play(self, length: int) -> bool:
        """Play `length` moves; whether the run goes on."""
        return all(self._chance.choice(self._moves)() for _ in range(length))

    def drain(self) -> bool:
        """End everything that is in flight, then offer as many new keys as there are chunks."""
        if not self.settle():
            return False
        fresh = keys(" ".join(f"new{number}" for number in range(self._run.capacity)))
        return not fresh or self._offer_keys("last", fresh, insist=True)

    def settle(self) -> bool:
        """Everything in flight ends well."""
        return all(
            self._completed(one, one.keys_left, success=True) for one in tuple(self._host.open)
        )

    def _draw_prompts(self) -> list[tuple[OffloadKey, ...]]:
        """Prompts that share a head, and go on with keys of their own."""
        head = self._chance.randrange(3)
        rest = self._universe[head:]
        third = max(1, len(rest) // 3)
        tails = [rest[place : place + third] for place in range(0, len(rest), third)]
        return [self._universe[:head] + tail for tail in tails] or [self._universe]

    def _mixture(self) -> list[Move]:
        moves: list[tuple[Move, int, bool]] = [
            # The move, its usual weight, and whether a mixture may lack it.
            (self._serve, 6, True),
            (self._offer, 4, False),
            (self._offer_new, 5, False),
            (self._complete, 8, False),
            (self._complete_part, 2, True),
            (self._load, 6, True),
            (self._release, 4, False),
            (self._touch, 2, True),
            (self._finish, 4, True),
            (self._lookup, 1, True),
            (self.settle, 1, True),
            (self._reset, 3, True),
            (self._take_events, 2, True),
            (self._get_stats, 2, True),
            (self._end_step, 1, True),
        ]
        if self._run.settings.mistakes:
            moves += [
                (self._load_anything, 2, True),
                (self._release_anything, 2, True),
                (self._complete_late, 4, True),
                (self._complete_unknown, 1, True),
                (self._complete_wrongly, 2, True),
                (self._offer_after_finish, 2, True),
                (self._short_key, 2, True),
                (self._look_closely, 2, True),
            ]
        if self._durations:
            moves.append((self._advance, 3, True))
        if self._events:
            moves.append((self._event, 4, True))
        mixture: list[Move] = []
        lacking = self._chance.getrandbits(len(moves))
        for place, (move, weight, optional) in enumerate(moves):
            if not (optional and lacking >> place & 1):
                mixture += [move] * weight
        return mixture

    def _do(self, operation: HostOperation) -> bool:
        return self._run.play(operation)

    def _next_attempt(self) -> op.Attempt:
        self._attempt += 1
        return self._attempt - 1

    def _request(self) -> op.RequestId:
        slot = self._chance.randrange(LIVE_REQUESTS)
        request = self._requests[slot]
        if self._host.finished(request):
            self._named += 1
            self._over = [*self._over, request][-4:]
            request = self._requests[slot] = f"r{slot}.{self._named}"
        if request not in self._announced:
            self._announced.add(request)
            self._introduce(request)
        return request

    def _introduce(self, request: op.RequestId) -> None:
        chance = self._chance
        # Announcing a request is optional.
        if chance.random() < 0.7:
            wanted = ELSEWHERE if chance.random() < 0.2 else TierFilter.ALL
            hints = chance.choice(self._hints)
            self._do(op.NewRequest(request, hints, load_tier_filter=wanted))
        known = chance.choice((0, 1, 1, 2))
        if known:
            places = [(key, 16 * (1 + n)) for n, key in enumerate(self._universe)]
            self._do(op.SetPositions(request, tuple(places[::known])))

    def _some(self, among: Sequence[OffloadKey], most: int) -> tuple[OffloadKey, ...]:
        if not among:
            return ()
        number = self._chance.randint(1, min(most, len(among)))
        return tuple(self._chance.sample(among, number))

    # Moves of a host that makes no mistakes

    def _serve(self) -> bool:
        """A request loads the prefix that is ready, and offers the rest or all of it."""
        request = self._request()
        prompt = self._chance.choice(self._prompts)
        ready = 0
        for key in prompt:
            if not self._do(op.Lookup(request, key)):
                return False
            if self._run.played[-1].steps[0].result is not LookupResult.HIT:
                break
            ready += 1
        if ready and not self._load_keys(request, prompt[:ready]):
            return False
        offered = prompt if self._chance.random() < 0.4 else prompt[ready:]
        return not offered or self._offer_keys(request, offered)

    def _offer(self) -> bool:
        return self._offer_keys(self._request(), self._some(self._universe, MAX_OFFER))

    def _offer_new(self) -> bool:
        """Keys that are not resident, for which there is likely to be room."""
        request = self._request()
        account = self._host.account
        room = max(1, (account.free or 0) + account.idle)
        new = [key for key in self._universe if key not in account.resident]
        chosen = self._some(new, min(room, MAX_OFFER))
        return not chosen or self._offer_keys(request, chosen)

    def _offer_keys(
        self, request: op.RequestId, offered: tuple[OffloadKey, ...], *, insist: bool = False
    ) -> bool:
        """Offer keys, and usually as often as it takes to be admitted."""
        if self._run.settings.mistakes and self._chance.random() < 0.1:
            offered = (*offered, *self._some(offered, 2))
        times = max(1, self._run.settings.store_threshold)
        if not insist and self._chance.random() < 0.3:
            times = 1
        return all(
            self._do(op.PrepareStore(request, offered, self._next_attempt())) for _ in range(times)
        )

    def _load(self) -> bool:
        request = self._request()
        chosen = self._some(self._host.ready, 3)
        return not chosen or self._load_keys(request, chosen)

    def _load_keys(self, request: op.RequestId, chosen: tuple[OffloadKey, ...]) -> bool:
        chance = self._chance
        if chance.random() < 0.1:
            chosen = (*chosen, chosen[0])
        internal = chance.random() < 0.1
        return self._do(op.PrepareLoad(request, chosen, self._next_attempt(), internal=internal))

    def _in_flight(self, *, stores: bool) -> InFlight | None:
        found = [one for one in self._host.open if one.stores == stores]
        return self._chance.choice(found) if found else None

    def _completed(
        self, one: InFlight, done: tuple[OffloadKey, ...], *, success: bool, named: bool = True
    ) -> bool:
        attempt = one.attempt if named else None
        if one.stores:
            return self._do(op.CompleteStore(one.request, done, success, attempt))
        return self._do(op.CompleteLoad(one.request, done, attempt))

    def _complete(self) -> bool:
        one = self._in_flight(stores=True)
        if one is None:
            return self._offer_new()
        return self._completed(one, one.keys_left, success=self._chance.random() < 0.75)

    def _complete_part(self) -> bool:
        """Some of the keys of a transfer, in any order, perhaps without its name."""
        if not self._host.open:
            return True
        one = self._chance.choice(self._host.open)
        done = self._some(one.keys_left, len(one.keys_left))
        success, named = self._chance.random() < 0.75, self._chance.random() < 0.7
        return self._completed(one, done, success=success, named=named)

    def _release(self) -> bool:
        one = self._in_flight(stores=False)
        return one is None or self._completed(one, one.keys_left, success=True)

    def _touch(self) -> bool:
        return self._do(op.Touch(self._request(), self._some(self._universe, MAX_OFFER)))

    def _lookup(self) -> bool:
        return self._do(op.Lookup(self._request(), self._chance.choice(self._universe)))

    def _finish(self) -> bool:
        return self._do(op.FinishRequest(self._request()))

    def _reset(self) -> bool:
        """A reset, rarely enough for something to be there; sometimes its event is taken."""
        if self._chance.randrange(3) or len(self._run.played) < 5:
            return True
        if not self._do(op.Reset()):
            return False
        if self._run.settings.mistakes and self._chance.random() < 0.6:
            return self._report_old()
        return self._chance.random() < 0.5 or self._do(op.TakeEvents())

    def _take_events(self) -> bool:
        return self._do(op.TakeEvents())

    def _get_stats(self) -> bool:
        return self._do(op.GetStats())

    def _end_step(self) -> bool:
        ended = op.ScheduleEnd((self._requests[0],))
        return self._do(op.ResetFlushed() if self._chance.random() < 0.3 else ended)

    def _advance(self) -> bool:
        return self._do(op.AdvanceClock(self._chance.choice(self._durations)))

    def _event(self) -> bool:
        return self._do(self._chance.choice(self._events))

    # Mistakes, each of which a clause speaks of

    def _load_anything(self) -> bool:
        """Most of it is not ready."""
        chosen = self._some(self._universe, 3)
        loaded = self._do(op.PrepareLoad(self._request(), chosen, self._next_attempt()))
        return loaded and self._do(op.GetStats())

    def _release_anything(self) -> bool:
        """Most of it is not held."""
        return self._do(op.CompleteLoad(self._request(), self._some(self._universe, 2)))

    def _complete_late(self) -> bool:
        """A transfer that is over, or of before a reset."""
        if not self._host.past:
            return True
        one = self._chance.choice(self._host.past)
        success, named = self._chance.random() < 0.75, self._chance.random() < 0.8
        return self._completed(one, one.began_with, success=success, named=named)

    def _report_old(self) -> bool:
        """What a reset cut off is reported after the same keys came in once more."""
        if not self._host.past:
            return True
        one = self._host.past[-1]
        success = self._chance.random() < 0.75
        again = tuple(dict.fromkeys(one.began_with))
        if not self._offer_keys(self._request(), again):
            return False
        if not one.stores:
            # Of a load there is something to release only once the keys are loaded again.
            loaded = self.settle() and self._load_keys(self._request(), again)
            if not loaded:
                return False
        return self._completed(one, one.began_with, success=success)

    def _complete_unknown(self) -> bool:
        chosen = self._some(self._universe, 2)
        one = InFlight(op.NEVER_MADE, self._request(), self._chance.random() < 0.5, chosen)
        return self._completed(one, chosen, success=True)

    def _complete_wrongly(self) -> bool:
        """Other keys under the name of a transfer, or a load as a store."""
        if not self._host.open:
            return True
        one = self._chance.choice(self._host.open)
        if self._chance.random() < 0.5:
            done = (*one.keys_left[:1], *self._some(self._universe, 2))
            return self._completed(one, done, success=self._chance.random() < 0.75)
        other = InFlight(one.attempt, one.request, not one.stores, one.began_with)
        return self._completed(other, one.keys_left, success=True)

    def _offer_after_finish(self) -> bool:
        over = [*self._over, *filter(self._host.finished, self._requests)]
        if not over:
            return self._finish()
        request = self._chance.choice(over)
        chosen = self._some(self._universe, 2)
        if self._chance.random() < 0.7:
            return self._offer_keys(request, chosen)
        ready = self._some(self._host.ready, 2)
        return not ready or self._load_keys(request, ready)

    def _short_key(self) -> bool:
        """Something that is too short for a key, after some that are not."""
        request = self._request()
        named = (*self._some(self._universe, 2), SHORT)
        calls: tuple[HostOperation, ...] = (
            op.PrepareLoad(request, (*self._some(self._host.ready, 2), SHORT)),
            op.CompleteLoad(request, named),
            op.Touch(request, named),
            op.PrepareStore(request, named),
            op.CompleteStore(request, named),
        )
        return self._do(self._chance.choice(calls))

    def _look_closely(self) -> bool:
        """What a request holds, or the first event of a drain that is broken off."""
        if self._chance.random() < 0.5:
            return self._do(op.Outstanding(self._request()))
        return self._do(op.TakeFirstEvent()) and self._do(op.TakeEvents())


def draw_settings(
    chance: Random, policies: Sequence[str], *, mistakes: bool, **able: bool
) -> ManagerSettings:
    """Settings as `chance` draws them, of those that the manager is able to be built with.

    `able`: events, reuse_threshold, tracker_size and tap; whether a host may make `mistakes`.
    """
    return ManagerSettings(
        policy=chance.choice(policies) if policies else None,
        store_threshold=chance.choice(THRESHOLDS) if able.get("reuse_threshold") else 1,
        enable_events=bool(able.get("events")) and chance.random() < 0.8,
        max_tracker_size=chance.choice(SMALL_TRACKERS) if able.get("tracker_size") else None,
        tapped=bool(able.get("tap")) and chance.random() < 0.4,
        mistakes=mistakes and chance.random() < 0.6,
    )
