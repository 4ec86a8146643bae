"""What the person at the keyboard did wrong, said in one line; and the exit statuses."""

from __future__ import annotations

EXIT_VIOLATION = 1
EXIT_OUTPUT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class UsageError(Exception):
    """A request that cannot be carried out as asked; the message says what, which and why."""


class OutputError(Exception):
    """The results are there and cannot be written; the message says where to and why."""


class RunInterruptedError(Exception):
    """Ctrl-C in one of the runs; the message says in which."""


class ReaderLeftError(Exception):
    """Nobody reads standard output any more. No OSError, which typer would take for its own."""
