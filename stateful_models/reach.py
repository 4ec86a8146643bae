"""Reach: what a run came to. A run that never evicted has tested nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class Reach:
    """Counts situations, over all examples of a run."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def note(self, situation: str, when: bool = True) -> None:
        """Count a situation, if it is one."""
        if when:
            self._seen[situation] += 1

    def add(self, counts: Mapping[str, int]) -> None:
        """Count what was counted elsewhere, by name."""
        self._seen.update(counts)

    def __getitem__(self, situation: str) -> int:
        return self._seen[situation]

    @property
    def counts(self) -> dict[str, int]:
        """How often each situation came about, by name."""
        return dict(sorted(self._seen.items()))

    def missing(self, situations: Iterable[str]) -> list[str]:
        """Those of `situations` that never came about."""
        return [situation for situation in situations if not self._seen[situation]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {times}" for name, times in sorted(self._seen.items()))
