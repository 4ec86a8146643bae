"""Offload keys: the name of one chunk of one KV-cache group (KEY-1, KEY-2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NewType, TypeVar

from kvoffload.errors import InvalidKeyError, InvalidValueError

OffloadKey = NewType("OffloadKey", bytes)
"""A block hash followed by the index of its KV-cache group as 4 unsigned big-endian bytes.

Plain bytes rather than a pair: a cache holds millions, and bytes cost the garbage collector
nothing and keep their hash.
"""

GROUP_BYTES = 4
MIN_KEY_BYTES = GROUP_BYTES + 1

T = TypeVar("T")


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """Pack a block hash and a group index (KEY-1).

    Raises InvalidValueError for an empty hash or a group outside [0, 2**32).
    """
    if not isinstance(block_hash, bytes) or not block_hash:
        raise InvalidValueError("block_hash", block_hash, "non-empty bytes")
    if isinstance(group_idx, bool):
        raise InvalidValueError("group_idx", group_idx, "an int in [0, 2**32)")
    try:
        return OffloadKey(block_hash + group_idx.to_bytes(GROUP_BYTES, "big"))
    except (OverflowError, AttributeError):
        raise InvalidValueError("group_idx", group_idx, "an int in [0, 2**32)") from None


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """The block hash inside `key` (KEY-2). Raises InvalidKeyError for what is no key."""
    return check_key(key)[:-GROUP_BYTES]


def get_offload_group_idx(key: OffloadKey) -> int:
    """The group index inside `key` (KEY-2). Raises InvalidKeyError for what is no key."""
    return int.from_bytes(check_key(key)[-GROUP_BYTES:], "big")


def check_key(key: object) -> OffloadKey:
    """Return `key` unchanged if it is an offload key, else raise InvalidKeyError."""
    if not isinstance(key, bytes):
        raise InvalidKeyError(key, f"a key is bytes, not {type(key).__name__}")
    if len(key) < MIN_KEY_BYTES:
        raise InvalidKeyError(
            key, f"a hash and {GROUP_BYTES} bytes of group take at least {MIN_KEY_BYTES} bytes"
        )
    return OffloadKey(key)


def check_keys(keys: Iterable[OffloadKey]) -> list[OffloadKey]:
    """Read `keys` once and return them as a list, all valid; else raise InvalidKeyError.

    Every call of a manager that takes keys begins here, so that an invalid one is refused
    before anything has changed (KEY-2), and a one-shot iterable is as good as a list.
    """
    listed: list[OffloadKey] = list(keys)
    # Loops in C, for this is on the way of every chunk; sorting is the fastest way to the least
    # length where all are the same.
    if listed and (not are_bytes(listed) or len(sorted(listed, key=len)[0]) < MIN_KEY_BYTES):
        for key in listed:
            check_key(key)
    return listed


def are_bytes(keys: Sequence[object]) -> bool:
    """Whether each of `keys` is of the very type bytes."""
    return list(map(type, keys)).count(bytes) == len(keys)


def values_at(table: Mapping[OffloadKey, T], keys: Sequence[OffloadKey]) -> list[T]:
    """What `table` has for each of `keys`, in order. Raises KeyError if it lacks one."""
    if len(keys) < 2:
        return [table[key] for key in keys]
    # One call for all: two thirds of the time of a call for each.
    values: tuple[T, ...] = itemgetter(*keys)(table)
    return list(values)
