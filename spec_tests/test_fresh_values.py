"""Growth with ever new sessions: what is kept of values of hints and of host events (POL-4)."""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Final

import pytest
from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from spec_tests.lots import by_lot
from stateful_models.contract import Kind
from stateful_models.drivers import Driver
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.fresh_values import FreshValues, fresh
from stateful_models.engines.growth import FEW, LONGEST, UNENDED, UNTOLD, Growth
from stateful_models.gallery.broken_policies.base import Plain
from stateful_models.levels import QUICK
from stateful_models.operations import HostEvent

Hints = Mapping[str, object] | None


def hint(context: ReqContext, name: str) -> object:
    hints = context.kv_transfer_params
    return hints.get(name) if isinstance(hints, dict) else None


class Remembers(Plain):
    """Remembers each session that ever inserted."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.seen: dict[object, None] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self.seen[self.session(req_context)] = None

    def session(self, context: ReqContext) -> object:
        return hint(context, "session")

    @override
    def clear(self) -> None:
        super().clear()
        self.seen.clear()

    def session_ended(self, session: object) -> None:
        """A host says so."""


class RemembersNumbers(Remembers):
    """Keeps numbers of sessions."""

    @override
    def session(self, context: ReqContext) -> object:
        return hint(context, "number")


class RemembersEnds(Plain):
    """Remembers each session of which a host said that it is over."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.over: set[object] = set()

    def session_ended(self, session: object) -> None:
        self.over.add(session)

    @override
    def clear(self) -> None:
        super().clear()
        self.over.clear()


class RemembersRoles(Remembers):
    """Keeps something for each role."""

    @override
    def session(self, context: ReqContext) -> object:
        return hint(context, "role")


class RemembersRanks(Remembers):
    """Keeps something for each rank, which are a few."""

    @override
    def session(self, context: ReqContext) -> object:
        return hint(context, "rank")


class EndsByEvent(Remembers):
    """Forgets a session when it is told that it is over."""

    @override
    def session_ended(self, session: object) -> None:
        self.seen.pop(session, None)


class EndsByHint(Remembers):
    """Forgets a session when the last of its requests has ended."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
        if hint(req_context, "ended") is True:
            self.seen.pop(self.session(req_context), None)


class EndsByAbsence(Remembers):
    """Forgets a session with the first request that does not say that it goes on."""

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)
        if hint(req_context, "ended") is not False:
            self.seen.pop(self.session(req_context), None)


class EndsByBoth(EndsByHint, EndsByEvent):
    """Forgets a session when either says so."""


class SweptNowAndThen(EndsByEvent):
    """Forgets all sessions whenever its host has it sweep."""

    def sweep(self) -> None:
        self.seen.clear()


class Bounded(Remembers):
    """Remembers so many sessions."""

    bound = 200

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        while len(self.seen) > self.bound:
            del self.seen[next(iter(self.seen))]


class BoundedEnds(Bounded, EndsByEvent):
    """Remembers so many sessions that are not over."""


class FarBounded(Remembers):
    """Would remember so many that no trial comes to them."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.max_sessions = 100_000


class FarBoundedEnds(FarBounded, EndsByHint):
    """And forgets those that are over."""


class Wide(Driver[CachePolicy]):
    """Hardly ever the same session."""

    sessions: SearchStrategy[str] = st.integers(0, 10**9).map(str)

    @override
    def contexts(self) -> SearchStrategy[Hints]:
        named = {"session": self.sessions, "number": st.integers(0, 2**40)}
        rest = {
            "ended": st.booleans(),
            "role": st.sampled_from(["user", "tool"]),
            "rank": st.integers(0, 100),
        }
        return st.none() | st.fixed_dictionaries(named, optional=rest)

    @override
    def host_events(self) -> SearchStrategy[HostEvent]:
        return self.sessions.map(lambda name: HostEvent("session_ended", (name,)))


class Narrow(Wide):
    """Of two sessions, which may stand for any."""

    sessions = st.sampled_from(["s1", "s2"])


SHORT: Final = 2
"""Times the churn of the level, which is how far what has no bound is followed here."""

_held: dict[tuple[object, ...], PolicyTrial[CachePolicy]] = {}
"""Trials of which several tests ask something."""


def grown(
    cls: type[CachePolicy],
    driver: type[Driver[CachePolicy]],
    churn: int = 1_500,
    longest: int = LONGEST,
) -> PolicyTrial[CachePolicy]:
    asked = (cls, driver, churn, longest)
    if asked not in _held:
        trial = _held[asked] = PolicyTrial(
            driver(cls), lambda capacity: (), level=evolve(QUICK, churn=churn, patience_s=1_000.0)
        )
        Growth(longest=longest).run(trial)
    return _held[asked]


def weights(
    cls: type[CachePolicy], driver: type[Driver[CachePolicy]], longest: int = LONGEST
) -> tuple[list[Kind], bool]:
    """Of what was found against POL-4; and whether it was tried."""
    trial = grown(cls, driver, longest=longest)
    found = [kind for (clause, kind) in trial.breaches if clause == "POL-4" and kind is not None]
    return found, "POL-4" in trial.tried


@pytest.mark.parametrize("cls", by_lot([Remembers, RemembersNumbers, RemembersEnds], one_of=2))
def test_who_remembers_every_session_grows(cls: type[CachePolicy]) -> None:
    assert weights(cls, Wide, SHORT) == ([Kind.LIVENESS], True)


