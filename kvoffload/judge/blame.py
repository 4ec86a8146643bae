"""What is not to be told of as a policy's failure, though it came up in a run of that policy."""

from __future__ import annotations


class HostFailedError(Exception):
    """What calls a policy failed, or what gives it its hints: nothing is known of the policy then.

    It ends a judgement. The message says what failed, how and where.
    """


def spare_the_policy(error: BaseException) -> None:
    """Raise the HostFailedError that an exception is, or was raised from; return if there is none.

    A manager says that its policy raised, whatever it was that the policy's driver raised there.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HostFailedError):
            raise cause
        cause = cause.__cause__
