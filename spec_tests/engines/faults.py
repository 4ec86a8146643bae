"""Policies that break their contract once, at a call chosen beforehand (STORE-10).

Up to the fault everything goes as the models predict. The call with the fault raises
PolicyContractError, names policy, hook and clause, and leaves the books as they were: what is
looked up, completed, counted and announced afterwards is as if it had not been made. Whatever
needs the policy is refused for the same reason until a reset, and after that all is new.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from enum import Enum, auto
from typing import ClassVar, Final

from typing_extensions import override

from kvoffload import CPUOffloadingManager, OffloadKey, ReqContext, make_offload_key
from kvoffload.errors import PolicyContractError
from kvoffload.policies.base import ChunkStatus
from spec_tests.engines.compared import Compared
from spec_tests.engines.fifo import Victims
from spec_tests.engines.shapes import Native
from stateful_models import operations as op
from stateful_models.machines import ManagerConfig
from stateful_models.roaming import Roaming
from stateful_models.steps import Step


class UnspeakableError(Exception):
    """An exception that cannot be put into words."""

    @override
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Interruption(BaseException):
    """Like KeyboardInterrupt: nobody's mistake, and not to be caught."""


class Mistake(Enum):
    """How a policy goes wrong."""

    RAISES = auto()
    RAISES_UNSPEAKABLY = auto()
    IS_INTERRUPTED = auto()
    CALLS_BACK = auto()
    CALLS_BACK_UNNOTICED = auto()

    REFUSES = auto()
    TOO_FEW = auto()
    TOO_MANY = auto()
    TWICE = auto()
    PROTECTED = auto()
    PINNED = auto()
    PENDING = auto()
    STRANGER = auto()
    OTHER_CHUNK = auto()
    NO_KEY = auto()
    NO_PAIRS = auto()
    NO_LIST = auto()
    BREAKS_OFF = auto()
    BREAKS_OFF_INTERRUPTED = auto()


ANYWHERE: Final = (
    Mistake.RAISES,
    Mistake.RAISES_UNSPEAKABLY,
    Mistake.IS_INTERRUPTED,
    Mistake.CALLS_BACK,
    Mistake.CALLS_BACK_UNNOTICED,
)
INTERRUPTIONS: Final = (Mistake.IS_INTERRUPTED, Mistake.BREAKS_OFF_INTERRUPTED)
ANSWERS: Final = tuple(mistake for mistake in Mistake if mistake not in ANYWHERE)
HOOKS: Final = (
    "on_store_miss",
    "on_request_access",
    "evict",
    "insert",
    "mark_evictable",
    "mark_non_evictable",
    "remove",
    "touch",
    "on_request_finished",
    "clear",
    "__init__",
)
CALLED_BACK: Final = (
    "prepare_store",
    "prepare_load",
    "touch",
    "complete_store",
    "complete_load",
    "on_new_request",
    "on_request_finished",
    "reset_cache",
)
STRANGER: Final = make_offload_key(b"stranger", 0)


WITHIN: Final[dict[str, tuple[type[op.Operation], ...]]] = {
    "mark_evictable": (op.CompleteLoad, op.CompleteStore),
    "on_request_access": (op.PrepareLoad, op.PrepareStore),
}
"""Hooks that several calls of the manager come to, with these."""


class Plan:
    """One fault: at the `nth` call of `hook` from when it is armed, counted from 0.

    `within` names the one call of the manager that counts, None for any.
    """

    def __init__(
        self,
        hook: str,
        mistake: Mistake,
        nth: int,
        call_back: str,
        within: type[op.Operation] | None = None,
    ) -> None:
        self.hook = hook
        self.mistake = mistake
        self.left = nth
        self.call_back = call_back
        self.within = within
        self.operation: op.Operation | None = None
        self.armed = False
        self.fired = False
        self.raised: BaseException | None = None
        self.manager: CPUOffloadingManager | None = None

    def is_due(self, hook: str) -> bool:
        """Whether this call of `hook` goes wrong; it is counted."""
        if hook != self.hook or not self.armed:
            return False
        if self.within is not None and not isinstance(self.operation, self.within):
            return False
        self.left -= 1
        if self.left >= 0:
            return False
        self.armed = False
        self.fired = True
        return True

    def fail(self, error: BaseException) -> BaseException:
        """Remember what is raised."""
        self.raised = error
        return error


