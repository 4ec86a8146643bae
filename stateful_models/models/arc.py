"""ARC by ARC-1 to ARC-3, on four plain lists, oldest key first.

Right because each method is its clause in order, and every list is searched from the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor

from kvoffload.keys import OffloadKey
from stateful_models.models.policy import Ends, PolicyModel, State, prefix_order
from stateful_models.operations import RequestId


class ARCModel(PolicyModel):
    """Adaptive replacement: T1 seen once, T2 reused, B1 and B2 their ghosts."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.t1: list[OffloadKey] = []
        self.t2: list[OffloadKey] = []
        self.b1: list[OffloadKey] = []
        self.b2: list[OffloadKey] = []
        self.target: float = 0.0
        self.ghost_hits: int = 0

    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        allowed = set(candidates)
        victims: list[OffloadKey] = []
        for _ in range(count):
            first, second = (self.t1, self.t2)
            if len(self.t1) < floor(self.target):
                first, second = second, first
            source = first if any(key in allowed for key in first) else second
            victim = next(key for key in source if key in allowed)
            source.remove(victim)
            ghosts = self.b1 if source is self.t1 else self.b2
            ghosts.append(victim)
            allowed.remove(victim)
            victims.append(victim)
        for ghosts in (self.b1, self.b2):
            del ghosts[: max(0, len(ghosts) - self.capacity)]
        return victims

    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        for ghosts in (self.b1, self.b2):
            if key in ghosts:
                ghosts.remove(key)
        self.t1.append(key)

    def forget(self, key: OffloadKey) -> None:
        (self.t1 if key in self.t1 else self.t2).remove(key)

    def restart(self) -> None:
        for keys in (self.t1, self.t2, self.b1, self.b2):
            keys.clear()
        self.target = 0.0

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self.t1 and self.states[key] is not State.PENDING:
                self.t1.remove(key)
                self.t2.append(key)
            elif key in self.t1 or key in self.t2:
                self.refresh(key)
            else:
                self.adapt(key)

    def miss(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            self.adapt(key)

    def access(self, keys: Sequence[OffloadKey], request: RequestId, ends: Ends) -> None:
        pass

    def finish(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only: Iterable[OffloadKey],
        reused: Iterable[OffloadKey],
        ends: Ends,
    ) -> None:
        inserted, used = set(insertion_only), set(reused)
        for key in reversed(prefix_order(key_groups, ends)):
            if key not in self.t1 and key not in self.t2:
                continue
            if key in used:
                (self.t1 if key in self.t1 else self.t2).remove(key)
                self.t2.append(key)
            elif key in inserted:
                self.refresh(key)

    def refresh(self, key: OffloadKey) -> None:
        """Make a key the most recent of the list that it is in."""
        for keys in (self.t1, self.t2, self.b1, self.b2):
            if key in keys:
                keys.remove(key)
                keys.append(key)

    def adapt(self, key: OffloadKey) -> None:
        """Move the target after a hit on a ghost (ARC-2)."""
        if key in self.b1:
            self.target += max(1.0, len(self.b2) / len(self.b1))
        elif key in self.b2:
            self.target -= max(1.0, len(self.b1) / len(self.b2))
        else:
            return
        self.ghost_hits += 1
        self.target = min(max(self.target, 0.0), float(self.capacity))
        self.refresh(key)
