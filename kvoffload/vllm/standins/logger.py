"""vLLM's loggers: those of the standard library, and methods that log a thing once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

ONCE: Final = ("debug", "info", "warning")
ONCE_SINCE_030: Final = ("error",)


def logger_maker(levels: tuple[str, ...]) -> Callable[[str], logging.Logger]:
    """The function `init_logger` of a version whose loggers can log once at these levels."""

    def init_logger(name: str) -> logging.Logger:
        """The logger of this name."""
        logger = logging.getLogger(name)
        said: set[tuple[str, str, tuple[object, ...]]] = set()
        for level in levels:
            setattr(logger, f"{level}_once", partial(_once, logger, said, level))
        return logger

    return init_logger


def _once(
    logger: logging.Logger,
    said: set[tuple[str, str, tuple[object, ...]]],
    level: str,
    msg: str,
    *args: object,
    scope: str = "local",
) -> None:
    if (level, msg, args) not in said:
        said.add((level, msg, args))
        # The line that is shown is the one that logs, as in vLLM.
        logger.log(logging.getLevelNamesMapping()[level.upper()], msg, *args, stacklevel=2)
