"""The replay: a scheduler on a virtual clock, calling a manager as an engine's scheduler does.

Time is a number and moves from one event to the next: an arrival, a finished transfer, a finished
prefill, a reset. Everything that falls on one instant is one scheduler step; what a step starts
at the same instant belongs to the next. Within a step come transfers, resets, prefills, requests
that waited (in order of arrival), arrivals, refused offers, and then `on_schedule_end`, events and
statistics. Nothing reads a real clock and the only chance is a seeded generator, so the same trace
gives the same calls every time.
"""

from __future__ import annotations

import heapq
import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import assert_never

from kvoffload.errors import InvalidValueError
from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from kvoffload.manager import OffloadingManager
from kvoffload.replay.counts import Counts
from kvoffload.replay.jobs import Event, LoadJob, Range, Reset, Running, StoreJob, Tick
from kvoffload.replay.keys import KeyTable
from kvoffload.replay.model import PREFILL_BATCH, CostModel
from kvoffload.replay.request import TraceRequest
from kvoffload.requests import OffloadPolicy, ReqContext, ScheduleEndContext

TICK_SECONDS = 0.02
"""The next step comes no later than this while a request has something to ask again."""
MAX_OFFERS = 32
"""A refused range is offered this often at most, and never after its request's prefill."""
MAX_LOOKUPS = 100
"""So often a request asks again after an answer that no store under way explains; then that key
is a miss."""

# The order within a step; the ranges of a prefill come before its end, being scheduled first.
_TRANSFERS, _RESETS, _PREFILLS, _TICKS = range(4)


