"""The process of one measurement: a job comes in as JSON on standard input, a result goes out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from spec_tests.bench.jobs import (
    CopyJob,
    CopyResult,
    Job,
    ManagerJob,
    ManagerResult,
    PagesJob,
    PagesResult,
    PlanJob,
    PlanResult,
    ReplayJob,
    ReplayResult,
    Result,
)

ROOT = Path(__file__).resolve().parents[2]


class MeasurementFailedError(Exception):
    """The process of a measurement came to grief; carries the end of what it said."""


def environment(round_number: int) -> dict[str, str]:
    """Of the process: the checkout first on its path, and hashing that is the same in one round.

    Bytes are hashed differently in each process otherwise, which moves figures about.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(round_number)}


def run_python(arguments: list[str], round_number: int, stdin: bytes = b"") -> bytes:
    """What this Python prints when it is run with `arguments`. Raises MeasurementFailedError."""
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        cwd=ROOT,
        env=environment(round_number),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-8:]
        raise MeasurementFailedError("\n".join([f"status {done.returncode}", *said]))
    return done.stdout


def measure_manager(job: ManagerJob, round_number: int) -> ManagerResult:
    """Carry out a job in a process of its own. Raises MeasurementFailedError."""
    return msgspec.json.decode(_run(job, round_number), type=ManagerResult)


def measure_replay(job: ReplayJob, round_number: int) -> ReplayResult:
    """Carry out a job in a process of its own. Raises MeasurementFailedError."""
    return msgspec.json.decode(_run(job, round_number), type=ReplayResult)


def measure_pages(job: PagesJob, round_number: int) -> PagesResult:
    """Carry out a job in a process of its own. Raises MeasurementFailedError."""
    return msgspec.json.decode(_run(job, round_number), type=PagesResult)


def measure_copies(job: CopyJob, round_number: int) -> CopyResult:
    """Carry out a job in a process of its own. Raises MeasurementFailedError."""
    return msgspec.json.decode(_run(job, round_number), type=CopyResult)


def measure_plan(job: PlanJob, round_number: int) -> PlanResult:
    """Carry out a job in a process of its own. Raises MeasurementFailedError."""
    return msgspec.json.decode(_run(job, round_number), type=PlanResult)


def _run(job: Job, round_number: int) -> bytes:
    return run_python(["-m", "spec_tests.bench.child"], round_number, msgspec.json.encode(job))


def main() -> None:
    """Carry out the job on standard input."""
    # What one kind of job imports must not burden the other: each is measured.
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    result: Result
    match job:
        case ManagerJob():
            from spec_tests.bench import managers

            result = managers.measure_manager(job)
        case ReplayJob():
            from spec_tests.bench import replays

            result = replays.measure_replay(job)
        case PagesJob():
            from spec_tests.bench import pages

            result = pages.measure_pages(job)
        case CopyJob():
            from spec_tests.bench import copies

            result = copies.measure_copies(job)
        case PlanJob():
            from spec_tests.bench import copies

            result = copies.measure_plan(job)
    sys.stdout.buffer.write(msgspec.json.encode(result))


if __name__ == "__main__":
    main()
