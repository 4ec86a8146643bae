"""The command line: which commands there are, and how one ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Protocol, runtime_checkable

import typer

from kvoffload.cli.problems import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    ReaderLeftError,
    UsageError,
)
from kvoffload.cli.replay import HELP, replay

PROGRAM = "kvoffload"

_app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_app.command(help=HELP)(replay)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            number = version(PROGRAM)
        except PackageNotFoundError:
            number = "(not installed)"
        typer.echo(f"{PROGRAM} {number}")
        raise typer.Exit


@_app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """KV-cache offloading: a reference, and a trial for anybody's implementation."""


@runtime_checkable
class _Misuse(Protocol):
    """An error about the command line itself, by whichever parser typer brings along."""

    exit_code: int

    def format_message(self) -> str:
        """What is wrong, in words."""
        ...


def run(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line (by default that of the process) and return its exit status.

    0: done. 1: a clause is broken, or what is on trial raised. 2: not possible as asked.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = typer.main.get_command(_app)
    try:
        status: object = command.main(given, prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except UsageError as problem:
        return _complain(str(problem))
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except (ReaderLeftError, BrokenPipeError):
        # Python would complain once more while it flushes at its own end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if isinstance(error, _Misuse):
            return _complain(f"{error.format_message()} (see --help)")
        raise
    return status if isinstance(status, int) else 0


def main() -> None:
    """Entry point of the console script and of `python -m kvoffload`."""
    sys.exit(run())


def _complain(message: str) -> int:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)
    return EXIT_USAGE
