"""A small scheduler: what it may do to a manager and its workers, and no more.

It does what vLLM's connector does: looks up a prefix, loads what hits, computes the rest, stores
what was computed, and completes a transfer when every rank has reported it. What an engine could
do wrong is one method each, to be overridden.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from attrs import define, field, frozen

from kvoffload import (
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    LookupResult,
    OffloadKey,
    ReqContext,
    make_offload_key,
)
from kvoffload.cpu.manager import CPUOffloadingManager
from kvoffload.errors import BlockOutOfRangeError, TransferError
from stateful_models.system.world import Rank, World


class WrongBytesError(AssertionError):
    """A load that succeeded did not bring the content of its keys (COPY-1)."""


class RefusedError(AssertionError):
    """A rank does not take a transfer that the manager has planned."""


class JobKind(Enum):
    """What a job moves."""

    LOAD = "load"
    STORE = "store"


@define(eq=False)
class Job:
    """A transfer on all ranks: who has yet to report it, and whether all went well so far."""

    number: int
    kind: JobKind
    request: Request
    keys: list[OffloadKey]
    ticket: int | None
    blocks: list[int]
    generation: int
    unreported: set[int]
    succeeded: bool = True

    def __repr__(self) -> str:
        return f"{self.kind.value} {self.number} of {self.request.context.req_id}"


@define(eq=False)
class Request:
    """A prompt, and a block for each of its blocks while it runs.

    Chunks before `num_ready` have their content, or will have it by kernels already enqueued.
    """

    context: ReqContext
    keys: list[OffloadKey]
    blocks: list[int] = field(factory=list)
    num_ready: int = 0
    num_offered: int = 0
    loading: Job | None = None

    @property
    def is_running(self) -> bool:
        """Whether it holds blocks."""
        return bool(self.blocks)


@frozen
class Held:
    """Blocks that nobody owns any more, and the jobs that still use them."""

    blocks: list[int]
    jobs: list[Job]


class Engine:
    """One manager, the ranks of a world, and requests that come and go."""

    def __init__(self, world: World, manager: CPUOffloadingManager) -> None:
        self.world = world
        self.manager = manager
        self.requests: dict[str, Request] = {}
        self.free: list[int] = list(range(world.config.num_blocks))
        self.held: list[Held] = []
        self.jobs: dict[int, Job] = {}
        self.completed: list[Job] = []
        self.generation: int = 0
        self.has_failed: bool = False
        """Whether something was found out; nothing that follows means anything then."""
        self._num_jobs = 0

    @property
    def factor(self) -> int:
        """Blocks a chunk."""
        return self.world.config.blocks_per_chunk

    def arrive(self, name: str, prompt: tuple[str, ...]) -> Request:
        """A request with a prompt of chunks, which begins to run as soon as there are blocks."""
        keys = [key_of(prompt[: end + 1]) for end in range(len(prompt))]
        request = Request(ReqContext(name), keys)
        self.requests[name] = request
        self.manager.on_new_request(request.context)
        self.start(request)
        return request

    def start(self, request: Request) -> bool:
        """Look up, load what hits, compute the rest; False where blocks are short.

        Where transfers from before a reset are still under way, nothing new begins (GEN-3).
        """
        self.reclaim()
        needed = len(request.keys) * self.factor
        if request.is_running or len(self.free) < needed or not self.may_submit():
            return False
        with self.manager.lock:
            hits: list[OffloadKey] = []
            for key in request.keys:
                if self.manager.lookup(key, request.context) is not LookupResult.HIT:
                    break
                hits.append(key)
            spec = self.manager.prepare_load(hits, request.context) if hits else None
        request.blocks = [self.free.pop(0) for _ in range(needed)]
        if spec is not None:
            self._load(request, hits, spec)
        else:
            self.compute(request)
        return True

    def _load(self, request: Request, keys: list[OffloadKey], spec: object) -> None:
        if not isinstance(spec, CPULoadStoreSpec):
            raise TypeError(f"a load of {keys} is prepared as {spec!r}")
        blocks = request.blocks[: len(keys) * self.factor]
        job = self._new_job(JobKind.LOAD, request, keys, spec.ticket, blocks)
        request.loading = job
        target = GPULoadStoreSpec(blocks, None, [0])
        self._submit(job, lambda rank: rank.worker.submit_load(job.number, spec, target))

    def compute(self, request: Request) -> None:
        """Enqueue the kernels of all chunks that have no content yet."""
        for index in range(request.num_ready, len(request.keys)):
            key = request.keys[index]
            self.world.compute(
                key, self.blocks_of(request, index), f"compute {request.context.req_id}/{index}"
            )
        request.num_ready = len(request.keys)

    def offer(self, request: Request) -> Job | None:
        """Offer the chunks that were not offered yet, and store those that are admitted."""
        if not request.is_running or request.loading is not None or not self.may_submit():
            return None
        offered = request.keys[request.num_offered : request.num_ready]
        if not offered:
            return None
        output = self.manager.prepare_store(offered, request.context)
        if output is None:
            return None
        request.num_offered = request.num_ready
        if not output.keys_to_store:
            return None
        blocks = [
            block
            for key in output.keys_to_store
            for block in self.blocks_of(request, request.keys.index(key))
        ]
        target = output.store_spec
        if not isinstance(target, BlockIDsLoadStoreSpec):
            raise TypeError(f"a store of {offered} is prepared as {target!r}")
        job = self._new_job(JobKind.STORE, request, output.keys_to_store, output.ticket, blocks)
        source = GPULoadStoreSpec(blocks, None, [0])
        self._submit(job, lambda rank: rank.worker.submit_store(job.number, source, target))
        return job

    def blocks_of(self, request: Request, index: int) -> list[int]:
        """The blocks of a request's chunk."""
        return request.blocks[index * self.factor : (index + 1) * self.factor]

    def poll(self, number: int) -> list[Job]:
        """Take one rank's reports; the jobs that are over with them."""
        over: list[Job] = []
        for result in self.world.ranks[number].worker.get_finished():
            job = self.jobs.get(result.job_id)
            if job is None:
                continue
            job.unreported.discard(number)
            job.succeeded = job.succeeded and result.success
            if self.is_over(job):
                del self.jobs[job.number]
                self.complete(job)
                over.append(job)
        self.reclaim()
        return over

    def is_over(self, job: Job) -> bool:
        """Whether it may be completed: when every rank has reported it (COPY-5)."""
        return not job.unreported

    def complete(self, job: Job) -> None:
        """Tell the manager, and go on with the request."""
        context = job.request.context
        self.completed.append(job)
        if job.kind is JobKind.STORE:
            self.manager.complete_store(job.keys, context, job.succeeded, ticket=job.ticket)
            return
        self.manager.complete_load(job.keys, context, ticket=job.ticket)
        request = job.request
        if request.loading is not job:
            # Preempted or aborted meanwhile: its blocks are somebody else's concern.
            return
        request.loading = None
        if job.succeeded:
            for index, key in enumerate(job.keys):
                wrong = self.world.wrong_bytes(key, self.blocks_of(request, index))
                if wrong is not None:
                    self.has_failed = True
                    raise WrongBytesError(f"COPY-1: {job}: {wrong}")
            request.num_ready = request.num_offered = len(job.keys)
        self.compute(request)

    def preempt(self, request: Request) -> None:
        """Take a request's blocks away; it may start anew."""
        self.let_go(request)
        request.num_ready = request.num_offered = 0

    def finish(self, request: Request) -> None:
        """End a request, done or aborted, whatever is under way for it."""
        self.let_go(request)
        del self.requests[request.context.req_id]
        self.manager.on_request_finished(request.context)

    def let_go(self, request: Request) -> None:
        """Give up a request's blocks, which are free when no job uses them (ORD-4)."""
        jobs = [job for job in self.jobs.values() if set(job.blocks) & set(request.blocks)]
        self.held.append(Held(request.blocks, jobs))
        request.blocks, request.loading = [], None
        self.reclaim()

    def reclaim(self) -> None:
        """Free the blocks that no job uses any more."""
        still: list[Held] = []
        for held in self.held:
            if any(job.number in self.jobs for job in held.jobs):
                still.append(held)
            else:
                self.free += held.blocks
        self.held = still

    def reset(self) -> None:
        """Forget all chunks, with whatever is under way (GEN-1)."""
        self.manager.reset_cache()
        self.generation += 1
        for request in self.requests.values():
            # What it has was not offered in this generation.
            request.num_offered = 0
        self.flush()

    def flush(self) -> bool:
        """Tell the manager when all from before the last reset has been reported (GEN-3)."""
        if any(job.generation < self.generation for job in self.jobs.values()):
            return False
        self.manager.on_reset_flushed()
        return True

    def may_submit(self) -> bool:
        """Whether new transfers may touch slots: not before the old ones are reported (GEN-3)."""
        return self.flush()

    def _submit(self, job: Job, submit: Callable[[Rank], bool]) -> None:
        """Hand a job to every rank. Raises RefusedError for one that refuses."""
        for number, rank in enumerate(self.world.ranks):
            what = f"rank {number} does not take {job}, and does not say why"
            clause = "COPY-4"
            try:
                if submit(rank):
                    continue
            except BlockOutOfRangeError as error:
                what = f"manager and rank {number} do not agree on the number of chunks: {error}"
                clause = "SPECS-4"
            except TransferError as error:
                what = f"rank {number} refuses {job}: {error}"
                clause = "COPY-2"
            self.has_failed = True
            raise RefusedError(f"{clause}: {what}")

    def _new_job(
        self,
        kind: JobKind,
        request: Request,
        keys: list[OffloadKey],
        ticket: int | None,
        blocks: list[int],
    ) -> Job:
        self._num_jobs += 1
        ranks = set(range(len(self.world.ranks)))
        job = Job(self._num_jobs, kind, request, list(keys), ticket, blocks, self.generation, ranks)
        self.jobs[job.number] = job
        return job


def key_of(prefix: tuple[str, ...]) -> OffloadKey:
    """The key of the chunk that ends a prefix: of all of it, as prefix caches have it."""
    return make_offload_key("/".join(prefix).encode(), 0)
