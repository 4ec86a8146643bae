"""What a target asks its hints for: what no hints had, no run has tried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, cast

from typing_extensions import override

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values

__all__ = ["HintNames", "RecordingHints"]

HintsT = TypeVar("HintsT")


class HintNames:
    """Which names a target asks its hints for, and which were ever given.

    `record` wraps hints; all that came from one of these are told here. A name within a hint
    that is a dict itself is told with both: `routing.session_id`.
    """

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._given: set[str] = set()
        self.asked_for_all: bool = False
        """Whether all names were asked for at once: iterated, copied, spread or written out."""

    @property
    def asked(self) -> Mapping[str, int]:
        """How often each name was asked for."""
        return MappingProxyType(self._asked)

    @property
    def never_given(self) -> tuple[str, ...]:
        """Names that were asked for and that no hints had, in alphabetical order."""
        return tuple(sorted(self._asked.keys() - self._given))

    def state(self) -> tuple[Mapping[str, int], frozenset[str], bool]:
        """How often each name was asked for, which were given, whether all were asked for."""
        return dict(self._asked), frozenset(self._given), self.asked_for_all

    def add(
        self,
        before: tuple[Mapping[str, int], frozenset[str], bool],
        after: tuple[Mapping[str, int], frozenset[str], bool],
    ) -> None:
        """Take what a copy of this has seen since it had the state `before`."""
        self._asked.update(Counter(after[0]) - Counter(before[0]))
        self._given |= after[1]
        self.asked_for_all |= after[2]

    def record(self, hints: HintsT) -> HintsT:
        """The hints, equal to what they were, telling here what they are asked for.

        What is no dict (None, or what a client made up) is returned as it is.
        """
        # A dict for a dict, and the very value otherwise.
        return cast("HintsT", self._record(hints, ""))

    def note(self, name: str) -> None:
        """Count a name that was asked for."""
        self._asked[name] += 1

    def _record(self, hints: object, prefix: str) -> object:
        if type(hints) is not dict:
            return hints
        # Nothing more is known of what a client sent; names are looked at before they are used.
        given = cast("dict[str, object]", hints)
        recording = RecordingHints()
        recording.tell(self, prefix)
        for name, value in given.items():
            if isinstance(name, str):
                self._given.add(prefix + name)
            recording[name] = self._record(value, f"{prefix}{name}.")
        return recording


class RecordingHints(dict[str, object]):
    """A dict that tells HintNames what it is asked for, and a plain dict in all else.

    Its copies tell as well; what it is pickled to, or merged into with `|`, does not.
    """

    _names: HintNames | None = None
    _prefix = ""

    def tell(self, names: HintNames | None, prefix: str) -> None:
        """Tell `names` from now on, each name with `prefix` before it."""
        self._names, self._prefix = names, prefix

    @override
    def __getitem__(self, key: str, /) -> object:
        self._ask(key)
        return super().__getitem__(key)

    @override
    def __contains__(self, key: object, /) -> bool:
        self._ask(key)
        return super().__contains__(key)

    @override
    def get(self, key: str, default: object = None, /) -> object:
        self._ask(key)
        return super().get(key, default)

    @override
    def pop(self, key: str, /, *default: object) -> object:
        self._ask(key)
        return super().pop(key, *default)

    @override
    def setdefault(self, key: str, default: object = None, /) -> object:
        self._ask(key)
        return super().setdefault(key, default)

    @override
    def popitem(self) -> tuple[str, object]:
        self._ask_all()
        return super().popitem()

    @override
    def __iter__(self) -> Iterator[str]:
        self._ask_all()
        return super().__iter__()

    @override
    def __reversed__(self) -> Iterator[str]:
        self._ask_all()
        return super().__reversed__()

    @override
    def keys(self) -> dict_keys[str, object]:
        self._ask_all()
        return super().keys()

    @override
    def values(self) -> dict_values[str, object]:
        self._ask_all()
        return super().values()

    @override
    def items(self) -> dict_items[str, object]:
        self._ask_all()
        return super().items()

    @override
    def copy(self) -> RecordingHints:
        return self.__copy__()

    def __copy__(self) -> RecordingHints:
        return self._with(super().items())

    def __deepcopy__(self, memo: dict[int, object]) -> RecordingHints:
        return self._with((name, deepcopy(value, memo)) for name, value in super().items())

    @override
    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[dict[str, object]]]:
        return dict, (dict(super().items()),)

    def _with(self, items: Iterable[tuple[str, object]]) -> RecordingHints:
        copied = RecordingHints(items)
        copied.tell(self._names, self._prefix)
        return copied

    def _ask(self, key: object) -> None:
        if self._names is not None and isinstance(key, str):
            self._names.note(self._prefix + key)

    def _ask_all(self) -> None:
        if self._names is not None:
            self._names.asked_for_all = True
