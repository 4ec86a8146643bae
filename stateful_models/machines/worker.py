"""The worker machine: kernels and transfers over few blocks and slots, executed in any order."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ordered import OrderedDevice
from kvoffload.copying.places import Side
from kvoffload.copying.worker import CopyWorker
from stateful_models.machines.testing import refuse_lost_rules
from stateful_models.models.worker import Place, Transfer
from stateful_models.reach import Reach
from stateful_models.workers.steps import (
    Collect,
    Kernel,
    Run,
    Shutdown,
    Step,
    Submit,
    Turn,
    WaitFor,
    draw_kernel,
    draw_misfit,
    draw_submit,
)
from stateful_models.workers.subject import SCENES, CopyingWorker, Scene
from stateful_models.workers.trial import WorkerTrial

MOST_CHOICES = 12
"""Actions among which a pick can choose."""

_PICKS = st.lists(st.integers(0, MOST_CHOICES - 1), max_size=8).map(tuple[int, ...])
_MANY_PICKS = st.lists(st.integers(0, MOST_CHOICES - 1), min_size=10, max_size=24).map(
    tuple[int, ...]
)


@st.composite
def kernels(draw: st.DrawFn, layout: CopyLayout) -> Kernel:
    """A kernel that reads and writes a few rows."""
    return draw_kernel(lambda limit: draw(st.integers(0, limit - 1)), layout)


@st.composite
def submissions(
    draw: st.DrawFn, layout: CopyLayout, *, is_store: bool, other: Transfer | None = None
) -> Submit:
    """A job that a worker must take; it touches nothing of the `other` transfer."""

    def pick(limit: int) -> int:
        return draw(st.integers(0, limit - 1))

    return draw_submit(pick, layout, is_store=is_store, other=other)


@st.composite
def misfits(draw: st.DrawFn, layout: CopyLayout) -> Submit | None:
    """A job that a worker must refuse; None where the draw gave none."""
    is_store = draw(st.booleans())
    return draw_misfit(lambda limit: draw(st.integers(0, limit - 1)), layout, is_store=is_store)


class WorkerMachine(RuleBasedStateMachine):
    """Subclass it, override `make_worker`, and run it with `machine_test`.

        class TestMine(WorkerMachine):
            def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> CopyingWorker:
                return MyWorker(layout, device)

        test_mine = machine_test(TestMine)

    Kernels read and write blocks in the compute stream; jobs store and load them, some of which
    fail, some of which must be refused. The device does what its edges allow in any order, piece by
    piece. Each kernel and each transfer must find what was there when it was enqueued, each job is
    reported once and in the order of its lane, and in the end every byte is as it should be
    (COPY-1 to COPY-4, COPY-6, MAP-3). Nothing that the worker had to order is without order,
    whether it went well or not (ORD-1 to ORD-3). As it is, it tries the reference.
    """

    # Classes of machines are no classes of tests, whatever they are called.
    __test__: ClassVar[bool] = False
    reach: ClassVar[Reach] = Reach()
    caller_keeps_order: ClassVar[bool] = True
    """False for a caller that breaks ORD-4: the detector may then say so, and nothing else."""
    SITUATIONS: ClassVar[tuple[str, ...]] = (
        "load overwrites what a pending kernel reads",
        "load overwrites what a pending kernel writes",
        "load overwrites what a pending store reads",
        "load overwrites what a pending expedited load writes",
        "load reads what a pending store writes",
        "store reads what a pending kernel writes",
        "store reads what a pending load writes",
        "store overwrites what a pending load reads",
        "store overwrites what a pending expedited load reads",
        "store overwrites what a pending store writes",
        "stored part of a chunk, the rest holding nothing",
        "two copies at once",
        "waited before a kernel",
        "waited for a job that nobody knows",
        "a copy that failed was reported",
        "shut down with jobs under way",
        "refused: a slot more than there are chunks",
        "refused: a slot less than there are chunks",
        "refused: part of a chunk, and nobody said that the rest holds nothing",
        "refused: a slot that host memory does not have",
        "refused: a block that the GPU does not have",
    )
    """What a run must come to; `reach.missing(SITUATIONS)` tells what it did not."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.reach = Reach()
        refuse_lost_rules(cls)

    def __init__(self) -> None:
        super().__init__()
        self.trial: WorkerTrial | None = None

    def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> CopyingWorker:
        """The worker on trial."""
        return CopyWorker(layout, device)

    @initialize(scene=st.sampled_from(SCENES), in_pieces=st.booleans())
    def start(self, scene: Scene, in_pieces: bool) -> None:
        """Memory of some layout, and a worker that has nothing to do."""
        self.scene = scene
        self.trial = WorkerTrial(
            self.make_worker,
            scene,
            keeps_order=self.caller_keeps_order,
            in_pieces=not in_pieces,
            reach=self.reach,
        )

    @rule(data=st.data(), picks=_PICKS)
    def kernel(self, data: st.DataObject, picks: tuple[int, ...]) -> None:
        """The engine enqueues a kernel."""
        self._do(data.draw(kernels(self.scene.layout), label="kernel"), picks)

    @rule(data=st.data(), picks=_PICKS)
    def store(self, data: st.DataObject, picks: tuple[int, ...]) -> None:
        """Blocks are stored."""
        self._do(data.draw(submissions(self.scene.layout, is_store=True), label="job"), picks)

    @rule(data=st.data(), picks=_PICKS)
    def load(self, data: st.DataObject, picks: tuple[int, ...]) -> None:
        """Blocks are loaded."""
        self._do(data.draw(submissions(self.scene.layout, is_store=False), label="job"), picks)

    @rule(data=st.data(), is_store=st.booleans(), is_written=st.booleans())
    def kernel_and_job(self, data: st.DataObject, is_store: bool, is_written: bool) -> None:
        """A kernel, and a job that needs one of its rows."""
        job = data.draw(submissions(self.scene.layout, is_store=is_store), label="job")
        blocks = job.transfer.blocks or (0,)
        tensor = data.draw(st.integers(0, len(self.scene.layout.gpu) - 1), label="tensor")
        place = Place(Side.GPU, tensor, blocks[0])
        self._do(Kernel((), (place,)) if is_written else Kernel((place,), ()))
        self._do(job)

    @rule(data=st.data(), picks=_MANY_PICKS)
    def side_by_side(self, data: st.DataObject, picks: tuple[int, ...]) -> None:
        """A store and a load that have nothing to do with each other, then the device."""
        layout = self.scene.layout
        store = data.draw(submissions(layout, is_store=True), label="store")
        load = data.draw(submissions(layout, is_store=False, other=store.transfer), label="load")
        self._do(store)
        self._do(load)
        self._do(Run(), picks)

    @rule(data=st.data())
    def misfit(self, data: st.DataObject) -> None:
        """Something is asked that cannot be done."""
        step = data.draw(misfits(self.scene.layout), label="job")
        if step is not None:
            self._do(step)

    @rule(picks=_MANY_PICKS)
    def run(self, picks: tuple[int, ...]) -> None:
        """The device goes on."""
        self._do(Run(), picks)

    @rule(back=st.lists(st.integers(0, 4), min_size=1, max_size=3), picks=_PICKS)
    def wait(self, back: list[int], picks: tuple[int, ...]) -> None:
        """The caller waits for some of the latest jobs, or one that is yet to come."""
        latest = len(self._trial.books.jobs)
        self._do(WaitFor(tuple(sorted({max(1, latest + 1 - one) for one in back}))), picks)

    @rule()
    def collect(self) -> None:
        """The caller asks what has finished."""
        self._do(Collect())

    @precondition(lambda self: len(self._trial.books.jobs) > 2)
    @rule(seldom=st.integers(0, 2), picks=_PICKS)
    def shutdown(self, seldom: int, picks: tuple[int, ...]) -> None:
        """The worker is shut down, seldom."""
        if seldom == 2:
            self._do(Shutdown(), picks)

    def teardown(self) -> None:
        """All is waited for, collected, shut down and compared, unless something was wrong."""
        if self.trial is not None and not self.trial.is_over:
            self.trial.finish()

    def _do(self, step: Step, picks: tuple[int, ...] = ()) -> None:
        self._trial.do(Turn(step, picks))

    @property
    def _trial(self) -> WorkerTrial:
        if self.trial is None:
            raise RuntimeError("the machine was not started")
        return self.trial
