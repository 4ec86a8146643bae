"""Modules that answer for vLLM's, and the finder that gives them to `import`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from typing_extensions import override

from kvoffload.vllm.standins.asked import AskedBook
from kvoffload.vllm.standins.catalogue import answered, left_out
from kvoffload.vllm.standins.contents import Names, known_names

VLLM: Final = "vllm"
SETTINGS: Final = "vllm.envs"


class StandInModule(ModuleType):
    """A module of vLLM. Whatever is read of it is taken note of.

    A name that the version did not have is missing as from any module. Of another one that is not
    here, which it may have had, a sentence says so.
    """

    def __init__(self, name: str, book: AskedBook) -> None:
        super().__init__(name)
        self._standin_book = book

    def __getattribute__(self, name: str) -> object:
        value: object = super().__getattribute__(name)
        if not name.startswith(("__", "_standin_")):
            self._standin_book.asked[f"{self.__name__}.{name}"] = None
        return value

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise self._standin_nothing(name)
        if self.__name__ == SETTINGS:
            return self._standin_setting(name)
        full = f"{self.__name__}.{name}"
        book = self._standin_book
        if full in answered(book.version.name):
            # It has not been imported yet, which `import` does when there is no such attribute.
            raise self._standin_nothing(name)
        book.asked[full] = None
        if name not in known_names()[self.__name__] or left_out(book.version.name, full):
            raise book.missing(full)
        book.absent[full] = None
        raise self._standin_nothing(name)

    def _standin_setting(self, name: str) -> object:
        """A setting of the environment. Unknown ones are no attributes; whether vLLM knows it we
        cannot tell."""
        full = f"{self.__name__}.{name}"
        self._standin_book.asked[full] = None
        settings: dict[str, Callable[[], object]] = vars(self).get("environment_variables", {})
        if name in settings:
            return settings[name]()
        self._standin_book.unanswered[full] = None
        raise self._standin_nothing(name)

    def _standin_nothing(self, name: str) -> AttributeError:
        return AttributeError(
            f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self
        )


class StandInFinder(MetaPathFinder, Loader):
    """Finds the modules of one version, and no other of that name."""

    def __init__(self, book: AskedBook, contents: Mapping[str, Names]) -> None:
        self.book = book
        self.contents = contents
        self.made: dict[str, StandInModule] = {}

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_vllm(fullname):
            return None
        self.book.asked[fullname] = None
        if fullname in self.contents:
            return ModuleSpec(fullname, self, is_package=self._is_package(fullname))
        if left_out(self.book.version.name, fullname):
            raise self.book.missing_module(fullname)
        # Python then says that there is no such module, for no path leads to another one.
        self.book.absent[fullname] = None
        return None

    @override
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandInModule(spec.name, self.book)

    @override
    def exec_module(self, module: ModuleType) -> None:
        if isinstance(module, StandInModule):
            module.__dict__.update(self.contents[module.__name__])
            self.made[module.__name__] = module

    def _is_package(self, name: str) -> bool:
        return any(other.startswith(f"{name}.") for other in self.contents)


def is_vllm(name: str) -> bool:
    """Whether a module is vLLM's, by its name."""
    return name == VLLM or name.startswith(f"{VLLM}.")


def loaded() -> Iterator[str]:
    """The modules of vLLM that are loaded, whoever loaded them."""
    yield from [name for name in sys.modules if is_vllm(name)]
