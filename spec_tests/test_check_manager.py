"""Managers from a test: programs and laws that must break nothing, and calls that do not return."""

from collections.abc import Collection
from typing import ClassVar, NoReturn

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import (
    CPUOffloadingManager,
    LookupResult,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from kvoffload.errors import InvalidValueError
from stateful_models import checking
from stateful_models.account import Account
from stateful_models.checking import (
    BrokenClauseError,
    ManagerSettings,
    check_manager,
    check_manager_law,
    check_policy_law,
    keys,
    op,
)
from stateful_models.contract import CLAUSES, Kind
from stateful_models.engines.manager_laws import SameTwice
from stateful_models.engines.manager_runs import usual_invariants
from stateful_models.engines.managers import ManagerTrial, RandomManagerPrograms
from stateful_models.engines.runs import Surroundings
from stateful_models.gallery.admission import Gen1KeepsCounting
from stateful_models.gallery.broken_policies.clearing import Pol6OldPlaces
from stateful_models.gallery.lifecycles import Store10DiesWithItsPolicy
from stateful_models.gallery.loads import Pin1NeverReleases
from stateful_models.gallery.stores import Store7SlotTwice
from stateful_models.invariants import Finding, Invariant
from stateful_models.judge import InvariantFailedError
from stateful_models.levels import QUICK
from stateful_models.manager_drivers import ManagerDriver, registered_manager
from stateful_models.steps import Step

SOON = 0.05
A, B, C = keys("a b c")
TWO = [op.PrepareStore("r0", (A, B), 1), op.CompleteStore("r0", (A, B), attempt=1)]


def sound(num_chunks: int) -> CPUOffloadingManager:
    return CPUOffloadingManager(num_chunks)


@pytest.mark.parametrize(
    "target", ["cpu", CPUOffloadingManager, sound, ManagerDriver(sound), registered_manager("cpu")]
)
def test_a_sound_manager_breaks_nothing(
    target: "str | type[CPUOffloadingManager] | ManagerDriver[CPUOffloadingManager]",
) -> None:
    check_manager(target, 2, TWO)
    check_manager(target, 2, [*TWO, op.Reset(), op.PrepareStore("r1", (A,))], watchful=True)


def test_a_broken_clause_is_told_with_its_sentence_and_the_program() -> None:
    with pytest.raises(BrokenClauseError) as broken:
        check_manager(Store7SlotTwice, 2, TWO)
    told = str(broken.value).splitlines()
    assert told[0] == "STORE-7: one call handed a slot out twice: [0, 0]"
    assert told[1] == CLAUSES["STORE-7"].part(Kind.SAFETY).sentence
    assert told[-3].split() == ["resident", "pinned", "pending", "free"]
    assert told[-2].startswith("   1 prepare_store(r0, [a/0 b/0], attempt=1)")


def test_settings_are_those_of_the_manager_and_its_host() -> None:
    counted = [op.PrepareStore("r2", (A,), 1), op.Reset(), op.PrepareStore("r0", (A,), 2)]
    check_manager(Gen1KeepsCounting, 1, counted)
    with pytest.raises(BrokenClauseError, match=r"GEN-1: .* from before the reset"):
        check_manager(Gen1KeepsCounting, 1, counted, settings=ManagerSettings(store_threshold=2))


def test_what_is_claimed_is_held_against_the_model() -> None:
    class Remembers(CPUOffloadingManager):
        @override
        def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
            self.touch([key], req_context)
            return super().lookup(key, req_context)

    used = [*TWO, op.FinishRequest("r0"), op.Lookup("r1", B), op.PrepareStore("r1", (C,))]
    check_manager(Remembers, 2, used)
    claims = ManagerDriver(Remembers, capabilities=registered_manager("cpu").capabilities)
    with pytest.raises(BrokenClauseError, match="LRU-1"):
        check_manager(claims, 2, used)


class NeverTwo(Invariant[Account]):
    """Never are two resident."""

    clauses: ClassVar[tuple[str, ...]] = ("OWN-1",)

    @override
    def judge(self, step: Step, books: Account) -> list[Finding]:
        return [Finding("OWN-1", "two are")] if len(books.resident) > 1 else []


def test_an_invariant_of_ones_own_judges_beside_the_others() -> None:
    with pytest.raises(BrokenClauseError, match=r"OWN-1: two are\nNever are two resident\."):
        check_manager("cpu", 2, TWO, invariants=[NeverTwo()])


def test_another_name_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="one of cpu, CPUOffloadingManager"):
        check_manager("gpu", 2, TWO)


class Alternates(CPUOffloadingManager):
    """Every other one of the class says of nothing that it is there."""

    made: ClassVar[int] = 0

    def __init__(self, num_chunks: int) -> None:
        super().__init__(num_chunks)
        Alternates.made += 1
        self._shy = Alternates.made % 2 == 0

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        answer = super().lookup(key, req_context)
        return LookupResult.MISS if self._shy else answer


