"""What an import costs, in an interpreter that has imported nothing before."""

from __future__ import annotations

from spec_tests.bench.child import run_python

OURS = "import kvoffload"
LEAST = "import attrs, typing_extensions"
WITH_NUMPY = "import kvoffload, numpy"

PROGRAM = """
import time
begun = time.process_time()
{statement}
print(time.process_time() - begun)
"""


def measure_import(statement: str, round_number: int) -> float:
    """Processor seconds that `statement` takes. Raises MeasurementFailedError."""
    return float(run_python(["-c", PROGRAM.format(statement=statement)], round_number))
