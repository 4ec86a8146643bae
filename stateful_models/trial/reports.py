"""From what engines found to a report: one verdict for each clause in scope."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from attrs import define, evolve, frozen

from stateful_models.contract import CLAUSES, Kind
from stateful_models.engines.base import Breach, Cut, Demand
from stateful_models.programs import Program
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

LOOKED_UP: Final = "LOOK-1"
"""The clause that is broken wherever a look-up is wrong, whatever made it so."""
NOT_CONCERNED: Final = "no call that it is concerned with came about"
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
    """An invariant of the author's own, and how often it was asked to judge in all runs.

    `name` is that of its class, `target` how it was named; `arguments` tells from the number of
    chunks of a run what it is made with there. `undecided` says what of its code never ran that
    decides.
    """

    name: str
    clauses: tuple[str, ...]
    promise: str
    judged: int = 0
    target: str = ""
    arguments: Callable[[int], Mapping[str, object]] = lambda capacity: {}
    undecided: Callable[[], str] = lambda: ""


def is_own(breach: Breach, own: Sequence[OwnPromise]) -> bool:
    """Whether one of the author's own invariants found it, under whatever clause."""
    return any(breach.invariant == one.name for one in own)


class Tried(Protocol):
    """What a trial of any kind has found, once it is over."""

    breaches: dict[Demand, Breach]
    tried: set[str]
    declined: dict[str, str]
    reach: Reach
    programs: int
    notes: list[str]
    cuts: dict[str, Cut]

    def first_broken(self, program: Program) -> tuple[Sequence[str], int] | None:
        """The clauses that a program breaks first, and the number of the operation in which."""
        ...


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
        listed = {*CLAUSES, *(clause for own in self.own for clause in own.clauses)}
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
            # What an invariant finds under an id that it does not list was asked for with it.
            and (breach.clause not in listed or request.wants(breach.clause))
        ]
        clauses += self._own_that_held()
        clauses = self._folded(clauses)
        convicted = any(clause.convicts for clause in clauses)
        stale = set(request.known) - {clause.id for clause in clauses if clause.known}
        notes = [
            f"{clause} is on the list of known failures, and was not seen broken"
            for clause in sorted(stale)
        ]
        asked = {own.target for own in self.own}
        notes += [
            f"{name} was not asked: none of its clauses is among those that were chosen"
            for name in request.invariants
            if name not in asked
        ]
        return evolve(
            report_on(request, Outcome.CONVICTED if convicted else Outcome.CLEAN),
            clauses=tuple(map(self._with_cut, clauses)),
            cut={
                name: round(cut.share, 3) for name, cut in self.trial.cuts.items() if not cut.hung
            },
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

    def _folded(self, clauses: Iterable[ClauseVerdict]) -> list[ClauseVerdict]:
        """The same, where each says from which other breach it follows, if it does."""
        known = {each.id: each for each in clauses}
        broken = [each for each in known.values() if each.broken and each.call]
        # The shortest programs first: what they show follows from nothing that is longer.
        for each in sorted(broken, key=lambda each: each.call):
            program = self._program_of(each)
            first = None if program is None else self.trial.first_broken(program)
            if first is None:
                continue
            shown, at = first
            # Where a look-up goes wrong after a call that is known, it is that call's doing.
            cause = known.get(next((one for one in shown if one != LOOKED_UP), LOOKED_UP))
            if cause is None or cause.id == each.id or not cause.broken:
                continue
            if at >= each.call and not (each.id == LOOKED_UP and each.id in shown):
                continue
            if cause.follows or (each.convicts and not cause.convicts):
                continue
            if cause.invariant and not each.invariant:
                # What the author asks for beside the contract explains no breach of that.
                continue
            known[each.id] = evolve(each, follows=cause.id, follows_at=at)
        return list(known.values())

    def _program_of(self, verdict: ClauseVerdict) -> Program | None:
        """The program that a verdict shows."""
        return next(
            (
                breach.program
                for breach in self.trial.breaches.values()
                if (breach.clause, breach.engine) == (verdict.id, verdict.engine)
                and (breach.seen or breach.message) == verdict.seen
            ),
            None,
        )

    def _with_cut(self, verdict: ClauseVerdict) -> ClauseVerdict:
        shares = {
            name: round(cut.share, 3)
            for name, cut in self.trial.cuts.items()
            if verdict.id in cut.clauses
        }
        return evolve(verdict, cut=shares, share=min(shares.values(), default=1.0))

    def _own_that_held(self) -> list[ClauseVerdict]:
        """Clauses of the author's own that nothing was found against."""
        broken = {breach.clause for breach in self.trial.breaches.values()}
        verdicts: dict[str, ClauseVerdict] = {}
        for own in self.own:
            missing = own.undecided() if own.judged else NOT_CONCERNED
            for clause in own.clauses:
                if clause in broken or clause in CLAUSES or not self.request.wants(clause):
                    continue
                other = verdicts.get(clause)
                # Of two that judge it, the one that did not get to it has the say.
                if other is None or other.verdict is Verdict.HELD:
                    verdicts[clause] = ClauseVerdict(
                        id=clause,
                        kind=Kind.CLAIM.value,
                        source=own.name,
                        verdict=Verdict.NOT_REACHED if missing else Verdict.HELD,
                        sentence=own.promise,
                        reason=missing,
                    )
        return list(verdicts.values())

    def _verdict(self, clause: str, scope: Scope) -> ClauseVerdict:
        breaches = [breach for breach in self.trial.breaches.values() if breach.clause == clause]
        if breaches:
            # The demand whose breach weighs most speaks for the clause.
            if clause in CLAUSES:
                breaches.sort(key=self._weight)
            also = [line for breach in breaches[1:] for line in self._also(breach)]
            return evolve(self._broken(breaches[0]), also=tuple(also))
        lead = CLAUSES.get(clause)
        plain = ClauseVerdict(
            id=clause,
            kind=(Kind.CLAIM if lead is None else lead.kind).value,
            source=clause if lead is None else lead.source.value,
            verdict=Verdict.HELD,
            sentence=scope.promise if lead is None else lead.sentence,
        )
        why_not = self.not_applicable(scope) or self.trial.declined.get(clause)
        if why_not:
            return evolve(plain, verdict=Verdict.NOT_APPLICABLE, reason=why_not)
        missing = self._not_reached(clause, scope)
        if missing:
            return evolve(plain, verdict=Verdict.NOT_REACHED, reason=missing)
        return plain

    def _also(self, breach: Breach) -> tuple[str, ...]:
        """Another demand of a clause that is broken, with the program that shows it."""
        finder = breach.engine
        if is_own(breach, self.own):
            finder = f"{breach.invariant}, engine {finder}"
        seen = f"{breach.message} (found by {finder})"
        return (seen, *self.show(breach).lines)

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
        own = next((one for one in self.own if one.name == breach.invariant), None)
        if breach.clause in CLAUSES and (own is None or breach.clause not in own.clauses):
            part = CLAUSES[breach.clause].part(breach.kind)
            kind, source = part.kind.value, part.source.value
            sentence = breach.promise or part.sentence
            convicts = part.convicts(self.request.profile)
        else:
            # What an invariant of the author's own asks is a claim, and theirs.
            kind, source = Kind.CLAIM.value, breach.invariant or "own"
            sentence = breach.promise
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
            invariant="" if own is None else own.name,
            programs=breach.programs,
            call=0 if breach.program is None else len(breach.program),
            known=known,
            provisional=provisional,
        )
