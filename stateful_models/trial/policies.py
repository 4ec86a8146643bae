"""The trial of one policy, from a driver to a report. It runs where the policy runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kvoffload import CachePolicy
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.runs import PLAIN, MakeInvariants, Surroundings, run_program
from stateful_models.trial.consequences import consequence
from stateful_models.trial.reports import Findings, Observed, OwnPromise, Reporter, Settings, Shown
from stateful_models.trial.scope import POLICY_SCOPE, Scope
from stateful_models.trial.verdicts import Report
from stateful_models.trial.wording import Named, plain_lines, policy_test_text, program_lines

P = TypeVar("P", bound=CachePolicy)


def try_policy(
    driver: Driver[P],
    engines: Iterable[Engine],
    settings: Settings,
    *,
    make_invariants: MakeInvariants,
    surroundings: Surroundings = PLAIN,
    on_progress: Callable[[str, float], None] = lambda engine, share: None,
    now: Callable[[], float],
    observe: Callable[[], Observed] = Observed,
    own: Sequence[OwnPromise] = (),
) -> Report:
    """Run the engines that judge a wanted clause, and say what is known of each clause."""
    begun = now()
    trial: PolicyTrial[P] = PolicyTrial(
        driver=driver,
        make_invariants=make_invariants,
        capabilities=driver.capabilities,
        profile=settings.profile,
        level=settings.level,
        seed=settings.seed,
        surroundings=surroundings,
        on_progress=on_progress,
        now=now,
    )
    for engine in engines:
        if any(map(settings.wants, engine.clauses)):
            engine.run(trial)

    def not_applicable(scope: Scope) -> str:
        return scope.not_applicable(trial.capabilities)

    def named(breach: Breach) -> Named:
        own = {name.rpartition(":")[2]: name for name in settings.invariants}
        return Named(
            target=settings.target,
            driver=settings.driver,
            arguments=settings.arguments,
            invariant=own.get(breach.invariant),
        )

    def show(breach: Breach) -> Shown:
        program = breach.program
        if program is None:
            return Shown()
        run = run_program(driver, program, make_invariants, surroundings=surroundings)
        shown = any(found.clause == breach.clause for found in run.violations)
        lines = program_lines(run.played, run.violations) if shown else plain_lines(program)
        chunks = "1 chunk" if program.capacity == 1 else f"{program.capacity} chunks"
        watched = ", looked up after each operation" if program.watchful else ""
        return Shown(
            (f"     a cache of {chunks}{watched}", *lines),
            consequence(driver, program, surroundings, safety=breach.kind is Kind.SAFETY),
            policy_test_text(breach.clause, named(breach), program, breach.message)
            if shown
            else "",
        )

    reporter = Reporter(
        settings=settings,
        findings=Findings.of(trial),
        scopes=POLICY_SCOPE,
        not_applicable=not_applicable,
        show=show,
        observed=observe(),
        own=own,
    )
    return reporter.report(host=driver.host.name, seconds=now() - begun)
