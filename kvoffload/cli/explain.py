"""`kvoffload explain`: what a clause of the contract says, and what becomes of a breach."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvoffload.cli.problems import UsageError
from kvoffload.cli.screen import open_screen
from stateful_models.contract import CLAUSES, KIND_TEXTS, SOURCE_TEXTS, Clause, Profile
from stateful_models.globs import fitting

HELP = """Say what a clause of the contract asks, of whom, and what a breach means.

Without a clause all of them are listed, one a line; a glob such as POL-* shows several.

Examples:

  kvoffload explain STORE-4

  kvoffload explain 'POL-*'
"""


def explain(
    clause: Annotated[
        list[str] | None,
        typer.Argument(metavar="CLAUSE", help="Ids or globs.", show_default=False),
    ] = None,
) -> None:
    """Say what a clause of the contract asks, of whom, and what a breach means."""
    screen = open_screen(stderr=False)
    if not clause:
        for one in CLAUSES.values():
            screen.print(Text(f"{one.id:9} {one.kind.value} {one.sentence}"), soft_wrap=True)
        return
    for glob in clause:
        found = fitting(glob.upper(), CLAUSES)
        if not found:
            raise UsageError(f"{glob}: no such clause; `kvoffload explain` lists them all")
        for name in found:
            _show(screen, CLAUSES[name])


def _show(screen: Console, clause: Clause) -> None:
    # The judges are imported only by those who ask for them.
    from stateful_models.engines.scopes import judged_by

    def say(text: str, style: str = "") -> None:
        screen.print(Text(text, style=style), soft_wrap=True)

    say(clause.id, "bold")
    for part in clause.parts:
        say(f"  {part.sentence}")
        say(f"    {part.kind.value}: {KIND_TEXTS[part.kind]}")
        say(f"    source {part.source.value}: {SOURCE_TEXTS[part.source]}")
        convicting = [profile.value for profile in Profile if part.convicts(profile)]
        say(f"    convicts under: {', '.join(convicting) or 'no profile; it is reported'}")
    say(f"  judged by: {judged_by(clause.id)}")
