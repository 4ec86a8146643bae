"""What decides in the code of an invariant: what must have run before its promise counts as kept.

Of a promise that is kept no objection is ever made, so that a block which ends in one need not run,
nor what raises, leaves early or only prepares its words. Everything else must have: the condition
before an objection most of all, to its last part.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from attrs import frozen
from typing_extensions import TypeIs

Position: TypeAlias = "tuple[int, int]"
"""A line, from 1, and a column in bytes, from 0: as the positions of instructions are."""

FINDING: Final = "Finding"
MOST_SHOWN: Final = 60
"""Characters of a part of a condition that are shown."""

_NOT_TRUE: Final = "what stands before it was never true"
_TRUE: Final = "what stands before it was always true"
_NO_MATCH: Final = "its case never matched"

_LEAVES = (ast.Return, ast.Continue, ast.Break)
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SAYS_NOTHING = (
    *(ast.Pass, ast.Continue, ast.Break, ast.Raise, ast.Import, ast.ImportFrom, ast.Global),
    ast.Nonlocal,
)
_SIMPLE = (ast.Expr, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign)
_COMPREHENDS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_COLLECTS = ("add", "append", "extend")
_COLLECTIONS = ("frozenset", "iter", "list", "set", "tuple")

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"


class Place(NamedTuple):
    """A statement from `begin` to `end`, or the condition of one; or a `part` of a condition.

    `unasked` says of a part what was so each time, if it was never evaluated.
    """

    begin: Position
    end: Position
    part: str = ""
    unasked: str = ""

    def encloses(self, begin: Position, end: Position) -> bool:
        """Whether it has what lies between."""
        return self.begin <= begin and end <= self.end


def objectors(tree: ast.Module) -> frozenset[str]:
    """The names by which a module makes findings: those of the class, and of its functions that do
    nothing else."""
    known = {FINDING}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            known |= {one.asname or one.name for one in node.names if one.name == FINDING}
    functions = [node for node in ast.walk(tree) if _is_function(node) and node.name != "judge"]
    # Those that call one of the others too.
    while True:
        made = {one.name for one in functions if _Reading(known).condemns(one.body, calling=True)}
        if made <= known:
            return frozenset(known)
        known |= made


def places_in(function: Function, source: str, objecting: Collection[str]) -> list[Place]:
    """What has to run in a function before it has decided anything.

    `objecting` are the names of what makes findings.
    """
    return list(_Reading(objecting, source).suite(function.body))


def function_at(tree: ast.Module, name: str, first_line: int) -> Function | None:
    """The function whose code has this name and begins in this line, with its decorators."""
    for node in ast.walk(tree):
        if _is_function(node) and node.name == name:
            if min(one.lineno for one in (node, *node.decorator_list)) == first_line:
                return node
    return None


def _is_function(node: ast.AST) -> TypeIs[Function]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


@frozen
class _Reading:
    objecting: Collection[str]
    source: str = ""

    def suite(self, body: Sequence[ast.stmt]) -> Iterator[Place]:
        if not self.condemns(body):
            for statement in body:
                yield from self._statement(statement)

    def condemns(self, body: Sequence[ast.stmt], *, calling: bool = False) -> bool:
        """Whether who gets here cannot but object: all of it is then part of the objection.

        `calling`: only what makes a finding counts.
        """
        for statement in body:
            if self._objects(statement, calling=calling):
                return True
            if any(isinstance(node, _LEAVES) for node in _within(statement)):
                return False
        return False

    def _objects(self, statement: ast.stmt, *, calling: bool = False) -> bool:
        if isinstance(statement, ast.Raise):
            return not calling
        if not isinstance(statement, _SIMPLE):
            return False
        return any(
            _calls(node, self.objecting) or (isinstance(node, ast.Yield) and not calling)
            for node in _surely_in(statement)
        )

    def _statement(self, statement: ast.stmt) -> Iterator[Place]:
        match statement:
            case ast.If(test, body, orelse) | ast.While(test, body, orelse):
                yield from self._condition(test)
                yield from self.suite(body)
                yield from self.suite(orelse)
            case ast.For(_, over, body, orelse) | ast.AsyncFor(_, over, body, orelse):
                yield _place(over)
                yield from self.suite(body)
                yield from self.suite(orelse)
            case ast.With(items, body) | ast.AsyncWith(items, body):
                yield from (_place(item.context_expr) for item in items)
                yield from self.suite(body)
            case ast.Match(subject, cases):
                yield _place(subject)
                for case in cases:
                    if case.guard is not None:
                        yield self._part(case.guard, _NO_MATCH)
                        yield from self._parts(case.guard)
                    yield from self.suite(case.body)
            case ast.Try(body, _, orelse, _):
                # Handlers are for what does not happen, and what is final runs with the rest.
                yield from self.suite(body)
                yield from self.suite(orelse)
            case ast.Assert(test, _):
                yield from self._condition(test)
            case ast.FunctionDef(_, _, body) | ast.AsyncFunctionDef(_, _, body):
                yield from self.suite(body)
            case _:
                if not self._is_spared(statement):
                    yield _place(statement)
                    for node in _surely_in(statement):
                        if isinstance(node, ast.IfExp):
                            yield from self._parts(node.test)

    def _is_spared(self, statement: ast.stmt) -> bool:
        """Whether a simple statement decides nothing by running."""
        if isinstance(statement, (*_SAYS_NOTHING, *_DEFINES)) or self._objects(statement):
            return True
        match statement:
            case ast.Return(value) | ast.Expr(ast.YieldFrom(value) | (ast.Constant() as value)):
                return _is_plain(value)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(holder), method), _)):
                return holder != "self" and method in _COLLECTS
            case ast.Assign(targets, ast.Constant()):
                return all(isinstance(target, ast.Name) for target in targets)
            case ast.AugAssign(ast.Name(), _, ast.Constant()) | ast.AnnAssign(_, _, None):
                return True
            case ast.AnnAssign(ast.Name(), _, ast.Constant()):
                return True
            case _:
                return False

    def _condition(self, test: ast.expr) -> Iterator[Place]:
        yield _place(test)
        yield from self._parts(test)

    def _parts(self, test: ast.expr) -> Iterator[Place]:
        """The parts of a condition that are asked only if those before them do not decide it."""
        for node in _surely_in(test, all_parts=True):
            if isinstance(node, ast.BoolOp):
                unasked = _NOT_TRUE if isinstance(node.op, ast.And) else _TRUE
                yield from (self._part(value, unasked) for value in node.values[1:])

    def _part(self, node: ast.expr, unasked: str) -> Place:
        text = " ".join((ast.get_source_segment(self.source, node) or "").split())
        return _place(node)._replace(
            part=text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}...",
            unasked=unasked,
        )


def _is_plain(value: ast.expr | None) -> bool:
    """Whether nothing is decided by it: a constant, a variable, or a collection of such."""
    match value:
        case None | ast.Constant() | ast.Name():
            return True
        case ast.Tuple(parts) | ast.List(parts) | ast.Set(parts):
            return all(map(_is_plain, parts))
        case ast.Call(ast.Name(name), parts, []):
            return name in _COLLECTIONS and all(map(_is_plain, parts))
        case _:
            return False


def _calls(node: ast.AST, names: Iterable[str]) -> bool:
    match node:
        case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(_, name)):
            return name in names
        case _:
            return False


def _place(node: ast.stmt | ast.expr) -> Place:
    end_line, end_column = node.end_lineno, node.end_col_offset
    return Place(
        (node.lineno, node.col_offset),
        (end_line or node.lineno, node.col_offset if end_column is None else end_column),
    )


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, less functions and classes that it defines."""
    yield node
    if not isinstance(node, _DEFINES):
        for child in ast.iter_child_nodes(node):
            yield from _within(child)


def _surely_in(node: ast.AST, *, all_parts: bool = False) -> Iterator[ast.AST]:
    """A node and those in it that are evaluated whenever it is; `all_parts` of what is joined by
    `and` and `or`, too."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.BoolOp) and not all_parts:
        children = node.values[:1]
    elif isinstance(node, ast.IfExp):
        children = (node.test,)
    elif isinstance(node, _COMPREHENDS):
        children = (node.generators[0].iter,)
    elif isinstance(node, ast.Lambda):
        children = ()
    for child in children:
        yield from _surely_in(child, all_parts=all_parts)
