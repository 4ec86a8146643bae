"""What is given to calls about canonical pages, checked before anything is worked out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kvoffload.errors import InvalidValueError

_T = TypeVar("_T")


def require_instance(field: str, value: object, *classes: type) -> None:
    """Raise InvalidValueError unless `value` is an instance of one of the classes."""
    if not isinstance(value, classes):
        raise InvalidValueError(field, value, _one_of(classes))


def require_name(value: object) -> None:
    """Raise InvalidValueError unless the name of a layer is text."""
    require_instance("name", value, str)


def tuple_of(field: str, value: Iterable[_T], *classes: type) -> tuple[_T, ...]:
    """The elements of whatever can be gone through, a generator too; each of one of the classes.

    Raises InvalidValueError, for the element and its place where it is one that does not fit.
    """
    given: object = value
    # The type first: an abstract class is slow to ask, and tuples come by the thousand.
    if type(given) is not tuple and not isinstance(given, Iterable):
        raise InvalidValueError(field, value, f"several, each {_one_of(classes)}")
    found = tuple(value)
    for index, element in enumerate(found):
        if not isinstance(element, classes):
            raise InvalidValueError(f"{field}[{index}]", element, _one_of(classes))
    return found


def _one_of(classes: tuple[type, ...]) -> str:
    names = [one.__name__ for one in classes]
    article = "an" if names[0][0] in "AEIOU" else "a"
    return f"{article} {' or '.join(names)}"
