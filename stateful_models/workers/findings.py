"""What a trial of a worker finds."""

from __future__ import annotations

from attrs import frozen

from stateful_models.contract import CLAUSES, Part, Profile


@frozen
class WorkerFinding:
    """A clause that is broken: `message` in a sentence, `report` with the timelines of a race.

    `program` is the shortest that shows it, one line a step. A finding under ORD-4 is the
    caller's, whoever that is: no worker is convicted of it.
    """

    clause: str
    message: str
    report: str = ""
    program: tuple[str, ...] = ()

    @property
    def demand(self) -> Part:
        """What the contract says."""
        return CLAUSES[self.clause].part(None)

    @property
    def is_the_callers(self) -> bool:
        """Whether the order was the caller's to make."""
        return self.clause == "ORD-4"

    def convicts(self, profile: Profile = Profile.VLLM) -> bool:
        """Whether the worker is convicted; otherwise it is reported only."""
        return not self.is_the_callers and self.demand.convicts(profile)

    def __str__(self) -> str:
        lines = [f"{self.clause}: {self.message}", f"  {self.demand.sentence}"]
        lines += [f"  {number}. {line}" for number, line in enumerate(self.program, 1)]
        if self.report:
            lines += ["", self.report]
        return "\n".join(lines)


class WorkerBreachError(AssertionError):
    """A trial came to a breach of `finding.clause`."""

    def __init__(self, finding: WorkerFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding
