"""Invariants over what a manager shows and tells: which part is broken, and what is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from attrs import evolve, frozen

from kvoffload import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    TierFilter,
    make_offload_key,
)
from kvoffload.errors import UnknownTicketError
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.contract import Kind
from stateful_models.invariants import (
    Accesses,
    Admission,
    Announcements,
    Events,
    EvictionProtection,
    Generations,
    Holdings,
    Invariant,
    Marks,
    Metrics,
    QuietCalls,
    Slots,
    StoreHooks,
)
from stateful_models.judge import Judge
from stateful_models.metrics import ALLOCATED, ALLOCATIONS, READ_USAGE, SKIPPED, USAGE, WRITE_USAGE
from stateful_models.steps import (
    NOTHING_VISIBLE,
    Delivered,
    Held,
    Loaded,
    Reported,
    Result,
    Step,
    Stored,
    Visible,
)

A, B, C, D = (make_offload_key(name, 0) for name in (b"a", b"b", b"c", b"d"))
OTHER_GROUP = make_offload_key(b"a", 1)

Told = Sequence[op.PolicyOperation]
Call = tuple[op.Operation, Result, Told | None]


def found(
    invariant: Invariant[Account], calls: Iterable[Call], *, num_chunks: int = 3
) -> list[tuple[str, Kind | None]]:
    """The clause and the kind of everything that is found wrong with the calls."""
    judge = Judge([invariant], Account(num_chunks))
    findings: list[tuple[str, Kind | None]] = []
    for number, (operation, result, told) in enumerate(calls):
        heard = None if told is None else tuple(told)
        step = Step(number, operation, result, told=heard)
        for violation in judge.judge(step):
            assert not violation.raised, str(violation)
            findings.append((violation.clause, violation.kind))
    return findings


def stored(
    keys: tuple[OffloadKey, ...], evicted: tuple[OffloadKey, ...] = (), first: int = 0
) -> Stored:
    return Stored(keys, tuple(range(first, first + len(keys))), evicted)


def ready(*keys: OffloadKey) -> list[Call]:
    """The keys are stored, of which only the host knows."""
    return [
        (op.PrepareStore("w", keys, 100), stored(keys), None),
        (op.CompleteStore("w", keys, True, 100), None, None),
    ]


def pinned(*keys: OffloadKey) -> list[Call]:
    """The keys are being read."""
    return [(op.PrepareLoad("w", keys, 101), Loaded((0,) * len(keys)), None)]


def test_asking_where_too_few_are_idle_is_a_matter_of_liveness() -> None:
    calls = ready(A, B, C) + pinned(A, B)
    offer = op.PrepareStore("r", (D, OTHER_GROUP))
    assert found(StoreHooks(), [*calls, (offer, None, [op.Evict(2)])]) == [
        ("STORE-6", Kind.LIVENESS)
    ]
    assert found(StoreHooks(), [*calls, (offer, None, [])]) == []


def test_counting_idle_chunks_of_the_offer_binds_the_reference_alone() -> None:
    calls = ready(A, B, C) + pinned(A, B)
    offer = op.PrepareStore("r", (C, D))
    assert found(StoreHooks(), [*calls, (offer, None, [op.Evict(1)])]) == [
        ("STORE-6", Kind.REFERENCE)
    ]


def test_asking_and_then_refusing_is_wrong_unless_the_policy_may_refuse() -> None:
    calls: list[Call] = [*ready(A, B, C), (op.PrepareStore("r", (D,)), None, [op.Evict(1)])]
    assert found(StoreHooks(), calls) == [("STORE-4", Kind.HOST)]
    assert found(StoreHooks(may_refuse=True), calls) == []


@pytest.mark.parametrize("family", [EvictionProtection, StoreHooks])
@pytest.mark.parametrize(
    ("residents", "gone", "declared"),
    [((A, B, C), (A, B), True), ((A, B, C), (), False), ((A, B), (A,), False)],
    ids=["more", "fewer", "though there is room"],
)
def test_more_may_go_than_has_to_where_that_is_declared(
    family: type[EvictionProtection | StoreHooks],
    residents: tuple[OffloadKey, ...],
    gone: tuple[OffloadKey, ...],
    declared: bool,
) -> None:
    asked = [op.Evict(1)] if len(residents) == 3 else []
    told = [*asked, op.Insert(D, 0, "r")]
    calls = [*ready(*residents), (op.PrepareStore("r", (D,), 102), stored((D,), gone), told)]
    assert found(family(), calls) == [("STORE-4", Kind.HOST)]
    assert (found(family(may_evict_more=True), calls) == []) == declared


def test_evictions_one_by_one_are_as_good_as_one_call() -> None:
    offer = op.PrepareStore("r", (D, OTHER_GROUP))
    told = [op.Evict(1), op.Evict(1), op.Insert(D, 0, "r"), op.Insert(OTHER_GROUP, 1, "r")]
    answer = stored((D, OTHER_GROUP), (A, B))
    assert found(StoreHooks(), [*ready(A, B, C), (offer, answer, told)]) == []
    assert found(StoreHooks(), [*ready(A, B, C), (offer, answer, told[1:])]) == [
        ("STORE-4", Kind.HOST)
    ]


def test_removing_without_asking_and_inserting_in_vain_are_found() -> None:
    calls: list[Call] = [*ready(A, B), (op.PrepareStore("r", (C,)), None, [op.Insert(C, 2, "r")])]
    assert found(StoreHooks(), calls) == [("STORE-4", Kind.HOST)]
    calls = [*ready(A, B), (op.PrepareStore("r", (A,)), stored(()), [op.Remove(B)])]
    assert found(StoreHooks(), calls) == [("STORE-4", Kind.HOST)]


def test_insertions_follow_the_answer() -> None:
    offer, answer = op.PrepareStore("r", (A, B)), stored((A, B))
    insertions = [op.Insert(A, 0, "r"), op.Insert(B, 1, "r")]
    assert found(StoreHooks(), [(offer, answer, insertions)]) == []
    for told in (insertions[:1], insertions[::-1], []):
        assert found(StoreHooks(), [(offer, answer, told)]) == [("STORE-8", Kind.HOST)]


def test_hooks_out_of_order_are_found() -> None:
    told: Told = [op.RequestAccess("r", (A,)), op.StoreMiss("r", (A,)), op.Insert(A, 0, "r")]
    calls: list[Call] = [(op.PrepareStore("r", (A,)), stored((A,)), told)]
    assert found(StoreHooks(), calls) == [("STORE-8", Kind.HOST)]


def test_misses_may_be_told_in_parts() -> None:
    told: Told = [
        op.StoreMiss("r", (A,)),
        op.StoreMiss("r", (B,)),
        op.RequestAccess("r", (A, B)),
    ]
    offer = (op.PrepareStore("r", (A, B)), stored((A, B)), told)
    assert found(Accesses(), [offer]) == []


def offered(*keys: OffloadKey) -> Call:
    told = [op.StoreMiss("r", keys), op.RequestAccess("r", keys)]
    return (op.PrepareStore("r", keys, 1), stored(keys), told)


def finished(
    groups: Sequence[tuple[OffloadKey, ...]],
    inserted: Iterable[OffloadKey] = (),
    reused: Iterable[OffloadKey] = (),
) -> Call:
    report = op.RequestFinished("r", tuple(groups), frozenset(inserted), frozenset(reused))
    return (op.FinishRequest("r"), None, [report])


def test_the_end_of_a_request_is_told_in_prefix_order() -> None:
    seen = (B, A, OTHER_GROUP)
    assert found(Accesses(), [offered(*seen), finished([(B, A), (OTHER_GROUP,)], seen)]) == []
    wrong: tuple[Sequence[tuple[OffloadKey, ...]], ...] = (
        [(A, B), (OTHER_GROUP,)],
        [(OTHER_GROUP,), (B, A)],
        [seen],
        [(B, A)],
        [(B, A), (OTHER_GROUP, C)],
    )
    for groups in wrong:
        assert found(Accesses(), [offered(*seen), finished(groups, seen)])[0] == (
            "FIN-1",
            Kind.HOST,
        )
    ends = op.SetPositions("r", ((A, 16), (B, 32)))
    assert (
        found(
            Accesses(), [(ends, None, []), offered(*seen), finished([(A, B), (OTHER_GROUP,)], seen)]
        )
        == []
    )
    # One position of a group is not enough.
    assert (
        found(
            Accesses(),
            [
                (op.SetPositions("r", ((A, 16),)), None, []),
                offered(*seen),
                finished([(B, A), (OTHER_GROUP,)], seen),
            ],
        )
        == []
    )


def test_what_was_inserted_and_reused_is_told_apart() -> None:
    end = finished([(A,)], reused=[A])
    assert found(Accesses(), [offered(A), end]) == [("LOAD-5", Kind.HOST)]
    assert found(Accesses(), [offered(A), finished([(A,)])]) == [("FIN-1", Kind.HOST)]
    again: Call = (op.PrepareStore("r", (A,)), stored(()), [])
    done = (op.CompleteStore("r", (A,), True, 1), None, None)
    assert found(Accesses(), [offered(A), done, again, finished([(A,)], [A])]) == []


def test_an_end_that_is_not_told_or_told_of_a_stranger_is_found() -> None:
    silent: Call = (op.FinishRequest("r"), None, [])
    assert found(Accesses(), [offered(A), silent]) == [("FIN-1", Kind.HOST)]
    assert found(Accesses(), [silent]) == []
    assert found(Accesses(), [finished([])]) == []
    assert found(Accesses(), [offered(A), (silent[0], None, finished([(A,)], [A])[2])]) == []
    unseen: Call = (op.PrepareStore("r", (A,)), stored(()), [])
    assert found(Accesses(), [*ready(A), unseen]) == [("LOAD-5", Kind.HOST)]
    internal: Call = (
        op.PrepareLoad("r", (A,), internal=True),
        Loaded((0,)),
        [op.RequestAccess("r", (A,))],
    )
    assert found(Accesses(), [*ready(A), internal, silent]) == [("LOAD-5", Kind.HOST)]
    assert found(Accesses(), [*ready(A), (internal[0], internal[1], []), silent]) == []
    load: Call = (op.PrepareLoad("r", (A,)), Loaded((0,)), internal[2])
    assert found(Accesses(), [*ready(A), load]) == []
    assert found(Accesses(), [*ready(A), load, load]) == [("LOAD-5", Kind.HOST)]
    assert found(Accesses(), [*ready(A), (load[0], load[1], [])]) == [("LOAD-5", Kind.HOST)]
    assert found(Accesses(), [offered(A), finished([(A,)], [A]), silent]) == []
    twice = [offered(A), finished([(A,)], [A]), finished([(A,)], [A])]
    assert found(Accesses(), twice) == [("FIN-1", Kind.HOST)]
    # One that is announced again may be another.
    fresh: Call = (op.NewRequest("r"), None, [])
    assert found(Accesses(), [*twice[:2], fresh, twice[2]]) == []


def test_a_request_starts_anew_with_the_generation() -> None:
    reset: Call = (op.Reset(), None, [op.Clear()])
    assert found(Accesses(), [offered(A), reset, offered(A), finished([(A,)], [A])]) == []
    assert found(Accesses(), [offered(A), reset, finished([(A,)], [A])]) == [("GEN-2", Kind.HOST)]


def test_a_pending_key_is_not_seen() -> None:
    other: Call = (
        op.PrepareStore("r", (A, B), 2),
        stored((B,), first=1),
        [op.StoreMiss("r", (B,)), op.RequestAccess("r", (A, B))],
    )
    pending: Call = (op.PrepareStore("w", (A,), 1), stored((A,)), None)
    assert found(Accesses(), [pending, other]) == [("STORE-2", Kind.HOST)]


def test_of_a_refused_offer_the_policy_is_believed_what_a_threshold_admits() -> None:
    told = [op.StoreMiss("r", (B,)), op.RequestAccess("r", (B,))]
    refused: Call = (op.PrepareStore("r", (A, B)), None, told)
    assert found(Accesses(2), [refused]) == []
    assert found(Accesses(1), [refused]) == [("STORE-8", Kind.HOST)] * 2


def test_marks_are_judged_once_there_are_any() -> None:
    quiet: list[Call] = [(call, result, ()) for call, result, _ in ready(A) + pinned(A)]
    assert found(Marks(), quiet) == []
    marked: Call = (op.CompleteStore("w", (B,), True, 5), None, [op.MarkEvictable(B)])
    pending: Call = (op.PrepareStore("w", (B,), 5), stored((B,), first=1), [])
    unmarked: Call = (op.PrepareLoad("w", (A,), 6), Loaded((0,)), [])
    assert found(Marks(), [*ready(A), pending, marked, unmarked]) == [("LOAD-3", Kind.SAFETY)]


def test_a_first_pin_is_told_once_and_its_last_release_too() -> None:
    pin: Call = (op.PrepareLoad("r", (A,), 1), Loaded((0,)), [op.MarkNonEvictable(A)])
    more: Call = (op.PrepareLoad("r", (A,), 2), Loaded((0,)), [])
    done: Call = (op.CompleteLoad("r", (A,), 1), None, [])
    last: Call = (op.CompleteLoad("r", (A,), 2), None, [op.MarkEvictable(A)])
    assert found(Marks(), [*ready(A), pin, more, done, last]) == []
    assert found(Marks(), [*ready(A), pin, (more[0], more[1], pin[2])]) == [("LOAD-2", Kind.HOST)]
    assert found(Marks(), [*ready(A), pin, more, (done[0], None, last[2])]) == [
        ("LOAD-3", Kind.SAFETY)
    ]
    assert found(Marks(), [*ready(A), pin, more, done, (last[0], None, [])]) == [
        ("PIN-1", Kind.SAFETY)
    ]
    again: Call = (last[0], None, [op.MarkEvictable(A)])
    assert found(Marks(), [*ready(A), pin, more, done, last, again]) == [("DONE-4", Kind.REFERENCE)]
    reset: Call = (op.Reset(), None, [op.Clear()])
    assert found(Marks(), [*ready(A), pin, reset, (done[0], None, last[2])]) == [
        ("GEN-2", Kind.HOST)
    ]


def test_a_completed_store_is_told_as_it_ended() -> None:
    pending: Call = (op.PrepareStore("r", (A, B), 1), stored((A, B)), [])
    good, bad = op.CompleteStore("r", (B, A), True, 1), op.CompleteStore("r", (B, A), False, 1)
    marks, removals = [op.MarkEvictable(A), op.MarkEvictable(B)], [op.Remove(A), op.Remove(B)]
    assert found(Marks(), [pending, (good, None, marks)]) == []
    assert found(Marks(), [pending, (bad, None, removals)]) == []
    assert found(Marks(), [pending, (good, None, removals)])[-1] == ("DONE-1", Kind.HOST)
    assert found(Marks(), [pending, (good, None, marks[:1])]) == [("DONE-1", Kind.HOST)]
    assert found(Marks(), [pending, (bad, None, [])]) == [("DONE-2", Kind.HOST)]
    assert found(Marks(), [pending, (bad, None, [*marks, *removals])]) == [("DONE-2", Kind.HOST)]
    again: Call = (good, None, marks)
    assert found(Marks(), [pending, again, again]) == [("DONE-3", Kind.HOST)]
    reset: Call = (op.Reset(), None, [])
    assert found(Marks(), [pending, reset, again]) == [("GEN-2", Kind.HOST)]
    other: Call = (op.PrepareStore("r", (C,), 2), stored((C,), first=2), [])
    stranger: Call = (op.CompleteStore("r", (C,), True, 1), None, [op.MarkEvictable(C)])
    assert found(Marks(), [pending, other, stranger]) == [("DONE-4", Kind.REFERENCE)]


def test_a_touch_may_leave_out_repetitions_and_strangers_but_no_resident_key() -> None:
    touch = op.Touch("r", (A, B, A, C))
    for told, clauses in (
        ((A, B, A, C), []),
        ((A, B), []),
        ((A,), ["TOUCH-1"]),
        ((B, A), []),
        ((A, B, B), ["TOUCH-1"]),
        ((C, B, A), ["TOUCH-1"]),
    ):
        calls = [*ready(A, B), (touch, None, [op.TouchKeys("r", told)])]
        assert [clause for clause, _ in found(QuietCalls(), calls)] == clauses, told
    mark: Call = (touch, None, [op.TouchKeys("r", touch.keys), op.MarkEvictable(A)])
    assert found(QuietCalls(), [mark]) == [("TOUCH-1", Kind.HOST)]


def test_calls_that_change_nothing_show_nothing_new() -> None:
    judge = Judge([QuietCalls()], Account(2))
    quiet, loud = Visible(1, 0), Visible(1, 1)
    calls: tuple[tuple[op.Operation, Visible, list[str]], ...] = (
        (op.Lookup("r", A), quiet, []),
        (op.Lookup("r", A), quiet, []),
        (op.Lookup("r", A), loud, ["LOOK-2"]),
        (op.Touch("r", (A,)), quiet, ["TOUCH-1"]),
        (op.CompleteStore("r", (A,)), loud, []),
        (op.Lookup("r", A), loud, []),
        (op.Lookup("r", A), NOTHING_VISIBLE, []),
    )
    for number, (operation, visible, clauses) in enumerate(calls):
        violations = judge.judge(Step(number, operation, None, None, visible))
        assert [violation.clause for violation in violations] == clauses


def test_a_reset_clears_the_policy() -> None:
    assert found(QuietCalls(), [(op.Reset(), None, [])]) == [("GEN-1", Kind.HOST)]
    assert found(QuietCalls(), [(op.Reset(), None, [op.Clear()])]) == []
    assert found(QuietCalls(), [(op.Reset(), None, None)]) == []


def test_what_is_refused_tells_nothing() -> None:
    bad = OffloadKey(b"bad")
    told = (op.TouchKeys("r", (A,)),)
    for operation, clause in (
        (op.Touch("r", (A, bad)), "KEY-2"),
        (op.PrepareStore("r", (A, bad)), "KEY-2"),
        (op.PrepareLoad("r", (A,)), "LOAD-1"),
        (op.CompleteLoad("r", (A,)), "LOAD-4"),
        (op.CompleteStore("r", (A,), True, 1), "DONE-4"),
    ):
        judge = Judge([QuietCalls()], Account(2))
        step = Step(1, operation, None, ValueError("no"), told=told)
        assert [violation.clause for violation in judge.judge(step)] == [clause]
        silent = Step(1, operation, None, ValueError("no"), told=())
        assert not judge.judge(silent)


def test_a_filter_is_to_blame_only_where_others_find_what_it_hides() -> None:
    plain: Call = (op.NewRequest("s"), None, None)
    filtered: Call = (op.NewRequest("r", load_tier_filter=TierFilter()), None, None)
    hidden: Call = (op.Lookup("r", A), LookupResult.MISS, None)
    shown: Call = (op.Lookup("s", A), LookupResult.HIT, None)
    gone: Call = (op.Lookup("s", A), LookupResult.MISS, None)
    start = [*ready(A), (filtered[0], None, None)]
    # Such an answer to an announcement is wrong as well.
    wrong = ("REQ-3", Kind.HOST)
    assert found(Announcements(), [*start, hidden, shown]) == [wrong, ("TIER-3", Kind.HOST)]
    assert found(Announcements(), [*start, hidden, gone, shown]) == [wrong]
    assert found(Announcements(), [*start, hidden, (op.Reset(), None, None), shown]) == [wrong]
    assert found(Announcements(), [*ready(A), plain, (op.Lookup("s", A), LookupResult.MISS, None)])
    late: Call = (op.PrepareStore("w", (B,), 1), stored((B,), (A,), first=1), None)
    back: Call = (op.PrepareStore("w", (A,), 2), stored((A,)), None)
    assert found(Announcements(), [*start, hidden, late, back, shown]) == [wrong]


def test_what_a_request_holds_is_listed_whole_and_of_this_generation() -> None:
    load: Call = (op.PrepareLoad("r", (A, A), 1), Loaded((0, 0)), None)
    part: Call = (op.CompleteLoad("r", (A,), 1), None, None)
    asked = op.Outstanding("r")
    for held, clauses in (
        (Held((A,), ()), []),
        (Held((A, A), ()), [("PIN-2", Kind.REFERENCE)]),
        (Held((), ()), [("PIN-2", Kind.REFERENCE)]),
        (Held((), (A,)), [("PIN-2", Kind.REFERENCE)] * 2),
        (None, []),
    ):
        assert found(Holdings(), [*ready(A), load, part, (asked, held, None)]) == clauses
    reset: Call = (op.Reset(), None, None)
    assert found(Holdings(), [*ready(A), load, reset, (asked, Held((A,), ()), None)]) == [
        ("GEN-2", Kind.HOST)
    ]
    unnamed: Call = (op.CompleteLoad("s", (A,)), None, None)
    assert found(Holdings(), [*ready(A), load, unnamed, (asked, Held((A, A), ()), None)]) == []


def test_slots_that_are_handed_out_twice_are_a_matter_of_safety() -> None:
    twice: Call = (op.PrepareStore("r", (A, B)), Stored((A, B), (0, 0), ()), None)
    assert found(Slots(), [twice]) == [("STORE-7", Kind.SAFETY)]
    taken: Call = (op.PrepareStore("r", (B,)), Stored((B,), (0,), ()), None)
    assert found(Slots(), [*ready(A), taken]) == [("STORE-7", Kind.SAFETY)]
    short: Call = (op.PrepareStore("r", (A, B)), Stored((A, B), (0,), ()), None)
    assert found(Slots(), [short]) == [("STORE-7", Kind.SAFETY)]


def figures(**changed: float) -> Reported:
    values = {USAGE: 0.0, WRITE_USAGE: 0.0, READ_USAGE: 0.0, ALLOCATIONS: 1.0, ALLOCATED: 1.0}
    names = {"usage": USAGE, "allocations": ALLOCATIONS, "allocated": ALLOCATED}
    return Reported({**values, **{names[name]: value for name, value in changed.items()}})


def test_a_figure_is_wrong_in_one_of_three_ways() -> None:
    asked = op.GetStats()
    calls = ready(A)
    assert found(Metrics(), [*calls, (asked, figures(), None)]) == []
    assert found(Metrics(), [*calls, (asked, figures(usage=0.5), None)]) == [("MET-1", Kind.SAFETY)]
    partial = Reported({USAGE: 0.0, ALLOCATIONS: 1, ALLOCATED: 1})
    assert found(Metrics(), [*calls, (asked, partial, None)]) == [("MET-1", Kind.HOST)] * 2
    unsampled = figures(allocations=0, allocated=0)
    assert found(Metrics(), [*calls, (asked, unsampled, None)]) == [("MET-1", Kind.HOST)] * 2
    negative = figures(allocations=-1)
    assert found(Metrics(), [*calls, (asked, negative, None)]) == [("MET-2", Kind.HOST)]
    reset: Call = (op.Reset(), None, None)
    lost = [*calls, reset, (asked, unsampled, None)]
    assert found(Metrics(), lost) == [("MET-2", Kind.HOST)] * 2
    again = [*calls, (asked, figures(), None), (asked, figures(), None)]
    assert found(Metrics(), again) == [("MET-2", Kind.HOST)] * 2


def test_what_a_threshold_skips_is_counted_with_it_and_not_without() -> None:
    asked = op.GetStats()
    assert found(Metrics(2), [*ready(A), (asked, figures(), None)]) == [("MET-1", Kind.HOST)]
    skipped = Reported({**figures().values, SKIPPED: 0.0})
    assert found(Metrics(2), [*ready(A), (asked, skipped, None)]) == []
    assert found(Metrics(1), [*ready(A), (asked, skipped, None)]) == [("MET-1", Kind.HOST)]


def offer_of(*keys: OffloadKey, admitted: tuple[OffloadKey, ...] = ()) -> Call:
    return (op.PrepareStore("r", keys), stored(admitted), None)


def test_what_is_to_be_stored_is_the_offer_without_what_is_there() -> None:
    offer = op.PrepareStore("r", (A, B, C))
    for keys, clause, kind in (
        ((B, C, C), "STORE-1", Kind.REFERENCE),
        ((C, B), "STORE-1", Kind.REFERENCE),
        ((A, B, C), "STORE-2", Kind.HOST),
        ((B, C, D), "STORE-2", Kind.HOST),
        ((B,), "STORE-3", Kind.HOST),
    ):
        calls: list[Call] = [*ready(A), (offer, stored(keys), None)]
        assert found(Admission(), calls, num_chunks=9) == [(clause, kind)]
    refused: Call = (op.PrepareStore("r", (A,)), None, None)
    assert found(Admission(), [*ready(A), refused]) == [("STORE-9", Kind.HOST)]


def test_an_offer_that_comes_again_and_again_is_admitted_at_last() -> None:
    offer, other = offer_of(A, B), offer_of(C)
    late = ("STORE-12", Kind.LIVENESS)
    assert found(Admission(2), [offer, offer]) == [late]
    assert found(Admission(3), [offer, offer]) == []
    assert found(Admission(2), [offer, other, offer]) == []
    assert found(Admission(2), [offer, (op.Reset(), None, None), offer]) == []
    assert found(Admission(2), [offer, (op.PrepareStore("r", (A, B)), None, None), offer]) == []
    # A tracker of nothing admits nothing, and one may be full of resident keys.
    assert found(Admission(2, 0), [offer, offer]) == []
    resident: Call = (op.PrepareStore("w", (A,), 1), stored((A,)), None)
    assert found(Admission(1), [resident, offer_of(A), offer_of(A)]) == []


def test_admission_counts_offers_of_this_generation() -> None:
    early = offer_of(A, admitted=(A,))
    reset: Call = (op.Reset(), None, None)
    assert found(Admission(2), [early]) == [("STORE-3", Kind.HOST)]
    assert found(Admission(2), [offer_of(A), early]) == []
    assert found(Admission(2), [offer_of(A), reset, early]) == [("GEN-1", Kind.REFERENCE)]
    # That a key is late can be said only of a tracker that holds them all.
    late = [offer_of(A), offer_of(B), offer_of(A, B, admitted=(B,))]
    assert found(Admission(2, 2), late) == [("STORE-3", Kind.HOST)]
    assert found(Admission(2, 1), late) == []
    assert found(Admission(2), late) == []


@frozen
class CleanUp(OffloadingEvent):
    metadata_only: bool = True


def event(*keys: OffloadKey, removed: bool = False) -> OffloadingEvent:
    return OffloadingEvent(list(keys), Medium.CPU, removed)


def test_events_of_one_call_may_come_in_any_order_or_one_by_one() -> None:
    def drained(*events: OffloadingEvent) -> list[tuple[str, Kind | None]]:
        return found(Events(), [*ready(A, B), (op.TakeEvents(), Delivered(events), None)])

    assert drained(event(A, B)) == []
    assert drained(event(B, A)) == [("DONE-1", Kind.REFERENCE)]
    assert drained(event(A), event(B)) == [("DONE-1", Kind.REFERENCE)]
    assert drained(event(A, B), CleanUp([C], Medium.CPU, True)) == []
    assert drained(event(A)) == [("EVT-1", Kind.SAFETY)]


def test_an_event_of_another_tier_or_kind_is_found() -> None:
    plain = event(A)
    for told, clauses in (
        (plain, []),
        (evolve(plain, medium=Medium.STORAGE), [("EVT-2", Kind.HOST)]),
        (evolve(plain, removal_expected=True), [("EVT-2", Kind.HOST)]),
        (evolve(plain, locality=Locality.LOCAL), [("EVT-2", Kind.HOST)]),
        (evolve(plain, ownership="disk"), [("EVT-2", Kind.HOST)]),
    ):
        drained: Call = (op.TakeEvents(), Delivered((told,)), None)
        assert found(Events(), [*ready(A), drained]) == clauses


def test_what_is_over_has_no_effect() -> None:
    reset: Call = (op.Reset(), None, None)
    hit: Call = (op.Lookup("r", A), LookupResult.HIT, None)
    assert found(Generations(), [*ready(A), reset, hit]) == [("GEN-1", Kind.HOST)]
    evicting: Call = (op.PrepareStore("r", (B,), 1), stored((B,), (A,)), None)
    assert found(Generations(), [*ready(A), reset, evicting]) == [("GEN-1", Kind.HOST)]
    late: Call = (op.CompleteStore("w", (A,), True, 100), None, None)
    anew: Call = (op.PrepareStore("r", (A,), 2), Stored((A,), (0,), (), 8), None)
    first: Call = (op.PrepareStore("w", (A,), 100), Stored((A,), (0,), (), 7), None)
    assert found(Generations(), [first, reset, anew, late, hit]) == [("GEN-2", Kind.HOST)]
    other: Call = (op.CompleteStore("w", (A,), True, 101), None, None)
    assert found(Generations(), [anew, other, hit]) == [("DONE-4", Kind.REFERENCE)]
    released: Call = (op.CompleteLoad("w", (A,), 102), None, None)
    assert found(Generations(), [*ready(A), *pinned(A), released, evicting]) == [
        ("DONE-4", Kind.REFERENCE)
    ]
    twice: Call = (op.PrepareLoad("r", (A,), 3), Loaded((0,), 7), None)
    assert found(Generations(), [first, twice]) == [("DONE-4", Kind.REFERENCE)]


def test_the_counters_that_a_manager_shows_go_with_what_it_does() -> None:
    late = op.CompleteStore("r", (A,), True, 9)
    for operation, before, after, clauses in (
        (op.Reset(), Visible(0, 0), Visible(1, 0), []),
        (op.Reset(), Visible(0, 0), Visible(0, 0), [("GEN-1", Kind.REFERENCE)]),
        (op.GetStats(), Visible(0, 0), Visible(1, 0), [("GEN-1", Kind.REFERENCE)]),
        (late, Visible(0, 0), Visible(0, 1), []),
        (late, Visible(0, 0), Visible(0, 0), [("DONE-4", Kind.REFERENCE)]),
    ):
        judge = Judge([Generations()], Account(2))
        judge.judge(Step(1, op.GetStats(), visible=before))
        violations = judge.judge(Step(2, operation, visible=after))
        assert [(one.clause, one.kind) for one in violations] == clauses
    judge = Judge([Generations()], Account(2))
    judge.judge(Step(1, op.PrepareStore("r", (A,), 9), Stored((A,), (0,), (), 4)))
    unknown = Step(2, late, None, UnknownTicketError("complete_store", 4))
    assert [one.clause for one in judge.judge(unknown)] == ["DONE-4"]


def test_a_drain_that_was_broken_off_has_delivered() -> None:
    first: Call = (op.TakeFirstEvent(), Delivered((event(A),)), None)
    nothing: Call = (op.TakeEvents(), Delivered(()), None)
    repeated: Call = (op.TakeEvents(), Delivered((event(A),)), None)
    assert found(Events(), [*ready(A), first, nothing]) == []
    assert found(Events(), [*ready(A), first, repeated]) == [("EVT-3", Kind.REFERENCE)]
    assert found(Events(), [*ready(A), first, repeated, nothing]) == [("EVT-3", Kind.REFERENCE)]


def test_a_reset_takes_back_in_the_order_of_announcement() -> None:
    drained: Call = (op.TakeEvents(), Delivered((event(A, B),)), None)
    reset: Call = (op.Reset(), None, None)

    def taken_back(*events: OffloadingEvent) -> list[tuple[str, Kind | None]]:
        calls = [*ready(A, B), drained, reset, (op.TakeEvents(), Delivered(events), None)]
        return found(Events(), calls)

    assert taken_back(event(A, B, removed=True)) == []
    assert taken_back(event(B, A, removed=True)) == [("EVT-5", Kind.REFERENCE)]
    assert taken_back()[0] == ("EVT-5", Kind.REFERENCE)
    # What was not delivered when the reset came may say that stores failed since were made.
    failed: list[Call] = [
        (op.PrepareStore("w", (A,), 1), stored((A,)), None),
        (op.CompleteStore("w", (A,), False, 1), None, None),
        (op.TakeEvents(), Delivered((event(A),)), None),
    ]
    assert ("DONE-2", Kind.HOST) not in found(Events(), [*ready(A), reset, *failed])
    assert found(Events(), failed)[0] == ("DONE-2", Kind.HOST)
