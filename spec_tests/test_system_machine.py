"""The system machine: the reference passes, and a wrong engine, manager or worker does not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from fractions import Fraction

import pytest
from attrs import evolve
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from typing_extensions import override

from kvoffload import (
    BlockIDsLoadStoreSpec,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    TransferResult,
)
from kvoffload.copying.graph import Stream
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ledger import AccessLedger, Lane
from kvoffload.copying.ordered import OrderedDevice, OrderedEvent
from kvoffload.copying.plans import CopyPlan
from kvoffload.copying.worker import CopyWorker
from spec_tests.profiles import times
from stateful_models.machines import SystemMachine, machine_test
from stateful_models.system import Engine, Job, RefusedError, Request, SystemConfig, World
from stateful_models.system.world import Worker

UNTIL_IT_FAILS = 3
"""Times the usual examples, of which hardly any are needed."""


def test_the_reference_as_a_whole() -> None:
    """COPY-1, COPY-5, ORD-1, ORD-3, ORD-4, MAP-3, GEN-1, GEN-2; nothing that matters left out."""
    run_state_machine_as_test(SystemMachine)
    assert SystemMachine.reach.missing(SystemMachine.SITUATIONS) == [], str(SystemMachine.reach)


def until_it_fails(machine: type[SystemMachine]) -> None:
    """How short the program can be made is nobody's question here."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            times(UNTIL_IT_FAILS), phases=(Phase.generate,), report_multiple_bugs=False
        ),
    )


# Engines


class FirstReportCounts(Engine):
    """Completes a transfer when the first rank has reported it."""

    @override
    def is_over(self, job: Job) -> bool:
        return True


class ReusesAtOnce(Engine):
    """Gives a request's blocks away while transfers still use them."""

    @override
    def let_go(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks, request.loading = [], None


class BelievesEveryCopy(Engine):
    """Takes a failed copy for one that went well."""

    @override
    def complete(self, job: Job) -> None:
        job.succeeded = True
        super().complete(job)


class EagerAfterReset(Engine):
    """Uses slots again before the transfers from before a reset were reported (GEN-3).

    Canonical slots are shared: one rank may write what another still reads, and no worker knows of
    the other's transfers.
    """

    @override
    def may_submit(self) -> bool:
        self.flush()
        return True


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (FirstReportCounts, "COPY-1"),
        (ReusesAtOnce, "COPY-1|ORD-4"),
        (BelievesEveryCopy, "COPY-1"),
        pytest.param(EagerAfterReset, "COPY-1", marks=pytest.mark.nightly),
    ],
)
def test_an_engine_that_is_wrong_is_found_out(engine: type[Engine], why: str) -> None:
    class Machine(SystemMachine):
        @override
        def make_engine(self, world: World, manager: CPUOffloadingManager) -> Engine:
            return engine(world, manager)

    with pytest.raises(AssertionError, match=why):
        until_it_fails(Machine)


# Managers


