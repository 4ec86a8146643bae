"""What a law finds is shown by both runs, with the state after each call and where they differ."""

from collections.abc import Sequence

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey
from spec_tests.tiny_policies import Fifo, trial_of
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.checking import BrokenClauseError, check_policy_law, keys
from stateful_models.drivers import Driver
from stateful_models.engines.base import Breach
from stateful_models.engines.runs import ComparedRun, Played
from stateful_models.engines.suites import policy_law
from stateful_models.gallery.broken_policies import clearing, release_order, victims, wrappers
from stateful_models.gallery.policies import GalleryDriver
from stateful_models.hosting import HostState
from stateful_models.programs import HostOperation, Program
from stateful_models.steps import Step
from stateful_models.trial.wording import HEADING, breach_lines, compared_lines, program_lines

A, B, C, D = keys("a b c d")
FULL = (op.PrepareStore("r1", (A, B)), op.CompleteStore("r1", (A, B)))


def found(law: str, target: type[CachePolicy], program: Program) -> Breach:
    """What a law finds in a program."""
    driver = GalleryDriver(target)
    engine = policy_law(law)
    assert engine is not None
    breach = engine.broken_by(trial_of(driver, driver.capabilities), program)
    assert breach is not None
    return breach


def shown(law: str, target: type[CachePolicy], program: Program) -> list[str]:
    """How that is shown."""
    return list(compared_lines(found(law, target, program).runs))


def test_both_runs_are_shown_with_a_mark_where_they_differ() -> None:
    in_vain = op.PrepareStore("r1", (B, C, D))
    program = Program(2, [*FULL, in_vain, op.PrepareStore("r1", (C,))])
    assert shown("law of failed evictions", victims.Pol2RefusalReorders, program) == [
        "     > is where the runs differ               resident pinned pending free",
        "     had it not been asked in vain:",
        "   1 prepare_store(r1, [a/0 b/0])                    2      0       2    0",
        "   2 complete_store(r1, [a/0 b/0])                   2      0       0    0",
        "   3 prepare_store(r1, [b/0 c/0 d/0])                2      0       0    0",
        "   4 prepare_store(r1, [c/0])                        2      0       1    0",
        ">      evict(1, protected=[c/0]) -> evicted [a/0]",
        ">      insert(r1, c/0, slot 0)",
        "     after an eviction that failed:",
        "   1 prepare_store(r1, [a/0 b/0])                    2      0       2    0",
        "   2 complete_store(r1, [a/0 b/0])                   2      0       0    0",
        "   3 prepare_store(r1, [b/0 c/0 d/0])                2      0       0    0",
        ">      evict(2, protected=[b/0 c/0 d/0]) -> None",
        "   4 prepare_store(r1, [c/0])                        2      0       1    0",
        ">      evict(1, protected=[c/0]) -> evicted [b/0]",
        ">      insert(r1, c/0, slot 1)",
    ]


def test_what_comes_before_a_reset_is_in_one_run_alone_and_numbers_agree() -> None:
    program = Program(
        2,
        [
            op.PrepareStore("r0", (A,)),
            op.Reset(),
            op.PrepareStore("r1", (B, C)),
            op.CompleteStore("r1", (B,)),
            op.PrepareStore("r1", (A,)),
            op.CompleteStore("r1", (A, C)),
            op.PrepareStore("r1", (D,)),
        ],
    )
    lines = shown("law of clearing", clearing.Pol6OldPlaces, program)
    new, after = lines.index("     as a new policy:"), lines.index("     after a reset:")
    assert lines[new + 1].startswith("   3 prepare_store(r1, [b/0 c/0])")
    assert [line[:26] for line in lines[after + 1 : after + 4]] == [
        ">  1 prepare_store(r0, [a/",
        ">  2 reset_cache()        ",
        "   3 prepare_store(r1, [b/",
    ]


class Longer(Fifo):
    """Of keys with long names the last goes, else the first."""

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return idle[-n:] if len(idle[0]) > 9 else idle[:n]


