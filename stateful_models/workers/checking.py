"""Many short trials of a worker, and of each clause that it breaks the shortest program."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from attrs import frozen

from kvoffload.copying.races import explain
from stateful_models.reach import Reach
from stateful_models.workers.findings import WorkerBreachError, WorkerFinding
from stateful_models.workers.steps import (
    Collect,
    Pick,
    Run,
    Shutdown,
    Step,
    Turn,
    WaitFor,
    draw_kernel,
    draw_misfit,
    draw_submit,
)
from stateful_models.workers.subject import SCENES, MakeWorker, Scene
from stateful_models.workers.trial import WorkerTrial

CLAUSES_JUDGED: Final = (
    "COPY-1",
    "COPY-2",
    "COPY-3",
    "COPY-4",
    "COPY-6",
    "ORD-1",
    "ORD-2",
    "ORD-3",
    "ORD-4",
    "MAP-3",
)
"""What a trial can find; ORD-4 only with a careless caller."""

PROGRAMS: Final = 160
STEPS: Final = 24
ENOUGH: Final = 12
"""Programs that break one clause, after which no more of them are shortened."""


@frozen
class Setting:
    """How one program is run."""

    scene: Scene
    in_pieces: bool
    keeps_order: bool
    judges_order: bool


def check_worker(
    make_worker: MakeWorker,
    *,
    programs: int = PROGRAMS,
    seed: int = 0,
    scenes: Sequence[Scene] = SCENES,
    keeps_order: bool = True,
    judges_order: bool = True,
    reach: Reach | None = None,
) -> list[WorkerFinding]:
    """What a worker breaks: of each clause the shortest program found, in the contract's order.

    `make_worker` is given a layout and an ordered device, anew for each program; seconds of work.
    With `keeps_order` False the caller breaks ORD-4, and what is found of it is the caller's.
    With `judges_order` False only bytes are judged, under the orders that came about.
    """
    random = Random(seed)
    reach = Reach() if reach is None else reach
    found: dict[str, tuple[Setting, list[Turn], WorkerFinding]] = {}
    times: dict[str, int] = {}
    for number in range(programs):
        setting = Setting(
            scenes[number % len(scenes)], bool(random.randrange(4)), keeps_order, judges_order
        )
        trial = _new_trial(make_worker, setting, reach)
        finding = _draw_and_run(trial, random)
        if finding is None:
            continue
        times[finding.clause] = times.get(finding.clause, 0) + 1
        known = found.get(finding.clause)
        if known is None or len(trial.turns) < len(known[1]):
            found[finding.clause] = (setting, trial.turns, finding)
        if sum(times.values()) >= ENOUGH * 4:
            break
    return [shortened(make_worker, *found[clause]) for clause in CLAUSES_JUDGED if clause in found]


def _new_trial(make_worker: MakeWorker, setting: Setting, reach: Reach | None) -> WorkerTrial:
    return WorkerTrial(
        make_worker,
        setting.scene,
        keeps_order=setting.keeps_order,
        judges_order=setting.judges_order,
        in_pieces=setting.in_pieces,
        reach=reach,
    )


def _draw_and_run(trial: WorkerTrial, random: Random) -> WorkerFinding | None:
    try:
        for _ in range(STEPS):
            step = draw_step(random.randrange, trial)
            if step is not None:
                trial.do(Turn(step, _picks(random, isinstance(step, Run))))
        trial.finish()
    except WorkerBreachError as breach:
        return breach.finding
    return _of_the_caller(trial)


def _of_the_caller(trial: WorkerTrial) -> WorkerFinding | None:
    """The first race of a careless caller's."""
    if not trial.callers_races:
        return None
    race = trial.callers_races[0]
    program = tuple(str(turn.step) for turn in trial.turns)
    return WorkerFinding(race.clause, str(race).partition(": ")[2], explain(race), program)


def _picks(random: Random, is_run: bool) -> tuple[int, ...]:
    length = random.choice((4, 8, 16, 24) if is_run else (0, 0, 0, 4, 8))
    return tuple(random.randrange(12) for _ in range(length))


def draw_step(pick: Pick, trial: WorkerTrial) -> Step | None:
    """Any step; None where the draw gave none."""
    layout = trial.layout
    kind = pick(20)
    if kind < 5:
        return draw_kernel(pick, layout)
    if kind < 9:
        return draw_submit(pick, layout, is_store=True)
    if kind < 14:
        return draw_submit(pick, layout, is_store=False)
    if kind < 16:
        return Run()
    if kind < 17:
        return draw_wait(pick, trial)
    if kind < 19:
        return Collect()
    if pick(4):
        return draw_misfit(pick, layout, is_store=bool(pick(2)))
    return None if pick(6) else Shutdown()


def draw_wait(pick: Pick, trial: WorkerTrial) -> WaitFor:
    """For one of the latest jobs, or one that nobody knows."""
    return WaitFor((max(1, len(trial.books.jobs) + 1 - pick(4)),))


def shortened(
    make_worker: MakeWorker, setting: Setting, turns: Sequence[Turn], finding: WorkerFinding
) -> WorkerFinding:
    """The same clause by a program of which no step can be left out."""
    best, shown = list(turns), finding
    again = True
    while again:
        again = False
        for at in reversed(range(len(best))):
            shorter = [*best[:at], *best[at + 1 :]]
            other = run_program(make_worker, setting, shorter)
            if other is not None and other.clause == finding.clause:
                best, shown, again = shorter, other, True
    return shown


def run_program(
    make_worker: MakeWorker, setting: Setting, turns: Sequence[Turn]
) -> WorkerFinding | None:
    """What these turns show, if anything."""
    trial = _new_trial(make_worker, setting, None)
    try:
        for turn in turns:
            trial.do(turn)
        trial.finish()
    except WorkerBreachError as breach:
        return breach.finding
    return _of_the_caller(trial)
