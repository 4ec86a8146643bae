"""COPY-5, GEN-3, ORD-4: what the owner of several workers has to keep to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvoffload import CPUOffloadingManager, LookupResult, ReqContext
from kvoffload.copying.actions import Action
from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.ordered import OrderedDevice
from kvoffload.copying.places import RowBytes, Side
from kvoffload.copying.races import Duty
from kvoffload.copying.worker import CopyWorker
from stateful_models.system import Engine, JobKind, SystemConfig, World
from stateful_models.system.engine import key_of
from stateful_models.system.world import Worker

KEY = key_of(("a",))


def make_worker(layout: CopyLayout, device: OrderedDevice) -> Worker:
    return CopyWorker(layout, device)


def in_order(actions: Sequence[Action]) -> Action | None:
    return None


def make_engine() -> Engine:
    """Two ranks over one host memory, each keeping a part of every canonical page."""
    world = World.make(SystemConfig(layers=("spread",)), make_worker, in_order)
    return Engine(world, CPUOffloadingManager(world.config.num_slots))


def answer(engine: Engine) -> LookupResult:
    return engine.manager.lookup(KEY, ReqContext("asks"))


def finish_on(engine: Engine, *ranks: int) -> None:
    for rank in ranks:
        engine.world.ranks[rank].device.run_all()
        engine.poll(rank)


@pytest.mark.clause("COPY-5")
def test_a_job_is_done_when_every_rank_has_reported_it() -> None:
    engine = make_engine()
    request = engine.arrive("r", ("a",))
    engine.offer(request)
    finish_on(engine, 0)
    assert answer(engine) is LookupResult.HIT_PENDING
    finish_on(engine, 1)
    assert answer(engine) is LookupResult.HIT


@pytest.mark.clause("COPY-5")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_job_succeeded_when_it_did_on_every_rank(rank: int) -> None:
    engine = make_engine()
    request = engine.arrive("r", ("a",))
    engine.world.ranks[rank].device.break_next_copy(OSError("broken"))
    engine.offer(request)
    finish_on(engine, 0, 1)
    assert answer(engine) is LookupResult.MISS


@pytest.mark.clause("GEN-3")
def test_nothing_new_begins_before_what_a_reset_left_is_reported() -> None:
    engine = make_engine()
    first = engine.arrive("first", ("a",))
    engine.offer(first)
    engine.reset()
    assert engine.offer(first) is None
    second = engine.arrive("second", ("a",))
    assert not second.is_running
    finish_on(engine, 0)
    assert not engine.start(second)
    finish_on(engine, 1)
    assert answer(engine) is LookupResult.MISS
    assert engine.start(second)
    job = engine.offer(second)
    assert job is not None
    assert job.kind is JobKind.STORE
    finish_on(engine, 0, 1)
    assert answer(engine) is LookupResult.HIT


@pytest.mark.clause("ORD-4")
@pytest.mark.parametrize("waits", [False, True])
def test_what_follows_a_submission_is_the_callers_to_order(waits: bool) -> None:
    engine = make_engine()
    request = engine.arrive("r", ("a",))
    job = engine.offer(request)
    assert job is not None
    rank = engine.world.ranks[0]
    if waits:
        rank.worker.wait({job.number})
    rank.device.launch(
        rank.device.compute_stream,
        lambda: None,
        writes=[RowBytes(Side.GPU, 0, request.blocks[0])],
        name="overwrite",
    )
    found = [(race.clause, race.duty) for race in rank.device.races]
    assert found == ([] if waits else [("ORD-4", Duty.CALLER)])