def test_keys_with_other_names_are_shown_by_their_own() -> None:
    law = policy_law("law of renaming")
    assert law is not None
    trial = trial_of(Driver[Fifo](Longer), Capabilities(key_blind=True))
    breach = law.broken_by(trial, Program(2, [*FULL, op.PrepareStore("r1", (C,))]))
    assert breach is not None
    lines = compared_lines(breach.runs)
    assert [line for line in lines if line.startswith(">")] == [
        ">      evict(1, protected=[c/0]) -> evicted [a/0]",
        ">      insert(r1, c/0, slot 0)",
        ">      evict(1, protected=[c/0]) -> evicted [b/0]",
        ">      insert(r1, c/0, slot 1)",
    ]


def test_stores_that_a_law_adds_are_marked() -> None:
    told = op.PrepareStore("failing", (A, B, C))
    stored = [op.PrepareStore("r1", (A, C)), op.CompleteStore("r1", (A, C))]
    program = Program(2, [told, *stored, op.PrepareStore("r2", (B,))])
    lines = shown("law of reinsertion", clearing.Pol6OldPlaceAfterRemoval, program)
    marked = [line for line in lines if line.startswith(">") and "complete_store(failing" in line]
    assert len(marked) == 3
    assert not any("(r1, [a/0 c/0])" in line for line in lines if line.startswith(">"))


def test_ends_of_loads_that_are_moved_are_marked() -> None:
    loads = [op.PrepareLoad("r1", (B,)), op.PrepareLoad("r1", (A,))]
    ends = [op.CompleteLoad("r1", (B,)), op.CompleteLoad("r1", (A,))]
    program = Program(2, [*FULL, *loads, *ends, op.PrepareStore("r1", (C,))])
    lines = shown("law of releases", release_order.Pol9CompletionIsUse, program)
    assert sum("complete_load" in line for line in lines if line.startswith(">")) == 2


def test_a_run_alone_has_no_marks() -> None:
    program = Program(1, [op.PrepareStore("r1", (A,))])
    lines = shown("wrapper", wrappers.Pol7WrapperInsertsTwice, program)
    assert lines[0].strip() == HEADING
    assert lines[1:3] == [
        "     the wrapper:",
        "   1 prepare_store(r1, [a/0])                        1      0       1    0",
    ]
    assert not any(line.startswith(">") for line in lines)


def test_a_pasted_law_shows_both_runs_too() -> None:
    in_vain = op.PrepareStore("r1", (B, C, D))
    program = [*FULL, in_vain, op.PrepareStore("r1", (C,))]
    with pytest.raises(BrokenClauseError, match="> is where the runs differ"):
        check_policy_law(victims.Pol2RefusalReorders, "law of failed evictions", 2, program)


STATE = HostState(1, 0, 0, 1)


def played(operation: HostOperation, *steps: Step) -> Played:
    return Played(operation, steps, STATE)


def test_columns_stand_to_the_left_as_far_as_calls_allow() -> None:
    short, long = op.Touch("r1", (A,)), op.Touch("r" * 30, (A,))
    narrow = program_lines([played(short)], ())
    assert {len(line) for line in narrow} == {5 + 40 + 1 + len(HEADING)}
    wide = program_lines([played(short), played(long)], ())
    assert {len(line) for line in wide} == {5 + 44 + 1 + len(HEADING)} == {78}
    assert wide[0].endswith(HEADING)


def test_a_long_call_is_folded_and_a_very_long_one_cut() -> None:
    asked = op.NewRequest("r1", {"name": "a value of several words, " * 5, "x": 1})
    lines = program_lines([played(asked)], ())
    assert max(map(len, lines)) <= 78
    assert "".join(lines).endswith("'x':       1})")
    assert lines[1].split()[-4:] == ["1", "0", "0", "1"]
    endless = program_lines([played(evolve(asked, hints={"name": "9" * 5_000}))], ())
    assert max(map(len, endless)) <= 78
    assert endless[-1].strip() == "..."
    assert len(endless) == 8


def test_what_broke_off_early_is_shown_as_a_plain_program() -> None:
    program = Program(2, FULL)
    breach = Breach("POL-2", None, "", "random", program)
    assert breach_lines(breach, program, [played(FULL[0])], ()) == (
        "   1 prepare_store(r1, [a/0 b/0])",
        "   2 complete_store(r1, [a/0 b/0])",
    )
    both = breach_lines(breach, program, list(map(played, FULL)), ())
    assert both[0].endswith(HEADING)
    compared = evolve(breach, runs=(ComparedRun("alone", [played(FULL[0])]),))
    assert breach_lines(compared, program, [], ())[1] == "     alone:"
