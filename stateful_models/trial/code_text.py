"""Python as text: values as expressions, expressions on lines that are not too long."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from math import isfinite
from typing import Final, cast

from attrs import fields

from kvoffload import OffloadKey, TierFilter, TierMatcher
from stateful_models.programs import HostOperation

WIDTH: Final = 100
_CLOSING: Final[Mapping[str, str]] = {"(": ")", "[": "]", "{": "}"}
_QUOTES: Final = "\"'"
_DIGITS: Final = 20
"""A number with more is one that a reader counts."""


def call_text(operation: HostOperation, named: Mapping[OffloadKey, str]) -> str:
    """The operation as an expression. Fields that have their default are left out."""
    arguments: list[str] = []
    skipped = False
    for each in fields(type(operation)):
        value: object = getattr(operation, each.name)
        if value == each.default and not isinstance(value, str):
            skipped = skipped or not each.kw_only
            continue
        text = expression(value, named)
        arguments.append(f"{each.name}={text}" if skipped or each.kw_only else text)
    return f"op.{type(operation).__name__}({', '.join(arguments)})"


def expression(value: object, named: Mapping[OffloadKey, str] | None = None) -> str:
    """The value as an expression, with keys by the names of their variables."""
    named = named or {}
    if isinstance(value, bytes):
        return named.get(OffloadKey(value), f"OffloadKey({value!r})")
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, TierFilter):
        return f"TierFilter({expression(value.matchers, named)})"
    if isinstance(value, TierMatcher):
        return f"TierMatcher({expression(value.medium)}, {expression(value.locality)})"
    if isinstance(value, str):
        return _text(value)
    if type(value) is int:
        return _number(value)
    if isinstance(value, float) and not isfinite(value):
        return f'float("{value}")'
    # What is in a container may be anything, which is what `object` says.
    if isinstance(value, tuple):
        inside = [expression(each, named) for each in cast("tuple[object, ...]", value)]
        return f"({', '.join(inside)}{',' if len(inside) == 1 else ''})"
    if isinstance(value, list):
        inside = [expression(each, named) for each in cast("list[object]", value)]
        return f"[{', '.join(inside)}]"
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        # Clients know of no keys.
        shown = [
            f"{expression(k, named)}: {expression(v, named) if type(v) is not bytes else repr(v)}"
            for k, v in items
        ]
        return f"{{{', '.join(shown)}}}"
    return repr(value)


def _text(value: str) -> str:
    if len(value) > WIDTH // 2 and len(set(value)) == 1:
        return f"{_text(value[0])} * {len(value)}"
    # What is written to a file has no character that it cannot be read with.
    literal = ascii(value)
    plain = '"' not in literal and "\\'" not in literal
    return f'"{literal[1:-1]}"' if plain else literal


def _number(value: int) -> str:
    digits = len(str(abs(value))) if abs(value) < 10**1_000 else 0
    if digits > _DIGITS and abs(value) == 10 ** (digits - 1):
        return f"{'-' if value < 0 else ''}10**{digits - 1}"
    return str(value) if digits else hex(value)


def apart(wanted: str, taken: Container[str]) -> str:
    """The name, with a number at its end if there is one already."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def laid_out(text: str, indent: int) -> list[str]:
    """The text of a statement or an argument on lines that begin so far to the right.

    What is in its first brackets stands below, on as few lines as it fits on, where a line would
    be longer than `WIDTH`. A long literal is cut into several.
    """
    pad = " " * indent
    if indent + len(text) <= WIDTH:
        return [pad + text]
    opening = next((n for n, each in _code(text) if each in _CLOSING), None)
    if opening is None:
        return _literal(text, indent)
    ends, end = [opening], opening
    depth = 0
    for n, each in _code(text):
        if n < opening:
            continue
        depth += (each in _CLOSING) - (each in _CLOSING.values())
        if depth == 1 and each == ",":
            ends.append(n)
        if depth == 0:
            end = n
            break
    bounds = zip(ends, [*ends[1:], end], strict=True)
    parts = [part for start, stop in bounds if (part := text[start + 1 : stop].strip())]
    inside = packed([f"{part}," for part in parts], indent + 4)
    return [pad + text[: opening + 1], *inside, *laid_out(text[end:], indent)]


def packed(parts: Iterable[str], indent: int) -> list[str]:
    """The parts on as few lines as they fit on; one that is too long on lines of its own."""
    lines: list[str] = []
    fits = False
    for part in parts:
        if fits and len(lines[-1]) + 1 + len(part) <= WIDTH:
            lines[-1] += f" {part}"
            continue
        own = laid_out(part, indent)
        fits = len(own) == 1
        lines += own
    return lines


def import_lines(module: str, names: Sequence[str]) -> list[str]:
    """The statement that imports these names."""
    head = f"from {module} import "
    ordered = sorted(names)
    line = head + ", ".join(ordered)
    if len(line) <= WIDTH:
        return [line]
    return [f"{head}(", *(f"    {name}," for name in ordered), ")"]


def _code(text: str) -> Iterator[tuple[int, str]]:
    """The characters that are in no literal of text or bytes, with their places."""
    quote = ""
    escaped = False
    for n, each in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif each == "\\":
                escaped = True
            elif each == quote:
                quote = ""
        elif each in _QUOTES:
            quote = each
        else:
            yield n, each


def _literal(text: str, indent: int) -> list[str]:
    """A line with a long literal, cut into several that stand together in brackets."""
    pad = " " * indent
    code = [-1, *(n for n, _ in _code(text)), len(text)]
    start, end = max(((n + 1, after) for n, after in pairwise(code)), key=_length)
    if end <= start:
        return [pad + text]
    start -= text[start - 1 : start] == "b"
    value: object = ast.literal_eval(text[start:end])
    if not isinstance(value, (str, bytes)):
        return [pad + text]
    # Each character may be written as ten.
    size = max(1, (WIDTH - indent - 8) // (1 if _is_plain(text[start:end]) else 10))
    pieces = [value[n : n + size] for n in range(0, len(value), size)]
    written = [_text(one) if isinstance(one, str) else repr(one) for one in pieces]
    return [f"{pad}{text[:start]}(", *(f"{pad}    {one}" for one in written), f"{pad}){text[end:]}"]


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _is_plain(literal: str) -> bool:
    """Whether each character is written as itself."""
    return literal.isascii() and "\\" not in literal
