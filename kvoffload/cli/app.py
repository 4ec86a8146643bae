"""The command line: which commands there are, and how one ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Protocol, TextIO, runtime_checkable

import typer

from kvoffload.cli.compare import HELP as COMPARE_HELP
from kvoffload.cli.compare import compare
from kvoffload.cli.explain import HELP as EXPLAIN_HELP
from kvoffload.cli.explain import explain
from kvoffload.cli.in_tree import COMMAND as IN_TREE
from kvoffload.cli.in_tree import HELP as IN_TREE_HELP
from kvoffload.cli.in_tree import in_tree
from kvoffload.cli.judge import HELP as JUDGE_HELP
from kvoffload.cli.judge import judge
from kvoffload.cli.layout import HELP as LAYOUT_HELP
from kvoffload.cli.layout import layout
from kvoffload.cli.problems import (
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_OUTPUT,
    EXIT_USAGE,
    OutputError,
    ReaderLeftError,
    RunInterruptedError,
    UsageError,
)
from kvoffload.cli.replay import HELP, replay
from kvoffload.cli.synthesize import HELP as SYNTHESIZE_HELP
from kvoffload.cli.synthesize import write as write_synthetic
from kvoffload.cli.verify import HELP as VERIFY_HELP
from kvoffload.cli.verify import spelled_out, verify
from stateful_models.loading import in_one_line

PROGRAM = "kvoffload"

_app = typer.Typer(
    name=PROGRAM,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_app.command(help=VERIFY_HELP)(verify)
_app.command(help=JUDGE_HELP)(judge)
_app.command(help=COMPARE_HELP)(compare)
_app.command(help=EXPLAIN_HELP)(explain)
_app.command(help=HELP)(replay)
_app.command(help=LAYOUT_HELP)(layout)
_app.command("synthesize", help=SYNTHESIZE_HELP)(write_synthetic)
_app.command(IN_TREE, help=IN_TREE_HELP)(in_tree)


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

    0: done. 1: a clause is broken, what is on trial raised, or the results cannot be written.
    2: not possible as asked. 130: interrupted. Without arguments it shows the help.
    """
    given = spelled_out(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    command = typer.main.get_command(_app)
    try:
        status: object = command.main(given, prog_name=PROGRAM, standalone_mode=False)
        # None where the process was started with its output closed.
        if sys.stdout is not None:
            sys.stdout.flush()
    except UsageError as problem:
        return _complain(str(problem), EXIT_USAGE)
    except OutputError as problem:
        return _complain(str(problem), EXIT_OUTPUT)
    except RunInterruptedError as interrupted:
        return _say(str(interrupted), EXIT_INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", EXIT_INTERRUPTED)
    except (ReaderLeftError, BrokenPipeError):
        _drop_output(sys.stdout)
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if isinstance(error, _Misuse):
            return _complain(f"{error.format_message()} (see --help)", EXIT_USAGE)
        # What is on trial, the trace and files are spoken for elsewhere; an error of writing to
        # what is open already names no file.
        if isinstance(error, OSError) and error.filename is None:
            _drop_output(sys.stdout)
            return _complain(f"output cannot be written: {error.strerror or error}", EXIT_OUTPUT)
        raise
    return status if isinstance(status, int) else 0


def main() -> None:
    """Entry point of the console script and of `python -m kvoffload`."""
    sys.exit(run())


def _complain(message: str, status: int) -> int:
    return _say(f"error: {in_one_line(message)}", status)


def _say(message: str, status: int) -> int:
    # Without a standard error `print` would take standard output; with a full one, the status is
    # all that can still be told.
    if sys.stderr is not None:
        try:
            print(f"{PROGRAM}: {message}", file=sys.stderr, flush=True)
        except OSError:
            _drop_output(sys.stderr)
    return status


def _drop_output(stream: TextIO | None) -> None:
    """Python would complain once more, with a status of its own, when it flushes at its end."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
