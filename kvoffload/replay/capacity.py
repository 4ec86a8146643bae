"""How large a cache is: chunks, a size in bytes, a share of the trace, or without bound."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from attrs import frozen

from kvoffload.errors import InvalidValueError

INFINITE = "infinite"
_UNITS: dict[str, int] = {"": 1, "b": 1}
for _power, _prefix in enumerate("kmgt", 1):
    _UNITS[f"{_prefix}b"] = 1000**_power
    _UNITS[f"{_prefix}ib"] = 1024**_power
# Groups of three digits may be set apart. No cache is so large that it takes more digits, and
# thousands of them could not be converted.
_AMOUNT = re.compile(
    r"((?:[0-9]{1,3}(?:[,_][0-9]{3}){1,5}|[0-9]{1,18})(?:\.[0-9]{1,18})?)\s*([a-zA-Z%]*)",
    re.ASCII,
)
_SHOWN = 40


def _amount(text: str) -> tuple[str, str] | None:
    """Number and unit, the latter in small letters; None if it is none."""
    match = _AMOUNT.fullmatch(text.strip())
    return None if match is None else (re.sub("[,_]", "", match[1]), match[2].lower())


def in_short(value: str | int) -> str:
    """The value, or the beginning of a long one: what is refused is shown, within bounds."""
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def parse_bytes(field: str, text: str) -> int:
    """Bytes of `64MiB`, `1.5GB` or `4,096`. Raises InvalidValueError for anything else."""
    amount = _amount(text)
    if amount is None or amount[1] not in _UNITS:
        raise InvalidValueError(field, in_short(text), "bytes, such as 4096, 64MiB or 1.5GB")
    return math.floor(Fraction(amount[0]) * _UNITS[amount[1]])


@frozen
class Capacity:
    """A capacity as it was asked for. Exactly one of chunks, size and share is set, or none of
    them for a cache that never has to evict."""

    text: str
    chunks: int | None = None
    size_bytes: int | None = None
    share: Fraction | None = None

    @classmethod
    def parse(cls, text: str) -> Capacity:
        """Read `20000`, `20,000`, `20_000`, `8GiB`, `5%` or `infinite`.

        Raises InvalidValueError for anything else.
        """
        text = text.strip()
        if text == INFINITE:
            return cls(text)
        number, unit = _amount(text) or ("", None)
        if unit == "" and "." not in number:
            return cls(text, chunks=int(number))
        if unit == "%":
            return cls(text, share=Fraction(number) / 100)
        if unit and unit in _UNITS:
            return cls(text, size_bytes=parse_bytes("capacity", text))
        raise InvalidValueError(
            "capacity",
            in_short(text),
            f"a number of chunks, a size such as 8GiB, a share such as 5%, or {INFINITE}",
        )

    def resolve(self, distinct_blocks: int, chunk_bytes: int | None) -> int:
        """The capacity in chunks, for a trace with so many distinct blocks.

        A number is taken as it is, and with 0 nothing is ever kept. A share is rounded down, but
        to no less than one chunk, so that 0% is one too; a size holds whole chunks only;
        without bound means a slot for every distinct block. Raises InvalidValueError for a size
        when `chunk_bytes` is None, or when not one chunk fits.
        """
        if self.chunks is not None:
            return self.chunks
        if self.share is not None:
            return max(1, math.floor(self.share * distinct_blocks))
        if self.size_bytes is None:
            return distinct_blocks
        if chunk_bytes is None:
            raise InvalidValueError("capacity", self.text, "given with the bytes of a chunk")
        if self.size_bytes < chunk_bytes:
            raise InvalidValueError(
                "capacity", self.text, f"at least one chunk of {chunk_bytes} bytes"
            )
        return self.size_bytes // chunk_bytes
