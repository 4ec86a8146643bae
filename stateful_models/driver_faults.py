"""Whose mistake an exception is: that of the policy, or of the driver that calls it."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from stateful_models.drivers import Driver, DriverFailedError, authored
from stateful_models.loading import describe

Q = ParamSpec("Q")
R = TypeVar("R")

# Of which policy it is a driver does not matter here.
AnyDriver: TypeAlias = Driver[Any]


def innermost_code(error: BaseException) -> CodeType | None:
    """The code in which an error came up."""
    traceback = error.__traceback__
    if traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code


def is_of_the_driver(driver: AnyDriver, error: BaseException) -> bool:
    """Whether it came up in a method that the driver's own class defines."""
    code = innermost_code(error)
    return code is not None and _is_authored(driver, code)


def spare_the_policy(driver: AnyDriver, error: BaseException) -> None:
    """Raise DriverFailedError for what is the driver's own mistake; return for all else."""
    if isinstance(error, Exception | SystemExit) and is_of_the_driver(driver, error):
        raise DriverFailedError(describe(error)) from error


def answerable(driver: AnyDriver, hook: Callable[Q, R]) -> Callable[Q, R]:
    """A method of the driver that raises DriverFailedError where the mistake is its own.

    One that its author did not write is given back as it is, and costs nothing more.
    """
    if not _is_authored(driver, getattr(hook, "__code__", None)):
        return hook

    def call(*args: Q.args, **kwargs: Q.kwargs) -> R:
        try:
            return hook(*args, **kwargs)
        except BaseException as error:
            spare_the_policy(driver, error)
            raise

    return call


def _is_authored(driver: AnyDriver, code: object) -> bool:
    return any(getattr(method, "__code__", None) is code for _, method in authored(driver))
