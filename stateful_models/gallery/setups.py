"""How each exhibit is built and worked, so that what is wrong with it can show."""

from __future__ import annotations

from attrs import frozen
from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey, TierFilter
from stateful_models import operations as op
from stateful_models.subjects import Subject
from stateful_models.workload import Workload

BAD_KEY = OffloadKey(b"bad")
"""Too short for a key (KEY-2)."""
TOKENS = 16
"""How many tokens a chunk has."""


@frozen
class Setup:
    """The arguments of a manager, and how it is worked.

    `cache_policy` replaces whatever policy the trial uses, which refuses by design where
    `may_refuse`. `drains`: whether events are taken before the end, `rounds`: how much work it
    takes, where that is more than usual.
    """

    store_threshold: int = 1
    max_tracker_size: int = 64_000
    enable_events: bool = True
    cache_policy: type[CachePolicy] | None = None
    may_refuse: bool = False
    drains: bool = True
    rounds: int = 0


PLAIN = Setup()
"""What does for most."""


class GalleryWorkload(Workload):
    """The workload, with what few hosts do beside.

    Requests know where their keys end, or want nothing of other tiers; chunks are loaded for the
    host's own use; an offer comes until it must be stored; what an aborted request holds is asked
    for and released; drains are broken off; completions come twice; and keys are named that are
    none. With `drains` false events are taken at the end only, and no reset drops them.
    """

    def __init__(
        self, subject: Subject, *, seed: int = 0, mistakes: bool = True, drains: bool = True
    ) -> None:
        super().__init__(subject, seed=seed, mistakes=mistakes, resets=drains)
        self._drains = drains

    @override
    def run(self, rounds: int) -> None:
        super().run(rounds)
        self._perform(op.TakeEvents())

    @override
    def _serve(self) -> None:
        chance = self._random
        if chance.random() < 0.06:
            request, keys = chance.choice(self._requests), chance.choice(self._prompts)
            for _ in range(3):
                self._offer(request, keys)
        elif chance.random() < 0.2:
            self._copy_out()
        else:
            super()._serve()

    def _copy_out(self) -> None:
        """A chunk is loaded for a transfer of the host's own."""
        request = self._random.choice(self._requests)
        keys = self._random.choice(self._prompts)[: self._random.randint(1, 2)]
        self._made += 1
        load = op.PrepareLoad(request, keys, self._made, internal=True)
        if self._perform(load).error is None:
            self._perform(op.CompleteLoad(request, keys, self._made))

    @override
    def _complete(self) -> None:
        super()._complete()
        if self._mistakes and self._done and self._random.random() < 0.1:
            self._report(self._done[-1], self._done[-1].keys)

    @override
    def _finish(self) -> None:
        super()._finish()
        chance = self._random
        newest = f"r{self._named - 1}"
        if chance.random() < 0.3:
            self._perform(op.NewRequest(newest, load_tier_filter=TierFilter()))
        known = chance.choice((self._prompts, self._prompts, self._prompts[:1], []))
        # Later prompts begin earlier, so that position and first sight differ.
        ends = [
            (key, TOKENS * (n + 1) + len(known) - family)
            for family, prompt in enumerate(known)
            for n, key in enumerate(prompt)
        ]
        if ends:
            self._perform(op.SetPositions(newest, tuple(ends)))

    @override
    def _observe(self) -> None:
        chance = self._random
        if chance.random() < 0.2:
            self._abort()
        if not self._drains:
            self._perform(op.GetStats())
            return
        if chance.random() < 0.1:
            self._perform(op.TakeFirstEvent())
            self._perform(op.TakeEvents())
        super()._observe()

    def _abort(self) -> None:
        """A request is given up: what it holds is asked for, and released."""
        request = self._random.choice(self._requests)
        self._perform(op.Outstanding(request))
        own = [open_ for open_ in self._open if open_.request == request]
        self._open = [open_ for open_ in self._open if open_.request != request]
        for open_ in own:
            self._report(open_, open_.keys)
        self._perform(op.Outstanding(request))

    @override
    def _reset(self) -> None:
        super()._reset()
        for request in self._requests:
            self._perform(op.Outstanding(request))

    @override
    def _err(self) -> None:
        chance = self._random
        mistake = chance.randrange(4)
        if mistake == 0:
            keys = chance.choice(self._prompts)
            self._offer(chance.choice(self._requests), (*keys, BAD_KEY))
        elif mistake == 1:
            self._perform(op.FinishRequest("nobody"))
        else:
            super()._err()
