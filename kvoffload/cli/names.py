"""How policies are called in a table: shortly, and never alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from attrs import frozen


@frozen
class PolicyNames:
    """A short name for each target: a class by its own name, where no other is called that.

    The others get a number, and `explained` has the full target of each such name.
    """

    short: Mapping[str, str]
    explained: Mapping[str, str]

    @classmethod
    def of(cls, targets: Iterable[str], *, numbers_only: bool = False) -> PolicyNames:
        """Names for `targets`; `numbers_only`, for want of room, instead of any class's name."""
        distinct = list(dict.fromkeys(targets))
        plain = {target: target.rpartition(":")[2] for target in distinct}
        uses = Counter(plain.values())
        short: dict[str, str] = {}
        explained: dict[str, str] = {}
        for target, name in plain.items():
            if ":" in target and (numbers_only or uses[name] > 1):
                number = f"({len(explained) + 1})"
                name = number if numbers_only else f"{name} {number}"
                explained[name] = target
            short[target] = name
        return cls(short, explained)
