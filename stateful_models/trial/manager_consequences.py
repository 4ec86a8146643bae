"""What becomes of an engine: the same program played by a scheduler that makes no mistakes, and a
worker that copies what it is told, over slots of which each holds somebody's bytes.

Nothing of the manager's is looked at: it is damage when a call raises or does not return, when
bytes are read that are another key's or nobody's, when a request waits for what never comes, or
when slots are lost. Then comes what a next request finds, and a store of as many new keys as there
are chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import LookupResult, OffloadingManager, OffloadKey
from stateful_models import operations as op
from stateful_models.engines.manager_runs import ManagerRun
from stateful_models.engines.runs import PLAIN, Surroundings
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.operations import key_text, keys_text
from stateful_models.programs import ManagerSettings, Program, keys
from stateful_models.steps import Delivered, Loaded, Step, Stored
from stateful_models.trial.consequences import DamageError, dies_of, stands_still
from stateful_models.trial.worker import Worker

M = TypeVar("M", bound=OffloadingManager)

NEXT: Final = "next"
"""The request that comes after the program."""
_TOLD: Final = (
    "nothing breaks: the policy is told something else than what happened, other chunks go, and "
    "hits are lost"
)
_QUIET: Final = {
    **dict.fromkeys(("FIN-1", "LOAD-5", "LOOK-2", "STORE-8", "TOUCH-1"), _TOLD),
    **dict.fromkeys(
        ("ARC-3", "LRU-1", "POL-5"),
        "nothing breaks: other chunks go than was promised, and hits are lost",
    ),
    "STORE-3": "nothing breaks: other keys are stored than the threshold asks for",
    "STORE-6": "nothing breaks: the policy looks through the cache for victims that are not there, "
    "at every such offer anew",
    "STORE-12": "nothing breaks: some keys are never stored, however often they are offered",
    "MET": "the tokens are right, and the figures that operators and autoscalers read are not",
    "EVT": "the tokens are right, and whoever listens to events is told something else",
    "EVT-4": "events that nobody takes pile up in the process of the scheduler",
}
_NOTHING: Final = "nothing that the scheduler would notice in this program"
_ERRING: Final = "nothing in this program: it takes a call that its scheduler does not make"


def manager_consequence(
    driver: ManagerDriver[M],
    program: Program,
    surroundings: Surroundings = PLAIN,
    *,
    clause: str,
    own: bool = False,
) -> str:
    """What happens in vLLM 0.33 when a scheduler does this under a manager that breaks `clause`.

    `own`: an invariant of the author's own objected, and where nothing shows that is all; then "".
    """
    settings = ManagerSettings() if program.settings is None else program.settings
    try:
        engine = _Engine(driver, program, evolve(settings, mistakes=False), surroundings)
    except Exception as error:
        return f"the manager cannot be built: {type(error).__name__}"
    try:
        for operation in program.operations:
            engine.play(operation)
        engine.wind_up()
    except DamageError as told:
        return str(told)
    if engine.over:
        return stands_still(engine.calling)
    if own:
        return ""
    return _ERRING if settings.mistakes else quiet_consequence(clause)


def quiet_consequence(clause: str) -> str:
    """What becomes of an engine where no program shows more of the breach than the clause says."""
    return _QUIET.get(clause) or _QUIET.get(clause.partition("-")[0]) or _NOTHING


class _Engine(ManagerRun[M]):
    """A run whose scheduler loads only what it has just looked up and found."""

    def __init__(
        self,
        driver: ManagerDriver[M],
        program: Program,
        settings: ManagerSettings,
        surroundings: Surroundings,
    ) -> None:
        super().__init__(
            driver,
            program.capacity,
            settings,
            lambda options: (),
            watchful=program.watchful,
            surroundings=surroundings,
        )
        able = driver.capabilities
        # Of one that refuses by design a refusal says nothing.
        self._refuses = able.may_refuse is not None
        self._tells = able.events and settings.enable_events
        self._worker = Worker(program.capacity)
        self._announced: set[OffloadKey] = set()
        # Of these, what was announced before a reset, and is not taken back.
        self._outdated: set[OffloadKey] = set()
        # Keys that a next request finds, and those that were stored and that it does not find.
        self._found: set[OffloadKey] = set()
        self._lost: list[OffloadKey] = []
        self._gone: list[OffloadKey] = []
        self._refused = False
        # Everything that a look-up finds is loaded, so that what it is shows.
        self._thorough = False
        self._present: frozenset[OffloadKey] = frozenset()
        self._believed: frozenset[OffloadKey] = frozenset()
        self._believed_from_before: frozenset[OffloadKey] = frozenset()

    @property
    def calling(self) -> str:
        """The call that was made last."""
        return self._calling.operation.verb

    def wind_up(self) -> None:
        """End everything, let a next request come, and fill the cache anew. Raises DamageError."""
        for act in (self._ask, self.settle, self._come_next, self._fill_anew):
            if not self.over:
                self.guard(act)
        if not self.over:
            self._tell_what_was_lost()

    @override
    def _perform(self, operation: op.Operation) -> Step:
        if isinstance(operation, op.PrepareLoad) and not operation.internal:
            found = [self._performed(op.Lookup(operation.request, key)) for key in operation.keys]
            if any(step.result is not LookupResult.HIT for step in found):
                # A scheduler computes these tokens, and loads none.
                return Step(0, operation)
        return self._performed(operation)

    def _performed(self, operation: op.Operation) -> Step:
        self._calling.calls(operation)
        step = self.subject.perform(operation)
        self._calling.ends()
        self._steps.append(step)
        if step.error is not None:
            raise DamageError(dies_of(step.error, operation.verb))
        self.judge.judge(step)
        self._follow(step)
        return step

    def _follow(self, step: Step) -> None:
        """Do what a scheduler and a worker do with an answer."""
        worker, result = self._worker, step.result
        match step.operation:
            case op.NewRequest():
                if not hasattr(result, "policy"):
                    raise DamageError(
                        f"on_new_request answers {result}, of which the scheduler reads the "
                        "policy: AttributeError, and the engine dies"
                    )
            case op.Lookup(request, key):
                self._looked_up(request, key, result)
            case op.PrepareLoad() as load if isinstance(result, Loaded):
                if result.slots is not None:
                    worker.load(load, result.slots)
            case op.PrepareStore() as offer:
                if isinstance(result, Stored):
                    self._store(offer, result)
                elif not self._lacks_room(offer.keys):
                    self._refused = True
            case op.CompleteStore() | op.CompleteLoad() as completion:
                worker.complete(completion)
                if self._tells:
                    # It does so in the step in which transfers are reported.
                    self._performed(op.TakeEvents())
            case op.TakeEvents() if isinstance(result, Delivered):
                for event in result.events:
                    change: Callable[[Iterable[OffloadKey]], None] = (
                        self._announced.difference_update
                        if event.removed
                        else self._announced.update
                    )
                    change(event.keys)
                    self._outdated.difference_update(event.keys)
            case op.Reset():
                worker.reset()
                self._outdated.update(self._announced)
            case _:
                pass

    def _looked_up(self, request: op.RequestId, key: OffloadKey, result: object) -> None:
        entry = self.account.resident.get(key)
        if result is LookupResult.HIT:
            slot = None if entry is None else entry.slot
            if self._thorough or not self._worker.holds(key, slot):
                self._load_now(request, key)
            self._found.add(key)
        elif self._thorough:
            if result in (LookupResult.HIT_PENDING, LookupResult.RETRY):
                raise DamageError(
                    f"a look-up of {key_text(key)} is answered {getattr(result, 'name', result)} "
                    "with nothing in flight: the request that asks waits for good"
                )
            if entry is not None and not entry.pending:
                self._lost.append(key)

    def _load_now(self, request: op.RequestId, key: OffloadKey) -> None:
        """The scheduler loads what a look-up found."""
        try:
            self._performed(op.PrepareLoad(request, (key,)))
            self._performed(op.CompleteLoad(request, (key,)))
        except DamageError as told:
            raise DamageError(f"{key_text(key)} is a HIT, and so it is loaded; {told}") from told

    def _store(self, offer: op.PrepareStore, stored: Stored) -> None:
        strangers = [key for key in stored.keys if key not in offer.keys]
        if strangers:
            raise DamageError(
                f"{keys_text(strangers)} is to be stored, which the request never offered: the "
                "scheduler has no blocks for it"
            )
        if stored.slots is not None:
            self._worker.store(offer, stored, stored.slots)
        self._gone += [key for key in stored.evicted if key in offer.keys]
        read = [key for key in stored.evicted if self._worker.read_now(key)]
        if read:
            raise DamageError(
                f"{keys_text(read)} is given up while it is read: the next store overwrites it "
                "under the reader, and wrong tokens follow"
            )

    def _lacks_room(self, offered: Sequence[OffloadKey]) -> bool:
        account = self.account
        new = {key for key in offered if key not in account.resident}
        beside = sum(1 for key in offered if (e := account.resident.get(key)) and e.idle)
        return len(new) > (account.free or 0) + account.idle - beside

    def _ask(self) -> None:
        """A request comes that wants every key there was."""
        for key in self._named:
            self._performed(op.Lookup(NEXT, key))

    def _come_next(self) -> None:
        """Once nothing is in flight a request comes; then events are taken."""
        self._thorough = True
        self._found.clear()
        self._ask()
        self._thorough = False
        self._present = frozenset(self._found)
        self._performed(op.TakeEvents())
        self._believed = frozenset(self._announced)
        self._believed_from_before = frozenset(self._outdated)

    def _fill_anew(self) -> None:
        """As many new keys are stored as there are chunks, so that nothing else is left; and then
        comes a reset, after which nothing is."""
        if self._refuses or not self.capacity:
            return
        fresh = keys(" ".join(f"new{number}" for number in range(self.capacity)))
        for number in range(self.capacity, -1, -1):
            answers = [
                self.host.play(op.PrepareStore(NEXT, fresh[:number]))
                for _ in range(max(1, self.settings.store_threshold))
            ]
            last = answers[-1]
            if last is None or isinstance(last.result, Stored):
                lost = self.capacity - number
                break
        else:
            return
        if lost:
            raise DamageError(
                f"{lost} of {self.capacity} slots can never be stored into again: the cache is "
                "smaller for good"
            )
        then = "once the cache is filled with new keys"
        try:
            self.settle()
            self._ask()
            then += " and reset"
            self._named.update(dict.fromkeys(fresh))
            self.host.play(op.Reset())
            self.host.play(op.ResetFlushed())
            self._ask()
        except DamageError as told:
            raise DamageError(f"{then}, {told}") from told

    def _tell_what_was_lost(self) -> None:
        """Raise DamageError for what only costs hits."""
        if self._lost:
            raise DamageError(
                f"{keys_text(self._lost)} was stored and is not found again: it is computed anew, "
                "and nothing breaks"
            )
        in_vain = self._believed - self._present
        if in_vain:
            # Together with the GPU's own cache, which is not emptied while requests run.
            condition = (
                ", unless the GPU's cache is reset with it, which vLLM announces itself"
                if in_vain <= self._believed_from_before
                else ""
            )
            raise DamageError(
                f"a router believes that {keys_text(sorted(in_vain))} is here, and sends requests "
                f"that find nothing{condition}"
            )
        untold = sorted(self._present - self._believed)
        if untold and self._tells:
            raise DamageError(
                f"a router is never told of {keys_text(untold)}: requests that would find it are "
                "sent elsewhere"
            )
        if self._gone:
            raise DamageError(f"{keys_text(self._gone)}, which the request offered, is gone")
        if self._refused and not self._refuses:
            raise DamageError(
                "the store is dropped although there was room: hits are lost, nothing breaks"
            )
