"""The files of a policy's author, held against one version of vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from types import CodeType
from typing import Final, NamedTuple

from kvoffload.vllm.versions import VERSIONS, VLLMVersion
from stateful_models.loading import describe, in_one_line, words_of
from stateful_models.trial.portability import Obstacle
from stateful_models.vllm.edits import Lack, edit_for_internals, lack_of
from stateful_models.vllm.policies import is_beside
from stateful_models.vllm.source import Guard, Source

LRU, ARC = "LRUCachePolicy", "ARCCachePolicy"
_SLOTS: Final = frozenset(each.slot for each in VERSIONS)
_INTERNALS: Final = frozenset(
    name for each in VERSIONS for name in (*each.lru_internals, *each.arc_internals)
) - {"cache_capacity"}


class Caught(NamedTuple):
    """A failed import that nobody is told of, and where."""

    source: Source
    guard: Guard
    lack: Lack


class AuthorsFiles:
    """Those that are imported with a target and its driver: the modules that were not loaded
    `before`, and lie beside them or are of their packages."""

    def __init__(self, version: VLLMVersion, names: Sequence[str | None], before: set[str]) -> None:
        self._version = version
        found = [
            getattr(module, "__file__", None)
            for name, module in list(sys.modules.items())
            if name not in before and is_beside(module, names)
        ]
        files = [*(_file_of(name) for name in names if name), *found]
        paths = [Path(file).resolve() for file in files if isinstance(file, str)]
        self._sources: dict[Path, Source] = {}
        for path in dict.fromkeys(path for path in paths if path.suffix == ".py"):
            with suppress(OSError, SyntaxError, ValueError):
                self._sources[path] = Source(path)

    def failing_imports(self) -> Iterator[Obstacle]:
        """Imports that fail, and end the import of the file."""
        edits: dict[tuple[str, str], dict[str, None]] = {}
        for source in self._sources.values():
            for each in source.imports:
                lack = None if source.catches(each) else lack_of(each, self._version)
                if lack is not None:
                    key = source.place(each.line), lack.what
                    edits.setdefault(key, {})[lack.edit] = None
        for (place, what), various in edits.items():
            yield Obstacle(kind="import", what=what, edit="; ".join(various), place=place)

    def caught_imports(self) -> Iterator[Caught]:
        """Imports that fail, where the file goes on."""
        for source in self._sources.values():
            for guard in source.guards:
                lacks = (lack_of(each, self._version) for each in guard.imports)
                lack = next(filter(None, lacks), None)
                if lack is not None:
                    yield Caught(source, guard, lack)

    def strange_attributes(self, target: object, base: type) -> Iterator[Obstacle]:
        """Attributes of status objects, LRU and ARC that are read, and that this version lacks.

        What other policies of the files read, of this `base` too, is none of the target's affairs.
        """
        version = self._version
        sources = self._sources.values()
        own = frozenset[str]().union(*(source.own_attributes for source in sources))
        elsewhere = self._other_policies(target, base)
        inside = _INTERNALS - {*version.lru_internals, *version.arc_internals} - own
        for source in sources:
            if not source.imports:
                continue
            for read in source.reads(_SLOTS - {version.slot} - own, not_in=elsewhere):
                yield Obstacle(
                    kind="slot",
                    what=f"reads {read.attribute}: {version.status} has no such attribute",
                    edit=f"read {version.slot}",
                    place=source.place(read.line),
                )
            if not (source.uses(LRU) or source.uses(ARC)):
                continue
            for read in source.reads(inside, not_in=elsewhere):
                of = "its base" if read.of_self else "LRU or ARC"
                yield Obstacle(
                    kind="internals",
                    what=f"reads {read.attribute} of {of}, which is not there",
                    edit=edit_for_internals(read.attribute, version),
                    place=source.place(read.line),
                )

    def told(self, error: BaseException) -> str:
        """An exception with the line of the author's where it came up, if there is one."""
        frames = extract_tb(error.__traceback__)
        own = [each for each in frames if Path(each.filename) in self._sources]
        if not own or isinstance(error, SyntaxError):
            return describe(error)
        place = self._sources[Path(own[-1].filename)].place(own[-1].lineno or 0)
        return f"{type(error).__name__}: {in_one_line(words_of(error))} at {place}"

    def _other_policies(self, target: object, base: type) -> set[str]:
        """The names of policies in the same file that have no part in this one."""
        lineage = {cls.__name__ for cls in getattr(target, "__mro__", ())}
        sources = self._sources.values()
        mentions = {name: used for each in sources for name, used in each.classes.items()}
        used = set(lineage).union(*(mentions.get(name, ()) for name in lineage))
        module = sys.modules.get(str(getattr(target, "__module__", "")))
        names = {} if module is None else vars(module)
        policies = {
            name
            for name, value in names.items()
            if isinstance(value, type) and issubclass(value, base)
        }
        return policies & mentions.keys() - used


def lines_of(method: object) -> str:
    """Where a function stands, as "policy.py:12-15"; "" for what is none."""
    code: object = getattr(method, "__code__", None)
    if not isinstance(code, CodeType):
        return ""
    last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    end = f"-{last}" if last > code.co_firstlineno else ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}{end}"


def _file_of(target: str) -> str | None:
    """The file of a target. A module's is found without being imported, if not its package's."""
    place = target.rpartition(":")[0]
    if place.endswith(".py"):
        return place
    # The package of the module is imported for that, and may raise anything.
    with suppress(Exception):
        spec = find_spec(place)
        return None if spec is None else spec.origin
    return None
