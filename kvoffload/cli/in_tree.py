"""`kvoffload in-tree-test`: the test of cache policies that a checkout of vLLM can keep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvoffload.cli.problems import ReaderLeftError, UsageError
from kvoffload.cli.results import TO_STDOUT, ResultFile
from stateful_models.vllm.in_tree import NAME, PLACE, in_tree_test

COMMAND = "in-tree-test"
HELP = f"""Write a test for a checkout of vLLM: what vLLM documents, of every registered policy.

It needs pytest and vLLM only, and takes seconds a policy: random calls, the same in every run, as \
vLLM's manager makes them and by that manager itself. A failure lists the calls that show it.

Examples:

  kvoffload {COMMAND} vllm/{PLACE}

  kvoffload {COMMAND} > {NAME}
"""


def in_tree(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help=f"Where to; in a folder it is {NAME}. Standard output by default.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a test for a checkout of vLLM."""
    text = in_tree_test()
    if file is None or str(file) == TO_STDOUT:
        _print(text)
        return
    path = file / NAME if file.is_dir() else file
    # A link that leads nowhere is there too.
    if (path.exists() or path.is_symlink()) and not force:
        raise UsageError(f"{path}: exists; --force replaces it")
    ResultFile(str(path), option=COMMAND).write(text.encode())


def _print(text: str) -> None:
    if sys.stdout is None:
        raise UsageError(f"{COMMAND}: standard output is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None
