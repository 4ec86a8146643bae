"""`python -m spec_tests.cuda`: the checks on the GPU, then how fast each path copies."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> int:
    """Run both; the exit status is that of the checks, 2 where there is nothing to run them on."""
    if find_spec("torch") is None:
        print("torch is not installed: nothing was checked", file=sys.stderr)
        return 2
    from spec_tests.cuda.speed import main as check_and_measure

    return check_and_measure()


if __name__ == "__main__":
    raise SystemExit(main())
