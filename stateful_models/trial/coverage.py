"""What ran of a target, line by line: nothing is called held that never was tried."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from inspect import CO_OPTIMIZED
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, TokenError, generate_tokens
from types import CodeType, FunctionType, ModuleType
from typing import Final

from attrs import field, frozen

from stateful_models.trial.codes import behind, functions_behind, is_a, nested_codes
from stateful_models.trial.tracing import Watching, watch_lines

__all__ = ["MethodLines", "OwnLines", "own_codes", "ranges", "source_of", "syntax_of"]

EXCLUDED: Final = re.compile(r"#\s*pragma:\s*no\s+cover\b", re.IGNORECASE)
"""What excludes a line, as coverage.py has it: one that cannot run for these arguments, say."""
_OURS = {"kvoffload", "stateful_models"}
"""The packages of the interfaces and of the kit: what is inherited from there is nobody's own."""


@frozen
class MethodLines:
    """One function of the target, with what it nests.

    `ran` of its `lines` ran; counted are lines that have code, so neither the one with `def`, nor
    docstrings, nor comments. The others are in `never_ran`, in ranges: `("57-65", "70")`. `file`
    is the name of its file where that is not the target's.
    """

    qualified_name: str
    first_line: int
    ran: int
    lines: int
    never_ran: tuple[str, ...]
    file: str = field(default="", eq=False)


class OwnLines(Watching):
    """Which lines of a target's own functions ran while this was entered. It adds up.

    `targets` are classes or factories. Their own are their functions, those of their bases in the
    same file, in the same package or beside the file, and what these name of those files; a
    method that is overridden counts only if it runs all the same. What runs at import does not
    count. A target that has no Python code has no lines.

    From Python 3.12 on each line is told of once, in any thread, at hardly any cost. Before that
    the thread which entered is traced, as by a debugger, and whatever runs meanwhile takes three
    times as long: enter around each call of the target then, which costs a microsecond, and not
    around what judges it. Another tracer has to rest meanwhile.

    Entering raises NoToolIDError when too many other tools watch this process. `close` gives the
    id back, and the report remains.
    """

    def __init__(self, *targets: object) -> None:
        self._files = {file for target in targets for file in _files_of(target)}
        self._overridden = {code for target in targets for code in _overridden(target)}
        self._codes = own_codes(targets)
        every = [code for codes in self._codes for code in codes]
        # By identity: hashing code takes long, and two codes may be equal.
        self._missing: dict[int, set[int]] = {id(code): _lines_of(code) for code in every}
        super().__init__(watch_lines(every, self._missing))

    def missing(self) -> list[frozenset[int]]:
        """The lines that have not run, code by code."""
        return [frozenset(self._missing[id(code)]) for codes in self._codes for code in codes]

    def ran_elsewhere(self, missing: Sequence[Collection[int]]) -> None:
        """Take what a copy of this process says is `missing` there: all else ran."""
        every = (code for codes in self._codes for code in codes)
        for code, lines in zip(every, missing, strict=True):
            self._missing[id(code)].intersection_update(lines)

    def report(self) -> list[MethodLines]:
        """The functions, as they follow each other in the file."""
        found = [(codes[0], self._of(codes)) for codes in self._codes]
        kept = [method for code, method in found if method.ran or id(code) not in self._overridden]
        return sorted(
            kept, key=lambda method: (method.file, method.first_line, method.qualified_name)
        )

    def _of(self, codes: Sequence[CodeType]) -> MethodLines:
        lines, ran = set[int](), set[int]()
        for code in codes:
            having_code = _lines_of(code)
            lines |= having_code
            ran |= having_code - self._missing[id(code)]
        outermost = codes[0]
        return MethodLines(
            outermost.co_qualname,
            outermost.co_firstlineno,
            len(ran),
            len(lines),
            tuple(ranges(sorted(lines), ran)),
            "" if outermost.co_filename in self._files else Path(outermost.co_filename).name,
        )


def ranges(lines: Sequence[int], ran: Collection[int]) -> Iterator[str]:
    """Runs of lines that did not run; what has no code does not part them."""
    run: list[int] = []
    for line in [*lines, None]:
        if line is not None and line not in ran:
            run.append(line)
        elif run:
            yield str(run[0]) if run[0] == run[-1] else f"{run[0]}-{run[-1]}"
            run = []


def _lines_of(code: CodeType) -> set[int]:
    """Lines that have code, less the one of `def` unless all is on it, and less those that raise.

    A class body has none that count: it runs once, where it stands. Nor does what raises: no call
    of a host gets there in a sound target. Nor what its author has excluded by `EXCLUDED`.
    """
    if not code.co_flags & CO_OPTIMIZED:
        return set()
    lines = {line for _, _, line in code.co_lines() if line is not None}
    lines = lines - {code.co_firstlineno} - _raising_lines(code.co_filename) or lines
    return lines - _excluded_lines(code.co_filename)


@lru_cache(maxsize=64)
def _raising_lines(file: str) -> frozenset[int]:
    """Lines of `raise` statements; none where the source cannot be read."""
    return frozenset(
        line
        for node in ast.walk(syntax_of(file))
        if isinstance(node, ast.Raise)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    )


