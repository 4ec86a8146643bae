"""What the person at the keyboard did wrong, said in one line; and the exit statuses."""

from __future__ import annotations

from pathlib import Path

from kvoffload.errors import KVOffloadError

EXIT_VIOLATION = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class UsageError(Exception):
    """A request that cannot be carried out as asked; the message says what, which and why."""


class ReaderLeftError(Exception):
    """Nobody reads standard output any more. No OSError, which typer would take for its own."""


def describe(error: BaseException) -> str:
    """One line about an exception out of code under trial: its kind, its words, its place.

    Our own exceptions say everything in words; what they were raised from has the place.
    """
    words = " ".join(str(error).split())
    if isinstance(error, KVOffloadError):
        cause = error.__cause__
        return f"{type(error).__name__}: {words}{f' ({describe(cause)})' if cause else ''}"
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f" at {Path(code.co_filename).name}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return f"{type(error).__name__}{f': {words}' if words else ''}{place}"
