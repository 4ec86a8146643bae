"""The trial of one policy, from a driver to a report. It runs where the policy runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kvoffload import CachePolicy
from kvoffload.wording import counted
from stateful_models.contract import CLAUSES, Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.runs import PLAIN, MakeInvariants, Surroundings, run_program
from stateful_models.engines.suites import policy_law
from stateful_models.engines.wrapper import Wrapper
from stateful_models.trial.beside import Tally, play_engines
from stateful_models.trial.consequences import consequence, quiet_consequence
from stateful_models.trial.pasting import program_test, verdict_test
from stateful_models.trial.reports import Observed, OwnPromise, Reporter, Shown, is_own
from stateful_models.trial.request import Request
from stateful_models.trial.scope import POLICY_SCOPE, Scope
from stateful_models.trial.verdicts import Report
from stateful_models.trial.wording import breach_lines

P = TypeVar("P", bound=CachePolicy)


def try_policy(
    driver: Driver[P],
    engines: Iterable[Engine],
    request: Request,
    *,
    make_invariants: MakeInvariants,
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
    trial: PolicyTrial[P] = PolicyTrial(
        driver=driver,
        make_invariants=make_invariants,
        capabilities=driver.capabilities,
        profile=request.profile,
        level=request.budgets,
        seed=request.seed,
        surroundings=surroundings,
        on_progress=on_progress,
        now=now,
        own=[one.name for one in own],
        by_invariants={clause for one in make_invariants(1) for clause in one.clauses},
    )
    asked = trial.asked(engines, request.wants)
    play_engines(trial, asked, lambda engine: engine.run(trial), tallies)

    def not_applicable(scope: Scope) -> str:
        return scope.not_applicable(trial.capabilities)

    def show(breach: Breach) -> Shown:
        program = breach.program
        if program is None:
            grave = breach.kind is not Kind.ADVICE
            return Shown(
                consequence=quiet_consequence(breach.clause) if grave else "",
                test=_test(trial, request, breach, own),
            )
        run = run_program(driver, program, make_invariants, surroundings=surroundings)
        # What a wrapper does not pass on has left no trace unless the program shows one.
        grave = breach.kind is Kind.SAFETY and breach.engine != Wrapper.name
        lines = breach_lines(breach, program, run.played, run.violations)
        chunks = counted(program.capacity, "chunk")
        watched = ", looked up after each operation" if program.watchful else ""
        return Shown(
            (f"     a cache of {chunks}{watched}", *lines),
            consequence(
                driver,
                program,
                surroundings,
                clause=breach.clause,
                safety=grave,
                own=is_own(breach, own),
            ),
            _test(trial, request, breach, own),
        )

    reporter = Reporter(
        request=request,
        trial=trial,
        scopes=POLICY_SCOPE,
        not_applicable=not_applicable,
        show=show,
        observed=observe(),
        own=own,
    )
    return reporter.report(host=driver.host.name, seconds=now() - begun)


def _test(
    trial: PolicyTrial[P], request: Request, breach: Breach, own: Sequence[OwnPromise]
) -> str:
    """A test that fails where no clock is virtual: of the program, if it shows it there too."""
    program = breach.replayed or breach.program
    if program is not None:
        law = policy_law(breach.engine)
        surroundings = Surroundings(patience_s=trial.surroundings.patience_s)
        if law is not None:
            plain = PolicyTrial(
                trial.driver,
                trial.make_invariants,
                capabilities=trial.capabilities,
                surroundings=surroundings,
            )
            shows = law.broken_by(plain, program) is not None
        else:
            run = run_program(
                trial.driver, program, trial.make_invariants, surroundings=surroundings
            )
            shows = bool(run.violations)
        name = None if law is None else law.name
        text = program_test(request, breach, program, law=name, own=own) if shows else ""
        if text:
            return text
    listed = {*POLICY_SCOPE, *CLAUSES, *(clause for one in own for clause in one.clauses)}
    return verdict_test(request, breach) if breach.clause in listed else ""
