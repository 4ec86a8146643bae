"""Pseudonyms: what stands in a log for the keys and requests of a live system.

Under one salt equal things have equal names, in any process; without the salt nobody can tell
which key or request a name stands for, or try guesses.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, TypeAlias

from kvoffload.errors import InvalidValueError
from kvoffload.keys import GROUP_BYTES, MIN_KEY_BYTES, OffloadKey
from kvoffload.replay.hints import readable
from stateful_models.operations import RequestId, key_text

Hex: TypeAlias = str

SALT_BYTES: Final = (8, blake2b.MAX_KEY_SIZE)
"""The shortest and the longest salt."""
KEY_BYTES: Final = 12
REQUEST_BYTES: Final = 8
KNOWN_NAMES: Final = 1 << 16
"""So many names of keys are remembered."""
TEXT_LENGTH: Final = 300
"""How much of the text of an exception is kept."""
NO_KEY: Final = "?"
"""What the name of something begins with that is not even bytes."""

_QUOTED = re.compile(r"""(?<!\w)b?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")


class Pseudonyms:
    """The names under `salt`. Raises InvalidValueError for one that is too short or too long."""

    def __init__(self, salt: bytes) -> None:
        self._salt = _checked(salt)
        # A key comes up in many lines of its request, and hashing is most of the work of a line.
        self._names: dict[bytes, str] = {}

    @property
    def salt_id(self) -> str:
        """Tells whether two logs were written under one salt, and nothing of it."""
        return self._digest(b"", b"salt", 4).hex()

    def key(self, key: object) -> str:
        """Hexadecimal digits: the hash of the block hash, then the group as it is.

        What is shorter than a key stays so; of what is not bytes, the type is told too.
        """
        if type(key) is bytes:
            name = self._names.get(key)
            if name is None:
                if len(self._names) >= KNOWN_NAMES:
                    self._names.clear()
                name = self._names[key] = self._name_of(key)
            return name
        if not isinstance(key, bytes):
            digest = self._digest(repr(key).encode(errors="backslashreplace"), b"key", KEY_BYTES)
            return f"{NO_KEY}{type(key).__name__}:{digest.hex()}"
        return self._name_of(key)

    def _name_of(self, key: bytes) -> str:
        if len(key) < MIN_KEY_BYTES:
            return self._digest(key, b"key", KEY_BYTES)[: len(key)].hex()
        block_hash, group = key[:-GROUP_BYTES], key[-GROUP_BYTES:]
        return (self._digest(block_hash, b"key", KEY_BYTES) + group).hex()

    def keys(self, keys: Iterable[OffloadKey]) -> list[str]:
        """The names of keys, in order."""
        return list(map(self.key, keys))

    def key_set(self, keys: Iterable[OffloadKey]) -> tuple[str, ...]:
        """The names of keys that have no order."""
        return tuple(sorted(map(self.key, keys)))

    def request(self, request: RequestId) -> Hex:
        """The name of a request; none for none."""
        if not request:
            return ""
        text = request.encode(errors="backslashreplace")
        return self._digest(text, b"request", REQUEST_BYTES).hex()

    def text(self, text: str, requests: Iterable[RequestId], *, quotes: bool) -> str:
        """What an exception says, with keys and requests under their names.

        Unless `quotes`, what it quotes is left out: it may be what a client sent.
        """
        text = _QUOTED.sub(lambda match: self._quoted(match[0], quotes=quotes), text)
        for request in filter(None, requests):
            alone = rf"(?<!\w){re.escape(request)}(?!\w)"
            text = re.sub(alone, self.request(request), text)
        return readable(text[:TEXT_LENGTH])

    def _quoted(self, literal: str, *, quotes: bool) -> str:
        if not literal.startswith("b"):
            return literal if quotes else "'...'"
        try:
            value: object = literal_eval(literal)
        except (SyntaxError, ValueError):
            return "b'...'"
        if not isinstance(value, bytes) or len(value) < MIN_KEY_BYTES:
            return "b'...'"
        return key_text(OffloadKey(bytes.fromhex(self.key(OffloadKey(value)))))

    def _digest(self, data: bytes, use: bytes, size: int) -> bytes:
        return blake2b(data, key=self._salt, person=use, digest_size=size).digest()


def _checked(salt: object) -> bytes:
    least, most = SALT_BYTES
    if isinstance(salt, bytes) and least <= len(salt) <= most:
        return salt
    # Not the salt itself: what is raised may be written down anywhere.
    raise InvalidValueError("salt", type(salt), f"{least} to {most} bytes")


def key_of(name: str) -> OffloadKey:
    """The key that is called so in a log. Raises ValueError for what is no such name."""
    if name.startswith(NO_KEY):
        # Not bytes, as what it stands for was not, so that whoever refuses the one refuses both.
        no_key: object = name
        return no_key  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
    return OffloadKey(bytes.fromhex(name))


def keys_of(names: Iterable[str]) -> tuple[OffloadKey, ...]:
    """The keys that are called so. Raises ValueError as `key_of` does."""
    return tuple(map(key_of, names))
