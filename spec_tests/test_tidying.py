"""The shortest programs are tidied up, as far as they still fail: names, requests, figures."""

from collections.abc import Callable

import pytest
from attrs import evolve

from kvoffload import TierFilter, TierMatcher, get_offload_group_idx
from kvoffload.tiers import Medium
from stateful_models import operations as op
from stateful_models.engines.searching import OutOfBudgetError, Search
from stateful_models.engines.shrinking import shrink
from stateful_models.engines.tidying import NAMINGS, TRIES, tidied
from stateful_models.programs import HostOperation, Program, keys, keys_of

Q, C, Q1, A, B = keys("q c q/1 a b")


def tidy(
    *operations: HostOperation,
    fails: Callable[[Program], bool] = lambda program: True,
    budget: int = TRIES,
    any_hints: bool = False,
) -> tuple[HostOperation, ...]:
    """What becomes of a program that fails as often as `fails` says."""

    def still_fails(program: Program) -> Program | None:
        return program if fails(program) else None

    program = Program(2, operations)
    assert fails(program)
    return tidied(program, still_fails, budget, any_hints=any_hints).operations


def test_keys_are_named_as_they_come_and_requests_too() -> None:
    assert tidy(op.PrepareStore("x7", (Q, C)), op.Touch("x3", (Q1,)), budget=0) == (
        op.PrepareStore("r1", keys("a b")),
        op.Touch("r2", keys("c")),
    )


def test_keys_keep_the_order_of_their_bytes_where_that_matters() -> None:
    def fails(program: Program) -> bool:
        first, second = program.universe
        return first > second

    (offer,) = tidy(op.PrepareStore("r1", (Q1, C)), fails=fails)
    assert isinstance(offer, op.PrepareStore)
    assert offer.keys == (B, A)


def test_groups_and_hashes_that_matter_stay_apart() -> None:
    def in_groups(program: Program) -> bool:
        return len(set(map(get_offload_group_idx, program.universe))) == 2

    def in_group_5(program: Program) -> bool:
        return any(get_offload_group_idx(key) == 5 for key in program.universe)

    assert tidy(op.Touch("r1", keys("q/3 q/7")), fails=in_groups) == (
        op.Touch("r1", keys("a/0 a/1")),
    )
    assert tidy(op.Touch("r1", keys("q/3 q/5")), fails=in_group_5) == (
        op.Touch("r1", keys("a/3 a/5")),
    )


def test_what_fails_with_no_other_names_keeps_its_own() -> None:
    assert tidy(op.Touch("r1", (Q,)), fails=lambda program: Q in program.universe) == (
        op.Touch("r1", (Q,)),
    )


def test_one_request_does_it_all_unless_there_must_be_two() -> None:
    stored = (op.PrepareStore("r1", (A,)), op.PrepareStore("r2", (B,)), op.Touch("r3", (A,)))

    def by_two(program: Program) -> bool:
        first, second = program.operations[:2]
        return getattr(first, "request", None) != getattr(second, "request", None)

    assert [getattr(one, "request", None) for one in tidy(*stored)] == ["r1"] * 3
    assert [getattr(one, "request", None) for one in tidy(*stored, fails=by_two)] == [
        "r1",
        "r2",
        "r1",
    ]


def test_a_request_is_announced_once_and_before_all_else() -> None:
    late = (op.Touch("r1", (A,)), op.NewRequest("r2", {"x": 1}), op.Touch("r2", (A,)))
    assert tidy(*late) == late
    twice = (op.NewRequest("r1", {"x": 1}), op.NewRequest("r2", {"x": 1}), op.Touch("r2", (A,)))
    assert tidy(*twice) == (twice[0], op.Touch("r1", (A,)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (op.AdvanceClock(86_400.0), op.AdvanceClock(1.0)),
        (
            op.SetPositions("r1", ((A, 640), (B, 96))),
            op.SetPositions("r1", ((A, 32), (B, 16))),
        ),
        (op.PrepareStore("r1", (A,), attempt=12), op.PrepareStore("r1", (A,))),
        (op.PrepareLoad("r1", (A,), internal=True), op.PrepareLoad("r1", (A,))),
        (op.ScheduleEnd(("r1",), ("r2",)), op.ScheduleEnd()),
        (
            op.NewRequest("r1", load_tier_filter=TierFilter((TierMatcher(medium=Medium.STORAGE),))),
            op.NewRequest("r1"),
        ),
    ],
)
def test_figures_that_do_not_matter_are_plain(before: HostOperation, after: HostOperation) -> None:
    assert tidy(before) == (after,)
    # Whoever fails with these alone keeps them.
    assert tidy(before, fails=lambda program: before in program.operations) == (before,)


