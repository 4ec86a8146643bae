"""What a person reads of trials: a row for each target, then what each is convicted of."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, groupby
from math import inf
from textwrap import wrap
from typing import Protocol, TypeAlias

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvoffload.cli.clause_names import in_short
from kvoffload.cli.names import PolicyNames
from kvoffload.cli.portability import show_fallbacks, show_portability
from kvoffload.cli.prose import tell
from kvoffload.wording import counted, percent
from stateful_models.contract import CLAUSES, Kind
from stateful_models.loading import in_one_line
from stateful_models.trial.arguments import argument_words
from stateful_models.trial.request import Request
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict

LINE_SECONDS = 10.0
TARGET = "target"
MOST_CUT = 2
CUT_WIDTH = 15
ARGUMENTS_WIDTH = 40
STYLES = {Outcome.CLEAN: "green", Outcome.CONVICTED: "bold red", Outcome.UNTRIED: "yellow"}

_Row: TypeAlias = "tuple[Sequence[str], Report | None]"
"""The lines of its first column, and whose figures stand beside them."""


class TrialNarrator(Protocol):
    """Told how far an engine is."""

    def __call__(self, engine: str, share: float, /) -> None:
        """Show it, if it is time to."""


@contextmanager
def narrate_trial(console: Console, request: Request) -> Generator[TrialNarrator]:
    """Show which engine is at work on a target, and how far, while the block runs."""
    if console.is_terminal:
        with Progress(
            TextColumn("{task.fields[target]}", markup=False),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as bar:
            name = PolicyNames.of([request.target]).short[request.target]
            task = bar.add_task(
                "starting", total=1.0, target=" ".join((name, *argument_words(request.arguments)))
            )

            def advance(engine: str, share: float) -> None:
                bar.update(task, description=engine, completed=share)

            yield advance
        return
    last, said = time.monotonic(), ""
    whose = " ".join((request.target, *argument_words(request.arguments)))

    def say(engine: str, share: float) -> None:
        nonlocal last, said
        now = time.monotonic()
        text = f"{whose}: {engine}, {share:.0%}"
        if now - last >= LINE_SECONDS and text != said:
            last, said = now, text
            console.print(text, markup=False, soft_wrap=True)

    yield say


def show_reports(console: Console, reports: Sequence[Report]) -> None:
    """A row for each target, then what is broken, reported and not reached."""
    if not reports:
        return
    for report in reports:
        show_fallbacks(console, report)
    first = reports[0]
    tell(
        console,
        f"contract {first.contract}, profile {first.profile}, level {first.level}, "
        f"seed {first.seed}",
    )
    # Of what could not be tried the reason says all there is.
    if any(not report.problem for report in reports):
        _show_table(console, reports)
    _show_alike(console, reports, Verdict.HELD, _held)
    for report in reports:
        _show(console, report)
        show_portability(console, report)
    _show_alike(console, reports, Verdict.NOT_APPLICABLE, _by_reason)


def _show_table(console: Console, reports: Sequence[Report]) -> None:
    """A row for each. Where a name or an argument has no room there, a number stands for it."""
    names = PolicyNames.of([report.target for report in reports])
    explained = dict(names.explained)
    bare = console.measure(_table([((), report) for report in reports])).maximum
    room = console.width - bare + len(TARGET)
    rows: list[_Row] = []
    numbers = count(1)
    for target, group in groupby(reports, key=lambda report: report.target):
        placed = list(_placed(list(group), names, min(room, ARGUMENTS_WIDTH)))
        if any(len(line) > room for place, _ in placed for line in place):
            numbered = [
                (f"[{next(numbers)}]", report) for _, report in placed if report is not None
            ]
            explained.pop(names.short[target], None)
            explained |= {number: _called(report) for number, report in numbered}
            placed = [((number,), report) for number, report in numbered]
        rows += placed
    console.print(_table(rows))
    for name, target in explained.items():
        tell(console, in_one_line(f"{name} is {target}"))


def _placed(rows: Sequence[Report], names: PolicyNames, width: int) -> Iterator[_Row]:
    """What stands in the first column of the rows of one target: its arguments are under it.

    Where it has several rows, it stands above them, with what they have in common.
    """
    common = set(argument_words(rows[0].arguments)).intersection(
        *(argument_words(report.arguments) for report in rows)
    )
    shared = [word for word in argument_words(rows[0].arguments) if word in common]
    place = [names.short[rows[0].target], *_indented(shared, width)]
    if len(rows) == 1:
        yield place, rows[0]
        return
    yield place, None
    for report in rows:
        own = [word for word in argument_words(report.arguments) if word not in common]
        yield _indented(own, width), report


def _table(rows: Iterable[_Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), collapse_padding=True, pad_edge=False)
    # Where nothing else fits on the screen these two are folded, and no figure goes.
    for heading in (TARGET, "verdict"):
        table.add_column(heading, overflow="fold")
    for heading in ("held", "broken", "not\nreached", "n/a", "programs", "s"):
        wide = max(map(len, heading.split("\n")))
        table.add_column(heading, justify="right", no_wrap=True, min_width=wide)
    for place, report in rows:
        if report is None:
            table.add_row(Text("\n".join(place)))
            continue
        figures = [
            str(len(_of(report, Verdict.HELD))),
            str(len(report.roots)),
            str(len(_of(report, Verdict.NOT_REACHED))),
            str(len(_of(report, Verdict.NOT_APPLICABLE))),
            f"{report.reach.programs:,}",
            f"{report.seconds:.1f}",
        ]
        verdict = Text(_outcome(report), style=STYLES[report.verdict])
        table.add_row(Text("\n".join(place)), verdict, *([] if report.problem else figures))
    return table


def _indented(words: Sequence[str], width: int) -> list[str]:
    """Arguments under their target, on as few lines as leave room for the figures."""
    return wrap(
        " ".join(words),
        max(1, width),
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _outcome(report: Report) -> str:
    """The verdict, with how much was found that does not convict, and what was cut."""
    reported = len(_of(report, Verdict.BROKEN)) - len(report.convictions)
    lines = [report.verdict.value, *([f"{reported} reported"] if reported else [])]
    return ",\n".join(lines) + _cut(report)


def _cut(report: Report) -> str:
    """The engines that got least of their time, with how much of it they played."""
    least = sorted(report.cut, key=lambda engine: report.cut[engine])
    told = [f"{engine} {percent(report.cut[engine])}" for engine in least[:MOST_CUT]]
    more = len(least) - MOST_CUT
    parts = [*told, *([f"{more} more"] if more > 0 else [])]
    lines = [line for part in parts for line in wrap(f"{part},", CUT_WIDTH, subsequent_indent=" ")]
    return "\n(cut by time:\n" + "\n".join(lines).removesuffix(",") + ")" if lines else ""


def _of(report: Report, verdict: Verdict) -> list[ClauseVerdict]:
    return [clause for clause in report.clauses if clause.verdict is verdict]


def _called(report: Report) -> str:
    return " ".join((report.target, *argument_words(report.arguments)))


def _show(console: Console, report: Report) -> None:
    target = _called(report)

    def say(text: str, style: str = "") -> None:
        tell(console, in_one_line(text), style)

    if report.problem:
        problem = report.problem.removeprefix(f"{report.target}: ")
        say(f"{target} could not be tried: {problem}", "yellow")
        return
    for clause in sorted(_of(report, Verdict.BROKEN), key=_rank):
        if clause.follows:
            cause = f"{clause.follows} (call {clause.follows_at})"
            say(f"{target}: {clause.id} follows from {cause}: {clause.seen}")
        else:
            _show_broken(console, report, clause)
    unreached = _of(report, Verdict.NOT_REACHED)
    if unreached:
        say(f"{target}: {Verdict.NOT_REACHED.value}")
        for line in _by_reason(unreached):
            say(line)
    idle = [method for method in report.reach.methods if method.never_ran]
    if idle:
        say(f"{target}: lines of its own that never ran")
        for method in idle:
            where = f" in {method.file}" if method.file else ""
            say(f"  {method.name}{where}: {', '.join(method.never_ran)}")
    if report.reach.hints_missed:
        say(f"{target}: no request had the hint {', '.join(report.reach.hints_missed)}")
    if report.notes:
        say(f"{target}: figures and advice")
        for note in report.notes:
            say(f"  {note}")


def _rank(clause: ClauseVerdict) -> tuple[bool, bool, float]:
    """What convicts first, and of that what is broken by the earliest call; then what follows."""
    return not clause.convicts, bool(clause.follows), clause.call or inf


def _show_alike(
    console: Console,
    reports: Sequence[Report],
    verdict: Verdict,
    lines_of: Callable[[Sequence[ClauseVerdict]], Sequence[str]],
) -> None:
    """The clauses of a verdict, once for all targets of which the same is told."""
    whose: dict[tuple[str, ...], list[str]] = {}
    for report in reports:
        lines = tuple(lines_of(_of(report, verdict)))
        if lines:
            whose.setdefault(lines, []).append(_called(report))
    for lines, names in whose.items():
        every = len(names) == len(reports) > 1
        who = "all of them" if every else ", ".join(names)
        for line in (f"{who}: {verdict.value}", *lines):
            tell(console, in_one_line(line))


def _held(clauses: Sequence[ClauseVerdict]) -> list[str]:
    """The ids, in a line; in others those that were not tried to the end."""
    found: dict[str, list[str]] = {}
    for clause in clauses:
        found.setdefault(_as_far_as(clause), []).append(clause.id)
    return [f"  {in_short(found[short])}{short}" for short in sorted(found, key=bool)]


def _as_far_as(clause: ClauseVerdict) -> str:
    """Which of its engines ended early, and with how much of what they were to try."""
    least = sorted(clause.cut.items(), key=lambda one: one[1])
    told = ", ".join(f"{engine} {percent(share)}" for engine, share in least)
    return f" (as far as it was tried: {told})" if told else ""


def _by_reason(clauses: Iterable[ClauseVerdict]) -> tuple[str, ...]:
    """A line for each reason, with the clauses that have it."""
    found: dict[str, list[str]] = {}
    for clause in clauses:
        found.setdefault(clause.reason, []).append(clause.id)
    return tuple(f"  {', '.join(ids)}: {reason}" for reason, ids in found.items())


def _weight(clause: ClauseVerdict) -> str:
    """The class of what is promised; and where a breach of it is told as advice, that it is so."""
    parts = CLAUSES[clause.id].parts if clause.id in CLAUSES else ()
    for part in parts:
        if part.sentence == clause.sentence and part.kind.value != clause.kind == Kind.ADVICE.value:
            return f"class {part.kind.value}, here as advice"
    return f"class {clause.kind}"


def _show_broken(console: Console, report: Report, clause: ClauseVerdict) -> None:
    # Not above: what shows no verdict of a trial needs nothing of Hypothesis.
    from stateful_models.trial.scope import CLAIMS

    target = _called(report)

    def say(text: str, style: str = "") -> None:
        tell(console, text, style)

    # What is no clause has a name of words, which no verb may run into.
    broken = f'its claim "{clause.id}"' if clause.id in CLAIMS else clause.id
    if clause.convicts:
        say(f"{target} breaks {broken}", "bold red")
    elif clause.known:
        say(f"{target} breaks {broken}, as is known", "yellow")
    else:
        say(f"{target}: {clause.id} is reported, and does not convict", "yellow")
    say(f"  promised: {clause.sentence} ({_weight(clause)}, source {clause.source})")
    say(f"  seen: {in_one_line(clause.seen)}")
    if clause.expected:
        say(f"  expected: {in_one_line(clause.expected)}")
    if clause.reason:
        say(f"  {clause.reason}")
    finder = f"{clause.invariant}, engine {clause.engine}" if clause.invariant else clause.engine
    after = "" if clause.programs is None else f" after {counted(clause.programs, 'program')}"
    say(f"  found by {finder}{after}")
    for line in clause.program:
        say(f"  {line}")
    if clause.consequence:
        say(f"  {report.host or 'an engine'} then: {clause.consequence}")
    if clause.also:
        say("  it is broken in another way too:")
        for line in clause.also:
            say(f"  {line}")
    if clause.test:
        # Flush left, so that it can be taken from the screen as it is.
        say("  as a test:")
        for line in ("", *clause.test.splitlines(), ""):
            console.print(Text(line, style="dim"), soft_wrap=True)
