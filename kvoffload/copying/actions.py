"""Actions: what an ordered device does one at a time, and what is left of an operation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from attrs import define

from kvoffload.copying.graph import Operation
from kvoffload.copying.plans import CopyPlan, PagePlan


class Action(NamedTuple):
    """The next thing that a stream could do: an operation, or one piece of a copy."""

    operation: Operation
    piece: int = 0
    num_pieces: int = 1

    def __str__(self) -> str:
        part = f", piece {self.piece + 1} of {self.num_pieces}" if self.num_pieces > 1 else ""
        return f"{self.operation}{part}"


Chooser: TypeAlias = Callable[[Sequence[Action]], Action | None]
"""Who goes next: one of the actions that can, or None: whoever is needed, in the order enqueued."""


@define
class Pending:
    """A copy or a kernel that is not over: its pieces, and which of them are `left`."""

    pieces: list[Callable[[], None]]
    left: list[int]
    plan: CopyPlan | None = None
    fingerprint: bytes = b""
    fault: Exception | None = None

    @classmethod
    def of_kernel(cls, kernel: Callable[[], None]) -> Pending:
        """A kernel, which is one piece."""
        return cls([kernel], [0])

    @classmethod
    def of_plan(
        cls,
        plan: CopyPlan,
        copy: Callable[[CopyPlan], None],
        *,
        in_pieces: bool,
        fault: Exception | None,
    ) -> Pending:
        """A plan, copied by `copy`: as a whole, or run by run and row by row."""

        def piece(part: CopyPlan) -> Callable[[], None]:
            return lambda: copy(part)

        pieces = [piece(part) for part in (_parts(plan) if in_pieces else [plan])]
        return cls(pieces, list(range(len(pieces))), plan, fingerprint_of(plan), fault)

    def has_changed(self) -> bool:
        """Whether its rows are others than at the last look, which was when it was enqueued."""
        if self.plan is None:
            return False
        before, self.fingerprint = self.fingerprint, fingerprint_of(self.plan)
        return before != self.fingerprint

    def run(self, piece: int) -> None:
        """Do one piece. Raises what goes wrong."""
        if not self.pieces:
            return
        self.left.remove(piece)
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.pieces[piece]()


def _parts(plan: CopyPlan) -> Iterator[CopyPlan]:
    """A plan run by run and row by row. The parts look at the same arrays: they may change."""
    for page in plan.pages:
        for run in page.runs:
            for i in range(len(page.gpu_rows)):
                rows = slice(i, i + 1)
                part = PagePlan(page.tensor, page.gpu_rows[rows], page.host_rows[rows], (run,))
                yield CopyPlan(plan.direction, (part,))


def fingerprint_of(plan: CopyPlan) -> bytes:
    """What a plan's row numbers are known by."""
    digest = hashlib.blake2b(digest_size=16)
    for page in plan.pages:
        digest.update(page.gpu_rows.tobytes())
        digest.update(page.host_rows.tobytes())
    return digest.digest()
