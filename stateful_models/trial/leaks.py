"""State outside the objects of a class that they change, named when two runs disagree.

Two objects that share something are not independent: a registry of the module, a counter on the
class, a list that is the default of an argument, the environment, a generator of random numbers.
"""

from __future__ import annotations

import os
import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from types import FunctionType, ModuleType
from typing import Final, NamedTuple

from stateful_models.trial.codes import attribute_of, attributes_of, functions_behind, is_a, lineage

__all__ = ["OutsideState"]

MAX_ENTRIES: Final = 10_000
"""As many values are looked at below an attribute; of what is beyond, only the number counts."""
MAX_DEPTH: Final = 8

_NOT_OF_THE_TARGET = ("abc", "builtins", "kvoffload", "typing", "typing_extensions")
_PLAIN = (bool, bytes, complex, float, int, str, type(None))
_SHORT = 40
_common_state = random.getstate

# What tells the entries, or the state: the type's own method, whatever a subclass has made of it.
_CONTAINERS: Sequence[tuple[type[object], str]] = (
    (OrderedDict, "items"),
    (dict, "items"),
    (list, "__iter__"),
    (tuple, "__iter__"),
    (set, "__iter__"),
    (frozenset, "__iter__"),
    (deque, "__iter__"),
)
_STATES: Sequence[tuple[type[object], str]] = (
    (array, "tobytes"),
    (bytearray, "hex"),
    (random.Random, "getstate"),
    (count, "__repr__"),
)


class _Seen(NamedTuple):
    """An attribute as it was: its digest, how many entries it has, and in words if it is short."""

    digest: object
    size: int | None = None
    words: str | None = None


class OutsideState:
    """What is outside the objects of a class and could be changed by them, as it is now.

    Taken are the globals of the target's module and of those beside it that it uses, attributes
    of its classes and of their bases (not of kvoffload's or the language's), defaults of their
    arguments, the environment and the state of `random`. Containers, arrays, generators of random
    numbers and objects of the target's own classes are compared by what they hold, down to a
    depth, everything else by whether it is the same object. None of the target's code runs, so
    looking raises nothing and changes nothing. What was seen is kept alive meanwhile.
    """

    def __init__(self, *targets: object) -> None:
        self._targets = targets
        # Else something new could get the address of something that is gone, and look the same.
        self._kept: list[object] = []
        self._before = self._take()

    def changed_since(self) -> list[str]:
        """What differs now, each in a few words, sorted.

        "module attribute `registry` grew from 0 to 12 entries", "class attribute FIFO.seen
        changed", "environment variable TRACE appeared".
        """
        now = self._take()
        names = sorted(self._before.keys() | now.keys())
        changes = (_change(name, self._before.get(name), now.get(name)) for name in names)
        return [change for change in changes if change is not None]

    def _take(self) -> dict[str, _Seen]:
        modules = _modules_of(self._targets)
        look = _Look({module.__name__ for module in modules}, self._kept)
        taken: dict[str, _Seen] = {}
        own = [_module_of(target) for target in self._targets]
        classes = dict.fromkeys(
            cls for target in self._targets for cls in lineage(target, without=_NOT_OF_THE_TARGET)
        )
        for module in modules:
            for name, value in list(vars(module).items()):
                whose = "" if module in own else f" of {module.__name__}"
                if not _is_dunder(name):
                    taken[f"module attribute `{name}`{whose}"] = look.at(value)
                if is_a(value, type) and value.__module__ == module.__name__:
                    classes[value] = None
                elif is_a(value, FunctionType):
                    taken.update(_defaults_of(value, look))
        for cls in classes:
            for name, value in list(vars(cls).items()):
                # `_abc_data` and the like are the language's own.
                if not (_is_dunder(name) or name.startswith("_abc_")):
                    taken[f"class attribute {cls.__qualname__}.{name}"] = look.at(value)
                for function in functions_behind(value):
                    taken.update(_defaults_of(function, look))
        for name, value in list(os.environ.items()):
            # Not in words: it may be a secret.
            taken[f"environment variable {name}"] = _Seen(value)
        taken["the state of the module random"] = _Seen(hash(_common_state()))
        return taken