def test_an_offer_has_its_keys_in_order_where_it_may() -> None:
    offers = (op.PrepareStore("r1", (A, B)), op.Touch("r1", (B, A)))
    assert tidy(*offers) == (offers[0], op.Touch("r1", (A, B)))
    assert tidy(*offers, fails=lambda program: offers[1] in program.operations) == offers


def test_an_attempt_that_must_be_named_is() -> None:
    named = (op.PrepareStore("r1", (A,), attempt=3), op.CompleteStore("r1", (A,), attempt=9))
    first, last = tidy(*named, fails=lambda program: has_attempts(program) >= 1)
    assert first == op.PrepareStore("r1", (A,))
    assert last == op.CompleteStore("r1", (A,), attempt=1)
    # All go at once, where one by one would not do.
    unnamed = tidy(*named, fails=lambda program: has_attempts(program) != 1)
    assert unnamed == (first, op.CompleteStore("r1", (A,)))


def has_attempts(program: Program) -> int:
    return sum(getattr(one, "attempt", None) is not None for one in program.operations)


def test_hints_are_plain_where_any_will_do_and_the_same_where_they_may_be() -> None:
    hints = {"session": "ab-01", "priority": 7_341, "share": 0.173, "deep": {"x": ["\0", "ok"]}}
    asked = (op.NewRequest("r1", hints), op.HostEvent("ends", ("ab-01", 7_341)))
    assert tidy(*asked) == asked
    plain = {"session": "x", "priority": 1, "share": 1.0, "deep": {"x": ["y", "ok"]}}
    assert tidy(*asked, any_hints=True) == (
        op.NewRequest("r1", plain),
        op.HostEvent("ends", ("x", 1)),
    )

    def by_two(program: Program) -> bool:
        return sum(isinstance(one, op.NewRequest) for one in program.operations) == 2

    two = (op.NewRequest("r1", {"x": 5}), op.NewRequest("r2", {"x": 6}))
    assert tidy(*two, fails=by_two) == (two[0], op.NewRequest("r2", {"x": 5}))


@pytest.mark.parametrize("value", [True, "ok", 3, -9, 2.0, None, b"x", float("inf")])
def test_a_plain_hint_stays(value: object) -> None:
    asked = op.NewRequest("r1", {"x": value})
    plain = (evolve(asked, hints={"x": 1.0}),) if value == float("inf") else (asked,)
    assert tidy(asked, any_hints=True) == plain


def test_few_programs_are_tried() -> None:
    tried: list[Program] = []
    program = Program(
        2, [op.PrepareLoad(f"x{n}", keys(f"z{n}/1 y{n}"), attempt=n) for n in range(40)]
    )

    def still_fails(candidate: Program) -> Program | None:
        tried.append(candidate)
        return None

    assert tidied(program, still_fails, 1_000, any_hints=True) == program
    assert len(tried) <= TRIES + NAMINGS
    tried.clear()
    assert tidied(program, still_fails, 0) == program
    assert len(tried) <= NAMINGS


def test_a_search_ends_with_its_budget_or_its_time() -> None:
    program, other = Program(1, []), Program(2, [])
    search = Search(program, lambda candidate: candidate, budget=0)
    assert not search.attempt(program)
    with pytest.raises(OutOfBudgetError):
        search.attempt(other)
    late = Search(program, lambda candidate: candidate, budget=5, expired=lambda: True)
    with pytest.raises(OutOfBudgetError):
        late.attempt(other)


def test_a_search_tries_nothing_twice() -> None:
    tried: list[Program] = []
    other = Program(2, [op.NewRequest("r1", {"x": [1]})])
    search = Search(Program(1, []), tried.append, budget=5)
    assert not search.attempt(other)
    assert not search.attempt(evolve(other))
    assert (tried, search.budget) == ([other], 4)


