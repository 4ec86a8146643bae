"""A folder of results: a page, its data, and pictures where they can be drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from kvoffload.cli.problems import UsageError
from kvoffload.cli.results import ResultFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Folder:
    """The folder that `--out` names. Raises UsageError when it cannot be written to."""

    def __init__(self, path: Path) -> None:
        # What a policy makes the current folder changes nothing.
        self._path = path.absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {path}: {error.strerror or error}") from error
        self._page = self._file("report.md")
        self._data = self._file("report.json")

    def write(
        self,
        data: bytes,
        page: Callable[[Mapping[str, str] | None], str],
        draw: Callable[[], Mapping[str, Figure]],
    ) -> None:
        """Write pictures, data and page, the page last. Raises OutputError.

        `page` is given the file names of what `draw` has drawn, by their names there; None where
        nothing can be drawn.
        """
        pictures = self._draw(draw)
        self._data.write(data)
        self._page.write(page(pictures).encode())

    def _draw(self, draw: Callable[[], Mapping[str, Figure]]) -> dict[str, str] | None:
        if find_spec("matplotlib") is None:
            return None
        from kvoffload.judge.pictures import FORMATS, render

        drawn = draw()
        for name, figure in drawn.items():
            for each in FORMATS:
                self._file(f"{name}.{each}").write(render(figure, each))
        return {name: f"{name}.svg" for name in drawn}

    def _file(self, name: str) -> ResultFile:
        return ResultFile(str(self._path / name), option="--out")


def folder_of(out: Path | None) -> Folder | None:
    """The folder that `--out` names; None where the page goes to standard output instead.

    Raises UsageError when what is meant cannot be written to.
    """
    if out is None and sys.stdout is None:
        raise UsageError("standard output is closed; --out names a folder instead")
    return None if out is None else Folder(out)