class _Look:
    """Looks at values without running their code."""

    def __init__(self, own_modules: set[str], kept: list[object]) -> None:
        self._own_modules = own_modules
        self._kept = kept
        self._left = 0
        # To import it takes as long as everything else; who holds an array has done so.
        numpy = sys.modules.get("numpy")
        self._states = _STATES if numpy is None else (*_STATES, (numpy.ndarray, "tobytes"))

    def at(self, value: object) -> _Seen:
        """An attribute, with all that it holds."""
        self._left = MAX_ENTRIES
        return _Seen(self._digest(value, MAX_DEPTH), _size(value), _in_words(value))

    def _digest(self, value: object, depth: int) -> object:
        """Something to compare by, of plain values alone."""
        kind = type(value)
        if kind in _PLAIN:
            # By repr, a figure that is not a number equals itself.
            return kind.__name__, repr(value) if kind in (float, complex) else value
        if depth and self._left > 0:
            held = self._held(value, kind, depth - 1)
            if held is not None:
                return kind.__name__, held
        self._kept.append(value)
        return id(value)

    def _held(self, value: object, kind: type[object], depth: int) -> object:
        """What a value holds that can be compared; None for what is compared by identity."""
        entries = _entries(value, self._left)
        if entries is not None:
            each = self._each(entries, depth)
            unordered = issubclass(kind, (set, frozenset))
            return _size(value), frozenset(each) if unordered else tuple(each)
        for stateful, name in self._states:
            if issubclass(kind, stateful):
                tell: Callable[[object], object] = getattr(stateful, name)
                try:
                    return hash(tell(value))
                except Exception:
                    return None
        if kind.__module__ in self._own_modules and not issubclass(kind, type):
            names_and_values = chain.from_iterable(attributes_of(value))
            return tuple(self._each(names_and_values, depth))
        if issubclass(kind, FunctionType) and vars(value):
            self._kept.append(value)
            return id(value), self._digest(vars(value), depth)
        return None

    def _each(self, values: Iterable[object], depth: int) -> Iterator[object]:
        for value in values:
            if self._left <= 0:
                return
            self._left -= 1
            yield self._digest(value, depth)


def _change(name: str, before: _Seen | None, now: _Seen | None) -> str | None:
    """What happened to an attribute, in words; None if nothing did."""
    if before is None:
        return f"{name} appeared"
    if now is None:
        return f"{name} is gone"
    if before.digest == now.digest:
        return None
    if before.size is not None and now.size is not None and before.size != now.size:
        verb = "grew" if now.size > before.size else "shrank"
        entries = "entry" if now.size == 1 else "entries"
        return f"{name} {verb} from {before.size} to {now.size} {entries}"
    if before.words is not None and now.words is not None:
        return f"{name} changed from {before.words} to {now.words}"
    return f"{name} changed"


def _in_words(value: object) -> str | None:
    """A plain value as it is written, None when that is long."""
    kind = type(value)
    if kind not in _PLAIN or (isinstance(value, (str, bytes)) and len(value) > _SHORT):
        return None
    if isinstance(value, int) and value.bit_length() > 2 * _SHORT:
        return None
    return repr(value)


def _size(value: object) -> int | None:
    """How many entries a container has, None for anything else."""
    for container, _ in _CONTAINERS:
        if is_a(value, container):
            size: Callable[[object], int] = getattr(container, "__len__")  # noqa: B009 - `object` has none
            return size(value)
    return None


def _entries(value: object, most: int) -> list[object] | None:
    """What a container holds, of a dict the pairs, up to a number; None for anything else."""
    for container, name in _CONTAINERS:
        if is_a(value, container):
            iterate: Callable[[object], Iterable[object]] = getattr(container, name)
            try:
                return list(islice(iterate(value), most))
            except Exception:
                # An OrderedDict hashes its keys, and those may raise: then as the dict that it is.
                continue
    return None


def _modules_of(targets: Iterable[object]) -> list[ModuleType]:
    """The modules of the targets, and those in the same folder that they use."""
    own = [module for target in targets if (module := _module_of(target)) is not None]
    found = dict.fromkeys(own)
    for module in own:
        folder = _folder(module)
        for value in list(vars(module).values()):
            if type(value) is ModuleType and folder is not None and _folder(value) == folder:
                found[value] = None
    return list(found)


def _module_of(target: object) -> ModuleType | None:
    return sys.modules.get(str(attribute_of(target, "__module__")))


def _folder(module: ModuleType) -> str | None:
    place = vars(module).get("__file__")
    return os.path.dirname(place) if isinstance(place, str) else None


def _defaults_of(function: FunctionType, look: _Look) -> Iterator[tuple[str, _Seen]]:
    """Defaults of arguments, which all calls share; plain ones cannot change."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    pairs = [*zip(names[len(names) - len(defaults) :], defaults, strict=False)]
    for name, value in [*pairs, *(function.__kwdefaults__ or {}).items()]:
        if type(value) not in _PLAIN:
            yield f"default argument `{name}` of {function.__qualname__}", look.at(value)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