def test_what_was_made_short_is_tidied_up() -> None:
    program = Program(
        3, [op.Touch("x", (Q,)), op.Reset(), op.Touch("y", (C,)), op.Touch("z", (Q,))]
    )

    def still_fails(candidate: Program) -> Program | None:
        return candidate if any(isinstance(one, op.Reset) for one in candidate.operations) else None

    assert shrink(program, still_fails, 100) == Program(1, [op.Reset()])
    assert shrink(program, still_fails, 0).operations == (
        op.Touch("r1", (A,)),
        op.Reset(),
        op.Touch("r2", (B,)),
        op.Touch("r3", (A,)),
    )


def shortest(
    capacity: int, *operations: HostOperation, fails: Callable[[Program], bool]
) -> Program:
    """What becomes of a program that fails as often as `fails` says."""
    program = Program(capacity, operations)
    assert fails(program)
    return shrink(program, lambda candidate: candidate if fails(candidate) else None, 300)


def test_two_operations_that_go_together_only_are_left_out() -> None:
    def fails(program: Program) -> bool:
        once = {op.Touch("r1", (A,)), op.Reset()} <= set(program.operations)
        return once and program.operations.count(op.TakeEvents()) in (0, 2)

    asked = (op.TakeEvents(), op.Touch("r1", (A,)), op.TakeEvents(), op.Reset())
    assert shortest(1, *asked, fails=fails).operations == (asked[1], asked[3])


def test_an_operation_goes_together_with_room() -> None:
    def fails(program: Program) -> bool:
        return program.operations.count(op.GetStats()) == program.capacity

    assert shortest(4, *[op.GetStats()] * 4, fails=fails) == Program(1, [op.GetStats()])


def test_one_offer_and_one_end_do_for_two() -> None:
    def fails(program: Program) -> bool:
        offered: list[bytes] = []
        stored: list[bytes] = []
        for one in program.operations:
            offered += one.keys if isinstance(one, op.PrepareStore) else ()
            if isinstance(one, op.CompleteStore):
                stored += [key for key in one.keys if key in offered]
        return sorted(offered) == sorted(stored) == [A, B]

    long = (
        op.PrepareStore("r1", (A,)),
        op.CompleteStore("r1", (A,)),
        op.PrepareStore("r1", (B,)),
        op.CompleteStore("r1", (B,)),
    )
    short = (op.PrepareStore("r1", (A, B)), op.CompleteStore("r1", (A, B)))
    assert shortest(1, *long, fails=fails).operations == short


def test_calls_are_joined_even_where_the_budget_went_elsewhere() -> None:
    offered = keys("a b c d")
    program = Program(4, [op.PrepareStore(f"r{key!r}", (key,)) for key in offered])

    def still_fails(shorter: Program) -> Program | None:
        asked = {key for one in shorter.operations for key in keys_of(one)}
        return shorter if asked >= set(offered) else None

    # So few tries that leaving out alone takes them all, and cannot help.
    assert len(shrink(program, still_fails, 4)) == 1


def test_one_request_has_the_hints_of_two() -> None:
    def fails(program: Program) -> bool:
        asked = [one for one in program.operations if isinstance(one, op.NewRequest)]
        named = {one.request for one in asked if "session" in (one.hints or {})}
        last = {one.request for one in asked if "last" in (one.hints or {})}
        stored = {one.request for one in program.operations if isinstance(one, op.PrepareStore)}
        ended = {one.request for one in program.operations if isinstance(one, op.FinishRequest)}
        return bool(named & stored) and bool(last & named & ended)

    hints = {"session": "s1", "last": True}
    long = (
        op.NewRequest("r1", {"session": "s1"}),
        op.PrepareStore("r1", (A,)),
        op.FinishRequest("r1"),
        op.NewRequest("r2", hints),
        op.FinishRequest("r2"),
    )
    short = (op.NewRequest("r1", hints), op.PrepareStore("r1", (A,)), op.FinishRequest("r1"))
    assert shortest(1, *long, fails=fails).operations == short


def test_a_hint_that_all_requests_have_or_none_goes_at_once() -> None:
    def fails(program: Program) -> bool:
        asked = [one.hints or {} for one in program.operations if isinstance(one, op.NewRequest)]
        return [each.get("x") for each in asked] == [1, 2] and (
            len({tuple(each) for each in asked}) == 1
        )

    asked = (op.NewRequest("r1", {"x": 1, "y": 3}), op.NewRequest("r2", {"x": 2, "y": 4}))
    plain = (op.NewRequest("r1", {"x": 1}), op.NewRequest("r2", {"x": 2}))
    assert shortest(1, *asked, fails=fails).operations == plain
