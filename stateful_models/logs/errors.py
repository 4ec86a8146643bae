"""What can be wrong with a call log."""

from __future__ import annotations

from kvoffload.errors import KVOffloadError


class LogError(KVOffloadError):
    """A call log cannot be read; the message names the file and, where there is one, the line."""


class LogInUseError(KVOffloadError):
    """A call log was given to a second subject; each needs one of its own."""


class NotLoggableError(KVOffloadError):
    """A step is of a call that no host makes on what is being logged."""


class LogFullError(KVOffloadError):
    """A call log has reached its limit, and ended."""
