"""One manager under a workload, in the plainest engine there is: a request after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvoffload.judge.attempts import NOWHERE, WHEREABOUTS
from kvoffload.judge.outcome import Outcome
from kvoffload.judge.workload import Workload
from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from kvoffload.manager import OffloadingManager
from kvoffload.replay.keys import KeyTable
from kvoffload.requests import ReqContext
from kvoffload.transfers import PrepareStoreOutput

EVENTS_EVERY = 64
"""After so many requests events are drained, as an engine does at each of its steps."""


class Engine:
    """Serves each request to its end before the next: what a policy is worth apart from timing.

    A request looks its prefix up behind what the GPU has, loads what is found, and offers the
    rest; where nothing was loaded, vLLM 0.33 offers the GPU's part as well, and so does this.
    Transfers are instant. `observe` is told of each request before it ends: its number, its keys
    and how many of them were found by the manager, behind what the GPU has. `changed` is told of
    each store: the request's number, the keys that are stored and those that were evicted for it.
    """

    def __init__(
        self,
        manager: OffloadingManager,
        workload: Workload,
        *,
        hints: Callable[[int], dict[str, object] | None] = lambda number: None,
        observe: Callable[[int, Sequence[OffloadKey], int], object] | None = None,
        changed: Callable[[int, Sequence[OffloadKey], Sequence[OffloadKey]], object] | None = None,
        proceed: Callable[[int], object] = lambda done: None,
    ) -> None:
        self._manager = manager
        self._workload = workload
        self._hints = hints
        self._observe = observe
        self._changed = changed
        self._proceed = proceed
        self._keys = KeyTable()
        self._stored = 0
        self._refused = 0

    def run(self) -> Outcome:
        """Serve all of them. What the manager raises passes through."""
        try:
            return self._run()
        finally:
            WHEREABOUTS.tell(NOWHERE)

    def _run(self) -> Outcome:
        workload = self._workload
        hits = [0] * len(workload.requests)
        tokens = [0] * len(workload.requests)
        for number, on_gpu in enumerate(workload.gpu_hits):
            WHEREABOUTS.tell(number)
            found = self._serve(number, on_gpu)
            hits[number] = found
            tokens[number] = workload.tokens_of(number, on_gpu, on_gpu + found)
            if number % EVENTS_EVERY == 0:
                self._step(number)
        self._step(len(workload.requests))
        return Outcome(
            np.array(hits, np.int64), np.array(tokens, np.int64), self._stored, self._refused
        )

    def _step(self, done: int) -> None:
        for _ in self._manager.take_events():
            pass
        self._proceed(done)

    def _serve(self, number: int, on_gpu: int) -> int:
        manager, request = self._manager, self._workload.requests[number]
        keys = list(map(self._keys.__getitem__, request.blocks))
        context = ReqContext(f"request-{number}", self._hints(number))
        manager.on_new_request(context)
        for key, end in zip(keys, request.block_ends(), strict=False):
            context.set_offload_key_position(key, end)
        found = on_gpu
        while found < len(keys) and manager.lookup(keys[found], context) is LookupResult.HIT:
            found += 1
        loaded = keys[on_gpu:found]
        if loaded:
            manager.prepare_load(loaded, context)
            manager.complete_load(loaded, context)
        if self._observe is not None:
            self._observe(number, keys, found - on_gpu)
        offered = keys[found:] if loaded else keys
        if offered:
            output = manager.prepare_store(offered, context)
            if output is None:
                self._refused += 1
            else:
                self._taken(number, output, context)
        manager.on_request_finished(context)
        return len(loaded)

    def _taken(self, number: int, output: PrepareStoreOutput, context: ReqContext) -> None:
        if output.keys_to_store:
            self._stored += len(output.keys_to_store)
            self._manager.complete_store(output.keys_to_store, context)
        if self._changed is not None:
            self._changed(number, output.keys_to_store, output.evicted_keys)
