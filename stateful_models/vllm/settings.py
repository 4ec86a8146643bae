"""What the environment says about watching a policy inside vLLM."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum
from multiprocessing import current_process
from pathlib import Path
from typing import Final

from attrs import frozen

from kvoffload.errors import InvalidValueError
from kvoffload.replay.capacity import parse_bytes
from stateful_models.logs.pseudonyms import SALT_BYTES

POLICY: Final = "KVOFFLOAD_POLICY"
LOG: Final = "KVOFFLOAD_LOG"
SALT: Final = "KVOFFLOAD_SALT"
HINTS: Final = "KVOFFLOAD_HINTS"
JUDGE: Final = "KVOFFLOAD_JUDGE"
LIMIT: Final = "KVOFFLOAD_LOG_LIMIT"

DEFAULT_POLICY: Final = "lru"
DEFAULT_LIMIT: Final = 1 << 30
UNLIMITED: Final = "none"
ZIPPED: Final = ".gz"
_UNFIT = re.compile(r"[^\w.-]+", re.ASCII)


class Judging(Enum):
    """What becomes of a breach of the contract."""

    OFF = "off"
    """Nothing is judged."""
    REPORT = "report"
    """The first of every clause goes to Python's log."""
    RAISE = "raise"
    """One of what the policy's author promised vLLM ends the call that showed it."""


@frozen
class Settings:
    """How a policy is watched.

    `log` is where the log goes, before process and engine are placed in its name (`place`); None:
    nowhere. `salt` None: one that nobody knows. `hints` are the fields whose values are written.
    `limit` is how many bytes a log may have, None: as many as there is room for.
    """

    log: Path | None = None
    salt: bytes | None = None
    hints: tuple[str, ...] = ()
    judging: Judging = Judging.OFF
    limit: int | None = DEFAULT_LIMIT

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """What these variables say; one that is empty counts as not there.

        Raises InvalidValueError for a value that means nothing.
        """
        log, salt = environment.get(LOG), environment.get(SALT)
        hints = environment.get(HINTS, "").split(",")
        return cls(
            log=Path(log) if log else None,
            salt=_salt(salt) if salt else None,
            hints=tuple(name.strip() for name in hints if name.strip()),
            judging=_judging(environment.get(JUDGE) or Judging.OFF.value),
            limit=_limit(environment.get(LIMIT)),
        )

    @property
    def watches(self) -> bool:
        """Whether there is anything to do."""
        return self.log is not None or self.judging is not Judging.OFF


def policy_name(environment: Mapping[str, str]) -> str:
    """The policy that is watched, as the environment names it."""
    return environment.get(POLICY) or DEFAULT_POLICY


def place(path: Path, number: int) -> Path:
    """The log of this process: `calls.jsonl.gz` becomes `calls.EngineCore_0-4711-0.jsonl.gz`.

    An engine runs in a process of its own, which vLLM names after it; `number` counts the logs of
    a process.
    """
    name, ending = path.name, ""
    if name.endswith(ZIPPED):
        name, ending = name.removesuffix(ZIPPED), ZIPPED
    stem, suffix = os.path.splitext(name)
    engine = _UNFIT.sub("_", current_process().name)
    return path.with_name(f"{stem}.{engine}-{os.getpid()}-{number}{suffix}{ending}")


def _salt(text: str) -> bytes:
    salt = text.encode(errors="surrogateescape")
    least, most = SALT_BYTES
    if not least <= len(salt) <= most:
        # Not the salt itself: what is raised may be written down anywhere.
        raise InvalidValueError(SALT, f"{len(salt)} bytes", f"{least} to {most} bytes long")
    return salt


def _judging(text: str) -> Judging:
    try:
        return Judging(text.strip().lower())
    except ValueError:
        known = ", ".join(judging.value for judging in Judging)
        raise InvalidValueError(JUDGE, text, f"one of {known}") from None


def _limit(text: str | None) -> int | None:
    if not text:
        return DEFAULT_LIMIT
    return None if text.strip().lower() == UNLIMITED else parse_bytes(LIMIT, text)
