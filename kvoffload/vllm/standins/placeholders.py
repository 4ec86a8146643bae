"""Classes of vLLM of which the stand-ins have no more than the name.

They can be imported, named in annotations and subclassed, so that a module which has a manager or a
spec beside its policy is imported as it would be. What is done with them is refused by name.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import ClassVar

from attrs import frozen

from kvoffload.errors import NotInStandInsError
from kvoffload.vllm.standins.asked import AskedBook


@frozen
class Refusal:
    """Refuses what is done with the class of this full name."""

    book: AskedBook
    name: str

    def error(self, asked: str) -> NotInStandInsError:
        """Take note of what was asked of the class ("()": to be built), and say so."""
        return self.book.missing(f"{self.name}{asked}")


class PlaceholderMeta(ABCMeta):
    """Names what is asked of a placeholder that it does not have."""

    __standin_refusal__: Refusal

    def __getattr__(cls, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
        raise cls.__standin_refusal__.error(f".{name}")


class Placeholder(metaclass=PlaceholderMeta):
    """A class of vLLM in name only."""

    __standin_refusal__: ClassVar[Refusal]

    def __init__(self, *arguments: object, **named: object) -> None:
        raise self.__standin_refusal__.error("()")

    def __class_getitem__(cls, item: object) -> type:
        return cls


def placeholder(module: str, name: str, book: AskedBook, methods: tuple[str, ...] = ()) -> type:
    """A class of this name. Of its methods these are there, for those who wrap them, and refuse."""
    refusal = Refusal(book, f"{module}.{name}")
    namespace: dict[str, object] = {method: _refusing(refusal, method) for method in methods}
    namespace |= {
        "__module__": module,
        "__qualname__": name,
        "__doc__": f"A stand-in for the name {name} only.",
        "__standin_refusal__": refusal,
    }
    return PlaceholderMeta(name, (Placeholder,), namespace)


def _refusing(refusal: Refusal, method: str) -> Callable[..., object]:
    def refuse(self: object, *arguments: object, **named: object) -> object:
        raise refusal.error(f".{method}")

    refuse.__name__ = method
    return refuse
