"""Stand-ins for exactly one vLLM at a time."""

from __future__ import annotations

import sys
from typing import Self

from typing_extensions import override

from kvoffload.errors import VLLMLoadedError
from kvoffload.vllm.standins.classes import Classes, classes_of
from kvoffload.vllm.standins.contents import contents_of
from kvoffload.vllm.standins.modules import StandInFinder, loaded
from kvoffload.vllm.standins.patches import Snapshot
from kvoffload.vllm.standins.provider import VLLMProvider
from kvoffload.vllm.versions import VLLMVersion


class StandIns(VLLMProvider):
    """The names of one version of vLLM that policies import, with nothing of vLLM behind them.

    Base classes, LRU, ARC, status objects, keys, contexts and the factory behave as that
    version's did. Its manager and other classes are names only (`placeholders`).
    """

    def __init__(self, version: VLLMVersion) -> None:
        super().__init__(version)
        self._classes = classes_of(version)
        contents = contents_of(version, self._classes, self._book)
        self._finder = StandInFinder(self._book, contents)
        self._snapshot = Snapshot(contents)

    @override
    def install(self) -> Self:
        others = [each for each in sys.meta_path if isinstance(each, StandInFinder)]
        present = next(loaded(), None)
        if others or present is not None:
            there = f"those of {others[0].book.version} are" if others else f"{present} is"
            raise VLLMLoadedError(
                f"the stand-ins of {self.version} come alone, and before any import of vllm: "
                f"{there} there already"
            )
        sys.meta_path.insert(0, self._finder)
        return self

    @override
    def uninstall(self) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
            for name in loaded():
                del sys.modules[name]

    @property
    @override
    def patched(self) -> tuple[str, ...]:
        return tuple(self._snapshot.changes(self._finder.made))

    @property
    @override
    def classes(self) -> Classes:
        return self._classes
