"""What a trial of mappings finds: clause, case, and the bytes that were expected and seen."""

from __future__ import annotations

from attrs import frozen

from stateful_models.contract import CLAUSES, Kind, Part, Profile
from stateful_models.pages.cases import Case


@frozen
class PageFinding:
    """A demand that a mapper breaks, shown by `case`: `message` in a sentence.

    `kind` says which demand of the clause it is. `size` orders cases, small first.
    """

    clause: str
    kind: Kind
    message: str
    case: str
    expected: str = ""
    seen: str = ""
    size: int = 0

    @property
    def demand(self) -> Part:
        """What the contract says."""
        return CLAUSES[self.clause].part(self.kind)

    def convicts(self, profile: Profile = Profile.VLLM) -> bool:
        """Whether it is a conviction; otherwise it is reported only."""
        return self.demand.convicts(profile)

    def __str__(self) -> str:
        lines = [f"{self.clause}: {self.message}", f"  {self.demand.sentence}", f"  {self.case}"]
        if self.expected:
            lines.append(f"  expected: {self.expected}")
        if self.seen:
            lines.append(f"  seen:     {self.seen}")
        return "\n".join(lines)


def on(
    case: Case,
    clause: str,
    message: str,
    *,
    kind: Kind | None = None,
    expected: object = "",
    seen: object = "",
) -> PageFinding:
    """A finding on this case, of the leading demand of the clause unless `kind` says another."""
    return PageFinding(
        clause,
        kind or CLAUSES[clause].kind,
        message,
        str(case),
        str(expected),
        str(seen),
        case.size,
    )
