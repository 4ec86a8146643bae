"""Wrappers: whether all that a wrapper is told arrives at the policy inside (POL-1, 2, 6, 7)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import ClassVar, Generic, TypeVar

from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.comparing import choice_text, choices_of, first_difference, play_all
from stateful_models.engines.recording import (
    METHODS,
    Answer,
    Argument,
    Call,
    Fault,
    RecordingPolicy,
)
from stateful_models.engines.runs import ComparedRun, PolicyRun
from stateful_models.engines.samples import BareDriver, drawn_programs, for_requests
from stateful_models.host_types import OWN_TYPES, HostTypes
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.invariants.policies import PolicyBooks
from stateful_models.operations import key_text, keys_text
from stateful_models.policy_subject import PolicySubject
from stateful_models.programs import Program
from stateful_models.steps import Found, Step, Victims

P = TypeVar("P", bound=CachePolicy)


class Arrivals(Invariant[PolicyBooks], Generic[P]):
    """Each call arrives inside once and as it came, its answer comes back, and so does an error.

    A wrapper may look things up inside meanwhile.
    """

    clauses: ClassVar[tuple[str, ...]] = (*dict.fromkeys(METHODS.values()), "POL-3")

    def __init__(
        self, inside: RecordingPolicy, capabilities: Capabilities, types: HostTypes = OWN_TYPES
    ) -> None:
        self._inside = inside
        self._capabilities = capabilities
        self._types = types
        self.subject: PolicySubject[P] | None = None

    @override
    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        calls, raised = self._inside.drain()
        expected = self._expected(step.operation)
        if raised:
            method = calls[-1].method
            if step.error is None:
                # A failure that looks like a refusal is one that nobody declared.
                refused = method == "evict" and step.result is None
                clause = "POL-3" if refused else METHODS[method]
                yield Finding(clause, f"{method} failed inside, and no error came out")
        elif expected is not None and step.error is None:
            wrong = self._wrong(step, expected, calls)
            if wrong:
                yield Finding(METHODS[expected.method], wrong)

    def _wrong(self, step: Step, expected: Call, calls: list[Call]) -> str:
        """What is wrong with the calls that arrived, in words; nothing if nothing is."""
        method = expected.method
        same = [call for call in calls if call.method == method]
        others = [call.method for call in calls if call.method not in (method, "get")]
        if not same:
            refuses = method == "evict" and self._capabilities.may_refuse is not None
            if refuses and step.result is None:
                return ""
            instead = f", but {' and '.join(dict.fromkeys(others))}" if others else ""
            return f"{method} did not arrive inside{instead}"
        if len(same) > 1:
            return f"{method} arrived inside {len(same)} times"
        if others:
            return f"{method} arrived inside, and {others[0]} too, which nobody had called"
        different = self._different(expected, same[0])
        if different:
            return f"{method} arrived inside with {different}"
        return self._changed(step, same[0])

    def _different(self, expected: Call, arrived: Call) -> str:
        pairs = zip(expected.arguments, arrived.arguments, strict=True)
        for one, other in pairs:
            if isinstance(one, (self._types.context, self._types.chunk)):
                # A wrapper of the older interface is given no context that it could hand on.
                if one is not other and other is not None:
                    kind = "context" if isinstance(one, self._types.context) else "chunk"
                    return f"another {kind}"
            elif one != other and self._capabilities.may_evict_more is None:
                return f"{_text(other)} instead of {_text(one)}"
        return ""

    def _changed(self, step: Step, arrived: Call) -> str:
        """How the answer was changed on its way out."""
        result, answer = step.result, arrived.answer
        if arrived.method == "get":
            unchanged = (result is None) == (answer is None)
            if isinstance(result, Found) and not result.own:
                unchanged = False
        elif arrived.method == "evict" and self._capabilities.may_evict_more is None:
            given = None
            if isinstance(result, Victims) and all(victim.own for victim in result.victims):
                given = result.keys
            inside = tuple(key for key, _ in answer) if isinstance(answer, list) else None
            unchanged = given == inside and (result is None) == (answer is None)
        else:
            unchanged = True
        if unchanged:
            return ""
        text = _answer_text(answer, self._types.slot)
        return f"{arrived.method} answered {text} inside, and {result} came out"

    def _expected(self, operation: op.Operation) -> Call | None:
        """The call that a step makes, None if it makes none that the host would make."""
        subject = self.subject
        if subject is None:
            return None
        of, host = subject.contexts.of, subject.driver.host
        call: Call | None = None
        match operation:
            case op.Get(key):
                call = Call("get", (key,))
            case op.Insert(key, _, request):
                call = Call("insert", (key, subject.chunks.get(key), of(request)))
            case op.Remove(key):
                call = Call("remove", (key,))
            case op.TouchKeys(request, keys):
                call = Call("touch", (keys, of(request)))
            case op.Evict(count, protected):
                call = Call("evict", (count, protected))
            case op.StoreMiss(request, keys):
                call = Call("on_store_miss", (keys, of(request)))
            case op.RequestAccess(request, keys):
                call = Call("on_request_access", (keys, of(request)))
            case op.RequestFinished(request, groups, inserted, reused) if host.tells_finish:
                call = Call("on_request_finished", (groups, inserted, reused, of(request)))
            case op.MarkEvictable(key) if host.marks:
                call = Call("mark_evictable", (key,))
            case op.MarkNonEvictable(key) if host.marks:
                call = Call("mark_non_evictable", (key,))
            case op.Clear():
                call = Call("clear")
            case _:
                pass
        return call


class Wrapper(Engine):
    """For a driver that can build its policy around another one: this one records its calls.

    What such a driver promises is that the wrapper hands on all that it is told, and hands back
    what it is answered. Nobody else is held to it.
    """

    name: ClassVar[str] = "wrapper"
    clauses: ClassVar[tuple[str, ...]] = Arrivals.clauses
    compares: ClassVar[bool] = True

    def __init__(self, durations: tuple[float, ...] = ()) -> None:
        super().__init__()
        self._durations = durations

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        if trial.driver.build_around(RecordingPolicy(1), 1) is None:
            trial.declined["wrapper"] = "the driver builds it around no other policy"
            return
        chance = Random(f"{trial.seed} {self.name}")
        failed = dict.fromkeys(METHODS, 0)
        drawn = drawn_programs(trial, trial.level.laws, self.name, durations=self._durations)
        for program in self.paced(trial, map(_with_a_reset, drawn)):
            inside = RecordingPolicy(program.capacity)
            if self._report(trial, program, inside, None):
                return
            called = [method for method, times in inside.counts.items() if times]
            trial.tried.update(METHODS[method] for method in called)
            trial.reach.note("wrapper told", bool(called))
            if called:
                method = min(called, key=failed.__getitem__)
                failed[method] += 1
                fault = Fault(method, chance.randint(1, inside.counts[method]))
                trial.reach.note("failure inside a wrapper")
                if self._report(trial, program, RecordingPolicy(program.capacity, fault), fault):
                    return

    @override
    def broken_by(self, trial: PolicyTrial[P], program: Program) -> Breach | None:
        inside = RecordingPolicy(program.capacity)
        breach = self._broken_by(trial, program, inside)
        faults = (
            Fault(method, number)
            for method in METHODS
            for number in range(1, inside.counts[method] + 1)
        )
        while breach is None and (fault := next(faults, None)) is not None:
            breach = self._broken_by(trial, program, RecordingPolicy(program.capacity, fault))
        return breach

    def _report(
        self,
        trial: PolicyTrial[P],
        program: Program,
        inside: RecordingPolicy,
        fault: Fault | None,
    ) -> bool:
        breach = self._broken_by(trial, program, inside)
        if breach is None:
            return False
        demand = (breach.clause, breach.kind)

        def recheck(shorter: Program) -> Breach | None:
            # In a shorter program an earlier call of the method will do.
            numbers = [None] if fault is None else sorted({1, fault.number})
            for number in numbers:
                wanted = None if fault is None or number is None else Fault(fault.method, number)
                again = self._broken_by(trial, shorter, RecordingPolicy(shorter.capacity, wanted))
                if again is not None and (again.clause, again.kind) == demand:
                    return again
            return None

        trial.found(breach, recheck)
        return True

    def _broken_by(
        self, trial: PolicyTrial[P], program: Program, inside: RecordingPolicy
    ) -> Breach | None:
        policy = trial.driver.build_around(inside, program.capacity)
        if policy is None:
            return None
        trial.count()
        arrivals: Arrivals[P] = Arrivals(inside, trial.capabilities, trial.driver.types)
        run = PolicyRun(
            trial.driver,
            program.capacity,
            [arrivals],
            surroundings=trial.surroundings,
            policy=policy,
        )
        inside.drain()
        arrivals.subject = run.subject
        play_all(run, program.operations)
        if run.violations:
            first = run.violations[0]
            message = f"the wrapper: {first.message}"
            cut = program.cut(len(run.operations))
            return Breach(
                first.clause,
                first.kind,
                message,
                self.name,
                cut,
                promise=first.promise,
                runs=(ComparedRun("the wrapper", run.played),),
            )
        declines = trial.capabilities.may_refuse or trial.capabilities.may_evict_more
        return None if declines or inside.failed else self._other_victims(trial, program, run)

    def _other_victims(
        self, trial: PolicyTrial[P], program: Program, run: PolicyRun[P]
    ) -> Breach | None:
        bare = PolicyRun(
            BareDriver(RecordingPolicy, trial.driver),
            program.capacity,
            (),
            surroundings=trial.surroundings,
        )
        expected = choices_of(play_all(bare, program.operations))
        seen = choices_of(run)
        place = first_difference(expected, seen)
        if place is None:
            return None
        wrapped, alone = choice_text(seen.made[place]), choice_text(expected.made[place])
        return Breach(
            "POL-2",
            Kind.HOST,
            f"operation {place + 1} {wrapped}, and {alone} where the policy inside stands alone",
            self.name,
            program.cut(place + 1),
            expected=f"{alone}, as the policy inside does alone",
            seen=wrapped,
            runs=(
                ComparedRun("the policy inside alone", expected.played_to(place)),
                ComparedRun("the wrapper", seen.played_to(place)),
            ),
        )


def _with_a_reset(program: Program) -> Program:
    """The program, a reset, and its beginning for other requests."""
    beginning = [for_requests(one, "q.") for one in program.operations[:10]]
    return program.with_operations([*program.operations, op.Reset(), *beginning])


def _text(value: Argument | None) -> str:
    """An argument in words."""
    if isinstance(value, bytes):
        return key_text(value)
    if isinstance(value, frozenset):
        return keys_text(sorted(value))
    if isinstance(value, tuple):
        return f"[{' '.join(map(_text, value))}]"
    return str(value)


def _answer_text(answer: Answer, slot: str) -> str:
    if isinstance(answer, list):
        return keys_text(key for key, _ in answer)
    return "None" if answer is None else f"slot {getattr(answer, slot)}"
