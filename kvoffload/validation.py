"""Validators for attrs fields that refuse a value with its name and the value itself.

attrs ships validators too; these raise `InvalidValueError`, reject `bool` where an integer is
meant (True is a tempting but meaningless block size), and take no text for a sequence of text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from kvoffload.errors import InvalidValueError

if TYPE_CHECKING:
    from attrs import Attribute

    # attrs passes the half-built instance and the attribute, whatever their types.
    Validator = Callable[[Any, Attribute[Any], Any], None]


def require_int(field: str, value: object, minimum: int, maximum: int | None = None) -> int:
    """Return `value` if it is an int in [minimum, maximum], else raise InvalidValueError."""
    if type(value) is int and value >= minimum and (maximum is None or value <= maximum):
        return value
    bound = f"an int >= {minimum}" if maximum is None else f"an int in [{minimum}, {maximum}]"
    raise InvalidValueError(field, value, bound)


def require_bool(field: str, value: object) -> None:
    """Raise InvalidValueError unless `value` is True or False, whatever its truth value."""
    if value is not True and value is not False:
        raise InvalidValueError(field, value, "True or False")


def int_at_least(minimum: int) -> Validator:
    """The field is an int, not a bool, of at least `minimum`."""

    def validate(_: object, attribute: Attribute[int], value: object) -> None:
        # A call less where all is well: values of runs and mappings are built by the thousand.
        if type(value) is not int or value < minimum:
            require_int(attribute.name, value, minimum)

    return validate


def optional_int_at_least(minimum: int) -> Validator:
    """The field is None, or an int, not a bool, of at least `minimum`."""

    def validate(_: object, attribute: Attribute[int | None], value: object) -> None:
        if value is not None:
            require_int(attribute.name, value, minimum)

    return validate


def instance(cls: type) -> Validator:
    """The field is an instance of `cls`."""

    def validate(_: object, attribute: Attribute[object], value: object) -> None:
        if not isinstance(value, cls):
            raise InvalidValueError(attribute.name, value, f"a {cls.__name__}")

    return validate


def optional_instance(cls: type | tuple[type, ...]) -> Validator:
    """The field is None or an instance of `cls`, or of one of several."""

    def validate(_: object, attribute: Attribute[object], value: object) -> None:
        if value is not None and not isinstance(value, cls):
            raise InvalidValueError(attribute.name, value, f"a {_named(cls)} or None")

    return validate


def each_instance(cls: type | tuple[type, ...]) -> Validator:
    """Every element is a `cls`, or one of several; one text is no sequence of its letters."""

    def validate(_: object, attribute: Attribute[object], value: object) -> None:
        require_each(attribute.name, value, cls)

    return validate


def require_each(field: str, value: object, cls: type | tuple[type, ...]) -> None:
    """Raise InvalidValueError unless `value` is a collection of `cls`, and no single text."""
    if _holds_only(value, cls):
        return
    raise InvalidValueError(field, value, f"a collection of {_named(cls)}")


def _holds_only(value: object, cls: type | tuple[type, ...]) -> bool:
    # The type first: an abstract class is slow to ask, and tuples come by the thousand.
    if type(value) is not tuple and not isinstance(value, Collection):
        return False
    if isinstance(value, (str, bytes)):
        return False
    elements: Collection[object] = value
    # A loop, as a generator takes twice as long.
    for element in elements:  # noqa: SIM110
        if not isinstance(element, cls):
            return False
    return True


def _named(cls: type | tuple[type, ...]) -> str:
    return " or ".join(one.__name__ for one in (cls if isinstance(cls, tuple) else (cls,)))
