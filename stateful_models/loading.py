"""Targets as they are named: `pkg.mod:Name` in an importable module (the current directory
included), `file.py:Name` in a file, which may import the files beside it."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final

from kvoffload.errors import KVOffloadError
from stateful_models.frames import Place, innermost, is_of_the_kit

FILE_MODULE: Final = "kvoffload_target_"
"""How the names of modules begin that were loaded from a file; what follows is a digest."""
_FILE_MODULE = re.compile(rf"({FILE_MODULE}[0-9a-f]+)(\.(?=[^\W\d]))?")
_LINE_END = re.compile(r"\s*[\r\n]\s*")


class TargetError(Exception):
    """A target that cannot be had as it is named; the message says what, which and why."""


def find(target: str) -> object:
    """The object that `target` names. Raises TargetError, also for what its module raises."""
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise TargetError(f"{target}: neither pkg.mod:Class nor file.py:Class")
    module = _load_file(Path(place)) if place.endswith(".py") else _import(place)
    try:
        found: object = attrgetter(name)(module)
    except AttributeError:
        raise TargetError(f"{target}: {place} has no {name}") from None
    return found


def find_class(target: str) -> type[object]:
    """The class that `target` names. Raises TargetError."""
    found = find(target)
    if not isinstance(found, type):
        name = target.rpartition(":")[2]
        raise TargetError(f"{target}: {name} is not a class but {type(found).__name__}")
    return found


def _import(name: str) -> ModuleType:
    # `python -m` puts the current directory here; a console script does not.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        raise TargetError(f"{name}: cannot be imported: {error}") from error
    # A module that is imported may raise anything, and exit.
    except BaseException as error:
        raise TargetError(f"{name}: cannot be imported: {describe(error)}") from error


def _load_file(path: Path) -> ModuleType:
    full = path.resolve()
    # Two files of one name are two modules; one file is one module, however often it is named.
    name = f"{FILE_MODULE}{blake2b(bytes(full), digest_size=6).hexdigest()}"
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    if not full.is_file():
        raise TargetError(f"{path}: {'not a file' if full.exists() else 'no such file'}")
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Classes look their own module up there while they are being made.
    sys.modules[name] = module
    try:
        with _first_on_path(str(full.parent)):
            spec.loader.exec_module(module)
    except BaseException as error:
        # Only now: until it is described, an error may speak of the module by its name.
        described = describe(error)
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TargetError(f"{path}: cannot be loaded: {described}") from error
    return module


@contextmanager
def _first_on_path(folder: str) -> Generator[None]:
    """Let what is loaded meanwhile import what lies in `folder`, as a program there could.

    Nothing is written beside it: bytecode is told from newer source by whole seconds, and whoever
    works on a policy saves and tries within one.
    """
    sys.path.insert(0, folder)
    writes_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = not writes_bytecode
        # The file may have changed the path too.
        if folder in sys.path:
            sys.path.remove(folder)


def describe(error: BaseException) -> str:
    """One line about an exception out of code under trial: its kind, its words, its place.

    Our own exceptions say everything in words; what they were raised from has the place.
    """
    kind, words = type(error).__name__, in_one_line(words_of(error))
    if isinstance(error, KVOffloadError):
        cause = error.__cause__
        return f"{kind}: {words}{f' ({describe(cause)})' if cause else ''}"
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{kind}: {error.msg} at {Path(error.filename).name}:{error.lineno}"
    place = place_of(error)
    return f"{kind}{f': {words}' if words else ''}{f' at {place}' if place else ''}"


def place_of(error: BaseException) -> str:
    """Where the exception, or what it was raised from, came up: the last line of its author's.

    Empty where one of our own says in words what was wrong with somebody else's code.
    """
    place = _place(error)
    return "" if place is None else _named(place)


def at_its_place(error: BaseException) -> str:
    """` at file.py:20 in evict`, where the exception came up in code that is on trial."""
    place = _place(error)
    return "" if place is None or is_of_the_kit(place.file) else f" at {_named(place)}"


def _named(place: Place) -> str:
    return f"{Path(place.file).name}:{place.line} in {place.function}"


def _place(error: BaseException) -> Place | None:
    if isinstance(error, KVOffloadError):
        return None if error.__cause__ is None else _place(error.__cause__)
    places: list[Place] = []
    traceback = error.__traceback__
    while traceback is not None:
        if not _of_import_system(traceback.tb_frame):
            code = traceback.tb_frame.f_code
            places.append(Place(code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return innermost(places)


def in_one_line(text: str) -> str:
    """The text without line ends, and with the classes of a file as they were named.

    What no encoding has, as the bytes of a file name that is no text, is escaped.
    """
    return _FILE_MODULE.sub(_as_named, printable(_LINE_END.sub(" ", text.rstrip())))


def printable(text: str) -> str:
    """The text with what is not printable escaped, but for spaces and ends of line."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode()
        for each in text
    )


def words_of(error: BaseException) -> str:
    """What an exception says, in characters that every encoding has and no terminal obeys."""
    try:
        return printable(str(error))
    # Somebody else's exception may be unable to say what it is about.
    except Exception as another:
        return f"(its words cannot be had: {type(another).__name__})"


def _as_named(match: re.Match[str]) -> str:
    file = getattr(sys.modules.get(match[1]), "__file__", None)
    return f"{Path(file).name if file else 'the file'}{':' if match[2] else ''}"


def _of_import_system(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")
