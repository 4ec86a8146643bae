"""What a run is calling at the moment, for whoever waits until that is over."""

from __future__ import annotations

from stateful_models import operations as op
from stateful_models.drivers import DriverFailedError, authored
from stateful_models.invariants.policies import NO_CALLS
from stateful_models.judge import InvariantFailedError
from stateful_models.trial.hang import DidNotReturn


class Calling:
    """What a run does at the moment, for whoever waits for it: a call, or the judging of one."""

    def __init__(self) -> None:
        self.operation: op.Operation = op.GetStats()
        self.judging: bool = False
        self._number = 0
        self._now: int | None = None

    def __call__(self) -> int | None:
        """Another number for each call and each judging of one; None in between."""
        return self._now

    def calls(self, operation: op.Operation) -> None:
        """This call begins."""
        self.operation = operation
        self._number += 1
        self._now = None if isinstance(operation, NO_CALLS) else self._number

    def judges(self) -> None:
        """The call is over, and judged."""
        self.judging = True
        self._number += 1
        self._now = self._number

    def ends(self) -> None:
        """All of it is over."""
        self.judging = False
        self._now = None

    def hangs(self, hanging: DidNotReturn, driver: object, base: type) -> None:
        """Raise the error of whoever is to blame, if that is not the subject."""
        if self.judging:
            text = f"judging {self.operation.verb} {hanging}"
            raise InvariantFailedError(text) from hanging
        code = hanging.code
        if any(getattr(each, "__code__", hanging) is code for _, each in authored(driver, base)):
            raise DriverFailedError(f"{self.operation.verb} {hanging}") from hanging
