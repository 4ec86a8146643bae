"""A small workload of every kind of call, right and wrong, drawn by a seeded generator.

For trying a manager without Hypothesis: on a gallery, in a notebook, or as a first smoke test.
It looks prefixes up and loads what is ready, offers what is not, completes late, twice and after
resets, fails some stores, and now and then makes each of the mistakes that a contract names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from attrs import frozen

from kvoffload import LookupResult, OffloadKey, make_offload_key
from stateful_models import operations as op
from stateful_models.steps import Loaded, Step, Stored
from stateful_models.subjects import Subject

PROMPT = 6
LIVE_REQUESTS = 4


@frozen
class _Open:
    number: op.Attempt
    request: op.RequestId
    keys: tuple[OffloadKey, ...]
    stores: bool


class Workload:
    """Performs operations on `subject`. `families` shared prefixes make the universe.

    `mistakes`: whether the host errs too; `resets`: whether it resets now and then.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        seed: int = 0,
        families: int = 5,
        mistakes: bool = True,
        resets: bool = True,
    ) -> None:
        self._subject = subject
        self._random = random.Random(seed)
        self._mistakes = mistakes
        self._resets = resets
        self._prompts = [
            tuple(make_offload_key(b"%c%d" % (65 + family, n), n % 2) for n in range(PROMPT))
            for family in range(families)
        ]
        self._requests = [f"r{n}" for n in range(LIVE_REQUESTS)]
        self._finished: list[op.RequestId] = []
        self._named = LIVE_REQUESTS
        self._made = 0
        self._open: list[_Open] = []
        self._done: list[_Open] = []
        self.steps: list[Step] = []

    def run(self, rounds: int) -> None:
        """Perform `rounds` of one to about ten calls each."""
        chances = [
            (self._serve, 12),
            (self._complete, 10),
            (self._finish, 3),
            (self._observe, 6),
            (self._err, 4 if self._mistakes else 0),
            (self._reset, 0.4 if self._resets else 0),
        ]
        actions = [action for action, _ in chances]
        weights = [weight for _, weight in chances]
        for _ in range(rounds):
            self._random.choices(actions, weights)[0]()

    def _perform(self, operation: op.Operation) -> Step:
        step = self._subject.perform(operation)
        self.steps.append(step)
        return step

    def _serve(self) -> None:
        """A request: load the prefix that is ready, offer the rest."""
        chance = self._random
        request = chance.choice(self._requests)
        keys = chance.choice(self._prompts)[: chance.randint(1, PROMPT)]
        ready = 0
        for key in keys:
            if self._perform(op.Lookup(request, key)).result is not LookupResult.HIT:
                break
            ready += 1
        if ready:
            self._load(request, keys[:ready])
        if chance.random() < 0.2:
            self._perform(op.Touch(request, keys))
        offer = keys if chance.random() < 0.4 else keys[ready:]
        if self._mistakes and chance.random() < 0.2:
            offer = offer + offer[:2]
        self._offer(request, offer)

    def _load(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        self._made += 1
        step = self._perform(op.PrepareLoad(request, tuple(keys), self._made))
        if isinstance(step.result, Loaded):
            self._open.append(_Open(self._made, request, tuple(keys), False))

    def _offer(self, request: op.RequestId, keys: Sequence[OffloadKey]) -> None:
        self._made += 1
        step = self._perform(op.PrepareStore(request, tuple(keys), self._made))
        if isinstance(step.result, Stored) and step.result.keys:
            self._open.append(_Open(self._made, request, step.result.keys, True))

    def _complete(self) -> None:
        """A transfer ends, not always the oldest, not always well, not always in one go."""
        if not self._open:
            return
        chance = self._random
        open_ = self._open.pop(chance.randrange(len(self._open)))
        self._done = [*self._done, open_][-8:]
        half = len(open_.keys) // 2 if chance.random() < 0.2 else 0
        for keys in filter(None, (open_.keys[:half], open_.keys[half:])):
            self._report(open_, keys)

    def _report(self, open_: _Open, keys: tuple[OffloadKey, ...]) -> None:
        if open_.stores:
            success = self._random.random() > 0.15
            self._perform(op.CompleteStore(open_.request, keys, success, open_.number))
        else:
            self._perform(op.CompleteLoad(open_.request, keys, open_.number))

    def _finish(self) -> None:
        place = self._random.randrange(LIVE_REQUESTS)
        self._perform(op.FinishRequest(self._requests[place]))
        self._finished = [*self._finished, self._requests[place]][-4:]
        self._requests[place] = f"r{self._named}"
        self._named += 1
        self._perform(op.NewRequest(self._requests[place]))

    def _observe(self) -> None:
        """The end of a scheduler step, and a look at everything."""
        self._perform(op.ScheduleEnd())
        if self._random.random() < 0.7:
            self._perform(op.TakeEvents())
            self._perform(op.GetStats())
        if self._random.random() < 0.3:
            for key in (key for prompt in self._prompts for key in prompt):
                self._perform(op.Lookup(self._requests[0], key))

    def _reset(self) -> None:
        """A reset, with whatever is in flight reported afterwards."""
        self._perform(op.Reset())
        for key in (key for prompt in self._prompts for key in prompt):
            self._perform(op.Lookup(self._requests[0], key))

    def _err(self) -> None:
        """One mistake of a host."""
        chance = self._random
        keys = chance.choice(self._prompts)
        request = chance.choice(self._requests)
        mistake = chance.randrange(5)
        if mistake == 0:
            self._load(request, keys)
            self._perform(op.GetStats())
        elif mistake == 1:
            self._perform(op.CompleteLoad(request, keys[:2]))
        elif mistake == 2 and self._done:
            doubled = chance.choice(self._done)
            self._report(doubled, doubled.keys)
            for key in doubled.keys:
                self._perform(op.Lookup(request, key))
        elif mistake == 3 and self._finished:
            self._offer(chance.choice(self._finished), keys)
        elif mistake == 4:
            self._perform(op.Touch(request, (*keys, OffloadKey(b"bad"))))
