"""The trial of one manager, from a driver to a report. It runs where the manager runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from kvoffload import OffloadingManager
from kvoffload.wording import counted
from stateful_models.contract import CLAUSES
from stateful_models.engines.base import Breach
from stateful_models.engines.manager_runs import MakeManagerInvariants
from stateful_models.engines.managers import MANAGER_SITUATIONS, ManagerEngine, ManagerTrial
from stateful_models.engines.runs import PLAIN, Surroundings
from stateful_models.engines.suites import manager_law
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.trial.beside import Tally, play_engines
from stateful_models.trial.manager_consequences import manager_consequence, quiet_consequence
from stateful_models.trial.pasting import program_test, verdict_test
from stateful_models.trial.reports import Observed, OwnPromise, Reporter, Shown, is_own
from stateful_models.trial.request import Request
from stateful_models.trial.scope import Scope
from stateful_models.trial.verdicts import Report
from stateful_models.trial.wording import breach_lines

M = TypeVar("M", bound=OffloadingManager)

MANAGER_SCOPE: Final = {
    clause: Scope(situations) for clause, situations in MANAGER_SITUATIONS.items()
}
"""Every clause that is judged in the trial of a manager."""


def try_manager(
    driver: ManagerDriver[M],
    engines: Iterable[ManagerEngine],
    request: Request,
    *,
    make_invariants: MakeManagerInvariants,
    surroundings: Surroundings = PLAIN,
    on_progress: Callable[[str, float], None] = lambda engine, share: None,
    now: Callable[[], float],
    observe: Callable[[], Observed] = Observed,
    own: Sequence[OwnPromise] = (),
    tallies: Callable[[], Iterable[Tally]] | None = None,
) -> Report:
    """Run the engines that judge a wanted clause, and say what is known of each clause.

    `tallies` is that of `play_engines`.
    """
    begun = now()
    trial: ManagerTrial[M] = ManagerTrial(
        driver=driver,
        make_invariants=make_invariants,
        capabilities=driver.capabilities,
        profile=request.profile,
        level=request.budgets,
        seed=request.seed,
        surroundings=surroundings,
        on_progress=on_progress,
        now=now,
        # All others are listed by the engines.
        by_invariants={clause for one in own for clause in one.clauses},
    )
    asked = trial.asked(engines, request.wants)
    play_engines(trial, asked, lambda engine: engine.run(trial), tallies)

    def show(breach: Breach) -> Shown:
        program = breach.program
        if program is None:
            return Shown((), quiet_consequence(breach.clause), _test(trial, request, breach, own))
        run = trial.run(program)
        lines = breach_lines(breach, program, run.played, run.violations)
        return Shown(
            (*_settings_line(breach), *lines),
            manager_consequence(
                driver,
                program,
                trial.surroundings,
                clause=breach.clause,
                own=is_own(breach, own),
            ),
            _test(trial, request, breach, own),
        )

    reporter = Reporter(
        request=request,
        trial=trial,
        scopes=MANAGER_SCOPE,
        not_applicable=lambda scope: "",
        show=show,
        observed=observe(),
        own=own,
    )
    return reporter.report(host="vLLM 0.33", seconds=now() - begun)


def _settings_line(breach: Breach) -> tuple[str, ...]:
    program = breach.program
    if program is None or program.settings is None:
        return ()
    chunks = counted(program.capacity, "chunk")
    watched = ", every key looked up after each operation" if program.watchful else ""
    return (f"     {chunks}, {program.settings}{watched}",)


def _test(
    trial: ManagerTrial[M], request: Request, breach: Breach, own: Sequence[OwnPromise]
) -> str:
    """A test that fails where no clock is virtual: of the program, if it shows it there too."""
    program = breach.program
    if program is not None:
        law = manager_law(breach.engine)
        plain = ManagerTrial(
            trial.driver,
            trial.make_invariants,
            capabilities=trial.capabilities,
            surroundings=Surroundings(patience_s=trial.surroundings.patience_s),
        )
        if law is not None:
            shows = law.broken_by(plain, program) is not None
        else:
            shows = bool(plain.run(program).violations)
        name = None if law is None else law.name
        text = program_test(request, breach, program, law=name, own=own) if shows else ""
        if text:
            return text
    listed = {*CLAUSES, *(clause for one in own for clause in one.clauses)}
    return verdict_test(request, breach) if breach.clause in listed else ""
