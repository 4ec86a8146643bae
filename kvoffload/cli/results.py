"""Where results go: a file that is replaced as a whole or, for JSON, standard output."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from secrets import token_hex

from kvoffload.cli.problems import OutputError, ReaderLeftError, UsageError

TO_STDOUT = "-"


class ResultFile:
    """The file that `option` names.

    Building one finds out, before the work, whether it can be written; an old result stays as
    it is until there is a new one. Raises UsageError when it cannot.
    """

    def __init__(self, target: str, *, option: str = "--json") -> None:
        self._named = f"{option} {target}"
        # Through a symbolic link, so that the link stays one.
        self._path = Path(os.path.realpath(target))
        self._beside: Path | None = self._path.with_name(f".kvoffload-{token_hex(8)}.tmp")
        try:
            self._check()
        except OSError as error:
            raise UsageError(f"{self._named}: {error.strerror or error}") from error

    def write(self, data: bytes) -> None:
        """Replace the file. Raises OutputError when that fails; the old one is kept if it can."""
        try:
            # Looked at again: what is no regular file must never be replaced by one.
            if self._beside is None or self._is_special():
                self._path.write_bytes(data)
            else:
                self._replace(self._beside, data)
        except OSError as error:
            raise OutputError(f"{self._named}: {error.strerror or error}") from error

    def _check(self) -> None:
        path = self._path
        if path.is_dir() or not path.parent.is_dir():
            raise UsageError(f"{self._named}: not a file in an existing directory")
        if self._is_special():
            # A pipe that is opened and closed again is at its end for whoever reads it.
            if not os.access(path, os.W_OK):
                raise PermissionError("Permission denied")
            return
        if path.exists():
            path.open("ab").close()
        try:
            self._try_beside()
        except OSError:
            if not path.exists():
                raise
            # The file can be written and its directory cannot.
            self._beside = None

    def _is_special(self) -> bool:
        """Whether it is a pipe or a device, which is written to as it is."""
        return self._path.exists() and not self._path.is_file()

    def _try_beside(self) -> None:
        if not self._path.exists():
            # Its own name may be what the file system refuses.
            self._path.open("xb").close()
            self._path.unlink()
        elif self._beside is not None:
            self._beside.open("xb").close()
            self._beside.unlink()

    def _replace(self, beside: Path, data: bytes) -> None:
        try:
            with beside.open("xb") as file:
                if self._path.exists():
                    os.chmod(beside, stat.S_IMODE(self._path.stat().st_mode))
                file.write(data)
            beside.replace(self._path)
        finally:
            beside.unlink(missing_ok=True)


def open_result(target: str | None) -> ResultFile | None:
    """The file that `--json` names; None where it names none, or standard output.

    Raises UsageError when what is named cannot be written.
    """
    # So it is where the process was started without one.
    if target == TO_STDOUT and sys.stdout is None:
        raise UsageError(f"--json {TO_STDOUT}: standard output is closed")
    return None if target is None or target == TO_STDOUT else ResultFile(target)


def print_json(data: bytes) -> None:
    """Write the results to standard output, which then has nothing else."""
    print_text(data.decode())


def print_text(text: str) -> None:
    """Write a result to standard output. Raises ReaderLeftError where nobody reads it."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None
