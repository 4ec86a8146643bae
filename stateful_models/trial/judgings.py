"""Whether an author's own invariants have decided anything: which of their code ran as they judged.

A promise is not called kept whose conditions were never evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dis import get_instructions
from pathlib import Path
from types import CodeType
from typing import Final

from attrs import define, field, frozen

from stateful_models.trial.coverage import own_codes, ranges, source_of, syntax_of
from stateful_models.trial.decisions import Place, function_at, objectors, places_in
from stateful_models.trial.tracing import Missing, Watching, watch_instructions

MOST_PARTS: Final = 3
"""As many parts of conditions are told."""


@define(eq=False)
class _Decision:
    """A place in the code, with the instructions of which one has to run: by code, and offset."""

    place: Place
    instructions: list[tuple[int, int]] = field(factory=list)
    ran: bool = False


@frozen(eq=False)
class _Function:
    """A function that judges, or helps to: its decisions in the order of the source."""

    file: str
    first_line: int
    decisions: list[_Decision]

    @property
    def ran(self) -> bool:
        """Whether it was called. Else who might have called it was not run, or objects."""
        return any(decision.ran for decision in self.decisions)


class Judgings(Watching):
    """Which code of these classes of invariants ran while this was entered. It adds up.

    Theirs are their methods, inherited ones of the same author too, and the functions of their
    modules that these name. Code whose source cannot be read is none of it.

    Entering raises NoToolIDError as `OwnLines` does, and costs as much; `close` is the same too.
    """

    def __init__(self, classes: Sequence[type[object]]) -> None:
        self._missing: Missing = {}
        self._at: dict[tuple[int, int], list[_Decision]] = {}
        codes: dict[int, CodeType] = {}
        self._functions: dict[type[object], list[_Function]] = {}
        made: dict[int, _Function] = {}
        for cls in classes:
            # One for what several inherit.
            groups = own_codes([cls], alone=True)
            codes |= {id(code): code for group in groups for code in group}
            self._functions[cls] = [
                made.setdefault(id(group[0]), _function(group)) for group in groups
            ]
        for function in made.values():
            for decision in function.decisions:
                for code, offset in decision.instructions:
                    self._missing.setdefault(code, set()).add(offset)
                    self._at.setdefault((code, offset), []).append(decision)
        watched = [code for name, code in codes.items() if name in self._missing]
        # Kept alive, so that no other code gets its id.
        self._codes = watched
        super().__init__(watch_instructions(watched, self._missing, self._saw))

    def ran(self) -> list[bool]:
        """Of each place that decides whether it ran."""
        return [decision.ran for decision in self._decisions()]

    def ran_elsewhere(self, ran: Sequence[bool]) -> None:
        """Take what a copy of this process says that `ran` there."""
        for decision, there in zip(list(self._decisions()), ran, strict=True):
            if there and not decision.ran:
                decision.ran = True
                self._forget(decision)

    def undecided(self, cls: type[object]) -> str:
        """What of an invariant's code never ran, in words; "" if all that decides did."""
        by_file: dict[str, list[_Function]] = {}
        for function in self._functions.get(cls, ()):
            if function.ran:
                by_file.setdefault(function.file, []).append(function)
        told = (
            ", ".join([Path(file).name, *_told(functions)])
            for file, functions in by_file.items()
            if not all(one.ran for function in functions for one in function.decisions)
        )
        return "; ".join(told)

    def _decisions(self) -> Iterator[_Decision]:
        for functions in self._functions.values():
            for function in functions:
                yield from function.decisions

    def _saw(self, code: int, offset: int) -> None:
        for decision in self._at.pop((code, offset), ()):
            if not decision.ran:
                decision.ran = True
                self._forget(decision)

    def _forget(self, decision: _Decision) -> None:
        """Do not wait for the other instructions, but for what else they decide."""
        for place in decision.instructions:
            waiting = self._at.get(place)
            if waiting is not None and all(other.ran for other in waiting):
                del self._at[place]
            if place not in self._at:
                self._missing[place[0]].discard(place[1])


def _told(functions: Sequence[_Function]) -> Iterator[str]:
    decisions = [one for function in functions for one in function.decisions]
    whole = [one for one in decisions if not one.place.part]
    lines = sorted({one.place.begin[0] for one in whole})
    missed = {one.place.begin[0] for one in whole if not one.ran}
    runs = list(ranges(lines, set(lines) - missed))
    if runs:
        several = len(runs) > 1 or "-" in runs[0]
        yield f"{'lines' if several else 'line'} {', '.join(runs)} never ran"
    places = [one.place for one in decisions if not one.ran]
    # Not those of what did not run itself.
    parts = [
        place
        for place in places
        if place.part
        and not any(other != place and other.encloses(place.begin, place.end) for other in places)
    ]
    for place in parts[:MOST_PARTS]:
        yield f"line {place.begin[0]}: `{place.part}` was never evaluated ({place.unasked})"


def _function(codes: Sequence[CodeType]) -> _Function:
    outermost = codes[0]
    file = outermost.co_filename
    function = _Function(file, outermost.co_firstlineno, [])
    tree = syntax_of(file)
    node = function_at(tree, outermost.co_name, outermost.co_firstlineno)
    if node is None:
        return function
    found = [_Decision(place) for place in places_in(node, source_of(file), objectors(tree))]
    for code in codes:
        for instruction in get_instructions(code):
            at = instruction.positions
            if at is None or None in (at.lineno, at.end_lineno, at.col_offset, at.end_col_offset):
                continue
            begin = (at.lineno or 0, at.col_offset or 0)
            end = (at.end_lineno or 0, at.end_col_offset or 0)
            for decision in found:
                if decision.place.encloses(begin, end):
                    decision.instructions.append((id(code), instruction.offset))
    # What was folded away cannot be seen to run.
    function.decisions.extend(one for one in found if one.instructions)
    return function
