"""Lines of prose: wrapped at words on a terminal, whole for whatever else reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

STEP = 2
"""What follows a line that is wrapped stands so many columns further to the right."""


def tell(console: Console, text: str, style: str = "", *, step: int = STEP) -> None:
    """Print one line of text.

    On a terminal it is wrapped at words, `step` columns to the right of where it begins. A word
    that is longer than the terminal is wide is left to that. Elsewhere the line stays whole, so
    that it can be searched.
    """
    lines = _wrapped(text, console.width, step) if console.is_terminal else [text]
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def _wrapped(text: str, width: int, step: int) -> Iterator[str]:
    """The text on lines of so many cells; no two spaces that stand in a line become one."""
    indent = len(text) - len(text.lstrip(" "))
    # What stands so far to the right is aligned with something.
    if indent > width // 2:
        yield text
        return
    below = " " * (indent + step)
    line = ""
    # Each word with the spaces before it.
    for word in re.findall(r" *[^ ]+", text):
        if line.strip() and cell_len(line + word) > width:
            yield line
            line = below + word.lstrip(" ")
        else:
            line += word
    yield line
