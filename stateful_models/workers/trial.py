"""One trial of a worker: what its caller does, step by step, and what that shows.

The caller knows what each row must hold, in the order in which it asked. It keeps ORD-4: before it
enqueues a kernel that touches what a job has not been reported of, it waits for the job. A careless
one does not, and then the detector has to say that it is the caller's fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn

from kvoffload import CPULoadStoreSpec, GPULoadStoreSpec, TransferResult
from kvoffload.copying.actions import Action
from kvoffload.copying.findings import Finding, RowsChanged, StrayAccess
from kvoffload.copying.graph import EventReuse, StreamReuse
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ordered import OrderedDevice
from kvoffload.copying.places import RowBytes, Side
from kvoffload.copying.races import Duty, Race, explain
from stateful_models.models.worker import Bytes, ExpectedMemory, Place
from stateful_models.reach import Reach
from stateful_models.workers.blame import Blame, blame, blame_copies
from stateful_models.workers.books import Books, Job, content, described, memory
from stateful_models.workers.findings import WorkerBreachError, WorkerFinding
from stateful_models.workers.steps import (
    Collect,
    Fault,
    Kernel,
    Misfit,
    Run,
    Shutdown,
    Submit,
    Turn,
    WaitFor,
    null_blocks_of,
)
from stateful_models.workers.subject import CopyingWorker, MakeWorker, Scene

_CLAUSE_OF: Final = {
    Misfit.TOO_MANY_SLOTS: "COPY-2",
    Misfit.TOO_FEW_SLOTS: "COPY-2",
    Misfit.PART_OF_A_CHUNK: "COPY-6",
    Misfit.NO_SUCH_SLOT: "COPY-3",
    Misfit.NO_SUCH_BLOCK: "COPY-3",
}
# Where one step shows several things, what explains the others comes first.
_FIRST: Final = (StrayAccess, EventReuse, StreamReuse, RowsChanged, Race)


class WorkerTrial:
    """Does steps with a worker of `make_worker` on an ordered device, and judges each.

    Raises WorkerBreachError at the first breach. With `keeps_order` False the caller does not wait
    where it should, bytes are not judged from then on, and `callers_races` lists what the detector
    said of it. With `judges_order` False neither plans nor their order are judged, only bytes are.
    """

    def __init__(
        self,
        make_worker: MakeWorker,
        scene: Scene,
        *,
        keeps_order: bool = True,
        judges_order: bool = True,
        in_pieces: bool = True,
        reach: Reach | None = None,
    ) -> None:
        self.scene: Scene = scene
        self.layout: CopyLayout = scene.layout
        self.reach: Reach = Reach() if reach is None else reach
        self.books: Books = Books()
        self.callers_races: list[Race] = []
        self.turns: list[Turn] = []
        self.is_over: bool = False
        self.is_shut_down: bool = False
        self._keeps_order = keeps_order
        self._judges_order = judges_order
        self._judges_bytes = True
        self._num_judged = 0
        self._gpu, self._host = memory(scene)
        self._expected = ExpectedMemory(described(self.layout), self._gpu, self._host)
        self._picks: deque[int] = deque()
        self.device: OrderedDevice = OrderedDevice(
            self._gpu, self._host, chooser=self._choose, in_pieces=in_pieces
        )
        self.worker: CopyingWorker = make_worker(self.layout, self.device)

    def do(self, turn: Turn) -> None:
        """One step, and what it shows."""
        self.turns.append(turn)
        self._picks = deque(turn.picks)
        match turn.step:
            case Kernel() as step:
                self._launch(step)
            case Submit() as step:
                if step.misfit is None:
                    self._submit(step)
                else:
                    self._submit_misfit(step, step.misfit)
            case Run():
                self._run()
            case WaitFor(jobs):
                self._wait(jobs)
            case Collect():
                self._collect()
            case Shutdown():
                self._shut_down()
        self._judge_findings()

    def finish(self) -> None:
        """Wait for all jobs, collect, shut down twice, and compare every byte."""
        self._picks = deque()
        if not self.is_shut_down:
            self._wait([job.number for job in self.books.under_way])
            self._collect()
            lost = [job.number for job in self.books.jobs.values() if not job.is_reported]
            if lost:
                self._breach("COPY-4", f"jobs {lost} were waited for, and never reported")
            self._shut_down()
        self._shut_down()
        self.device.run_all()
        self._judge_findings()
        self._judge_reads()
        if self._judges_bytes:
            self._judge_rows(self._expected.state)
        self.is_over = True

    def _choose(self, ready: Sequence[Action]) -> Action | None:
        if not self._picks:
            return None
        pick = self._picks.popleft() % (len(ready) + 1)
        if pick == len(ready):
            return None
        others = {action.operation for action in ready} - {ready[pick].operation}
        self.reach.note(
            "two copies at once",
            ready[pick].num_pieces > 1 and any(map(self.device.has_begun, others)),
        )
        return ready[pick]

    def _run(self) -> None:
        while self._picks:
            chosen = self._choose(self.device.ready())
            if chosen is not None:
                self.device.run(chosen)

    def _launch(self, kernel: Kernel) -> None:
        if self.is_shut_down:
            return
        under_way = self.books.under_way
        meeting = [job for job in under_way if job.conflicts(kernel.reads, kernel.writes)]
        if meeting and self._keeps_order:
            self.reach.note("waited before a kernel")
            self._wait([job.number for job in meeting])
        elif meeting:
            self.reach.note("a kernel that should have waited")
            self._judges_bytes = False
        self.books.num_kernels += 1
        number = self.books.num_kernels
        seen = [(place, self._expected.state[place].copy()) for place in kernel.reads]
        written = [
            (place, content(number * 7 + place.row, len(self._row(place))))
            for place in kernel.writes
        ]

        def run() -> None:
            for place, state in seen:
                wrong = (self._row(place) != state.content) & state.known
                if (wrong & self._expected.covered(place)).any():
                    self.books.wrong_reads.append((f"kernel {number}", place))
            for place, row in written:
                self._row(place)[:] = row

        self.device.launch(
            self.device.compute_stream,
            run,
            reads=[RowBytes(*place) for place in kernel.reads],
            writes=[RowBytes(*place) for place in kernel.writes],
            name=f"kernel {number}",
        )
        for place, row in written:
            self._expected.write(place, row, -number)

    def _submit(self, step: Submit) -> None:
        number = len(self.books.jobs) + 1
        reads, writes = self._expected.places(step.transfer, is_store=step.is_store)
        self._note_meetings(step, reads, writes)
        before = len(self.device.graph.operations)
        if step.fault is Fault.BROKEN:
            self.device.break_next_copy(OSError("the copy failed"))
        elif step.fault is Fault.REFUSED:
            self.device.refuse_next_copy(OSError("the copy cannot be enqueued"))
        try:
            taken = self._call(number, step)
        except Exception as error:
            self._breach("COPY-4", f"{step} was answered by {_said(error)}")
        finally:
            is_spent = self.device.disarm()
        if taken and self.is_shut_down:
            self._breach("COPY-4", f"{step} was taken after shutdown")
        if not taken:
            if not self.is_shut_down and step.fault is not Fault.REFUSED:
                self._breach("COPY-4", f"{step} was not taken, and nothing is wrong with it")
            return
        job = Job(
            number=number,
            lane="store" if step.is_store else "expedited load" if step.expedited else "load",
            reads=reads,
            writes=writes,
            faces=self._expected.faces(step.transfer),
            may_fail=step.fault is not Fault.NONE and is_spent,
            copies=[one for one in self.device.graph.operations[before:] if one.is_transfer],
        )
        self.books.has_failed |= job.may_fail
        self._judge_copies(job, step)
        self.books.jobs[number] = job
        job.num_bytes = self._expected.copy(
            step.transfer, is_store=step.is_store, writer=number, fails=job.may_fail
        )

    def _judge_copies(self, job: Job, step: Submit) -> None:
        """What it has enqueued touches what it should: who enqueues later is judged by bytes."""
        if not self._judges_order or step.fault is Fault.REFUSED or not job.copies:
            return
        self._judge_findings((StrayAccess,))
        found = blame_copies(self._expected, step.transfer, job.copies, job, is_store=step.is_store)
        if found is not None:
            self._breach(*found)

    def _submit_misfit(self, step: Submit, misfit: Misfit) -> None:
        before = self._num_copies()
        try:
            taken = self._call(len(self.books.jobs) + 1, step)
        except Exception:
            taken = False
        clause = _CLAUSE_OF[misfit]
        self.reach.note(f"refused: {misfit.value}", not taken)
        if taken:
            self._breach(clause, f"{step} was taken")
        if self._num_copies() != before:
            self._breach(clause, f"{step} was refused, and something was copied all the same")

    def _call(self, number: int, step: Submit) -> bool:
        one = step.transfer
        blocks = GPULoadStoreSpec(list(one.blocks), one.sizes, one.firsts)
        slots = CPULoadStoreSpec(list(one.slots))
        if not step.is_store:
            return self.worker.submit_load(number, slots, blocks, expedited=step.expedited)
        null_blocks = null_blocks_of(self.layout, one)
        if step.misfit is Misfit.PART_OF_A_CHUNK or not null_blocks:
            return self.worker.submit_store(number, blocks, slots)
        self.reach.note("stored part of a chunk, the rest holding nothing")
        return self.worker.submit_store(number, blocks, slots, null_blocks=null_blocks)

    def _note_meetings(self, step: Submit, reads: set[Place], writes: set[Place]) -> None:
        lane = "store" if step.is_store else "load"
        for operation in self.device.graph.operations:
            if not operation.touches or self.device.is_over(operation):
                continue
            other = operation.name.rpartition(" of ")[0] if operation.is_transfer else "kernel"
            for touch in operation.touches:
                place = Place(touch.side, touch.tensor, touch.row)
                if place in writes:
                    verb = "writes" if touch.writes else "reads"
                    self.reach.note(f"{lane} overwrites what a pending {other} {verb}")
                elif place in reads and touch.writes:
                    self.reach.note(f"{lane} reads what a pending {other} writes")

    def _wait(self, numbers: Iterable[int]) -> None:
        if self.is_shut_down:
            return
        jobs = set(numbers)
        try:
            self.worker.wait(set(jobs))
        except Exception as error:
            self._breach("COPY-4", f"waiting for jobs {sorted(jobs)} ended in {_said(error)}")
        self._judge_findings()
        for number in sorted(jobs):
            job = self.books.jobs.get(number)
            self.reach.note("waited for a job that nobody knows", job is None)
            if job is not None and not job.is_done:
                self._judge_done(job, "was waited for")

    def _collect(self) -> None:
        try:
            results = self.worker.get_finished()
        except Exception as error:
            self._breach("COPY-4", f"get_finished ended in {_said(error)}")
        self._judge_findings()
        self._take_reports(results)

    def _take_reports(self, results: Iterable[TransferResult]) -> None:
        for result in results:
            found = self.books.take_report(result)
            if found is not None:
                self._breach(*found)
            job = self.books.jobs[result.job_id]
            self.reach.note("a copy that failed was reported", not result.success)
            if not job.is_done:
                self._judge_done(job, "was reported")

    def _shut_down(self) -> None:
        self.reach.note("shut down with jobs under way", bool(self.books.under_way))
        try:
            self.worker.shutdown()
        except Exception as error:
            self._breach("COPY-4", f"shutdown ended in {_said(error)}")
        self.is_shut_down = True
        self._judge_findings()
        for job in self.books.under_way:
            self._judge_done(job, "was under way at shutdown, which has returned,")
        # Whoever still tells what finished tells the truth, and each once.
        try:
            results = self.worker.get_finished()
        except Exception:
            return
        self._take_reports(results)

    def _judge_done(self, job: Job, what: str) -> None:
        """It is over, and its bytes are where they should be, unless others wrote there since."""
        job.is_done = True
        if not all(map(self.device.is_over, job.copies)):
            self._breach("COPY-4", f"job {job.number} {what} and its copy is not over")
        self._judge_reads()
        if self._judges_bytes and not job.may_fail:
            state = self._expected.state
            own = [place for place in job.writes if state[place].writer == job.number]
            self._judge_rows(own, None if job.copies else f"job {job.number} {what}")

    def _judge_reads(self) -> None:
        """Where the order is judged, it has been; what is wrong with bytes shows in the rows."""
        if self._judges_bytes and not self._judges_order and self.books.wrong_reads:
            name, place = self.books.wrong_reads[0]
            self._breach(
                "ORD-1", f"{name} read {RowBytes(*place)} after a transfer submitted later"
            )

    def _judge_rows(self, places: Iterable[Place], missing: str | None = None) -> None:
        """All that is known of these rows; `missing` says whose copies nobody has seen."""
        for place in sorted(places, key=lambda one: (one.side.name, one.tensor, one.row)):
            state = self._expected.state[place]
            wrong = (self._row(place) != state.content) & state.known
            if not wrong.any():
                continue
            found = blame(self._expected, place, self._row(place), wrong, self.books.jobs.values())
            if missing is not None:
                found = Blame("COPY-4", f"{missing}, and nothing was copied: {found.message}")
            self._breach(*found)

    def _judge_findings(self, kinds: tuple[type[Finding], ...] = _FIRST) -> None:
        """What the device has found since it was last looked at."""
        fresh = [one for one in self.device.findings[self._num_judged :] if isinstance(one, kinds)]
        if kinds == _FIRST:
            self._num_judged = len(self.device.findings)
        if self._judges_order:
            for finding in sorted(fresh, key=lambda one: _FIRST.index(type(one))):
                self._judge_finding(finding)

    def _judge_finding(self, finding: Finding) -> None:
        message = str(finding).partition(": ")[2]
        if not isinstance(finding, Race):
            self._breach(finding.clause, message)
        if finding.duty is Duty.WORKER:
            self._breach(finding.clause, message, explain(finding))
        if self._keeps_order:
            self._breach(
                "COPY-4",
                f"{finding.earlier.name!r} was said to be done, and nothing told the host so",
                explain(finding),
            )
        self.callers_races.append(finding)
        self.reach.note("a race of the caller's")

    def _num_copies(self) -> int:
        return sum(one.is_transfer for one in self.device.graph.operations)

    def _row(self, place: Place) -> Bytes:
        arrays = self._gpu if place.side is Side.GPU else self._host
        row: Bytes = arrays[place.tensor][place.row]
        return row

    def _breach(self, clause: str, message: str, report: str = "") -> NoReturn:
        self.is_over = True
        raise WorkerBreachError(
            WorkerFinding(clause, message, report, tuple(str(turn.step) for turn in self.turns))
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
