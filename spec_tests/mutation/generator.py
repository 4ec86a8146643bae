"""The mutants of a module. The changes are mutmut's; this is the one module that knows it.

mutmut leaves decorated functions alone, since it makes copies of them. Here a mutant is put in
the place of the original, decorators and all (`patching`), so they are taken out before.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import libcst as cst
from libcst import matchers
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider
from mutmut.mutation.file_mutation import Mutation, MutationVisitor, deep_replace
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

from spec_tests.mutation.exclusions import Configuration
from spec_tests.mutation.mutant import Mutant, MutantKey, Source, digest_of, line_diff

TEXT = matchers.SimpleString() | matchers.FormattedString() | matchers.ConcatenatedString()

STRICT = matchers.Arg(keyword=matchers.Name("strict"))


def modules_of(root: Path, packages: Iterable[str]) -> list[tuple[str, Path]]:
    """The modules in folders below `root`, by name, with their files."""
    files = [path for package in packages for path in sorted((root / package).glob("*.py"))]
    return [(".".join(path.relative_to(root).with_suffix("").parts), path) for path in files]


def mutants_of(module: str, path: Path, configuration: Configuration) -> list[Mutant]:
    """All mutants of the functions of a module that are not excluded, in order."""
    return list(_mutants(read_source(module, path), configuration))


def read_source(module: str, path: Path) -> Source:
    """The text of a module, with blank lines in the place of its functions' decorators."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                last = decorator.end_lineno or decorator.lineno
                lines[decorator.lineno - 1 : last] = [""] * (last - decorator.lineno + 1)
    return Source(module, str(path), tuple(lines))


def excluded_by(mutation: Mutation, parents: Sequence[cst.CSTNode]) -> str | None:
    """The rule of syntax that a mutation falls under; `parents` from the inside to the outside."""
    node = mutation.original_node
    value = node.value if isinstance(node, cst.Assign | cst.AnnAssign) else None
    inside = [node, *parents]
    if any(isinstance(one, cst.FormattedString) for one in [*inside, value]):
        return "f-strings"
    if any(matchers.matches(one, STRICT) for one in [*inside, *_dropped(mutation)]):
        return "strict-of-zip"
    if any(matchers.matches(one, TEXT) for one in _changed(mutation)):
        for one in inside:
            if isinstance(one, cst.Raise):
                return "strings-in-raise"
            if matchers.matches(one, matchers.Call(func=matchers.Name("cast"))):
                return "type-of-cast"
            if isinstance(one, cst.Call) and _name_of(one).endswith("Metadata"):
                return "descriptions"
    return None


def _changed(mutation: Mutation) -> list[cst.CSTNode]:
    """What a mutation changes: of a call, the arguments that it replaces or drops."""
    return [one.value for one in _dropped(mutation)] or [mutation.original_node]


def _dropped(mutation: Mutation) -> list[cst.Arg]:
    node, mutated = mutation.original_node, mutation.mutated_node
    if isinstance(node, cst.Call) and isinstance(mutated, cst.Call):
        return [argument for argument in node.args if argument not in mutated.args]
    return []


def _name_of(call: cst.Call) -> str:
    return call.func.value if isinstance(call.func, cst.Name) else ""


def _mutants(source: Source, configuration: Configuration) -> Iterator[Mutant]:
    wrapper = MetadataWrapper(cst.parse_module("\n".join([*source.lines, ""])))
    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    wrapper.visit(visitor)
    positions = wrapper.resolve(PositionProvider)
    parent_of = wrapper.resolve(ParentNodeProvider)

    def above(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        while (parent := parent_of.get(node)) is not None:
            yield parent
            node = parent

    known: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for mutation in visitor.mutations:
        function = mutation.contained_by_top_level_function
        # The class body and the module have run when a mutant is put in its place.
        if not isinstance(function, cst.FunctionDef):
            continue
        classes = [one.name.value for one in above(function) if isinstance(one, cst.ClassDef)]
        name = ".".join([*reversed(classes), function.name.value])
        rule = excluded_by(mutation, list(above(mutation.original_node)))
        if rule in configuration.syntax or configuration.pattern_against(source.module, name):
            continue
        first, last = positions[function].start.line, positions[function].end.line
        before = source.lines[first - 1 : last]
        replaced = deep_replace(function, mutation.original_node, mutation.mutated_node)
        changed = _lines_of(cst.ensure_type(replaced, cst.FunctionDef), len(classes))
        diff = line_diff(before, changed)
        if diff and _compiles(changed):
            key = MutantKey(source.module, name, digest_of(diff, known[name, diff]))
            known[name, diff] += 1
            yield Mutant(key, source, first, last, changed, diff)


def _lines_of(function: cst.FunctionDef, depth: int) -> tuple[str, ...]:
    """The lines of a function that is `depth` classes deep."""
    block: cst.BaseCompoundStatement = function.with_changes(leading_lines=())
    for _ in range(depth):
        block = cst.ClassDef(cst.Name("_"), cst.IndentedBlock([block]))
    return tuple(cst.Module([block]).code.splitlines()[depth:])


def _compiles(lines: Sequence[str]) -> bool:
    try:
        compile(dedent("\n".join(lines)), "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
