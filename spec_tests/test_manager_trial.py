"""The trial of managers: ours is clean, what is broken is convicted, what is odd is not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from statistics import median
from typing import TypeVar

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    CPULoadStoreSpec,
    CPUOffloadingManager,
    OffloadingManager,
    OffloadingStats,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
)
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.lots import by_lot, drawn_of
from stateful_models import operations as op
from stateful_models.contract import CLAUSES, Kind, Profile
from stateful_models.engines.base import Breach
from stateful_models.engines.manager_faults import FaultyPolicies
from stateful_models.engines.manager_laws import AsNew, FreeAgain, SameTwice
from stateful_models.engines.manager_runs import (
    ManagerRun,
    run_manager_program,
    usual_invariants,
)
from stateful_models.engines.managers import (
    CLAIMED,
    MANAGER_SITUATIONS,
    ManagerEngine,
    ManagerTrial,
    RandomManagerPrograms,
)
from stateful_models.engines.suites import manager_engines
from stateful_models.gallery import BREAKS, ODDITIES
from stateful_models.gallery.loads import Pin1NeverReleases
from stateful_models.gallery.managers import Store12PushesItselfOut
from stateful_models.gallery.oddities import ODD_SETUPS, SlotsFromTheTop
from stateful_models.gallery.setups import PLAIN
from stateful_models.gallery.stores import Slot1CountsFromOne, Store3AdmitsAtOnce
from stateful_models.invariants import manager_invariants
from stateful_models.levels import QUICK, Level
from stateful_models.manager_drivers import (
    REFERENCE,
    ManagerCapabilities,
    ManagerDriver,
    ManagerOptions,
)
from stateful_models.programs import HostOperation, ManagerSettings, Program, keys

M = TypeVar("M", bound=OffloadingManager)

FEW = evolve(QUICK, programs=400)
FEWER = evolve(QUICK, programs=200, laws=20)
"""What is asked of each odd manager comes about in half of them."""
MOST_PROGRAMS = 2_000
MEDIAN_PROGRAMS = 50
SHORT = 8
LONGEST = 12

# CI tries a part of the gallery here: by the invariants alone, which is cheaper, `test_gallery`
# convicts every broken manager of it and acquits every odd one.
ONE_OF = 4
DRAWN = drawn_of([manager_cls.__qualname__ for manager_cls in BREAKS], one_of=ONE_OF)


class WithPolicy(ManagerDriver[M]):
    """A driver that builds with one policy only."""

    def __init__(
        self,
        target: Callable[..., M],
        policy: str,
        capabilities: ManagerCapabilities | None = None,
    ) -> None:
        super().__init__(target, capabilities=capabilities)
        self.policy = policy

    @property
    @override
    def policies(self) -> Sequence[str]:
        return (self.policy,)


def make_trial(
    driver: ManagerDriver[M],
    profile: Profile = Profile.REFERENCE,
    seed: int = 0,
    level: Level = FEW,
) -> ManagerTrial[M]:
    able = driver.capabilities
    return ManagerTrial(
        driver,
        usual_invariants(able),
        capabilities=able,
        profile=profile,
        seed=seed,
        level=level,
    )


def tried(
    driver: ManagerDriver[M],
    engines: Iterable[ManagerEngine] | None = None,
    profile: Profile = Profile.REFERENCE,
    seed: int = 0,
    level: Level = FEW,
) -> ManagerTrial[M]:
    trial = make_trial(driver, profile, seed, level)
    for engine in manager_engines() if engines is None else engines:
        engine.run(trial)
    return trial


def told(trial: ManagerTrial[M]) -> str:
    return "\n".join(map(str, trial.breaches.values()))


class FoundError(Exception):
    """What was looked for is found; the rest of the trial would show nothing more."""


@cache
def conviction(manager_cls: type[CPUOffloadingManager], clause: str) -> Breach | None:
    """The first breach of the clause that a trial finds."""
    trial = make_trial(ManagerDriver(manager_cls))

    def found() -> Breach | None:
        return next((b for (name, _), b in trial.breaches.items() if name == clause), None)

    def stop(engine: str, share: float) -> None:
        if found() is not None:
            raise FoundError

    trial.on_progress = stop
    trial.level = QUICK
    try:
        for engine in manager_engines():
            engine.run(trial)
            stop(engine.name, 1.0)
    except FoundError:
        pass
    return found()


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_the_reference_is_clean_and_everything_is_reached(policy: str) -> None:
    trial = make_trial(WithPolicy(CPUOffloadingManager, policy, REFERENCE))
    trial.level = QUICK
    for engine in manager_engines():
        engine.run(trial)
    assert not trial.breaches, told(trial)
    of_other_policies = set(CLAIMED) - {"LRU-1" if policy == "lru" else "ARC-3"}
    assert set(MANAGER_SITUATIONS) - trial.tried <= of_other_policies, str(trial.reach)


@pytest.mark.parametrize("manager_cls", by_lot(BREAKS, one_of=ONE_OF))
def test_a_broken_manager_is_convicted_under_its_clause(
    manager_cls: type[CPUOffloadingManager],
) -> None:
    breach = conviction(manager_cls, BREAKS[manager_cls])
    assert breach is not None
    assert breach.programs <= MOST_PROGRAMS
    if breach.program is not None:
        assert len(breach.program) <= LONGEST, str(breach.program)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(DRAWN, id="drawn"),
        pytest.param([cls.__qualname__ for cls in BREAKS], id="all", marks=pytest.mark.nightly),
    ],
)
def test_convictions_are_quick_and_their_programs_short(names: Collection[str]) -> None:
    breaches = [
        conviction(manager_cls, clause)
        for manager_cls, clause in BREAKS.items()
        if manager_cls.__qualname__ in names
    ]
    programs = [breach.programs for breach in breaches if breach is not None]
    lengths = [len(b.program) for b in breaches if b is not None and b.program is not None]
    print(f"median of {median(programs)} programs, {median(lengths)} operations")
    assert median(programs) <= MEDIAN_PROGRAMS, sorted(programs)
    assert sum(length <= SHORT for length in lengths) >= 0.9 * len(lengths), sorted(lengths)


@pytest.mark.parametrize("manager_cls", by_lot(ODDITIES, one_of=ONE_OF))
def test_an_odd_manager_is_acquitted(manager_cls: type[CPUOffloadingManager]) -> None:
    setup = ODD_SETUPS.get(manager_cls, PLAIN)
    arguments = {} if setup.cache_policy is None else {"cache_policy": setup.cache_policy}
    stated = ManagerDriver(manager_cls, arguments).capabilities
    if setup.may_refuse:
        stated = evolve(stated, may_refuse="by design")
    driver = ManagerDriver(manager_cls, arguments, capabilities=stated)
    trial = tried(driver, profile=Profile.VLLM, level=FEWER)
    convictions = [
        breach
        for (clause, kind), breach in trial.breaches.items()
        if CLAUSES[clause].part(kind).convicts(Profile.VLLM)
    ]
    assert not convictions, told(trial)
    assert {"STORE-4", "LOAD-3", "SLOT-1", "GEN-1", "EVT-1"} <= trial.tried, str(trial.reach)


def test_every_clause_that_is_judged_says_what_it_takes() -> None:
    judged = {clause for invariant in manager_invariants() for clause in invariant.clauses}
    judged |= {clause for engine in manager_engines() for clause in engine.clauses}
    assert judged == set(MANAGER_SITUATIONS)
    assert judged <= set(CLAUSES)


class NotesErrors(CPUOffloadingManager):
    """Notes everything that it raises; what vLLM asserts, its host must not have done."""

    errors: list[Exception]

    def __init__(self, num_chunks: int, cache_policy: str = "lru") -> None:
        super().__init__(num_chunks, cache_policy, enable_events=True)
        self.errors = []
        ALL_NOTES.append(self.errors)

    @override
    def prepare_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        record_access: bool = True,
    ) -> CPULoadStoreSpec:
        with self._noting():
            return super().prepare_load(keys, req_context, record_access=record_access)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        with self._noting():
            if len(set(keys)) < len(keys):
                raise ValueError("a repeated key")
            return super().prepare_store(keys, req_context)

    @override
    def complete_load(
        self, keys: Collection[OffloadKey], req_context: ReqContext, *, ticket: int | None = None
    ) -> None:
        stale = self.stale_completions
        with self._noting():
            super().complete_load(keys, req_context, ticket=ticket)
            if self.stale_completions > stale:
                raise ValueError("a stale completion")

    def _noting(self) -> Noting:
        return Noting(self.errors)


class Noting:
    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, Exception):
            self.errors.append(error)


ALL_NOTES: list[list[Exception]] = []


def test_hosts_make_mistakes_under_the_profile_reference_only() -> None:
    ALL_NOTES.clear()
    tried(ManagerDriver(NotesErrors), [RandomManagerPrograms()], Profile.VLLM)
    assert ALL_NOTES
    assert not any(ALL_NOTES)
    tried(ManagerDriver(NotesErrors), [RandomManagerPrograms()], Profile.REFERENCE)
    assert any(ALL_NOTES)


A, B = keys("a b")
STORED: tuple[HostOperation, ...] = (
    op.PrepareStore("r0", (A,), 1),
    op.CompleteStore("r0", (A,), attempt=1),
)


def played(program: Program) -> ManagerRun[CPUOffloadingManager]:
    driver = ManagerDriver(CPUOffloadingManager)
    return run_manager_program(driver, program, usual_invariants(driver.capabilities))


def is_called(before: Iterable[HostOperation], last: HostOperation, *, mistakes: bool) -> bool:
    """Whether the manager is called for the last of the operations."""
    settings = ManagerSettings(policy="lru", mistakes=mistakes)
    # The look-up behind it is one that the host makes in any case.
    program = Program(2, (*before, last, op.Lookup("r9", A)), False, settings)
    run = played(program)
    assert not run.violations
    assert run.operations == program.operations
    return bool(run.played[-2].steps)


@pytest.mark.parametrize(
    "impossible",
    [
        op.PrepareLoad("r0", (B,), 2),
        op.CompleteLoad("r0", (A,), 2),
        op.CompleteLoad("r0", (A,)),
        op.CompleteStore("r0", (A,), attempt=1),
        op.CompleteStore("r0", (A,), attempt=op.NEVER_MADE),
        op.PrepareStore("r0", (), 2),
        op.PrepareStore("r0", (OffloadKey(b"abcd"),), 2),
        op.Outstanding("r0"),
        op.TakeFirstEvent(),
        op.ResetFlushed(),
        op.NewRequest("r0"),
    ],
    ids=str,
)
def test_what_a_host_could_not_do_is_left_out(impossible: HostOperation) -> None:
    assert not is_called(STORED, impossible, mistakes=False)
    assert is_called(STORED, impossible, mistakes=True)


def test_what_is_partly_possible_is_trimmed() -> None:
    run = played(Program(2, (*STORED, op.PrepareLoad("r1", (A, B, A), 2))))
    assert run.played[-1].steps[0].operation == op.PrepareLoad("r1", (A, A), 2)
    run = played(Program(2, (*STORED, op.PrepareStore("r1", (B, B), 2))))
    assert run.played[-1].steps[0].operation == op.PrepareStore("r1", (B,), 2)


def test_a_finished_request_offers_nothing_more() -> None:
    offer = op.PrepareStore("r0", (B,), 2)
    finished = (*STORED, op.FinishRequest("r0"))
    assert not is_called(finished, offer, mistakes=False)
    assert is_called(finished, offer, mistakes=True)


def test_a_transfer_of_before_a_reset_is_not_reported_by_a_host_without_mistakes() -> None:
    late = op.CompleteStore("r0", (A,), attempt=1)
    begun: list[HostOperation] = [op.PrepareStore("r0", (A,), 1), op.Reset()]
    assert not is_called(begun, late, mistakes=False)
    assert is_called(begun, late, mistakes=True)


def test_the_state_after_each_operation_is_that_of_the_books() -> None:
    load, offer = op.PrepareLoad("r1", (A,), 2), op.PrepareStore("r1", (B,), 3)
    run = played(Program(3, (*STORED, load, offer)))
    states = [tuple(played.state) for played in run.played[:3]]
    # Resident, pinned, pending and free.
    assert states == [(1, 0, 1, 2), (1, 0, 0, 2), (1, 1, 0, 2)]


def test_settings_are_made_plain() -> None:
    settings = ManagerSettings(
        policy="arc",
        store_threshold=3,
        enable_events=True,
        max_tracker_size=3,
        tapped=True,
        mistakes=True,
    )
    offers = [op.PrepareStore("r0", (A, B), number) for number in range(3)]
    trial = make_trial(ManagerDriver(Slot1CountsFromOne))
    assert trial.judged(trial.run(Program(2, tuple(offers), False, settings)), "by hand")
    program = trial.breaches["SLOT-1", Kind.SAFETY].program
    assert program is not None
    assert program.settings == ManagerSettings()
    assert program.operations == (op.PrepareStore("r1", (A,)),)


def test_a_run_ends_when_the_books_no_longer_agree() -> None:
    driver = ManagerDriver(Slot1CountsFromOne)
    program = Program(1, (*STORED, op.PrepareLoad("r1", (A,), 2)))
    run = run_manager_program(driver, program, usual_invariants(driver.capabilities))
    assert run.over
    assert len(run.played) == 1


class OtherPolicy(WithPolicy[CPUOffloadingManager]):
    """Says that it builds with LRU, and does with ARC."""

    @override
    def build(self, options: ManagerOptions) -> CPUOffloadingManager:
        return super().build(evolve(options, cache_policy="arc"))


def test_who_claims_to_be_the_reference_is_held_to_every_answer() -> None:
    """LRU-1 and STORE-7."""
    engines = [RandomManagerPrograms()]
    trial = tried(OtherPolicy(CPUOffloadingManager, "lru", REFERENCE), engines)
    assert ("LRU-1", Kind.CLAIM) in trial.breaches
    trial = tried(ManagerDriver(SlotsFromTheTop, capabilities=REFERENCE), engines)
    assert ("STORE-7", Kind.CLAIM) in trial.breaches
    assert not tried(ManagerDriver(SlotsFromTheTop), engines).breaches


def test_the_model_says_nothing_of_a_manager_that_has_left_it() -> None:
    engines = [RandomManagerPrograms()]
    without = tried(ManagerDriver(Store3AdmitsAtOnce), engines)
    claiming = tried(ManagerDriver(Store3AdmitsAtOnce, capabilities=REFERENCE), engines)
    # Refusing what should not even have been admitted is all that it has to add.
    added = {clause for clause, _ in claiming.breaches.keys() - without.breaches.keys()}
    assert added == {"STORE-4"}, told(claiming)


def test_what_is_wrong_under_any_policy_is_no_matter_of_faults() -> None:
    """STORE-10."""
    trial = tried(ManagerDriver(Store12PushesItselfOut), [FaultyPolicies()])
    assert not trial.breaches, told(trial)
    ours = tried(ManagerDriver(CPUOffloadingManager), [FaultyPolicies()])
    assert not ours.breaches, told(ours)
    assert ours.tried == {"STORE-10"}


class Chancy(CPUOffloadingManager):
    """Every second manager of the process hands its slots out the other way round."""

    made = 0

    def __init__(self, num_chunks: int, cache_policy: str | type[CachePolicy] = "lru") -> None:
        super().__init__(num_chunks, cache_policy)
        Chancy.made += 1
        self._odd = Chancy.made % 2

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        return super().prepare_store(keys if self._odd else list(keys)[::-1], req_context)


def test_two_new_managers_must_answer_alike() -> None:
    """POL-5."""
    trial = tried(ManagerDriver(Chancy), [SameTwice()])
    breach = trial.breaches["POL-5", Kind.HOST]
    assert breach.program is not None
    assert len(breach.program) == 1
    assert breach.expected != breach.seen


class GrowsAtReset(CPUOffloadingManager):
    """The threshold goes up with every reset, which no single answer shows."""

    def __init__(
        self, num_chunks: int, cache_policy: str | type[CachePolicy] = "lru", asked: int = 0
    ) -> None:
        super().__init__(num_chunks, LRUCachePolicy)

    @override
    def reset_cache(self) -> None:
        super().reset_cache()
        self._pool.take(min(1, self.num_chunks), [])


def test_after_a_reset_a_manager_is_as_new() -> None:
    """GEN-1."""
    trial = tried(ManagerDriver(GrowsAtReset), [AsNew()])
    assert ("GEN-1", Kind.REFERENCE) in trial.breaches
    assert "GEN-1" in trial.tried


class HidesItsPins(Pin1NeverReleases):
    """No figure shows the pins."""

    @override
    def get_stats(self) -> OffloadingStats:
        return OffloadingStats()


def test_pins_that_no_figure_shows_are_found_by_what_no_longer_fits() -> None:
    """PIN-1."""
    trial = tried(ManagerDriver(HidesItsPins), [FreeAgain()], Profile.VLLM)
    breach = trial.breaches["PIN-1", Kind.SAFETY]
    assert breach.program is not None
    assert len(breach.program) <= SHORT


class Narrow(CPUOffloadingManager):
    """Takes fewer options, and no tickets."""

    def __init__(self, chunks: int, *, enable_events: bool = False) -> None:
        super().__init__(chunks, enable_events=enable_events)


def test_a_manager_is_given_the_options_that_it_takes() -> None:
    driver = ManagerDriver(Narrow)
    assert driver.capabilities == ManagerCapabilities(
        events=True, reuse_threshold=False, tracker_size=False, tap=False
    )
    assert driver.policies == ()
    manager = driver.build(ManagerOptions(num_chunks=3, cache_policy="arc", store_threshold=2))
    assert (manager.num_chunks, manager.store_threshold) == (3, 1)
    trial = tried(driver, [RandomManagerPrograms()], Profile.VLLM)
    assert not trial.breaches, told(trial)
    assert "EVT-1" in trial.tried
    assert "STORE-3" not in trial.tried
    assert trial.declined["STORE-3"] == "a store_threshold is declined"
    assert trial.declined["LOAD-4"] == "only a host that errs would show it"


def test_a_tap_that_nobody_was_given_is_not_believed() -> None:
    driver = ManagerDriver(
        CPUOffloadingManager,
        {"cache_policy": "arc"},
        capabilities=ManagerCapabilities(tap=True),
    )
    trial = tried(driver, [RandomManagerPrograms()])
    assert not trial.breaches, told(trial)
    assert "STORE-8" not in trial.tried


def test_what_is_stated_goes_before_what_is_seen() -> None:
    class Stated(CPUOffloadingManager):
        manager_capabilities = ManagerCapabilities(events=False, may_refuse="on Sundays")

    assert ManagerDriver(Stated).capabilities.may_refuse == "on Sundays"
    assert ManagerDriver(CPUOffloadingManager).capabilities.tap
    assert not ManagerDriver(CPUOffloadingManager, {"cache_policy": "arc"}).capabilities.tap


class HatesNothing(CPUOffloadingManager):
    """Cannot be built without chunks."""

    def __init__(self, num_chunks: int) -> None:
        if not num_chunks:
            raise ValueError("no chunks")
        super().__init__(num_chunks)


def test_a_cache_of_nothing_is_tried_only_where_there_can_be_one() -> None:
    trial = tried(ManagerDriver(HatesNothing), [RandomManagerPrograms()])
    assert not trial.breaches, told(trial)
    assert trial.notes == ["not tried without any chunks: ValueError: no chunks"]


class Exits(CPUOffloadingManager):
    """Ends the process when it is asked for figures."""

    @override
    def get_stats(self) -> OffloadingStats:
        raise SystemExit(3)


def test_an_exit_is_held_against_the_manager_and_ends_nothing() -> None:
    trial = tried(ManagerDriver(Exits), [RandomManagerPrograms()])
    assert ("MET-2", Kind.HOST) in trial.breaches


class Pinging(CPUOffloadingManager):
    """Has an extra method that must not be called."""

    def ping(self, number: int) -> None:
        """Raises when it is told 3."""
        if number == 3:
            raise RuntimeError("3")


def test_extra_calls_and_hints_are_those_of_the_driver() -> None:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy

    seen: set[object] = set()

    class WithPings(ManagerDriver[Pinging]):
        @override
        def host_events(self) -> SearchStrategy[op.HostEvent]:
            return st.integers(0, 3).map(lambda number: op.HostEvent("ping", (number,)))

        @override
        def perform_event(self, manager: Pinging, event: op.HostEvent) -> None:
            seen.add(event.values)
            super().perform_event(manager, event)

    trial = tried(WithPings(Pinging), [RandomManagerPrograms()])
    assert (3,) in seen
    assert ("SPECS-3", Kind.HOST) in trial.breaches
