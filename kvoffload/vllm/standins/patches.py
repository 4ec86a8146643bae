"""What a policy changes of vLLM when it is imported: names of modules, attributes of classes, and
entries of their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import cast

from kvoffload.vllm.standins.contents import Names

_NOTHING = object()
_PYTHONS = (
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__annotations_cache__",
    "__abstractmethods__",
    "_abc_impl",
)
"""What Python itself puts into the namespace of a class, sooner or later."""


class Snapshot:
    """The contents of modules as they were."""

    def __init__(self, contents: Mapping[str, Names]) -> None:
        self._modules = {name: dict(names) for name, names in contents.items()}
        self._inner = {
            name: {inner: _entries(value) for inner, value in names.items()}
            for name, names in contents.items()
        }

    def changes(self, modules: Mapping[str, ModuleType]) -> Iterator[str]:
        """The names of what differs now, entries of tables in brackets; each once."""
        yield from dict.fromkeys(self._changes(modules))

    def _changes(self, modules: Mapping[str, ModuleType]) -> Iterator[str]:
        for module, now in modules.items():
            before = self._modules[module]
            for name in _different(before, vars(now)):
                if not _of_import(module, name, vars(now).get(name)):
                    yield f"{module}.{name}"
            for name, value in before.items():
                # A class is shown where it is defined, not where else it is imported.
                where = f"{getattr(value, '__module__', module)}.{name}"
                old = self._inner[module][name]
                for form, entries in _entries(value).items():
                    for entry in _different(old.get(form, {}), entries):
                        yield where + form.format(entry)


def _entries(value: object) -> dict[str, dict[str, object]]:
    """Of a table its entries, of a class its attributes and the entries of its tables; by how one
    of them is written."""
    if not isinstance(value, type):
        return {"[{!r}]": _named(value)}
    attributes: dict[str, object]
    attributes = {name: each for name, each in vars(value).items() if name not in _PYTHONS}
    tables = {f".{name}[{{!r}}]": _named(each) for name, each in attributes.items()}
    return {".{}": attributes, **tables}


def _named(table: object) -> dict[str, object]:
    """The entries of a table; none of anything else."""
    if not isinstance(table, dict):
        return {}
    # All that is used of an entry is that it is an object.
    entries = cast("dict[object, object]", table)
    return {str(name): value for name, value in entries.items()}


def _different(before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *now)):
        if before.get(name, _NOTHING) is not now.get(name, _NOTHING):
            yield name


def _of_import(module: str, name: str, value: object) -> bool:
    """Whether `import` set a name: it sets dunder names, and modules within packages."""
    if name.startswith(("__", "_standin_")):
        return True
    return isinstance(value, ModuleType) and value.__name__ == f"{module}.{name}"
