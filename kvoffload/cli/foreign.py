"""Code on trial: what it prints is kept off standard output, and what it raises in hand."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout

from kvoffload.cli.problems import UsageError
from stateful_models.loading import describe


@contextmanager
def off_stdout() -> Generator[None]:
    """Until the block ends, what is printed goes to standard error: only results, which others
    may read as JSON, go to standard output."""
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def failing_as(what: str) -> Generator[None]:
    """Turn what somebody else's code raises in the block into a UsageError that begins with
    `what`; a SystemExit too, which would end the program as if all were well."""
    try:
        with off_stdout():
            yield
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(f"{what}: {describe(error)}") from error
