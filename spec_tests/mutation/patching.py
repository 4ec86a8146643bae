"""Puts a mutant in the place of the original, in this process and for good.

The function object stays and is given other code: bound methods taken before, properties and
overrides in force all run the mutant, and nobody's `is` comes to another answer.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType

from spec_tests.mutation.mutant import Mutant


class NotPatchableError(Exception):
    """The running module has no such function, or one that cannot be given this code."""


def apply(mutant: Mutant) -> None:
    """Make the mutant's function behave as it says. Raises NotPatchableError."""
    name = mutant.key.function
    function = live_function(mutant.key.module, name)
    tree = _alone(name, mutant.changed)
    module_code = compile(tree, mutant.source.path, "exec", dont_inherit=True)
    code = next((c for c in _codes(module_code) if c.co_qualname == name), None)
    if code is None or code.co_freevars != function.__code__.co_freevars:
        raise NotPatchableError(f"{mutant.key}: other variables of the class or module around it")
    function.__code__ = code
    arguments = _definition(tree, name).args
    lines = mutant.source.lines[mutant.first - 1 : mutant.last]
    if ast.dump(arguments) != ast.dump(_definition(_alone(name, lines), name).args):
        _set_defaults(function, arguments)


def _alone(name: str, lines: Sequence[str]) -> ast.Module:
    """A module with nothing but one function, in the classes that it belongs to."""
    *classes, _ = name.split(".")
    headers = [f"{'    ' * depth}class {one}:" for depth, one in enumerate(classes)]
    return ast.parse("\n".join(["from __future__ import annotations", *headers, *lines, ""]))


def live_function(module: str, name: str) -> FunctionType:
    """The function of a module, imported if need be. Raises NotPatchableError."""
    found: object = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    if isinstance(found, property):
        found = found.fget
    # A method of the class or a static one; a function has no such attribute.
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType):
        raise NotPatchableError(f"{module}:{name} is no function but {found!r}")
    return found


def _set_defaults(function: FunctionType, arguments: ast.arguments) -> None:
    def value(node: ast.expr) -> object:
        code = compile(ast.Expression(node), "default", "eval", dont_inherit=True)
        # Source of our own checkout, which runs anyway.
        result: object = eval(code, function.__globals__)
        return result

    function.__defaults__ = tuple(map(value, arguments.defaults)) or None
    function.__kwdefaults__ = {
        argument.arg: value(node)
        for argument, node in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if node is not None
    }


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef:
    body: list[ast.stmt] = tree.body
    *classes, function = name.split(".")
    for part in classes:
        body = next(one for one in body if isinstance(one, ast.ClassDef) and one.name == part).body
    return next(one for one in body if isinstance(one, ast.FunctionDef) and one.name == function)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