@lru_cache(maxsize=64)
def _excluded_lines(file: str) -> frozenset[int]:
    """Lines with the comment `# pragma: no cover`, and all of a block at whose head it stands."""
    source = source_of(file)
    if "pragma" not in source:
        return frozenset()
    marked = set(_marked(source))
    excluded = set(marked)
    for node in ast.walk(syntax_of(file)):
        excluded.update(
            line
            for head, first, last in _blocks(node)
            if not marked.isdisjoint(head)
            for line in range(first, last + 1)
        )
    return frozenset(excluded)


def _marked(source: str) -> Iterator[int]:
    """Lines with the comment; a string that has the same text is none."""
    try:
        for token in generate_tokens(StringIO(source).readline):
            if token.type == COMMENT and EXCLUDED.search(token.string):
                yield token.start[0]
    except (SyntaxError, TokenError):
        return


def _blocks(node: ast.AST) -> Iterator[tuple[range, int, int]]:
    """The blocks of a statement: the lines of the head of each, and where it begins and ends.

    One that has none is a block by itself.
    """
    if not isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
        return
    begins = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    parts = [name for name in ("body", "handlers", "orelse", "finalbody") if _part(node, name)]
    if not parts and isinstance(node, ast.stmt):
        end = _end(node)
        yield range(begins, end + 1), begins, end
    before = 0
    for name in parts:
        part = _part(node, name)
        # What is one line with its head has that for a head.
        first = max(begins + (name == "body"), part[0].lineno)
        head = range(begins, first) if name == "body" else range(before + 1, first)
        before = _end(part[-1])
        # Each handler is a block of its own.
        if name != "handlers" and head:
            yield head, head.start, before


def _part(node: ast.AST, name: str) -> Sequence[ast.stmt | ast.ExceptHandler]:
    found: Sequence[ast.stmt | ast.ExceptHandler] = getattr(node, name, ())
    return found


def _end(node: ast.stmt | ast.ExceptHandler) -> int:
    return node.lineno if node.end_lineno is None else node.end_lineno


def source_of(file: str) -> str:
    """The source of a file, "" where it cannot be read."""
    return "".join(linecache.getlines(file))


@lru_cache(maxsize=64)
def syntax_of(file: str) -> ast.Module:
    """The syntax tree of a file, an empty one where its source cannot be read."""
    try:
        return ast.parse(source_of(file))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _own_bases(target: object) -> Iterator[type[object]]:
    """The bases of a class that its author wrote elsewhere: in its package, or beside its file."""
    if not is_a(target, type):
        return
    for base in target.__mro__[1:]:
        if base.__module__ != target.__module__ and _of_one_author(base, target):
            yield base


def _of_one_author(one: type[object], other: type[object]) -> bool:
    package, another = (cls.__module__.partition(".")[0] for cls in (one, other))
    if {package, another} & _OURS:
        return False
    if package == another:
        return True
    folders = [
        {Path(file).parent for file in _files_of(cls) if Path(file).is_absolute()}
        for cls in (one, other)
    ]
    return not folders[0].isdisjoint(folders[1])


def _overridden(target: object) -> Iterator[int]:
    """The ids of the code of methods in the bases of a class that something else stands before."""
    if not is_a(target, type):
        return
    taken = set[str]()
    for cls in target.__mro__:
        for name, value in vars(cls).items():
            if name in taken:
                yield from (id(function.__code__) for function in functions_behind(value))
        taken |= vars(cls).keys()


def own_codes(targets: Sequence[object], *, alone: bool = False) -> list[list[CodeType]]:
    """The code of each function that is the targets' own, followed by what it nests.

    As `OwnLines` has it; `alone`: less that of other classes which their functions name.
    """
    bases = [base for target in targets for base in _own_bases(target)]
    everything = [*targets, *bases]
    files = {file for target in everything for file in _files_of(target)}
    modules = {str(getattr(target, "__module__", "")) for target in everything}
    lineage = {id(base) for target in targets if is_a(target, type) for base in target.__mro__}
    functions: list[FunctionType] = []
    waiting, seen = list(everything), set[int]()
    # Keeps alive what was seen: a method that is made when it is asked for leaves its id to others.
    kept: list[object] = []
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        waiting += behind(value)
        if is_a(value, FunctionType):
            if value.__code__.co_filename in files:
                functions.append(value)
                waiting += _named_by(value)
        elif is_a(value, type):
            if value.__module__ in modules and (not alone or id(value) in lineage):
                waiting += [*vars(value).values(), *value.__bases__]
        elif type(value).__module__ in modules:
            waiting.append(type(value))
    whole = {id(function.__code__): list(nested_codes(function.__code__)) for function in functions}
    inner = {id(code) for codes in whole.values() for code in codes[1:]}
    return [codes for outermost, codes in whole.items() if outermost not in inner]


def _files_of(target: object) -> set[str]:
    """Where the target's own code is from, as code objects say it."""
    if is_a(target, type):
        place = getattr(sys.modules.get(target.__module__), "__file__", None)
        if isinstance(place, str):
            return {place}
        parts = list(vars(target).values())
    else:
        parts = [target]
    return {f.__code__.co_filename for part in parts for f in functions_behind(part)}


def _named_by(function: FunctionType) -> list[object]:
    """What a function, and what it nests, may use of the globals of its module."""
    names = {name for code in nested_codes(function.__code__) for name in code.co_names}
    found = [function.__globals__.get(name) for name in names]
    return [value for value in found if not is_a(value, ModuleType)]
