"""What the person at the keyboard did wrong, said in one line; and the exit statuses."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

from kvoffload.errors import KVOffloadError

EXIT_VIOLATION = 1
EXIT_OUTPUT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

FILE_MODULE = "kvoffload_target_"
"""How the names of modules begin that were loaded from a file; what follows is a digest."""
_FILE_MODULE = re.compile(rf"({FILE_MODULE}[0-9a-f]+)(\.(?=[^\W\d]))?")

_LINE_END = re.compile(r"\s*[\r\n]\s*")


class UsageError(Exception):
    """A request that cannot be carried out as asked; the message says what, which and why."""


class OutputError(Exception):
    """The results are there and cannot be written; the message says where to and why."""


class RunInterruptedError(Exception):
    """Ctrl-C in one of the runs; the message says in which."""


class ReaderLeftError(Exception):
    """Nobody reads standard output any more. No OSError, which typer would take for its own."""


def describe(error: BaseException) -> str:
    """One line about an exception out of code under trial: its kind, its words, its place.

    Our own exceptions say everything in words; what they were raised from has the place.
    """
    kind, words = type(error).__name__, in_one_line(_words_of(error))
    if isinstance(error, KVOffloadError):
        cause = error.__cause__
        return f"{kind}: {words}{f' ({describe(cause)})' if cause else ''}"
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{kind}: {error.msg} at {Path(error.filename).name}:{error.lineno}"
    place = place_of(error)
    return f"{kind}{f': {words}' if words else ''}{f' at {place}' if place else ''}"


def place_of(error: BaseException) -> str:
    """Where the exception, or what it was raised from, came up.

    Empty where one of our own says in words what was wrong with somebody else's code.
    """
    if isinstance(error, KVOffloadError):
        return "" if error.__cause__ is None else place_of(error.__cause__)
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        if not _of_import_system(traceback.tb_frame):
            code = traceback.tb_frame.f_code
            place = f"{Path(code.co_filename).name}:{traceback.tb_lineno} in {code.co_name}"
        traceback = traceback.tb_next
    return place


def in_one_line(text: str) -> str:
    """The text without line ends, and with the classes of a file as they were named.

    What no encoding has, as the bytes of a file name that is no text, is escaped.
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    return _FILE_MODULE.sub(_as_named, _LINE_END.sub(" ", text.rstrip()))


def counted(number: int, noun: str) -> str:
    """`1 chunk`, `2 chunks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _words_of(error: BaseException) -> str:
    try:
        return str(error)
    # Somebody else's exception may be unable to say what it is about.
    except Exception as another:
        return f"(its words cannot be had: {type(another).__name__})"


def _as_named(match: re.Match[str]) -> str:
    file = getattr(sys.modules.get(match[1]), "__file__", None)
    return f"{Path(file).name if file else 'the file'}{':' if match[2] else ''}"


def _of_import_system(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")
