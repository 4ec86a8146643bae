"""Two managers side by side: the same operations on ours and on vLLM's, every answer compared.

What is meant to differ is a `Deviation`. Of each step it says which part of the difference is its
own, and takes just this part away or mends it; whatever is left counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isclose
from typing import Final, TypeAlias

from attrs import define, evolve, field, frozen

from kvoffload import CPUOffloadingManager, OffloadingEvent, OffloadKey
from kvoffload.errors import InvariantError
from kvoffload.vllm.control_plane import ControlPlane
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.engines.manager_runs import options_of
from stateful_models.loading import words_of
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.policy_tap import Tap
from stateful_models.programs import HostOperation, ManagerSettings, Program, keys_of
from stateful_models.steps import Delivered, Loaded, Reported, Result, Step, Stored
from stateful_models.subjects import ManagerSubject
from stateful_models.vllm.manager import VLLMManager, VLLMManagerDriver

OURS: Final = ManagerDriver(CPUOffloadingManager)

FORGET: Final = "forget"
"""The host event by which a host lets go of a request's context."""
UNREAD: Final = "take_events"
"""The host event of a host that asks for events and reads none."""

TOLERANCE: Final = 1e-9
"""By how much figures may differ (MET-1)."""


@frozen
class Outcome:
    """What came of a call, as far as the two can be compared: tickets are ours alone.

    `error` says in words what was raised. `told` is what the policy was told, None if nobody
    listened. `metadata_only` are events of vLLM's that announce nothing.
    """

    result: Result = None
    error: str | None = None
    told: tuple[op.PolicyOperation, ...] | None = None
    metadata_only: tuple[OffloadingEvent, ...] = ()

    @classmethod
    def of(cls, step: Step, metadata_only: Iterable[OffloadingEvent] = ()) -> Outcome:
        """What came of a step."""
        error = None
        if step.error is not None:
            error = f"{type(step.error).__name__}: {words_of(step.error)}"
        return cls(_without_ticket(step.result), error, step.told, tuple(metadata_only))

    def __str__(self) -> str:
        if self.error is not None:
            text = f"raised {self.error}"
        else:
            text = str(Step(0, op.GetStats(), self.result)).split(" -> ", 1)[1]
        if self.metadata_only:
            text += f", metadata_only {Delivered(self.metadata_only)}"
        if self.told:
            text += f"; the policy was told {', '.join(map(str, self.told))}"
        return text

    def is_like(self, other: Outcome) -> bool:
        """Whether the two are equal, figures to TOLERANCE."""
        mine, theirs = self.result, other.result
        if isinstance(mine, Reported) and isinstance(theirs, Reported):
            return mine.values.keys() == theirs.values.keys() and all(
                isclose(value, theirs.values[name], rel_tol=0.0, abs_tol=TOLERANCE)
                for name, value in mine.values.items()
            )
        return self == other


@define(eq=False)
class Met:
    """A step on both, as far as nothing explains it yet; the pair's books are of before the step.

    `raised` is what each raised. `over`: from here on the two are in different states, and cannot
    be brought back.
    """

    operation: op.Operation
    ours: Outcome
    theirs: Outcome
    raised: tuple[BaseException | None, BaseException | None]
    over: bool = False

    def agree(self) -> None:
        """Everything in the outcomes is explained."""
        self.theirs = self.ours

    def agree_on_answer(self) -> None:
        """The answers are explained; what the policies were told is not."""
        self.theirs = evolve(self.theirs, result=self.ours.result, error=self.ours.error)

    def only_theirs_told(self, told: Sequence[op.PolicyOperation]) -> bool:
        """Whether this is what vLLM's policy alone was told; that is then explained."""
        if self.theirs.told is None:
            return True
        if self.ours.told != () or self.theirs.told != tuple(told):
            return False
        self.theirs = evolve(self.theirs, told=())
        return True


@frozen
class Difference:
    """A step at which the two differ, and nothing explains it."""

    number: int
    operation: op.Operation
    ours: str
    theirs: str

    def __str__(self) -> str:
        step = f"{self.number:4}  {self.operation}"
        return f"{step}\n        ours    {self.ours}\n        vLLM's  {self.theirs}"


