"""The system machine: scheduler, manager, ranks and bytes, under any interleaving of them all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvoffload.copying.actions import Action
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ordered import OrderedDevice
from kvoffload.copying.worker import CopyWorker
from kvoffload.cpu.manager import CPUOffloadingManager
from stateful_models.machines.testing import refuse_lost_rules
from stateful_models.reach import Reach
from stateful_models.system import Engine, Job, JobKind, Rank, Request, SystemConfig, World
from stateful_models.system.world import Worker

NAMES: Final = ("r1", "r2", "r3")
CHUNKS: Final = ("a", "b")
LONGEST: Final = 3
PROMPTS: Final = (("a",), ("a", "b"), ("a", "b", "a"))
"""Prefixes of each other, so that they find what others left."""
CONFIGS: Final = (
    SystemConfig(num_ranks=1, layers=("spread",), blocks_per_chunk=1, num_blocks=4),
    SystemConfig(),
    SystemConfig(layers=("replicated",), blocks_per_chunk=1, num_blocks=4),
    SystemConfig(num_slots=1),
)


class SystemMachine(RuleBasedStateMachine):
    """Subclass it, override `make_worker`, `make_manager` or `make_engine`, and use `machine_test`.

    Requests with prompts of chunks come, are preempted, aborted and finished; the engine looks up,
    loads, computes and stores; every rank's device does its work in any order that its streams and
    events allow; ranks report late and one after another; copies fail; the cache is reset with
    transfers under way; completions come twice. Every key's content is known: a load that succeeds
    delivers exactly it on every rank (COPY-1), and at the end so does every chunk that the manager
    says is there. No rank has a race (ORD-1, ORD-3), nor makes the engine one (ORD-4).
    """

    # Classes of machines are no classes of tests, whatever they are called.
    __test__: ClassVar[bool] = False
    reach: ClassVar[Reach] = Reach()
    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "loaded",
        "loaded by several ranks",
        "stored",
        "store that failed",
        "load that failed",
        "reported by one rank of two",
        "preempted with a transfer under way",
        "aborted with a transfer under way",
        "reset with transfers under way",
        "reset with a load under way",
        "stored while another loads",
        "completed twice",
        "completed twice while stored anew",
        "blocks held back for a transfer",
        "completed after a reset",
    )
    """What a run must come to; `reach.missing(SITUATIONS)` tells what it did not."""
    configs: ClassVar[tuple[SystemConfig, ...]] = CONFIGS
    """The sizes of system that are tried."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.reach = Reach()
        refuse_lost_rules(cls)

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine | None = None

    def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> Worker:
        """The worker on trial, of one rank."""
        return CopyWorker(layout, device)

    def make_manager(self, num_chunks: int) -> CPUOffloadingManager:
        """The manager on trial."""
        return CPUOffloadingManager(num_chunks)

    def make_engine(self, world: World, manager: CPUOffloadingManager) -> Engine:
        """The scheduler on trial."""
        return Engine(world, manager)

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Memory, ranks, a manager and an engine."""
        config = data.draw(st.sampled_from(self.configs), label="config")
        self.order: list[int] = []
        world = World.make(config, self.make_worker, self._choose)
        self.engine = self.make_engine(world, self.make_manager(config.num_slots))

    def _choose(self, actions: Sequence[Action]) -> Action | None:
        """Whoever was drawn to be next where something is waited for; else who is needed."""
        return actions[self.order.pop() % len(actions)] if self.order else None

    @property
    def system(self) -> Engine:
        """The engine, once there is one."""
        if self.engine is None:
            raise RuntimeError("nothing has begun")
        return self.engine

    def _requests(self) -> list[Request]:
        return list(self.system.requests.values())

    @rule(
        name=st.sampled_from(NAMES),
        prompt=st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=LONGEST),
    )
    def arrive(self, name: str, prompt: list[str]) -> None:
        """A new request, unless one of that name is there."""
        if name not in self.system.requests:
            self.system.arrive(name, tuple(prompt))

    @precondition(lambda self: bool(self._requests()))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A request that waits for blocks, or was preempted, starts."""
        self.system.start(data.draw(st.sampled_from(self._requests())))

    @precondition(lambda self: bool(self._requests()))
    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        """What a request has computed is offered."""
        self.system.offer(data.draw(st.sampled_from(self._requests())))

    @precondition(lambda self: bool(self._requests()))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """A request loses its blocks."""
        request = data.draw(st.sampled_from(self._requests()))
        self._note_way_out("preempted", request)
        self.system.preempt(request)
        self.reach.note("blocks held back for a transfer", bool(self.system.held))

    @precondition(lambda self: bool(self._requests()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A request ends, done or not."""
        request = data.draw(st.sampled_from(self._requests()))
        self._note_way_out("aborted", request)
        self.system.finish(request)
        self.reach.note("blocks held back for a transfer", bool(self.system.held))

    def _note_way_out(self, how: str, request: Request) -> None:
        under_way = any(job.request is request for job in self.system.jobs.values())
        self.reach.note(f"{how} with a transfer under way", under_way)

    @rule(chance=st.integers(0, 3))
    def reset(self, chance: int) -> None:
        """Now and then the cache is reset, whatever is under way."""
        if not chance:
            self._reset()

    @rule()
    def reset_while_loading(self) -> None:
        """One request loads and another has computed when the cache is reset."""
        self._let_one_load_beside_another()
        self._reset()

    @rule(data=st.data())
    def store_while_loading(self, data: st.DataObject) -> None:
        """The other's chunk is stored meanwhile; one rank is through before the others begin."""
        other = self._let_one_load_beside_another()
        loading = any(job.kind is JobKind.LOAD for job in self.system.jobs.values())
        stored = self.system.offer(other)
        self.reach.note("stored while another loads", loading and stored is not None)
        data.draw(st.sampled_from(self.system.world.ranks), label="rank").device.run_all()
        self._catch_up()

    @rule(data=st.data())
    def complete_again_while_stored_anew(self, data: st.DataObject) -> None:
        """A completion from before a reset comes again, when its keys are being stored anew."""
        system = self.system
        request = self._let_one_store(NAMES[0])
        before = [job for job in system.completed if job.kind is JobKind.STORE]
        system.reset()
        stored = system.offer(request)
        for job in before[-1:]:
            self._complete_again(job)
            again = stored is not None and set(job.keys) & set(stored.keys)
            self.reach.note("completed twice while stored anew", bool(again))
        # It loads what is said to be there.
        system.arrive(NAMES[1], ("a",))
        data.draw(st.sampled_from(system.world.ranks), label="rank").device.run_all()
        self._catch_up()

    def _let_one_store(self, name: str) -> Request:
        """Whatever there was ends, and a request has stored what it has computed."""
        for request in self._requests():
            self.system.finish(request)
        request = self.system.arrive(name, ("a",))
        self._catch_up()
        self._catch_up()
        return request

    def _let_one_load_beside_another(self) -> Request:
        """The other has computed, and was not offered yet."""
        loader, other = NAMES[:2]
        self.system.finish(self._let_one_store(loader))
        request = self.system.arrive(other, ("b",))
        self.system.arrive(loader, ("a",))
        return request

    def _reset(self) -> None:
        """Reset; who has computed something offers it at once, to slots that were just freed."""
        system = self.system
        loading = any(job.kind is JobKind.LOAD for job in system.jobs.values())
        self.reach.note("reset with transfers under way", bool(system.jobs))
        self.reach.note("reset with a load under way", loading)
        system.reset()
        for request in self._requests():
            system.offer(request)

    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        """A rank's device does some of what it could do, in any order."""
        rank = data.draw(st.sampled_from(self.system.world.ranks), label="rank")
        for number in data.draw(st.lists(st.integers(0, 63), max_size=8), label="order"):
            actions = rank.device.ready()
            if actions:
                rank.device.run(actions[number % len(actions)])

    @rule(data=st.data())
    def run_all(self, data: st.DataObject) -> None:
        """A rank's device does all it has, in an order of which the beginning is drawn."""
        rank = data.draw(st.sampled_from(self.system.world.ranks), label="rank")
        self.order = data.draw(st.lists(st.integers(0, 63), max_size=12), label="order")
        rank.device.run_all()
        self.order = []

    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        """One rank reports."""
        number = data.draw(st.integers(0, len(self.system.world.ranks) - 1), label="rank")
        self._note_over(self.system.poll(number))

    @rule()
    def poll_all(self) -> None:
        """All ranks report."""
        self._poll_all()

    @rule()
    def catch_up(self) -> None:
        """All that is under way is done and reported, and all that was computed is offered."""
        self._catch_up()

    def _catch_up(self) -> None:
        for rank in self.system.world.ranks:
            rank.device.run_all()
        self._poll_all()
        for request in self._requests():
            self.system.offer(request)

    @rule(name=st.sampled_from(NAMES), prompt=st.sampled_from(PROMPTS), chance=st.integers(0, 3))
    def come_again(self, name: str, prompt: tuple[str, ...], chance: int) -> None:
        """A request ends, and another of that name asks for much the same; its load may fail."""
        if name in self.system.requests:
            self.system.finish(self.system.requests[name])
        if not chance:
            self._break_copy(self.system.world.ranks[-1])
        self.system.arrive(name, prompt)

    def _poll_all(self) -> None:
        for number in range(len(self.system.world.ranks)):
            self._note_over(self.system.poll(number))

    def _note_over(self, over: list[Job]) -> None:
        system = self.system
        for job in system.jobs.values():
            reported = len(system.world.ranks) - len(job.unreported)
            self.reach.note("reported by one rank of two", reported > 0)
        for job in over:
            self.reach.note("completed after a reset", job.generation < system.generation)
            if job.kind is JobKind.LOAD:
                self.reach.note("loaded" if job.succeeded else "load that failed")
                several = job.succeeded and len(system.world.ranks) > 1
                self.reach.note("loaded by several ranks", several)
            else:
                self.reach.note("stored" if job.succeeded else "store that failed")

    @precondition(lambda self: bool(self.system.completed))
    @rule(data=st.data())
    def complete_again(self, data: st.DataObject) -> None:
        """A completion comes a second time; its ticket says so."""
        self._complete_again(data.draw(st.sampled_from(self.system.completed), label="job"))

    def _complete_again(self, job: Job) -> None:
        context, keys = job.request.context, job.keys
        if job.kind is JobKind.LOAD:
            self.system.manager.complete_load(keys, context, ticket=job.ticket)
        else:
            self.system.manager.complete_store(keys, context, job.succeeded, ticket=job.ticket)
        self.reach.note("completed twice")

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """The next copy of a rank fails when it is its turn."""
        self._break_copy(data.draw(st.sampled_from(self.system.world.ranks), label="rank"))

    def _break_copy(self, rank: Rank) -> None:
        rank.device.disarm()
        rank.device.break_next_copy(OSError("drawn to fail"))

    def teardown(self) -> None:
        """Let all of it come to its end, and read back every chunk that is there."""
        if self.engine is None:
            return
        engine, self.engine = self.engine, None
        if engine.has_failed:
            return
        for rank in engine.world.ranks:
            rank.device.disarm()
        _settle(engine)
        for request in list(engine.requests.values()):
            engine.finish(request)
        _settle(engine)
        if engine.jobs or len(engine.free) != engine.world.config.num_blocks:
            raise AssertionError(f"blocks or jobs are left: {engine.jobs}, {engine.held}")
        _read_back(engine)
        findings = [str(one) for rank in engine.world.ranks for one in rank.device.findings]
        for rank in engine.world.ranks:
            rank.worker.shutdown()
        if findings:
            raise AssertionError("\n".join(findings))


def _settle(engine: Engine) -> None:
    """Let every rank do and report all that is under way, and what follows from it."""
    while engine.jobs:
        before = {number: len(job.unreported) for number, job in engine.jobs.items()}
        for number, rank in enumerate(engine.world.ranks):
            rank.device.run_all()
            engine.poll(number)
        if before == {number: len(job.unreported) for number, job in engine.jobs.items()}:
            raise AssertionError(f"COPY-4: jobs that are never reported: {engine.jobs}")


def _read_back(engine: Engine) -> None:
    """Load every chunk that any prompt could have left, if the manager says that it is there."""
    for length in range(1, LONGEST + 1):
        for number, prompt in enumerate(product(CHUNKS, repeat=length)):
            name = f"reader {length}.{number}"
            engine.arrive(name, prompt)
            _settle(engine)
            engine.finish(engine.requests[name])
            _settle(engine)