LOADED = [*TWO, op.PrepareLoad("r1", (A,), 2), op.CompleteLoad("r1", (A,), 2)]
AGAIN = [op.PrepareStore("r2", (A,), 1), op.Reset(), op.PrepareStore("r0", (A,), 2)]
OVER_TIME = ManagerSettings(store_threshold=2)
FAILING = ManagerSettings(fault="evict gives too few")
FULL = [
    op.PrepareStore("r2", (A,), 1),
    op.CompleteStore("r2", (A,), attempt=1),
    op.PrepareStore("r0", (B,), 2),
]


@pytest.mark.parametrize(
    ("law", "clause", "target", "operations", "settings"),
    [
        ("determinism", "POL-5", Alternates, [*TWO, op.Lookup("r1", A)], ManagerSettings()),
        ("reset", "GEN-1", Gen1KeepsCounting, AGAIN, OVER_TIME),
        ("quiescence", "PIN-1", Pin1NeverReleases, LOADED, ManagerSettings()),
        ("faults", "STORE-10", Store10DiesWithItsPolicy, FULL, FAILING),
    ],
)
def test_a_law_is_replayed(
    law: str,
    clause: str,
    target: type[CPUOffloadingManager],
    operations: list[op.ManagerOperation],
    settings: ManagerSettings,
) -> None:
    with pytest.raises(BrokenClauseError, match=rf"\A{clause}: ") as broken:
        check_manager_law(target, law, 2 - (law == "faults"), operations, settings=settings)
    assert any(part.sentence in str(broken.value) for part in CLAUSES[clause].parts)
    assert "   1 prepare_store(" in str(broken.value)
    check_manager_law("cpu", law, 2 - (law == "faults"), operations, settings=settings)


def test_a_law_of_a_policy_is_replayed() -> None:
    a, b, c, d = keys("a b/1 c d")
    program = [
        op.PrepareStore("r1", (a,)),
        op.Reset(),
        op.PrepareStore("q.r0", (b, c)),
        op.CompleteStore("q.r0", (b,)),
        op.PrepareStore("q.r0", (a,)),
        op.CompleteStore("q.r0", (a, c)),
        op.PrepareStore("q.r1", (d,)),
    ]
    with pytest.raises(BrokenClauseError, match=r"\APOL-6: operation 7 evicted \[a/0\]"):
        check_policy_law(Pol6OldPlaces, "law of clearing", 2, program)
    check_policy_law("lru", "law of clearing", 2, program)


def test_a_law_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="law of clearing"):
        check_policy_law("lru", "clearing", 2, TWO)
    with pytest.raises(InvalidValueError, match="quiescence"):
        check_manager_law("cpu", "law of clearing", 2, TWO)


def loop() -> NoReturn:
    while True:
        pass


class Waits(CPUOffloadingManager):
    """Waits for room, which comes from nobody else."""

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        stored = super().prepare_store(keys, req_context)
        return loop() if stored is None else stored


class WaitsForOthers(CPUOffloadingManager):
    """Waits at the end of a load for others to end."""

    @override
    def complete_load(
        self, keys: Collection[OffloadKey], req_context: ReqContext, *, ticket: int | None = None
    ) -> None:
        loop()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (Waits, r"\ASTORE-4: prepare_store did not return within 0\.05 s; found at .* in loop"),
        (WaitsForOthers, r"\APIN-1: complete_load did not return within 0\.05 s"),
    ],
)
def test_a_call_that_does_not_return_breaks_what_it_is_there_for(
    target: type[CPUOffloadingManager], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "PATIENCE_S", SOON)
    program = [*TWO, op.PrepareLoad("r1", (A,), 2), op.PrepareStore("r2", keys("d e f"))]
    with pytest.raises(BrokenClauseError, match=told) as broken:
        check_manager(target, 2, program)
    assert "raised DidNotReturn" in str(broken.value)


class Ponders(Invariant[Account]):
    @override
    def judge(self, step: Step, books: Account) -> list[Finding]:
        return [] if isinstance(step.operation, op.PrepareStore) else loop()


def test_an_invariant_that_does_not_return_convicts_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "PATIENCE_S", SOON)
    with pytest.raises(InvariantFailedError, match="judging complete_store did not return"):
        check_manager("cpu", 2, TWO, invariants=[Ponders()])


def test_a_law_waits_no_longer_than_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "PATIENCE_S", SOON)
    # What hangs when everything ends breaks something else than this law.
    check_manager_law(WaitsForOthers, "quiescence", 2, LOADED[:-1])


def test_a_trial_convicts_what_does_not_return() -> None:
    driver = ManagerDriver(Waits)
    trial = ManagerTrial(
        driver,
        usual_invariants(driver.capabilities),
        capabilities=driver.capabilities,
        level=evolve(QUICK, programs=16, laws=8, shrinking=12),
        surroundings=Surroundings(patience_s=SOON),
    )
    RandomManagerPrograms().run(trial)
    found = trial.breaches["STORE-4", Kind.HOST]
    assert "prepare_store did not return within" in found.message
    assert found.message.endswith("in loop")
    assert found.program is not None
    # Those that compare give up when it hangs again and again.
    SameTwice().run(trial)
    assert any(note.startswith("determinism: cut after") for note in trial.notes)