class StoresAreReadyAtOnce(CPUOffloadingManager):
    """Lets a chunk be loaded before its store has been completed."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        output = super().prepare_store(keys, req_context)
        if output is not None and output.keys_to_store:
            self.complete_store(output.keys_to_store, req_context, ticket=output.ticket)
        return output


class LoadsAreOverAtOnce(CPUOffloadingManager):
    """Unpins what a load reads when it is prepared: its slots are free to be written again."""

    @override
    def prepare_load(
        self, keys: Collection[OffloadKey], req_context: ReqContext, *, record_access: bool = True
    ) -> CPULoadStoreSpec:
        spec = super().prepare_load(keys, req_context, record_access=record_access)
        self.complete_load(keys, req_context, ticket=spec.ticket)
        return spec


class BelievesStaleCompletions(CPUOffloadingManager):
    """Takes every completion for one of what is pending now, whatever its ticket says."""

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        super().complete_store(keys, req_context, success)


class OneChunkMore(CPUOffloadingManager):
    """Counts a chunk that no rank has memory for."""

    def __init__(self, num_chunks: int) -> None:
        super().__init__(num_chunks + 1)


@pytest.mark.parametrize(
    ("manager", "why"),
    [
        (StoresAreReadyAtOnce, "COPY-1"),
        pytest.param(LoadsAreOverAtOnce, "COPY-1", marks=pytest.mark.nightly),
        pytest.param(BelievesStaleCompletions, "COPY-1", marks=pytest.mark.nightly),
        (OneChunkMore, "SPECS-4: manager and rank 0 do not agree"),
    ],
)
def test_a_manager_that_is_wrong_is_found_out(
    manager: Callable[[int], CPUOffloadingManager], why: str
) -> None:
    class Machine(SystemMachine):
        @override
        def make_manager(self, num_chunks: int) -> CPUOffloadingManager:
            return manager(num_chunks)

    with pytest.raises(AssertionError, match=why):
        until_it_fails(Machine)


# Workers


class NoLedger(AccessLedger):
    """Knows of no earlier transfer."""

    @override
    def before_read(self, places: object, lane: Lane) -> dict[Lane, int]:
        return {}

    @override
    def before_write(self, places: object, lane: Lane) -> dict[Lane, int]:
        return {}


class WaitsForNobody(CopyWorker[Stream, OrderedEvent]):
    """Lets transfers of different lanes pass each other."""

    def __init__(self, layout: CopyLayout, device: OrderedDevice) -> None:
        super().__init__(layout, device)
        self._blocks = NoLedger(1)
        self._slots = NoLedger(layout.num_slots)
        self._blocks = NoLedger(max(rows.num_rows for rows in layout.gpu))


class IgnoresCompute(CopyWorker[Stream, OrderedEvent]):
    """Copies without waiting for the kernels before."""

    def __init__(self, layout: CopyLayout, device: OrderedDevice) -> None:
        super().__init__(layout, _Deaf(device))  # type: ignore[arg-type]  # all that is used


class _Deaf:
    """A device whose compute stream is another, with nothing in it."""

    def __init__(self, device: OrderedDevice) -> None:
        self._device = device
        self.compute_stream = device.new_stream("nothing")

    def __getattr__(self, name: str) -> object:
        return getattr(self._device, name)


class SaysAllIsWell(CopyWorker[Stream, OrderedEvent]):
    """Reports a failed copy as one that went well."""

    @override
    def get_finished(self) -> list[TransferResult]:
        return [evolve(result, success=True) for result in super().get_finished()]


class NextSubBlock(CopyWorker[Stream, OrderedEvent]):
    """Loads begin one block further into their first chunk."""

    @override
    def _submit(
        self,
        lane: Lane,
        job_id: int,
        make_plan: Callable[[], CopyPlan],
        blocks_spec: GPULoadStoreSpec,
        slots_spec: BlockIDsLoadStoreSpec,
    ) -> bool:
        def plan() -> CopyPlan:
            right = make_plan()
            if lane is Lane.STORE or self.layout.blocks_per_chunk == 1:
                return right
            rows = self.layout.host[0].num_rows
            return evolve(
                right,
                pages=tuple(
                    evolve(page, host_rows=(page.host_rows + 1) % rows) for page in right.pages
                ),
            )

        return super()._submit(lane, job_id, plan, blocks_spec, slots_spec)


class LeavesOutTheLast(CopyWorker[Stream, OrderedEvent]):
    """Stores all of a transfer but its last block, and says that all is there."""

    @override
    def _submit(
        self,
        lane: Lane,
        job_id: int,
        make_plan: Callable[[], CopyPlan],
        blocks_spec: GPULoadStoreSpec,
        slots_spec: BlockIDsLoadStoreSpec,
    ) -> bool:
        def plan() -> CopyPlan:
            right = make_plan()
            if lane is not Lane.STORE:
                return right
            return evolve(
                right,
                pages=tuple(
                    evolve(page, gpu_rows=page.gpu_rows[:-1], host_rows=page.host_rows[:-1])
                    for page in right.pages
                ),
            )

        return super()._submit(lane, job_id, plan, blocks_spec, slots_spec)


class OneRank(SystemMachine):
    """A worker by itself, under an engine that leaves the order across resets to it."""

    configs = (SystemConfig(num_ranks=1),)

    @override
    def make_engine(self, world: World, manager: CPUOffloadingManager) -> Engine:
        return EagerAfterReset(world, manager)


def test_a_worker_by_itself_keeps_the_order_across_resets() -> None:
    """ORD-3."""
    run_state_machine_as_test(OneRank, settings=times(Fraction(1, 2)))
    assert OneRank.reach["reset with a load under way"]


def test_a_worker_that_forgets_is_found_out() -> None:
    class Machine(OneRank):
        @override
        def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> Worker:
            return WaitsForNobody(layout, device)

    with pytest.raises(AssertionError, match="ORD-3"):
        until_it_fails(Machine)


@pytest.mark.parametrize(
    ("worker", "why"),
    [
        (IgnoresCompute, "COPY-1|ORD-1"),
        (SaysAllIsWell, "COPY-1"),
        (NextSubBlock, "COPY-1"),
        (LeavesOutTheLast, "COPY-1"),
    ],
)
def test_a_worker_that_is_wrong_is_found_out(worker: type[Worker], why: str) -> None:
    class Machine(SystemMachine):
        @override
        def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> Worker:
            return worker(layout, device)

    with pytest.raises(AssertionError, match=why):
        until_it_fails(Machine)


def test_ranks_that_disagree_on_the_number_of_chunks_are_found_out() -> None:
    """SPECS-4: the last rank reckons with other layers, and finds room for a chunk less."""

    class Machine(SystemMachine):
        configs = (SystemConfig(),)

        @override
        def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> Worker:
            self.num_made = getattr(self, "num_made", 0) + 1
            if self.num_made % 2:
                return super().make_worker(layout, device)
            fewer = [
                evolve(rows, num_rows=rows.num_rows - layout.blocks_per_chunk)
                for rows in layout.host
            ]
            return CopyWorker(evolve(layout, host=fewer), device)

    with pytest.raises(RefusedError, match="SPECS-4: manager and rank 1 do not agree"):
        until_it_fails(Machine)


class DropsLoads(CopyWorker[Stream, OrderedEvent]):
    """Takes no load."""

    @override
    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        *,
        expedited: bool = False,
    ) -> bool:
        return False


def test_a_rank_that_does_not_take_a_transfer_is_found_out() -> None:
    class Machine(SystemMachine):
        @override
        def make_worker(self, layout: CopyLayout, device: OrderedDevice) -> Worker:
            return DropsLoads(layout, device)

    with pytest.raises(RefusedError, match="COPY-4: rank 0 does not take load"):
        until_it_fails(Machine)


test_some_rules_alone = machine_test(
    SystemMachine, only=["come_again", "catch_up", "run*"], settings=times(Fraction(1, 6))
)