class Replay:
    """Drives one manager through one trace.

    `fail_rate`: the share of stores that fail, by a generator seeded with `seed`. `resets`: when
    the cache is reset, in seconds of the trace. `signatures`: whose completions tell whether they
    take a ticket, when `manager` wraps another. `proceed` is asked after every step; False ends
    the run. The manager's own exceptions pass through `run`.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        model: CostModel,
        *,
        fail_rate: float = 0.0,
        seed: int = 0,
        resets: Sequence[float] = (),
        signatures: OffloadingManager | None = None,
        proceed: Callable[[Counts], bool] | None = None,
    ) -> None:
        check_disturbances(fail_rate, resets)
        self.counts: Counts = Counts()
        self._manager = manager
        self._model = model
        self._fail_rate = fail_rate
        self._random = random.Random(seed)
        self._proceed = proceed
        self._takes_ticket = _take_tickets(signatures or manager)

        self._now = 0.0
        self._heap: list[tuple[float, int, int, Event]] = []
        self._serial = count()
        self._keys = KeyTable()
        # When each lane is free again.
        self._load_lane = 0.0
        self._store_lane = 0.0
        self._generation = 0
        self._in_flight = 0
        # Transfers of earlier generations that a reset still waits for.
        self._flushing = 0
        self._storing: dict[OffloadKey, StoreJob] = {}
        self._pinned: dict[OffloadKey, int] = {}
        # Requests of this step, and those that ask again in the next one.
        self._woken: list[Running] = []
        self._asking: list[Running] = []
        self._refused: list[Running] = []
        self._admitted: list[str] = []
        for time in resets:
            self._at(time, _RESETS, Reset())

    def run(self, requests: Iterable[TraceRequest]) -> Counts:
        """Replay `requests` to the end of the last transfer and return what was counted."""
        arrivals = iter(requests)
        upcoming = next(arrivals, None)
        heap = self._heap
        while heap or upcoming is not None:
            if upcoming is None or (heap and heap[0][0] < upcoming.arrival):
                self._now = max(self._now, heap[0][0])
            else:
                self._now = max(self._now, upcoming.arrival)
            due: list[Event] = []
            while heap and heap[0][0] <= self._now:
                due.append(heapq.heappop(heap)[3])
            arrived: list[TraceRequest] = []
            while upcoming is not None and upcoming.arrival <= self._now:
                arrived.append(upcoming)
                upcoming = self._following(upcoming, arrivals)
            self._step(due, arrived)
            if self._proceed is not None and not self._proceed(self.counts):
                break
        return self.counts

    def _following(
        self, request: TraceRequest, arrivals: Iterator[TraceRequest]
    ) -> TraceRequest | None:
        following = next(arrivals, None)
        if following is not None and following.arrival < request.arrival:
            self.counts.late_arrivals += 1
        return following

    def _at(self, time: float, phase: int, event: Event) -> None:
        heapq.heappush(self._heap, (time, phase, next(self._serial), event))

    def _step(self, due: list[Event], arrived: list[TraceRequest]) -> None:
        self.counts.steps += 1
        asking, self._asking = self._asking, []
        refused, self._refused = self._refused, []
        for event in due:
            match event:
                case LoadJob():
                    self._finish_load(event)
                case StoreJob():
                    self._finish_store(event)
                case Range():
                    self._compute(event)
                case Running():
                    self._finish_prefill(event)
                case Reset():
                    self._reset()
                case Tick():
                    pass
                case _:
                    assert_never(event)
        if self._woken:
            asking.extend(self._woken)
            asking.sort(key=lambda running: running.number)
            self._woken = []
        for running in asking:
            self._schedule(running)
        for request in arrived:
            self._arrive(request)
        for running in refused:
            # None are left once the request has finished.
            self._offer(running)
        if (self._asking or self._refused) and not self._steps_soon():
            self._at(self._now + TICK_SECONDS, _TICKS, Tick())
        self._end_step()

    def _steps_soon(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= self._now + TICK_SECONDS

    def _end_step(self) -> None:
        manager, counts = self._manager, self.counts
        manager.on_schedule_end(ScheduleEndContext(self._admitted, ()))
        if self._admitted:
            self._admitted = []
        for _ in manager.take_events():
            counts.events += 1
        manager.get_stats()

    # Requests

    def _arrive(self, request: TraceRequest) -> None:
        counts = self.counts
        hints = None if request.hints is None else dict(request.hints)
        context = ReqContext(f"request-{counts.requests}", hints)
        keys = list(map(self._keys.__getitem__, request.blocks))
        policy = self._manager.on_new_request(context).policy
        for key, end in zip(keys, request.block_ends(), strict=False):
            context.set_offload_key_position(key, end)
        running = Running(counts.requests, request, context, keys, policy)
        counts.requests += 1
        counts.blocks += len(keys)
        counts.tokens += request.input_tokens or 0
        self._schedule(running)

    def _schedule(self, running: Running) -> None:
        """Look the prefix up; admit the request, or let it wait for what is pending in it."""
        with self._manager.lock:
            hits = self._look_up(running)
            if hits is not None:
                self._admit(running, hits)

    def _look_up(self, running: Running) -> int | None:
        """How many blocks from the first on are hits; None if the request has to wait."""
        lookup, context = self._manager.lookup, running.context
        blockers: set[StoreJob] = set()
        unexplained = False
        hits = 0
        for key in running.keys:
            result = lookup(key, context)
            if result is LookupResult.MISS:
                break
            if result is not LookupResult.HIT:
                job = self._storing.get(key)
                if result is LookupResult.HIT_PENDING and job is not None:
                    blockers.add(job)
                elif running.lookups >= MAX_LOOKUPS:
                    break
                else:
                    unexplained = True
            hits += 1
        if blockers:
            self.counts.waits += 1
            running.blockers = blockers
            for job in blockers:
                job.waiters.append(running)
            return None
        if unexplained:
            running.lookups += 1
            self._asking.append(running)
            return None
        return hits

    def _admit(self, running: Running, hits: int) -> None:
        """Load what is there, compute the rest, and offer what will be new."""
        counts, request = self.counts, running.trace
        hit_tokens = request.tokens_in(hits)
        counts.block_hits += hits
        counts.token_hits += hit_tokens
        loaded = self._load(running, running.keys[:hits]) if hits else self._now
        self._admitted.append(running.context.req_id)
        seconds = self._model.prefill_seconds
        size = max(1, PREFILL_BATCH // (request.block_tokens or PREFILL_BATCH))
        first = 0 if running.policy is OffloadPolicy.REQUEST_LEVEL else hits
        for start in range(first, len(running.keys), size):
            part = Range(running.keys[start : start + size])
            running.wanted.append(part)
            computed = max(0, request.tokens_in(start + len(part.keys)) - hit_tokens)
            self._at(loaded + seconds(computed), _PREFILLS, part)
        computed = (request.input_tokens or 0) - hit_tokens
        self._at(loaded + seconds(computed), _PREFILLS, running)
        self._offer(running)

    def _offer(self, running: Running) -> None:
        """Offer for storing what is not taken yet, from the head on until one is refused."""
        counts = self.counts
        while running.wanted:
            part = running.wanted[0]
            output = self._manager.prepare_store(part.keys, running.context)
            running.offers += 1
            if output is None:
                counts.refused += 1
                if running.offers < MAX_OFFERS:
                    self._refused.append(running)
                return
            running.wanted.popleft()
            running.offers = 0
            counts.evicted += len(output.evicted_keys)
            if output.keys_to_store:
                keys = output.keys_to_store
                job = StoreJob(keys, running.context, output.ticket, self._generation)
                self._storing.update(dict.fromkeys(keys, job))
                part.store = job
                if part.computed:
                    self._submit(job)

    def _compute(self, part: Range) -> None:
        part.computed = True
        if part.store is not None:
            self._submit(part.store)

    def _finish_prefill(self, running: Running) -> None:
        self.counts.given_up += len(running.wanted)
        running.wanted.clear()
        self._manager.on_request_finished(running.context)

    # Transfers

    def _load(self, running: Running, keys: list[OffloadKey]) -> float:
        """Begin to load `keys`; returns when they will be there."""
        spec = self._manager.prepare_load(keys, running.context)
        # Each manager has specs of its own; those that give tickets carry them here.
        ticket: object = getattr(spec, "ticket", None)
        job = LoadJob(
            keys, running.context, ticket if isinstance(ticket, int) else None, self._generation
        )
        pinned = self._pinned
        for key in keys:
            pinned[key] = pinned.get(key, 0) + 1
        self.counts.peak_pinned = max(self.counts.peak_pinned, len(pinned))
        start = max(self._now, self._load_lane)
        self._load_lane = start + self._model.transfer_seconds(len(keys))
        self._in_flight += 1
        self._at(self._load_lane, _TRANSFERS, job)
        return self._load_lane

    def _submit(self, job: StoreJob) -> None:
        """Begin to copy what was computed."""
        if job.generation != self._generation:
            # Its slots may have been given away since; nothing was written to them.
            job.success = False
            self._complete_store(job)
            return
        job.success = not (self._fail_rate and self._random.random() < self._fail_rate)
        start = max(self._now, self._store_lane)
        self._store_lane = start + self._model.transfer_seconds(len(job.keys))
        self._in_flight += 1
        self._at(self._store_lane, _TRANSFERS, job)

    def _finish_load(self, job: LoadJob) -> None:
        current = job.generation == self._generation
        if current:
            pinned = self._pinned
            for key in job.keys:
                left = pinned[key] - 1
                if left:
                    pinned[key] = left
                else:
                    del pinned[key]
        if job.ticket is not None and self._takes_ticket:
            self._manager.complete_load(job.keys, job.context, ticket=job.ticket)
        elif current:
            self._manager.complete_load(job.keys, job.context)
        self._reported(current)

    def _finish_store(self, job: StoreJob) -> None:
        current = job.generation == self._generation
        if current:
            for key in job.keys:
                if self._storing.get(key) is job:
                    del self._storing[key]
            if job.success:
                self.counts.stored += len(job.keys)
            else:
                self.counts.failed_stores += 1
        self._complete_store(job)
        self._wake(job)
        self._reported(current)

    def _complete_store(self, job: StoreJob) -> None:
        """Report a store. Without a ticket, one of an earlier generation is kept from the
        manager, as vLLM 0.33 keeps it."""
        if job.ticket is not None and self._takes_ticket:
            self._manager.complete_store(job.keys, job.context, job.success, ticket=job.ticket)
        elif job.generation == self._generation:
            self._manager.complete_store(job.keys, job.context, job.success)

    def _wake(self, job: StoreJob) -> None:
        for running in job.waiters:
            running.blockers.discard(job)
            if not running.blockers:
                self._woken.append(running)
        job.waiters = []

    # Resets

    def _reset(self) -> None:
        """Reset with transfers in flight: they go on, and nothing of the new generation moves
        before they are through."""
        self._manager.reset_cache()
        self.counts.resets += 1
        self._generation += 1
        self._pinned.clear()
        for job in dict.fromkeys(self._storing.values()):
            self._wake(job)
        self._storing.clear()
        barrier = max(self._load_lane, self._store_lane)
        self._load_lane = self._store_lane = barrier
        self._flushing = self._in_flight
        if not self._flushing:
            self._manager.on_reset_flushed()

    def _reported(self, current: bool) -> None:
        self._in_flight -= 1
        if not current:
            self._flushing -= 1
            if not self._flushing:
                self._manager.on_reset_flushed()


def check_disturbances(fail_rate: float, resets: Sequence[float]) -> None:
    """Raise InvalidValueError for a share of failing stores, or a time of a reset, that is none."""
    if not 0 <= fail_rate <= 1:
        raise InvalidValueError("fail_rate", fail_rate, "in [0, 1]")
    for time in resets:
        if not 0 <= time < float("inf"):
            raise InvalidValueError("resets", time, "seconds, finite and not negative")


def _take_tickets(manager: OffloadingManager) -> bool:
    """Whether both completions of `manager` take a ticket; foreign ones may not."""
    for method in (manager.complete_load, manager.complete_store):
        parameters = inspect.signature(method).parameters
        if "ticket" not in parameters and not any(
            parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
        ):
            return False
    return True
