"""Constructor arguments as a command line gives them: several values of one make a grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Final, TypeAlias

Argument: TypeAlias = "str | int | float | bool | None"
"""A constructor argument, as a command line can give one."""

_WORDS: Final[Mapping[str, bool | None]] = {"true": True, "false": False, "none": None}


class ArgumentTextError(ValueError):
    """A text that gives no argument; the message says which and why."""


def argument_grid(texts: Iterable[str]) -> Iterator[dict[str, Argument]]:
    """Every combination of the values that texts such as `window=8,64` give for each argument.

    Without texts there is one, of nothing. Raises ArgumentTextError.
    """
    values: dict[str, list[Argument]] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ArgumentTextError(f"{text}: not of the form NAME=VALUE")
        if not name.isidentifier():
            raise ArgumentTextError(f"{text}: {name} is no name of an argument")
        values.setdefault(name, []).extend(map(_read, value.split(",")))
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def argument_words(arguments: Mapping[str, object]) -> list[str]:
    """Arguments as a reader finds them in reports and in the names of tests: `window=8`."""
    written: dict[object, str] = {word: text for text, word in _WORDS.items()}
    return [
        f"{name}={written[value] if value is None or isinstance(value, bool) else value}"
        for name, value in arguments.items()
    ]


def _read(text: str) -> Argument:
    """The value that a text stands for, if any; else the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
