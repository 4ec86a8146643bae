"""What a person reads of trials: the table at 80 columns, headings, tests to paste, progress."""

import io
import re

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload.cli import verdicts
from kvoffload.cli.prose import tell
from kvoffload.cli.screen import open_screen
from kvoffload.cli.verdicts import narrate_trial, show_reports
from kvoffload.cli.verify import exit_status, why_not_reached
from spec_tests.cli_helpers import Output
from stateful_models.contract import CLAUSES, Kind
from stateful_models.trial.request import Request, Task
from stateful_models.trial.verdicts import (
    ClauseVerdict,
    MethodReach,
    Outcome,
    Reached,
    Report,
    Verdict,
    decode,
    encode,
)

WIDE = "\u3042"
"""It takes two columns."""
LONG = "m.py:ANameThatIsLongerThanWhatATableOfEightyColumnsHasRoomFor"


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def clause(
    name: str, verdict: Verdict, *, reason: str = "", test: str = "", also: tuple[str, ...] = ()
) -> ClauseVerdict:
    return ClauseVerdict(
        id=name,
        kind="S",
        source="own",
        verdict=verdict,
        sentence="So it is.",
        reason=reason,
        test=test,
        also=also,
    )


def report(*clauses: ClauseVerdict, target: str = "slru.py:SLRU", **arguments: object) -> Report:
    return Report(
        target=target,
        verdict=Outcome.CLEAN,
        profile="vllm",
        level="quick",
        clauses=clauses,
        arguments=arguments,
        reach=Reached(programs=1_234),
        seconds=10.5,
    )


def shown(capsys: Output, *reports: Report) -> str:
    show_reports(open_screen(stderr=False), reports)
    return capsys.readouterr().out


def test_an_exit_status_of_1_without_a_conviction_says_what_it_is_for() -> None:
    unreached = clause("POL-2", Verdict.NOT_REACHED, reason="never ran: SessionFIFO.evict 54")
    other = clause("POL-7", Verdict.NOT_REACHED, reason="never came about: pin")
    quick, ci = report(unreached), evolve(report(unreached), level="ci")
    assert (exit_status([quick]), why_not_reached([quick])) == (0, "")
    assert exit_status([quick, ci]) == 1
    assert why_not_reached([quick, ci]) == (
        "exit status 1: POL-2 is a clause of safety and was not reached; a line that cannot run "
        "here is left out by `# pragma: no cover`"
    )
    both = evolve(report(other, clause("POL-1", Verdict.NOT_REACHED)), level="ci")
    assert why_not_reached([both]) == (
        "exit status 1: POL-7, POL-1 are clauses of safety and were not reached"
    )
    assert why_not_reached([both, evolve(quick, verdict=Outcome.CONVICTED)]) == ""
    assert why_not_reached([both, evolve(quick, verdict=Outcome.UNTRIED)]) == ""


def test_a_grid_is_listed_by_its_arguments(capsys: Output) -> None:
    held = clause("POL-1", Verdict.HELD)
    text = shown(capsys, *(report(held, share=0.25, max_sessions=n) for n in (1, 1_000)))
    table = [line.rstrip() for line in text.splitlines()[1:] if line.strip()]
    assert all(len(line) <= 80 for line in table)
    assert table[3:] == [
        " SLRU",
        "   share=0.25",
        "   max_sessions=1     clean       1       0        0    0     1,234  10.5",
        "   max_sessions=1000  clean       1       0        0    0     1,234  10.5",
        "all of them: held",
        "  POL-1",
    ]


