"""`kvoffload explain`: what a clause of the contract says, and what becomes of a breach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvoffload.cli.problems import UsageError
from kvoffload.cli.prose import tell
from kvoffload.cli.screen import open_screen
from stateful_models.contract import CLAUSES, KIND_TEXTS, SOURCE_TEXTS, Clause, Kind, Profile
from stateful_models.globs import fitting, none_fits

if TYPE_CHECKING:
    from stateful_models.trial.request import OwnClause

HELP = """Say what a clause of the contract asks, of whom, and what a breach means.

Without a clause all of them are listed, one a line; a glob such as POL-* shows several.

Examples:

  kvoffload explain STORE-4

  kvoffload explain 'POL-*'

  kvoffload explain OWN-1 --invariant my_policy.py:MyInvariant
"""


def explain(
    clause: Annotated[
        list[str] | None,
        typer.Argument(metavar="CLAUSE", help="Ids or globs.", show_default=False),
    ] = None,
    invariant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M:CLASS",
            help="An invariant of your own, whose clauses are explained too. Repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say what a clause of the contract asks, of whom, and what a breach means."""
    screen = open_screen(stderr=False)
    own = {one.id: one for one in _own(invariant or ())}
    if not clause:
        lines = [(one.id, one.kind.value, one.sentence) for one in CLAUSES.values()]
        lines += [(one.id, Kind.CLAIM.value, one.promise) for one in own.values()]
        for name, kind, sentence in lines:
            tell(screen, f"{name:9} {kind} {sentence}", step=12)
        return
    for glob in clause:
        found = fitting(glob.upper(), CLAUSES)
        theirs = fitting(glob, own)
        if not found and not theirs:
            raise UsageError(f"{glob}: {none_fits(own)}")
        for name in found:
            _show(screen, CLAUSES[name])
        for name in theirs:
            _show_own(screen, own[name])


def _own(invariants: Sequence[str]) -> Sequence[OwnClause]:
    """The clauses of these invariants, which are loaded in a process of their own."""
    if not invariants:
        return ()
    # Only those who name any need them.
    from stateful_models.loading import TargetError
    from stateful_models.trial.request import Request, Task
    from stateful_models.trial.trials import own_clauses

    try:
        return own_clauses(Request(task=Task.CLAUSES, target="", invariants=tuple(invariants)))
    except TargetError as error:
        raise UsageError(str(error)) from error


def _show_own(screen: Console, clause: OwnClause) -> None:
    from stateful_models.engines.scopes import engines_of_own

    screen.print(Text(clause.id, style="bold"))
    kind = Kind.CLAIM
    for line in (
        f"  {clause.promise or 'what it promises is not said in its docstring'}",
        f"    {kind.value}: {KIND_TEXTS[kind]}",
        f"    source {clause.kind}: {clause.invariant}",
        f"    convicts under: {', '.join(profile.value for profile in Profile)}",
        f"  judged by: the invariant {clause.kind}, in every program of "
        f"{engines_of_own(clause.subjects)}",
    ):
        tell(screen, line)


def _show(screen: Console, clause: Clause) -> None:
    # The judges are imported only by those who ask for them.
    from stateful_models.engines.scopes import judged_by

    def say(text: str, style: str = "") -> None:
        tell(screen, text, style)

    say(clause.id, "bold")
    for part in clause.parts:
        say(f"  {part.sentence}")
        say(f"    {part.kind.value}: {KIND_TEXTS[part.kind]}")
        say(f"    source {part.source.value}: {SOURCE_TEXTS[part.source]}")
        convicting = [profile.value for profile in Profile if part.convicts(profile)]
        say(f"    convicts under: {', '.join(convicting) or 'no profile; it is reported'}")
    say(f"  judged by: {judged_by(clause.id)}")
