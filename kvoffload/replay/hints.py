"""What clients sent, as a call log has it: JSON, with a sign for what JSON cannot hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec
from attrs import frozen
from typing_extensions import override

DEPTH: Final = 8
"""How deep hints are written, where their values are."""

# In a line of values, an object with this only name is a value that JSON cannot hold.
_OF_TYPE: Final = "?"
_NUMBER: Final = "?number"


@frozen
class HintOfType:
    """Stands for a hint of which only the type was written, by its name in JSON."""

    type: str

    @override
    def __repr__(self) -> str:
        return f"<{self.type}>"


def type_name(value: object) -> str:
    """The name of a value's type in JSON; that of its class for what JSON does not have."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case Mapping():
            return "object"
        case _:
            return type(value).__name__


def value_line(value: object, depth: int = DEPTH) -> object:
    """The value as a line holds it."""
    # Clients send anything, and a line must be written whatever it is.
    match value:
        case None | bool():
            return value
        case str():
            return readable(value)
        case int() | float():
            exact = isinstance(value, float) and math.isfinite(value)
            small = isinstance(value, int) and abs(value) < 2**63
            if exact or small:
                return value
            return {_NUMBER: hex(value) if isinstance(value, int) else repr(value)}
        case list() | tuple() if depth:
            elements = cast("Sequence[object]", value)
            return [value_line(element, depth - 1) for element in elements]
        case Mapping() if depth:
            entries = cast("Mapping[object, object]", value)
            return {readable(str(k)): value_line(v, depth - 1) for k, v in entries.items()}
        case msgspec.Struct() if depth:
            # Such are vLLM's envelopes of hints.
            return value_line(msgspec.structs.asdict(value), depth - 1)
        case _:
            return {_OF_TYPE: type_name(value)}


def value_of(line: object) -> object:
    """The value that a line holds; `HintOfType` for what it could not."""
    if isinstance(line, list):
        elements = cast("list[object]", line)
        return [value_of(element) for element in elements]
    if not isinstance(line, dict):
        return line
    entries = cast("dict[str, object]", line)
    if entries.keys() == {_OF_TYPE}:
        return HintOfType(str(entries[_OF_TYPE]))
    if entries.keys() == {_NUMBER}:
        text = str(entries[_NUMBER])
        return int(text, 16) if "x" in text else float(text)
    return {name: value_of(each) for name, each in entries.items()}


def readable(text: str) -> str:
    """The text without what UTF-8 cannot hold: half characters, which a client can send."""
    return text.encode(errors="backslashreplace").decode()