class Pair:
    """Our manager and vLLM's, built alike, and what a host knows of the two.

    `explained` counts the steps that each deviation explained, by its id. Only while the pair is
    not `over` is there a point in going on.
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        capacity: int,
        settings: ManagerSettings,
        deviations: Sequence[Deviation],
    ) -> None:
        self.capacity = capacity
        self.settings = settings
        self.account: Account = Account(capacity)
        self.explained: Counter[str] = Counter()
        self.events: EventBooks = EventBooks()
        self.stale: int = 0
        """How many stale completions ours had counted before the step."""
        self.over: bool = False
        self.steps: int = 0
        self._named: dict[OffloadKey, None] = {}
        self._by_call: dict[type[op.Operation], list[Deviation]] = {}
        for deviation in deviations:
            for call in deviation.calls:
                self._by_call.setdefault(call, []).append(deviation)
        options = our_options = their_options = options_of(capacity, settings)
        our_tap = self._their_tap = None
        if settings.tapped:
            our_tap, self._their_tap = Tap(settings.policy), Tap(settings.policy)
            our_options = evolve(options, cache_policy=our_tap.policy_cls)
            their_options = evolve(options, cache_policy=self._their_tap.policy_cls)
        self.our_manager: CPUOffloadingManager = OURS.build(our_options)
        self.their_manager: VLLMManager = VLLMManagerDriver(control_plane).build(their_options)
        self.ours: ManagerSubject = ManagerSubject(self.our_manager, tap=our_tap)
        self.theirs: ManagerSubject = ManagerSubject(self.their_manager, tap=self._their_tap)

    def play(self, operation: HostOperation) -> tuple[Step, Difference | None]:
        """The step on ours, and how vLLM's differs if it does."""
        self.steps += 1
        self._named.update(dict.fromkeys(keys_of(operation)))
        deviations = self._by_call.get(type(operation), ())
        for deviation in deviations:
            if deviation.foresee is not None:
                deviation.foresee(self, operation)
        ours = self._play_ours(operation)
        theirs = self.theirs.perform(operation)
        self._forget(operation)
        announced_nothing = self.their_manager.take_metadata_only()
        first = Outcome.of(ours), Outcome.of(theirs, announced_nothing)
        met = Met(operation, *first, (ours.error, theirs.error))
        self.account.read(ours)
        for deviation in deviations:
            if deviation.explain(self, met):
                self.explained[deviation.id] += 1
        difference = None
        if not met.ours.is_like(met.theirs):
            difference = Difference(self.steps, operation, *map(str, first))
        self._note(ours)
        self.over = met.over or difference is not None
        return ours, difference

    def compare_inside(self) -> Difference | None:
        """Whether both have the same slot and pins for every key that was ever named.

        Ours must agree with itself, too.
        """
        try:
            self.our_manager.check()
        except InvariantError as error:
            self.over = True
            return Difference(self.steps, op.HostEvent("check"), str(error), "")
        ours, theirs = self.our_manager.policy, self.their_manager.policy
        for key in self._named:
            mine, other = ours.get(key), theirs.get(key)
            texts = tuple(
                "none" if chunk is None else f"slot {chunk.chunk_id}, ref_cnt {chunk.ref_cnt}"
                for chunk in (mine, other)
            )
            if texts[0] != texts[1]:
                self.over = True
                return Difference(self.steps, op.Get(key), *texts)
        return None

    def mend(self, call: Callable[[], object]) -> None:
        """Bring vLLM's manager back to where ours is; no step says what this tells its policy."""
        call()
        if self._their_tap is not None:
            self._their_tap.drain()

    def _play_ours(self, operation: HostOperation) -> Step:
        if not isinstance(operation, op.TakeFirstEvent):
            step = self.ours.perform(operation)
            if isinstance(step.result, Delivered):
                self.events.deliver(step.result.events)
            return step
        # Ours delivers by being called, so the books need all of it.
        step = self.ours.perform(op.TakeEvents())
        events = step.result.events if isinstance(step.result, Delivered) else ()
        self.events.deliver(events)
        return evolve(step, operation=operation, result=Delivered(events[:1]))

    def _forget(self, operation: HostOperation) -> None:
        if isinstance(operation, op.HostEvent) and operation.name == FORGET:
            for request in operation.values:
                self.ours.contexts.forget(str(request))
                self.theirs.contexts.forget(str(request))

    def _note(self, step: Step) -> None:
        operation = step.operation
        if self.settings.enable_events and isinstance(operation, op.CompleteStore):
            if not operation.success and self.account.acted:
                self.events.failed.append(tuple(self.account.acted))
        self.account.apply(step)
        self.stale = step.visible.stale_completions or 0


@define
class EventBooks:
    """What a host knows of the events of ours, and what vLLM's are held against.

    `latest` is everything that the last drain of ours delivered, `believed` what follows from all
    that was delivered, in announced order. `failed` has the keys of each failed store since the
    last drain. Where a reset drops events, `held` are those, taken from ours just before it, and
    `taken_back` the keys that it will name as removed.
    """

    latest: tuple[OffloadingEvent, ...] = ()
    believed: dict[OffloadKey, None] = field(factory=dict)
    failed: list[tuple[OffloadKey, ...]] = field(factory=list)
    held: list[OffloadingEvent] = field(factory=list)
    taken_back: tuple[OffloadKey, ...] = ()

    def deliver(self, events: tuple[OffloadingEvent, ...]) -> None:
        """Ours was drained."""
        self.latest = events
        for event in events:
            if event.removed:
                for key in event.keys:
                    self.believed.pop(key, None)
            else:
                self.believed.update(dict.fromkeys(event.keys))


Explain: TypeAlias = Callable[[Pair, Met], bool]
"""Whether part of a step is the deviation's own; if so it is taken away, or mended."""
Foresee: TypeAlias = Callable[[Pair, op.Operation], None]
"""What has to be done before a step so that it can be explained."""


@frozen(kw_only=True, eq=False)
class Deviation:
    """One way in which the two are meant to differ.

    `clauses` are those that ours follows; `differs` and `why` are sentences. `explain` is asked of
    every step of one of the `calls`. `shows` is a program that comes upon a difference if this
    deviation, and no other, is left out: there ours answers `ours`, and vLLM's `theirs`.
    """

    id: str
    clauses: tuple[str, ...]
    differs: str
    why: str
    calls: tuple[type[op.Operation], ...]
    explain: Explain
    foresee: Foresee | None = None
    shows: Program
    ours: str
    theirs: str


def _without_ticket(result: Result) -> Result:
    if isinstance(result, Loaded):
        return Loaded(result.slots)
    if isinstance(result, Stored):
        return Stored(result.keys, result.slots, result.evicted)
    return result