@pytest.mark.parametrize(
    "cls", [Remembers, RemembersRoles, pytest.param(RemembersEnds, marks=pytest.mark.nightly)]
)
def test_where_the_driver_has_a_few_values_it_is_advice(cls: type[CachePolicy]) -> None:
    assert weights(cls, Narrow, SHORT) == ([Kind.ADVICE], True)


def test_what_a_driver_has_a_few_of_may_be_all_there_is() -> None:
    assert weights(RemembersRoles, Wide, SHORT) == ([Kind.ADVICE], True)


def test_of_whoever_forgets_nobody_it_is_said_what_was_seen_and_what_makes_it_a_verdict() -> None:
    breach = grown(Remembers, Narrow, longest=SHORT).breaches["POL-4", Kind.ADVICE]
    assert (
        "while new values of `session` went by, each ended in every way that the driver shows "
        "(its last hints, `session_ended`); this is advice"
    ) in breach.message
    assert breach.message.endswith(
        "this is advice, as the driver sends a few values only, of which there may be no others: "
        "where there are, let it draw them (`st.uuids().map(str)`), and this is a breach of class L"
    )
    assert breach.promise == "What a policy holds does not grow without end."


def no_events(driver: object) -> None:
    return None


@pytest.mark.parametrize(
    ("cls", "driver"),
    [
        (Plain, Wide),
        pytest.param(Plain, Narrow, marks=pytest.mark.nightly),
        (BoundedEnds, Wide),
        pytest.param(BoundedEnds, Narrow, marks=pytest.mark.nightly),
        (Bounded, Wide),
        (RemembersRanks, Narrow),
    ],
)
def test_who_forgets_is_acquitted(
    cls: type[CachePolicy], driver: type[Driver[CachePolicy]]
) -> None:
    if cls is Plain:
        driver = type("Eventless", (driver,), {"host_events": no_events})
    assert weights(cls, driver) == ([], True)


@pytest.mark.parametrize(
    ("cls", "driver", "kind", "why"),
    [
        pytest.param(*(EndsByHint, Wide, Kind.LIVENESS, UNENDED), marks=pytest.mark.nightly),
        (EndsByHint, Narrow, Kind.ADVICE, UNENDED),
        (EndsByAbsence, Wide, Kind.LIVENESS, UNENDED),
        (EndsByEvent, Wide, Kind.ADVICE, UNTOLD),
        pytest.param(*(EndsByEvent, Narrow, Kind.ADVICE, UNTOLD), marks=pytest.mark.nightly),
        (EndsByBoth, Wide, Kind.ADVICE, UNTOLD),
    ],
)
def test_who_waits_to_be_told_that_a_session_is_over_may_wait_for_good(
    cls: type[CachePolicy], driver: type[Driver[CachePolicy]], kind: Kind, why: str
) -> None:
    trial = grown(cls, driver, 2_000, SHORT)
    assert list(trial.breaches) == [("POL-4", kind)]
    message = trial.breaches["POL-4", kind].message
    assert f"most of them in `seen`, while new values of `session` went by{why}" in message
    assert message.endswith(FEW) == (driver is Narrow and why == UNENDED)


def test_events_that_name_no_session_still_come() -> None:
    class Sweeping(Wide):
        @override
        def host_events(self) -> SearchStrategy[HostEvent]:
            return super().host_events() | st.just(HostEvent("sweep"))

    assert weights(SweptNowAndThen, Sweeping) == ([], True)


def test_a_bound_that_is_not_come_to_where_sessions_stay_open_is_not_known_to_hold() -> None:
    trial = grown(FarBoundedEnds, Wide, 2_000)
    assert (trial.breaches, "POL-4" in trial.tried) == ({}, False)
    assert "if `max_sessions` of 100,000 is a bound, it was not come to" in trial.notes[-1]


def test_a_bound_that_is_not_come_to_is_not_known_to_hold() -> None:
    trial = grown(FarBounded, Wide)
    assert (trial.breaches, "POL-4" in trial.tried) == ({}, False)
    assert "if `max_sessions` of 100,000 is a bound, it was not come to" in trial.notes[-1]


def test_a_bound_that_was_come_to_only_just_is_not_known_to_hold() -> None:
    (passed,) = re.findall(r"([\d,]+) values of hints", grown(FarBounded, Wide).notes[-1])
    most = int(passed.replace(",", "")) - 5

    class Filled(Bounded):
        def __init__(self, cache_capacity: int) -> None:
            super().__init__(cache_capacity)
            self.bound = most

    trial = grown(Filled, Wide)
    assert (trial.breaches, "POL-4" in trial.tried) == ({}, False)


def test_what_can_be_varied_is_told_from_examples() -> None:
    ids = [{"id": f"s{n}", "at": n * 1e6, "rank": n % 5, "flag": True} for n in range(20)]
    values = FreshValues(ids, (), lambda count: [{"id": f"s{n}"} for n in range(count)])
    assert (values.names, values.free) == (("id",), {"id"})
    assert values.endings[0] == {"at": 0.0, "rank": 0, "flag": True}
    roles = FreshValues([{"role": "user"}, {"role": "tool"}, None], ())
    assert (roles.names, roles.all_free) == (("role",), False)
    assert not FreshValues([{"rank": 1}, {"flag": True}, None], ()).varies
    assert [fresh(one, 3) for one in ("s1", "12", 5, True)] == [
        "s1-3",
        "7000000003",
        7_000_000_003,
        True,
    ]