class Faulty(Native):
    """FIFO, right but for the fault of `plan`."""

    plan: ClassVar[Plan]

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._go_wrong("__init__")

    def _go_wrong(self, hook: str) -> None:
        plan = self.plan
        if not plan.is_due(hook):
            return
        if plan.mistake is Mistake.RAISES:
            raise plan.fail(ValueError("boom"))
        if plan.mistake is Mistake.RAISES_UNSPEAKABLY:
            raise plan.fail(UnspeakableError())
        if plan.mistake is Mistake.IS_INTERRUPTED:
            raise plan.fail(Interruption())
        self._call_back(plan)

    def _call_back(self, plan: Plan) -> None:
        if plan.manager is None:
            raise plan.fail(ValueError("nobody to call back"))
        context, keys = ReqContext("within"), [STRANGER]
        manager = plan.manager
        calls: dict[str, Callable[[], object]] = {
            "prepare_store": lambda: manager.prepare_store(keys, context),
            "prepare_load": lambda: manager.prepare_load(keys, context),
            "touch": lambda: manager.touch(keys, context),
            "complete_store": lambda: manager.complete_store(keys, context),
            "complete_load": lambda: manager.complete_load(keys, context),
            "on_new_request": lambda: manager.on_new_request(context),
            "on_request_finished": lambda: manager.on_request_finished(context),
            "reset_cache": manager.reset_cache,
        }
        try:
            calls[plan.call_back]()
        except PolicyContractError as refused:
            check_error(refused, plan.hook, "POL-7", mentions=(plan.call_back,))
            if plan.mistake is Mistake.CALLS_BACK:
                plan.fail(refused)
                raise
        else:
            raise AssertionError(f"{plan.call_back} was served from within {plan.hook}")

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self._go_wrong("insert")
        super().insert(key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._go_wrong("remove")
        super().remove(key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._go_wrong("touch")
        super().touch(keys, req_context)

    @override
    def clear(self) -> None:
        self._go_wrong("clear")
        super().clear()

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._go_wrong("on_store_miss")
        super().on_store_miss(keys, req_context)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self._go_wrong("on_request_access")
        super().on_request_access(keys, req_context)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        self._go_wrong("on_request_finished")
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._go_wrong("mark_evictable")
        super().mark_evictable(key)

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._go_wrong("mark_non_evictable")
        super().mark_non_evictable(key)

    @override
    def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
        if self.plan.mistake in ANYWHERE:
            self._go_wrong("evict")
        elif self.plan.hook == "evict" and self.plan.armed:
            wrong = self._wrong_answer(n, protected)
            if wrong is not NOT_POSSIBLE and self.plan.is_due("evict"):
                # Not what the interface says; that is the point.
                answer: Victims | None = wrong  # type: ignore[assignment]
                return answer
        return super().evict(n, protected)

    def _wrong_answer(self, n: int, protected: Set[OffloadKey]) -> object:
        """What to answer, NOT_POSSIBLE if nothing that fits is there. Nothing is taken out."""
        idle = [(k, c) for k, c in self.chunks.items() if c.ref_cnt == 0 and k not in protected]
        right, mistake = idle[:n], self.plan.mistake
        other: dict[Mistake, Callable[[], object]] = {
            Mistake.REFUSES: lambda: None,
            Mistake.TOO_FEW: lambda: right[1:],
            Mistake.TOO_MANY: lambda: idle[: n + 1] if len(idle) > n else NOT_POSSIBLE,
            Mistake.TWICE: lambda: [*right[:-1], right[0]] if n > 1 else NOT_POSSIBLE,
            Mistake.PROTECTED: lambda: self._with(right, lambda k, c: k in protected and not c),
            Mistake.PINNED: lambda: self._with(right, lambda k, c: k not in protected and c > 0),
            Mistake.PENDING: lambda: self._with(right, lambda k, c: k not in protected and c < 0),
            Mistake.STRANGER: lambda: [*right[:-1], (STRANGER, ChunkStatus(0, 0))],
            Mistake.OTHER_CHUNK: lambda: [*right[:-1], (right[-1][0], ChunkStatus(0, 0))],
            Mistake.NO_KEY: lambda: [*right[:-1], ("text", right[-1][1])],
            Mistake.NO_PAIRS: lambda: [key for key, _ in right],
            Mistake.NO_LIST: lambda: 7,
            Mistake.BREAKS_OFF: lambda: self._break_off(right, ValueError("boom")),
            Mistake.BREAKS_OFF_INTERRUPTED: lambda: self._break_off(right, Interruption()),
        }
        return other[mistake]()

    def _with(self, right: Victims, wanted: Callable[[OffloadKey, int], bool]) -> object:
        """The right victims, but for the last one: a chunk that is `wanted` instead."""
        wrong = [(k, c) for k, c in self.chunks.items() if wanted(k, c.ref_cnt)]
        return [*right[:-1], wrong[0]] if wrong else NOT_POSSIBLE

    def _break_off(self, right: Victims, error: BaseException) -> Iterator[object]:
        yield from right[:-1]
        raise self.plan.fail(error)


NOT_POSSIBLE: Final = object()


def check_error(
    error: PolicyContractError,
    hook: str,
    clause: str,
    *,
    cause: BaseException | None = None,
    mentions: Iterable[str] = (),
) -> None:
    """Raise AssertionError unless an error says what was wrong, and by what it was caused."""
    says = (error.policy, error.call, error.clause)
    wanted = ("Faulty", hook, clause)
    words = re.findall(r"\w+", error.what) if isinstance(error.what, str) else []
    if says != wanted or not words or not set(mentions) <= set(words):
        raise AssertionError(f"{error!r} says {says}, expected {wanted}")
    if cause is not None and error.__cause__ is not cause:
        raise AssertionError(f"{error!r} comes of {error.__cause__!r}, expected {cause!r}")


NEED_THE_POLICY: Final = (
    op.NewRequest,
    op.FinishRequest,
    op.PrepareLoad,
    op.PrepareStore,
    op.Touch,
)


class FaultTrial:
    """A manager over a policy with one fault in it."""

    def __init__(self, plan: Plan, config: ManagerConfig) -> None:
        self.plan = plan

        class Planned(Faulty):
            pass

        Planned.__name__ = Faulty.__name__
        Planned.plan = plan
        self.compared = Compared(Planned, config)
        plan.armed = True
        plan.manager = self.compared.manager
        self.broken = False

    def perform(self, operation: op.Operation) -> Step:
        """Perform an operation. Raises AssertionError when it does not go as it has to."""
        if self.broken and isinstance(operation, NEED_THE_POLICY):
            step = self.compared.call(operation)
            self._check_refused(operation.verb, step.error)
            return step
        self.plan.operation = operation
        fired = self.plan.fired
        step = self.compared.call(operation)
        interruption = step.error if isinstance(step.error, Interruption) else None
        if self.plan.fired and not fired:
            if self.plan.mistake is not Mistake.CALLS_BACK_UNNOTICED:
                self._check_fault(step, interruption)
                self.broken = True
                return step
        self.compared.judge(step)
        self._compare_calls(step)
        if isinstance(operation, op.Reset):
            self.broken = False
        return step

    def _compare_calls(self, step: Step) -> None:
        """A broken policy is told nothing; one that is not, all that the model's is."""
        policy: object = self.compared.manager.policy
        if not isinstance(policy, Faulty):
            raise AssertionError(f"the policy is {policy!r}")
        told = [call for call in self.compared.order.log if not self.broken]
        if policy.log != told:
            raise AssertionError(f"{step}\n called {policy.log}\n not    {told}")
        self._forget_calls()

    def _forget_calls(self) -> None:
        self.compared.order.log.clear()
        policy: object = self.compared.manager.policy
        if isinstance(policy, Faulty):
            policy.log.clear()

    @property
    def _calls_back(self) -> bool:
        return self.plan.mistake is Mistake.CALLS_BACK

    @property
    def _clause(self) -> str:
        mistake = self.plan.mistake
        if mistake in ANYWHERE or mistake is Mistake.BREAKS_OFF_INTERRUPTED:
            return "POL-7"
        return "POL-3" if mistake is Mistake.REFUSES else "POL-2"

    def _check_fault(self, step: Step, interruption: BaseException | None) -> None:
        """The call with the fault."""
        plan, error = self.plan, step.error
        if plan.mistake in INTERRUPTIONS:
            if interruption is not plan.raised or interruption is None:
                raise AssertionError(f"an interruption ended as {error!r}")
        elif plan.mistake is Mistake.CALLS_BACK:
            if error is not plan.raised:
                raise AssertionError(f"{error!r} instead of what was raised within")
        elif isinstance(error, PolicyContractError):
            check_error(error, plan.hook, self._clause, cause=plan.raised)
        else:
            raise AssertionError(f"{step}: {plan.mistake} of {plan.hook} gave {error!r}")
        self.compared.manager.check()
        # An offer is counted whatever comes of it (MET-1), and the model was not told of this one.
        self.compared.call(op.GetStats())
        self.compared.model.predict(op.GetStats())
        self._forget_calls()

    def _check_refused(self, call: str, error: BaseException | None) -> None:
        """A call that needs the policy, which is broken."""
        if not isinstance(error, PolicyContractError):
            raise AssertionError(f"{error!r} although the policy is broken")
        raised = self.plan.raised
        reason = () if raised is None or self._calls_back else (type(raised).__name__,)
        check_error(error, self.plan.hook, self._clause, mentions=(call, *reason))


def try_fault(hook: str, mistake: Mistake, seed: int, rounds: int) -> bool:
    """Roam until the fault, and on; whether it came to one. Raises AssertionError."""
    chance = random.Random(seed)
    config = ManagerConfig(
        num_chunks=chance.choice((4, 6, 8)),
        store_threshold=chance.choice((1, 1, 2)),
        enable_events=True,
        max_tracker_size=64,
    )
    first = "touch" if hook == "__init__" else hook
    nth = 0 if mistake in ANSWERS else chance.choice((0, 0, 1))
    call_back = CALLED_BACK[(seed + HOOKS.index(hook)) % len(CALLED_BACK)]
    calls = WITHIN.get(hook)
    within = None if calls is None else calls[seed % len(calls)]
    plan = Plan(first, mistake, nth, call_back, within)
    trial = FaultTrial(plan, config)
    roaming = Roaming(trial, seed=seed, prompts=2)
    for _ in range(rounds):
        roaming.run(1)
        if trial.broken:
            break
    if hook == "__init__" and trial.broken:
        # A policy is made again when it is broken, and that fails too.
        plan.hook, plan.left, plan.armed, plan.fired = hook, 0, True, False
        trial.perform(op.Reset())
    if trial.broken:
        roaming.run(20)
        trial.compared.manager.check()
        trial.perform(op.Reset())
        roaming.run(20)
        trial.compared.manager.check()
    return plan.fired


def try_faults(seeds: Iterable[int], rounds: int = 150, *, thorough: bool = True) -> None:
    """Every mistake of every hook. Raises AssertionError.

    Where it is to be `thorough`, also for a mistake that never came about.
    """
    missed: set[tuple[str, Mistake]] = set(faults())
    for seed in seeds:
        for hook, mistake in faults():
            if try_fault(hook, mistake, seed, rounds):
                missed.discard((hook, mistake))
    if missed and thorough:
        raise AssertionError(f"never came about: {missed}")


def faults() -> Iterator[tuple[str, Mistake]]:
    """Every hook with every mistake that it can make."""
    for hook in HOOKS:
        for mistake in ANYWHERE + ANSWERS if hook == "evict" else ANYWHERE:
            yield hook, mistake
