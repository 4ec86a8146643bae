"""The source of a policy that was written for vLLM: what it imports, catches, reads and patches.

Read and not run, so that it says the same whatever version answers the imports.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from attrs import frozen

PACKAGE: Final = "vllm"
_CATCHING: Final = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@frozen
class Import:
    """An import from vLLM: a module, and a name in it unless it is the module that is wanted."""

    module: str
    name: str | None
    line: int

    def __str__(self) -> str:
        return self.module if self.name is None else f"{self.module}.{self.name}"


@frozen
class Guard:
    """Imports from vLLM whose failure is caught: in `line`, where the handler begins."""

    line: int
    imports: tuple[Import, ...]

    @property
    def names(self) -> frozenset[str]:
        """What is imported by name."""
        return frozenset(each.name for each in self.imports if each.name is not None)


@frozen
class Reading:
    """An attribute that is read of something: `of_self` if that is plainly `self`."""

    attribute: str
    line: int
    of_self: bool


class Source:
    """One file. Raises OSError or SyntaxError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tree = ast.parse(path.read_bytes())
        self.imports: tuple[Import, ...] = tuple(_imports_in(self._tree.body))
        """All imports from vLLM that run, wherever they stand."""
        self.guards: tuple[Guard, ...] = tuple(_guards_in(self._tree))
        self.own_attributes: frozenset[str] = frozenset(
            node.attr
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and _is_self(node.value)
        )
        """What it assigns on `self` somewhere."""

    def place(self, line: int) -> str:
        """A line of it, as readers find it."""
        return f"{self.path.name}:{line}"

    def uses(self, name: str) -> bool:
        """Whether it imports something of this name from vLLM, or from a module so called."""
        return any(
            each.name == name or each.module.rpartition(".")[2] == name for each in self.imports
        )

    @property
    def classes(self) -> dict[str, frozenset[str]]:
        """The names of its classes, each with all names that it mentions."""
        return {
            node.name: frozenset(each.id for each in ast.walk(node) if isinstance(each, ast.Name))
            for node in self._tree.body
            if isinstance(node, ast.ClassDef)
        }

    def reads(self, attributes: Iterable[str], *, not_in: Collection[str]) -> Iterator[Reading]:
        """Where such attributes are read, each attribute where that is first.

        Not in the classes of these names.
        """
        wanted = set(attributes)
        bodies = [
            each
            for each in self._tree.body
            if not (isinstance(each, ast.ClassDef) and each.name in not_in)
        ]
        nodes = [
            node
            for node in chain.from_iterable(map(ast.walk, bodies))
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and node.attr in wanted
        ]
        for node in sorted(nodes, key=lambda node: node.lineno):
            if node.attr in wanted:
                wanted.discard(node.attr)
                yield Reading(node.attr, node.lineno, _is_self(node.value))

    def catches(self, wanted: Import) -> bool:
        """Whether it goes on when an import fails."""
        return any(wanted in guard.imports for guard in self.guards)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _imports_in(body: Sequence[ast.stmt]) -> Iterator[Import]:
    for statement in body:
        yield from _imports_of(statement)


def _imports_of(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _of_vllm(alias.name):
                yield Import(alias.name, None, node.lineno)
    elif isinstance(node, ast.ImportFrom):
        if node.module is not None and not node.level and _of_vllm(node.module):
            for alias in node.names:
                yield Import(node.module, None if alias.name == "*" else alias.name, node.lineno)
    elif isinstance(node, ast.If) and _is_for_checkers(node.test):
        yield from _imports_in(node.orelse)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _imports_of(child)


def _of_vllm(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def _is_for_checkers(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _guards_in(tree: ast.AST) -> Iterator[Guard]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Try):
            line = next((each.lineno for each in node.handlers if _catches(each.type)), None)
        elif isinstance(node, ast.With):
            line = node.lineno if any(map(_suppresses, node.items)) else None
        else:
            continue
        imports = tuple(_imports_in(node.body))
        if line is not None and imports:
            yield Guard(line, imports)


def _catches(kind: ast.expr | None) -> bool:
    if kind is None:
        return True
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(_last_name(each) in _CATCHING for each in kinds)


def _suppresses(item: ast.withitem) -> bool:
    call = item.context_expr
    return (
        isinstance(call, ast.Call)
        and _last_name(call.func) == "suppress"
        and any(map(_catches, call.args))
    )


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else str(getattr(node, "id", ""))
