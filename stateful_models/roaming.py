"""A seeded host that roams: any call, in any order, with whatever it has at hand.

`Workload` serves prompts as an engine does. This one looks for the corners that an engine gets
to rarely: requests that know where their keys end, offers across prompts, one chunk pinned by
several loads, loads for the host's own use, completions in part, unnamed, of the other kind, of
somebody else's, and all of it again after a reset. Like the machines, but without Hypothesis,
so that a step costs little more than the call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from kvoffload import LookupResult, OffloadKey, make_offload_key
from stateful_models import operations as op
from stateful_models.steps import Delivered, Loaded, Stored
from stateful_models.subjects import Subject

PROMPT: Final = 6
LIVE_REQUESTS: Final = 4
KEPT_ATTEMPTS: Final = 12
CHUNK_TOKENS: Final = 16
TOO_SHORT: Final = OffloadKey(b"bad")
HINTS: Final[tuple[dict[str, object] | None, ...]] = (
    None,
    {},
    {"session_id": None, "priority": "high"},
)


@frozen
class _Attempt:
    number: op.Attempt
    request: op.RequestId
    keys: tuple[OffloadKey, ...]
    stores: bool


class Roaming:
    """Performs operations on `subject`; `prompts` shared prefixes make the universe."""

    def __init__(self, subject: Subject, *, seed: int = 0, prompts: int = 4) -> None:
        self._subject = subject
        self._random = random.Random(seed)
        self._prompts = [
            tuple(make_offload_key(b"%c%d" % (65 + prompt, n), n % 2) for n in range(PROMPT))
            for prompt in range(prompts)
        ]
        self._every = [key for prompt in self._prompts for key in prompt]
        self._ready: set[OffloadKey] = set()
        self._requests: list[op.RequestId] = []
        self._gone: list[op.RequestId] = []
        self._named = 0
        self._made = 0
        self._open: list[_Attempt] = []
        self._kept: list[_Attempt] = []
        while len(self._requests) < LIVE_REQUESTS:
            self._requests.append(self._arrive())

    def run(self, rounds: int) -> None:
        """Perform `rounds` of one to a dozen calls each."""
        chances = (
            (self._offer_prompt, 12),
            (self._offer_any, 4),
            (self._load_ready, 9),
            (self._load_prompt, 3),
            (self._complete, 14),
            (self._complete_somehow, 5),
            (self._complete_anything, 2),
            (self._touch, 3),
            (self._place_again, 2),
            (self._finish, 3),
            (self._look_around, 1.5),
            (self._observe, 4),
            (self._err, 1),
            (self._settle, 2.5),
            (self._visit, 0.4),
            (self._reset, 0.5),
        )
        actions = [action for action, _ in chances]
        for action in self._random.choices(actions, [chance for _, chance in chances], k=rounds):
            action()

    def _arrive(self) -> op.RequestId:
        """Another request; most tell where their keys end, and hardly any announces itself."""
        chance = self._random
        request = f"r{self._named}"
        self._named += 1
        if chance.random() < 0.3:
            self._subject.perform(op.NewRequest(request, chance.choice(HINTS)))
        self._place(request, chance.choice((0.0, 0.5, 1.0, 1.0)))
        return request

    def _place(self, request: op.RequestId, share: float) -> None:
        chance = self._random
        shift = chance.choice((1, 1, 2))
        known = tuple(
            (key, CHUNK_TOKENS * (shift + n % PROMPT))
            for n, key in enumerate(self._every)
            if chance.random() < share
        )
        if known:
            self._subject.perform(op.SetPositions(request, known))

    def _place_again(self) -> None:
        """A request learns more, and some of it anew."""
        self._place(self._request(), 0.4)

    def _request(self) -> op.RequestId:
        return self._random.choice(self._requests)

    def _any_keys(self, most: int = 5) -> tuple[OffloadKey, ...]:
        return tuple(self._random.choices(self._every, k=self._random.randint(0, most)))

    def _offer_prompt(self) -> None:
        chance = self._random
        prompt = chance.choice(self._prompts)
        first = chance.choice((0, 0, 0, 1, 3))
        self._offer(self._request(), prompt[first : chance.randint(first, PROMPT)])

    def _offer_any(self) -> None:
        self._offer(self._request(), self._any_keys())

    def _offer(self, request: op.RequestId, keys: tuple[OffloadKey, ...]) -> None:
        self._made += 1
        result = self._subject.perform(op.PrepareStore(request, keys, self._made)).result
        if isinstance(result, Stored):
            self._ready.difference_update(result.evicted)
            self._keep(_Attempt(self._made, request, result.keys, True))

    def _load_ready(self) -> None:
        """Keys that are ready as far as is known, some of them twice."""
        chance = self._random
        ready = sorted(self._ready)
        keys = tuple(chance.choices(ready, k=chance.randint(1, 4))) if ready else ()
        self._load(self._request(), keys, internal=chance.random() < 0.2)

    def _load_prompt(self) -> None:
        """The part of a prompt up to the first key that is not ready, or one key further."""
        chance = self._random
        prompt = chance.choice(self._prompts)
        known = next((n for n, key in enumerate(prompt) if key not in self._ready), PROMPT)
        self._load(self._request(), prompt[: known + (chance.random() < 0.2)])

    def _load(
        self, request: op.RequestId, keys: tuple[OffloadKey, ...], *, internal: bool = False
    ) -> None:
        self._made += 1
        load = op.PrepareLoad(request, keys, self._made, internal=internal)
        if isinstance(self._subject.perform(load).result, Loaded):
            self._keep(_Attempt(self._made, request, keys, False))

    def _keep(self, attempt: _Attempt) -> None:
        self._open.append(attempt)
        self._kept = [*self._kept, attempt][-KEPT_ATTEMPTS:]

    def _complete(self) -> None:
        """An attempt ends, the oldest or another, in one go or in two."""
        if not self._open:
            return
        chance = self._random
        attempt = self._open.pop(0 if chance.random() < 0.5 else chance.randrange(len(self._open)))
        half = len(attempt.keys) // 2 if chance.random() < 0.2 else 0
        success = chance.random() > 0.2
        name = attempt.number if chance.random() < 0.8 else None
        for keys in filter(None, (attempt.keys[:half], attempt.keys[half:])):
            self._report(attempt.request, keys, attempt.stores, success, name)

    def _complete_somehow(self) -> None:
        """Complete an attempt and go on as if it were open: what comes after is late or doubled.

        In part, in another order, with others' keys, unnamed, for somebody else, as the other kind.
        """
        if not self._kept:
            return
        chance = self._random
        attempt = chance.choice(self._kept)
        keys = tuple(chance.sample(attempt.keys, chance.randint(0, len(attempt.keys))))
        keys = chance.choice((attempt.keys, keys, keys + self._any_keys(2), keys + keys[:1]))
        name = None if chance.random() < 0.5 else attempt.number
        request = attempt.request if chance.random() < 0.6 else self._request()
        stores = attempt.stores != (chance.random() < 0.15)
        self._report(request, keys, stores, chance.random() > 0.3, name)

    def _complete_anything(self) -> None:
        """Complete what nobody began, without a name or under one that was never given."""
        chance = self._random
        name = op.NEVER_MADE if chance.random() < 0.2 else None
        stores = chance.random() < 0.6
        keys = self._any_keys()
        if self._kept and not stores:
            # Something that may be pinned comes first, and then what is not.
            keys = (*chance.choice(self._kept).keys[:1], *keys[:2])
        self._report(self._request(), keys, stores, chance.random() < 0.6, name)

    def _report(
        self,
        request: op.RequestId,
        keys: tuple[OffloadKey, ...],
        stores: bool,
        success: bool,
        name: op.Attempt | None,
    ) -> None:
        if stores:
            self._subject.perform(op.CompleteStore(request, keys, success, name))
            if success:
                # As far as is known: some of them may never have been pending.
                self._ready.update(keys)
        else:
            self._subject.perform(op.CompleteLoad(request, keys, name))

    def _is_ready(self, key: OffloadKey) -> bool:
        lookup = op.Lookup(self._requests[0], key)
        return self._subject.perform(lookup).result is LookupResult.HIT

    def _settle(self) -> None:
        """Everything in flight ends well, so that everything may be evicted."""
        while self._open:
            attempt = self._open.pop()
            self._report(attempt.request, attempt.keys, attempt.stores, True, attempt.number)

    def _touch(self) -> None:
        keys: Sequence[OffloadKey] = self._random.choice(self._prompts)
        keys = keys if self._random.random() < 0.4 else self._any_keys()
        self._subject.perform(op.Touch(self._request(), tuple(keys)))

    def _finish(self) -> None:
        """A request ends, and mostly makes way for another."""
        chance = self._random
        place = chance.randrange(LIVE_REQUESTS)
        request = self._requests[place]
        self._subject.perform(op.FinishRequest(request))
        if chance.random() < 0.8:
            self._gone = [*self._gone, request][-4:]
            self._requests[place] = self._arrive()

    def _visit(self) -> None:
        """A request of which nothing is known but a load for the host's own use (LOAD-5)."""
        request, ready = f"v{self._named}", tuple(sorted(self._ready))[:1]
        self._named += 1
        self._made += 1
        self._subject.perform(op.PrepareLoad(request, ready, self._made, internal=True))
        self._subject.perform(op.CompleteLoad(request, ready, self._made))
        self._subject.perform(op.FinishRequest(request))

    def _look_around(self) -> None:
        self._ready = {key for key in self._every if self._is_ready(key)}

    def _observe(self) -> None:
        """The end of a scheduler step: figures, events, or neither."""
        chance = self._random
        if chance.random() < 0.2:
            ended = op.ResetFlushed() if chance.random() < 0.3 else op.ScheduleEnd()
            self._subject.perform(ended)
        if chance.random() < 0.8:
            self._subject.perform(op.GetStats())
        if chance.random() < 0.6:
            self._subject.perform(op.TakeEvents())

    def _err(self) -> None:
        """A call with something too short for a key, or of a request that is gone."""
        chance = self._random
        if self._gone and chance.random() < 0.5:
            request = chance.choice(self._gone)
            if chance.random() < 0.5:
                self._offer(request, self._any_keys(2))
            else:
                self._load(request, tuple(sorted(self._ready))[:2])
            return
        keys, request = (*self._any_keys(2), TOO_SHORT, *self._any_keys(2)), self._request()
        call = chance.randrange(6)
        if call == 0:
            self._offer(request, keys)
        elif call == 1:
            self._load(request, keys)
        elif call == 2:
            self._subject.perform(op.Touch(request, keys))
        elif call == 3:
            self._subject.perform(op.Lookup(request, TOO_SHORT))
        else:
            name = None if chance.random() < 0.5 or not self._kept else self._kept[-1].number
            self._report(request, keys, call == 4, True, name)

    def _reset(self) -> None:
        """A reset; what is in flight is reported afterwards, as late as ever."""
        self._subject.perform(op.Reset())
        self._ready.clear()
        if self._random.random() < 0.5:
            told = self._subject.perform(op.TakeEvents()).result
            if isinstance(told, Delivered) and self._random.random() < 0.5:
                self._look_around()
