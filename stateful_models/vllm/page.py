"""The page of the deviations, made from the list: `python -m stateful_models.vllm.page`."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import fill
from typing import Final

from kvoffload.wording import counted
from stateful_models.contract import CLAUSES
from stateful_models.programs import Program
from stateful_models.vllm.deviations import DEVIATIONS
from stateful_models.vllm.pair import Deviation

WIDTH: Final = 100

INTRODUCTION: Final = """\
# Where our manager differs from vLLM's

`CPUOffloadingManager` is called as vLLM 0.33's is, and answers as that one does: on the same
programs the same results, slots, victims in their order, events with the order of their keys,
figures (to 1e-9), and errors for the same mistakes. This is the list of what differs, complete as
far as random programs can tell: `nox -s peer` takes vLLM's wheel from the package index, plays
hundreds of thousands of operations on both, and fails for a difference that is not listed here, and
for an entry that no longer shows. Each entry takes away just what it is about, so that a difference
beside it is seen.

What ours has in addition is not compared: tickets, `outstanding`, `generation`,
`stale_completions`, `check`, and a policy given as a class. Nor are arguments that no scheduler
passes (a negative number of chunks, for one), which ours refuses by name.

The letter behind a clause is the class of the demand ([The contract](contract.md) has them in
words): R binds our reference only, and nobody else's manager is wrong for not keeping it. This page
is made from the list by `python -m stateful_models.vllm.page`.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *(_entry(deviation) for deviation in DEVIATIONS)]
    return "\n".join(parts)


def _entry(deviation: Deviation) -> str:
    lines = [
        f"## {deviation.id}",
        "",
        fill(f"{deviation.differs} {deviation.why}", WIDTH),
        "",
        *(_item(line) for clause in deviation.clauses for line in _demands(clause)),
        "",
        f"With {_built(deviation.shows)}:",
        "",
        "```text",
        *map(str, deviation.shows.operations),
        f"    ours:   {deviation.ours}",
        f"    vLLM's: {deviation.theirs}",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _item(text: str) -> str:
    return fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ")


def _demands(clause: str) -> Iterator[str]:
    for part in CLAUSES[clause].parts:
        yield f"{clause} {part.kind.value}: {part.sentence}"


def _built(program: Program) -> str:
    return f"{counted(program.capacity, 'chunk')}, {program.settings}"


if __name__ == "__main__":
    print(page(), end="")
