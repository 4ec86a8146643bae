"""From what engines found to a report: one verdict for each clause in scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from attrs import define, evolve, frozen

from stateful_models.contract import CLAUSES, Kind
from stateful_models.engines.base import Breach, Demand
from stateful_models.reach import Reach
from stateful_models.trial.request import Request, report_on
from stateful_models.trial.scope import Scope
from stateful_models.trial.verdicts import (
    ClauseVerdict,
    MethodReach,
    Outcome,
    Reached,
    Report,
    Verdict,
)

PROVISIONAL: Final[frozenset[str]] = frozenset()
"""Clauses whose checks are new in this release: what they find is reported and does not convict."""


@frozen
class Observed:
    """What was seen of the target's own code: lines by method, and hints that were asked for."""

    methods: tuple[MethodReach, ...] = ()
    hints_missed: tuple[str, ...] = ()


@frozen
class Shown:
    """How a breach is shown: the program in lines, what becomes of an engine, and a test."""

    lines: tuple[str, ...] = ()
    consequence: str = ""
    test: str = ""


@define
class OwnPromise:
    """An invariant of the author's own, and how often it was asked to judge in all runs."""

    name: str
    clauses: tuple[str, ...]
    promise: str
    judged: int = 0


class Tried(Protocol):
    """What a trial of any kind has found, once it is over."""

    breaches: dict[Demand, Breach]
    tried: set[str]
    declined: dict[str, str]
    reach: Reach
    programs: int
    notes: list[str]


@frozen(kw_only=True)
class Reporter:
    """Makes the report. `not_applicable` says by which capability a clause is declined, or ""."""

    request: Request
    trial: Tried
    scopes: Mapping[str, Scope]
    not_applicable: Callable[[Scope], str]
    show: Callable[[Breach], Shown]
    observed: Observed = Observed()
    own: Sequence[OwnPromise] = ()

    def report(self, *, host: str, seconds: float) -> Report:
        """The report on everything that was wanted."""
        request = self.request
        # As they are now: showing a breach plays programs too.
        programs, found = self.trial.programs, tuple(self.trial.notes)
        clauses = [
            self._verdict(clause, scope)
            for clause, scope in self.scopes.items()
            if request.wants(clause)
        ]
        clauses += [
            self._broken(breach)
            for breach in self.trial.breaches.values()
            if breach.clause not in self.scopes
            and (breach.clause not in CLAUSES or request.wants(breach.clause))
        ]
        clauses += self._own_that_held()
        convicted = any(clause.convicts for clause in clauses)
        stale = set(request.known) - {clause.id for clause in clauses if clause.known}
        notes = [
            f"{clause} is on the list of known failures, and was not seen broken"
            for clause in sorted(stale)
        ]
        return evolve(
            report_on(request, Outcome.CONVICTED if convicted else Outcome.CLEAN),
            clauses=tuple(clauses),
            reach=Reached(
                situations=self.trial.reach.counts,
                methods=self.observed.methods,
                hints_missed=self.observed.hints_missed,
                programs=programs,
            ),
            seconds=round(seconds, 2),
            host=host,
            notes=(*found, *notes),
        )

    def _own_that_held(self) -> list[ClauseVerdict]:
        """Clauses of the author's own that nothing was found against."""
        broken = {breach.clause for breach in self.trial.breaches.values()}
        verdicts: list[ClauseVerdict] = []
        for own in self.own:
            for clause in own.clauses:
                if clause in broken or clause in CLAUSES:
                    continue
                met = own.judged > 0
                verdicts.append(
                    ClauseVerdict(
                        id=clause,
                        kind=Kind.CLAIM.value,
                        source=own.name,
                        verdict=Verdict.HELD if met else Verdict.NOT_REACHED,
                        sentence=own.promise,
                        reason="" if met else "no call that it is concerned with came about",
                    )
                )
        return verdicts

    def _verdict(self, clause: str, scope: Scope) -> ClauseVerdict:
        breaches = [breach for breach in self.trial.breaches.values() if breach.clause == clause]
        if breaches:
            # The demand whose breach weighs most speaks for the clause.
            breaches.sort(key=self._weight)
            others = [f"also: {breach.message}" for breach in breaches[1:]]
            return evolve(self._broken(breaches[0]), reason="; ".join(others))
        lead = CLAUSES[clause]
        plain = ClauseVerdict(
            id=clause,
            kind=lead.kind.value,
            source=lead.source.value,
            verdict=Verdict.HELD,
            sentence=lead.sentence,
        )
        why_not = self.not_applicable(scope) or self.trial.declined.get(clause)
        if why_not:
            return evolve(plain, verdict=Verdict.NOT_APPLICABLE, reason=why_not)
        missing = self._not_reached(clause, scope)
        if missing:
            return evolve(plain, verdict=Verdict.NOT_REACHED, reason=missing)
        return plain

    def _weight(self, breach: Breach) -> tuple[bool, int]:
        part = CLAUSES[breach.clause].part(breach.kind)
        return not part.convicts(self.request.profile), list(Kind).index(part.kind)

    def _not_reached(self, clause: str, scope: Scope) -> str:
        missing = self.trial.reach.missing(scope.situations)
        if missing:
            return f"never came about: {', '.join(missing)}"
        if clause not in self.trial.tried:
            return "no engine could try it"
        idle = [
            f"{method.name} {', '.join(method.never_ran)}"
            for method in self.observed.methods
            if method.never_ran and method.name.rpartition(".")[2] in scope.through
        ]
        return f"never ran: {'; '.join(idle)}" if idle else ""

    def _broken(self, breach: Breach) -> ClauseVerdict:
        known = breach.clause in self.request.known
        provisional = breach.clause in PROVISIONAL
        if breach.clause in CLAUSES:
            part = CLAUSES[breach.clause].part(breach.kind)
            kind, source, sentence = part.kind.value, part.source.value, part.sentence
            convicts = part.convicts(self.request.profile)
        else:
            # What an invariant of the author's own asks is a claim, and theirs.
            kind, source, sentence = Kind.CLAIM.value, breach.invariant or "own", breach.promise
            convicts = True
        shown = self.show(breach)
        return ClauseVerdict(
            id=breach.clause,
            kind=kind,
            source=source,
            verdict=Verdict.BROKEN,
            sentence=sentence,
            convicts=convicts and not known and not provisional,
            seen=breach.seen or breach.message,
            expected=breach.expected,
            program=shown.lines,
            consequence=shown.consequence,
            test=shown.test,
            engine=breach.engine,
            programs=breach.programs,
            known=known,
            provisional=provisional,
        )
