"""Which way a page's fragments are copied: a table that can be read and replaced."""

from __future__ import annotations

from enum import Enum
from typing import Final

from attrs import field, frozen

from kvoffload.copying.plans import Direction, PagePlan
from kvoffload.errors import InvalidValueError
from kvoffload.validation import each_instance, optional_int_at_least


class CopyPath(Enum):
    """How bytes get from one side to the other; each way gives the same bytes."""

    TORCH = "torch"
    """One copy by torch for each block and run. There wherever torch is."""
    DRIVER = "driver"
    """One call of the driver for all fragments of a transfer (cuMemcpyBatchAsync, CUDA 12.8)."""
    KERNEL = "kernel"
    """A Triton kernel that reads and writes pinned host memory, and works addresses out itself."""


@frozen
class PathRule:
    """One line of the table: a path, and what it is for.

    It serves fragments of at most `up_to_bytes` (None: of any size), in `direction` (None: both).
    """

    path: CopyPath
    up_to_bytes: int | None = field(default=None, validator=optional_int_at_least(1))
    direction: Direction | None = None

    def serves(self, direction: Direction, fragment_size: int) -> bool:
        """Whether the line is for such fragments."""
        if self.direction not in (None, direction):
            return False
        return self.up_to_bytes is None or fragment_size <= self.up_to_bytes


@frozen
class PathTable:
    """Lines in order: the first that serves, of a path that is there, decides.

    A last line for torch without conditions is always there, whether written or not.
    """

    rules: tuple[PathRule, ...] = field(
        converter=tuple[PathRule, ...], validator=each_instance(PathRule)
    )

    def choose(
        self, direction: Direction, page: PagePlan, available: frozenset[CopyPath]
    ) -> CopyPath:
        """The path of a page, by its smallest fragment."""
        smallest = min((run.fragment_size for run in page.runs), default=1)
        for rule in self.rules:
            if rule.path in available and rule.serves(direction, smallest):
                return rule.path
        return CopyPath.TORCH

    @classmethod
    def only(cls, path: CopyPath) -> PathTable:
        """One path for everything, where it is there."""
        return cls((PathRule(path),))

    @classmethod
    def parse(cls, text: str) -> PathTable:
        """From `kernel<=4096, driver`: paths in order, with the largest fragment that each serves.

        A direction may stand before a path: `load:kernel<=4096`. Raises InvalidValueError.
        """
        return cls(tuple(_rule(part.strip()) for part in text.split(",")))

    def __str__(self) -> str:
        return ", ".join(map(_written, self.rules))


def _rule(text: str) -> PathRule:
    direction_name, colon, rest = text.rpartition(":")
    name, bound, limit = rest.partition("<=")
    try:
        return PathRule(
            path=CopyPath(name.strip()),
            up_to_bytes=int(limit) if bound else None,
            direction=Direction(direction_name) if colon else None,
        )
    except ValueError as error:
        raise InvalidValueError(
            "paths", text, "a path of torch, driver or kernel, as in load:kernel<=4096"
        ) from error


def _written(rule: PathRule) -> str:
    direction = "" if rule.direction is None else f"{rule.direction.value}:"
    limit = "" if rule.up_to_bytes is None else f"<={rule.up_to_bytes}"
    return f"{direction}{rule.path.value}{limit}"


DEFAULT_PATHS: Final = PathTable(
    (PathRule(CopyPath.KERNEL, up_to_bytes=8192), PathRule(CopyPath.DRIVER))
)
"""Small fragments by the kernel, which no descriptor has to be made for; all others at once.

The limit is where vLLM 0.33 draws it too; it has not been measured here.
"""
