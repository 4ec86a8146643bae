"""What was in the cache and what left it, during a run: stranded chunks, and regret."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kvoffload.errors import InvalidValueError
from kvoffload.judge.resampling import Interval, share_of
from kvoffload.judge.workload import Workload
from kvoffload.keys import OffloadKey
from kvoffload.replay.keys import KeyTable

SAMPLES = 50
WINDOW = 1_000

Places = NDArray[np.int64]


@frozen(eq=False)
class History:
    """What a workload asks for over time, whatever any cache does.

    A block is told by its place, counted from 0 in the order in which blocks first come up.
    `levels[d]` are the places of all blocks that have d others before them in their prompt, and
    `parents[d]` those of the blocks right before these (none at level 0, and -1 there).
    `wanted` are the uses that the GPU does not serve, each as place * requests + number of the
    request, in order.
    """

    requests: int
    place: dict[OffloadKey, int]
    levels: Sequence[Places]
    parents: Sequence[Places]
    wanted: Places

    @classmethod
    def of(cls, workload: Workload) -> History:
        """The history of a workload. A block that stands behind several is told by the first."""
        keys = KeyTable()
        place: dict[OffloadKey, int] = {}
        levels: list[list[int]] = []
        parents: list[list[int]] = []
        wanted: list[int] = []
        requests = len(workload.requests)
        for number, request in enumerate(workload.requests):
            before = -1
            for depth, block in enumerate(request.blocks):
                key = keys[block]
                here = place.get(key)
                if here is None:
                    here = place[key] = len(place)
                    if depth == len(levels):
                        levels.append([])
                        parents.append([])
                    levels[depth].append(here)
                    parents[depth].append(before)
                if depth >= workload.gpu_hits[number]:
                    wanted.append(here * requests + number)
                before = here
        return cls(
            requests,
            place,
            [np.array(level, np.int64) for level in levels],
            [np.array(level, np.int64) for level in parents],
            np.sort(np.array(wanted, np.int64)),
        )


@frozen
class Sample:
    """The cache after so many requests: chunks resident, and those of them that are stranded."""

    requests: int
    resident: int
    stranded: int


@frozen(kw_only=True)
class Stranded:
    """Chunks that are resident behind an ancestor that is not, and so cannot be found.

    Of the CPU tier alone: where a GPU tier has the ancestor, the chunk is counted all the same.
    `mean` and `worst` are shares of the resident chunks over `samples`, which are spread evenly
    over the requests after the warm-up; None where nothing was resident at any of them.
    """

    samples: tuple[Sample, ...]
    mean: float | None
    worst: float | None


@frozen(kw_only=True)
class Regret:
    """Evictions after the warm-up, and how many of the evicted chunks were wanted again too soon.

    Too soon is by one of the next `window` requests, which the GPU did not serve, before the
    chunk was stored anew. Evictions at the end of a trace have fewer requests to be regretted in.
    `share` is None without evictions.
    """

    window: int
    evicted: int
    regretted: int
    share: Interval | None


class ResidencyWatch:
    """Follows one run of an Engine, as its `changed`: what is stored and evicted by each request.

    At `samples` points the whole cache is looked at; every eviction is remembered.
    """

    def __init__(self, history: History, *, after: int = 0, samples: int = SAMPLES) -> None:
        """`after`: the requests of the warm-up. Raises InvalidValueError for no samples."""
        if samples < 1:
            raise InvalidValueError("samples", samples, "at least 1")
        self._history = history
        self._after = after
        self._resident = np.zeros(len(history.place), np.bool_)
        span = max(history.requests - after, 0)
        # Each at the end of its share of the requests, the last at the end of all.
        ends = {after + -(-span * (i + 1) // samples) for i in range(samples)}
        self._due = sorted((end for end in ends if end > after), reverse=True)
        self._samples: list[Sample] = []
        # Both as place * requests + number of the request.
        self._stored: list[int] = []
        self._evicted: list[int] = []

    def __call__(
        self, number: int, stored: Sequence[OffloadKey], evicted: Sequence[OffloadKey]
    ) -> None:
        """A request stored these chunks, which made those go."""
        self._sample_before(number)
        requests, place, resident = self._history.requests, self._history.place, self._resident
        for key in evicted:
            here = place[key]
            resident[here] = False
            self._evicted.append(here * requests + number)
        for key in stored:
            here = place[key]
            resident[here] = True
            self._stored.append(here * requests + number)

    def stranded(self) -> Stranded:
        """What the samples showed, once the run is over."""
        self._sample_before(self._history.requests)
        shares = [one.stranded / one.resident for one in self._samples if one.resident]
        return Stranded(
            samples=tuple(self._samples),
            mean=float(np.mean(shares)) if shares else None,
            worst=max(shares, default=None),
        )

    def regret(self, window: int = WINDOW) -> Regret:
        """Which evictions were regretted, once the run is over."""
        requests, wanted = self._history.requests, self._history.wanted
        evicted = np.array(self._evicted, np.int64)
        evicted = evicted[evicted % requests >= self._after]
        again = _next(wanted, evicted, requests)
        anew = _next(np.sort(np.array(self._stored, np.int64)), evicted, requests)
        number = evicted % requests
        # Who misses a chunk stores it anew in the same request.
        regretted = (again < requests) & (again - number <= window) & (again <= anew)
        counts = [
            np.bincount(number[chosen], minlength=requests)[self._after :].astype(np.int64)
            for chosen in (slice(None), regretted)
        ]
        return Regret(
            window=window,
            evicted=len(evicted),
            regretted=int(regretted.sum()),
            share=share_of(counts[1], counts[0]) if len(evicted) else None,
        )

    def _sample_before(self, number: int) -> None:
        """Take the samples that are due when all requests before this one are over."""
        while self._due and self._due[-1] <= number:
            at = self._due.pop()
            resident = self._resident
            found = np.zeros_like(resident)
            for depth, (level, parents) in enumerate(
                zip(self._history.levels, self._history.parents, strict=True)
            ):
                found[level] = resident[level] if depth == 0 else resident[level] & found[parents]
            held = int(resident.sum())
            self._samples.append(Sample(at, held, held - int(found.sum())))


def _next(events: Places, since: Places, requests: int) -> Places:
    """For each of `since`, the request of the next of `events` at the same place, after its own.

    `requests` where there is none. Both are coded as place * requests + number; events in order.
    """
    found = np.full(len(since), requests, np.int64)
    if not len(events):
        return found
    at = np.searchsorted(events, since, side="right")
    there = at < len(events)
    following = events[np.minimum(at, len(events) - 1)]
    same = there & (following // requests == since // requests)
    found[same] = following[same] % requests
    return found