@pytest.mark.parametrize("columns", [80, 100])
def test_arguments_stand_below_each_other_whatever_the_width(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ["window=100", "admission=0.25", "ghosts_kept=7", "rash=True", "alpha=1", "beta=2"]
    given = {name: value for name, _, value in (word.partition("=") for word in words)}
    cut = {"law of failed evictions": 0.29, "exhaustive": 1 / 3}
    lines = shown(capsys, evolve(report(**given), cut=cut)).splitlines()
    assert all(len(line) <= columns for line in lines)
    top = next(number for number, line in enumerate(lines) if line.startswith(" SLRU"))
    width = next(line.index("verdict") for line in lines if "verdict" in line)
    cells = [line[:width].rstrip() for line in lines[top + 1 :]]
    below = [cell for cell in cells[: cells.index("")] if cell]
    # Each is whole, at the same place.
    assert " ".join(below).split() == words
    assert {len(cell) - len(cell.lstrip()) for cell in below} == {3}
    assert len(below) == (3 if columns == 100 else 5)


def test_what_has_no_room_is_numbered(capsys: Output) -> None:
    known = report(target="slru.py:SLRU")
    text = shown(capsys, report(target=LONG, a_long_name_of_an_argument="value"), known)
    figures = r"0 +0 +0 +0 +1,234 +10\.5"
    assert re.search(rf"^ \[1\] +clean +{figures}", text, re.M)
    assert re.search(rf"^ SLRU +clean +{figures}", text, re.M)
    # Whole, as it is no terminal.
    assert f"\n[1] is {LONG} a_long_name_of_an_argument=value\n" in text


def test_what_could_not_be_tried_has_no_figures(capsys: Output) -> None:
    untried = evolve(report(target="m.py:Lost"), verdict=Outcome.UNTRIED, problem="m.py is lost")
    alone = shown(capsys, untried)
    assert alone.splitlines()[1:] == ["m.py:Lost could not be tried: m.py is lost"]
    beside = shown(capsys, untried, report())
    assert re.search(r"^ Lost +untried *$", beside, re.M)
    assert re.search(r"^ SLRU +clean +0 +0 +0 +0 +1,234 +10\.5 *$", beside, re.M)


def test_a_pipe_is_wider_than_a_terminal_of_unknown_width(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ANameThatIsLongerThanWhatATableOfEightyColumnsHasRoom"
    monkeypatch.delenv("COLUMNS")
    assert re.search(rf"^ {name} +clean ", shown(capsys, report(target=f"m.py:{name}")), re.M)
    # Who asks for a width gets it.
    monkeypatch.setenv("COLUMNS", "80")
    assert name in (narrow := shown(capsys, report(target=f"m.py:{name}")))
    assert re.search(r"^ \[1\] +clean ", narrow, re.M)


def test_what_is_advice_here_keeps_the_class_of_its_demand(capsys: Output) -> None:
    growth = CLAUSES["POL-4"].part(Kind.LIVENESS)
    for kind, words in ((Kind.ADVICE, "class L, here as advice"), (Kind.LIVENESS, "class L")):
        found = evolve(clause("POL-4", Verdict.BROKEN), kind=kind.value, sentence=growth.sentence)
        assert f"promised: {growth.sentence} ({words}, source own)" in shown(capsys, report(found))


class Terminal(io.StringIO):
    """One that nobody sees."""

    @override
    def isatty(self) -> bool:
        return True


def test_prose_is_wrapped_at_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = open_screen(stderr=False)
    screen.file = terminal = Terminal()
    word = "x" * 90
    for line in (
        f"{'word ' * 20}end",
        f"  seen: {WIDE * 30} {WIDE * 20} so it is",
        f"  {word} and more",
        f"{' ' * 60}resident pinned pending free",
        "   1 evict(1)     1      0",
    ):
        tell(screen, line)
    assert re.sub(r"\x1b\[[^m]*m", "", terminal.getvalue()).splitlines() == [
        ("word " * 16).rstrip(),
        "  word word word word end",
        f"  seen: {WIDE * 30}",
        f"    {WIDE * 20} so it is",
        f"  {word}",
        "    and more",
        f"{' ' * 60}resident pinned pending free",
        "   1 evict(1)     1      0",
    ]


def test_words_that_no_encoding_has_are_escaped_in_a_report() -> None:
    one = report(clause("POL-7", Verdict.BROKEN, reason="raised \udc80", also=("and \ud800",)))
    (told,) = decode(encode(one)).clauses
    assert (told.reason, told.also) == (r"raised \udc80", (r"and \ud800",))


def test_what_is_held_is_named(capsys: Output) -> None:
    names = [f"POL-{n}" for n in (1, 2, 3, 5, 6, 8)]
    others = ["LRU-2", "its model", "key blind", *(f"OWN-LINE-{n}" for n in range(20, 60, 2))]
    held = [clause(name, Verdict.HELD) for name in (*names, *others)]
    text = shown(capsys, report(*held))
    assert text.partition("slru.py:SLRU: held\n")[2] == (
        "  POL-1 to 3, 5, 6, 8; LRU-2; its model; key blind; OWN-LINE-"
        + ", ".join(map(str, range(20, 60, 2)))
        + "\n"
    )


def test_what_is_held_as_far_as_it_was_tried_says_so(capsys: Output) -> None:
    ended = {"random": 0.406, "hostile hints": 0.1}
    held = [
        evolve(clause("POL-1", Verdict.HELD), cut={"random": 0.406}),
        clause("POL-4", Verdict.HELD),
        evolve(clause("POL-7", Verdict.HELD), cut=ended),
        evolve(clause("OWN-1", Verdict.HELD), cut=ended),
    ]
    text = shown(capsys, report(*held))
    assert text[text.index("slru.py:SLRU: held\n") :].splitlines()[1:4] == [
        "  POL-4",
        "  POL-1 (as far as it was tried: random 40%)",
        "  POL-7; OWN-1 (as far as it was tried: hostile hints 10%, random 40%)",
    ]


def test_what_time_cut_is_named_with_how_much_was_played(capsys: Output) -> None:
    cut = {"random": 0.999, "law of failed evictions": 0.29, "exhaustive": 1 / 3}
    table = shown(capsys, evolve(report(), cut=cut))
    told = " ".join(re.sub(r"SLRU|(?<=clean).*", "", table).partition("clean")[2].split())
    assert told == "(cut by time: law of failed evictions 29%, exhaustive 33%, 1 more)"
    assert "random 99%" in shown(capsys, evolve(report(), cut={"random": 0.999}))


def test_what_is_reported_stands_beside_the_verdict(capsys: Output) -> None:
    text = shown(capsys, report(clause("POL-4", Verdict.BROKEN)))
    assert re.search(r"SLRU +clean, ", text)
    assert "1 reported" in text


def test_figures_have_a_heading_of_their_own(capsys: Output) -> None:
    idle = MethodReach(name="SLRU.evict", ran=1, lines=2, never_ran=("7",), file="base.py")
    seen = evolve(
        report(),
        reach=Reached(methods=(idle,), hints_missed=("session_id",)),
        notes=("worst eviction: 7 visits",),
    )
    text = shown(capsys, seen)
    assert text.endswith(
        "slru.py:SLRU: lines of its own that never ran\n"
        "  SLRU.evict in base.py: 7\n"
        "slru.py:SLRU: no request had the hint session_id\n"
        "slru.py:SLRU: figures and advice\n"
        "  worst eviction: 7 visits\n"
    )


def test_what_applies_to_none_is_said_once(capsys: Output) -> None:
    unclaimed = clause("POL-9", Verdict.NOT_APPLICABLE, reason="not claimed (release_order)")
    text = shown(capsys, report(unclaimed, n=1), report(unclaimed, n=2))
    assert text.count("POL-9: not claimed") == 1
    assert "\nall of them: not applicable\n" in text
    text = shown(capsys, report(unclaimed, n=1), report(unclaimed, n=2), report(n=3))
    assert "\nslru.py:SLRU n=1, slru.py:SLRU n=2: not applicable\n" in text


def test_the_test_can_be_taken_from_the_screen(capsys: Output) -> None:
    test = "from x import y\n\n\ndef test_it() -> None:\n    y()"
    also = ("evicted b (found by law)", "   1 reset_cache()")
    text = shown(capsys, report(clause("POL-2", Verdict.BROKEN, test=test, also=also)))
    assert f"  as a test:\n\n{test}\n" in text
    assert "way too:\n  evicted b (found by law)\n     1 reset_cache()\n" in text


def test_progress_in_a_file_names_what_runs_and_does_not_repeat(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "LINE_SECONDS", 0.0)
    asked = Request(task=Task.POLICY, target="slru.py:SLRU", arguments={"n": 1})
    with narrate_trial(open_screen(stderr=False), asked) as narrator:
        for share in (0.1, 0.1, 0.2):
            narrator("random", share)
    assert capsys.readouterr().out.splitlines() == [
        "slru.py:SLRU n=1: random, 10%",
        "slru.py:SLRU n=1: random, 20%",
    ]
