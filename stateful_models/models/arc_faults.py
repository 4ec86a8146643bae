"""ARC with one thing wrong: models that tell which clause a policy breaks.

A victim that is not the expected one says little: most choices follow from several clauses. But
of a policy that is wrong in one way, a model that is wrong in the same way predicts all victims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from math import floor, inf

from typing_extensions import override

from kvoffload.keys import OffloadKey
from stateful_models.models.arc import ARCModel
from stateful_models.models.policy import Ends, State, prefix_order
from stateful_models.operations import RequestId


class ARCFault(Enum):
    """What is wrong, as the clause that it breaks and a few words."""

    NEVER_ADAPTS = "ARC-2", "no miss on a ghost moves the target"
    ADAPTS_LATE = "ARC-2", "the target moves at the insertion, after the victims were chosen"
    ADAPTS_THE_OTHER_WAY = "ARC-2", "the target moves the other way"
    STEPS_OF_ONE = "ARC-2", "the target moves by one, whatever the ghost lists hold"
    NO_CEILING = "ARC-2", "the target rises above the capacity"
    NO_FLOOR = "ARC-2", "the target falls below zero"
    GHOST_STAYS_OLD = "ARC-2", "a ghost that was hit is not renewed"
    HEAD_FIRST = "ARC-5", "a finished request is applied from its head on"
    FINISH_IGNORED = "ARC-1", "the finish of a request changes nothing"
    INSERTION_PROMOTES = "ARC-1", "what a request only inserted moves to T2 at its finish"
    INSERTION_STAYS_OLD = "ARC-1", "what a request only inserted is not renewed at its finish"
    REUSE_STAYS = "ARC-1", "what a request reused does not move to T2 at its finish"
    ACCESS_PROMOTES = "ARC-1", "what a running request sees moves to T2"
    TOUCH_STAYS = "ARC-1", "a touch does not move a key to T2"
    TOUCH_PROMOTES_PENDING = "ARC-1", "a touch moves a pending key to T2"
    GHOSTS_ENTER_T2 = "ARC-1", "a ghost that is stored again enters T2"
    T2_FIRST = "ARC-3", "T2 gives its keys before T1"
    T1_FIRST = "ARC-3", "T1 gives its keys whatever the target is"
    ABOVE_TARGET = "ARC-3", "T1 gives a key only while it is longer than the target"
    COMPARES_T2 = "ARC-3", "the target is held against the length of T2"
    IDLE_ALONE = "ARC-3", "keys of T1 that cannot go are not counted against the target"
    NEWEST_FIRST = "ARC-3", "a list gives its newest key first"
    NO_GHOSTS_OF_T1 = "ARC-3", "victims of T1 leave no ghosts"
    NO_GHOSTS_OF_T2 = "ARC-3", "victims of T2 leave no ghosts"
    SWAPPED_GHOSTS = "ARC-3", "victims leave their ghosts in the other list"
    UNBOUNDED_GHOSTS = "ARC-3", "ghosts are not trimmed to the capacity"
    GHOSTS_BY_TARGET = "ARC-3", "ghosts are trimmed to what the target leaves"
    GHOSTS_REMAIN = "ARC-4", "a key that comes back stays a ghost"

    @property
    def clause(self) -> str:
        """The clause that is broken."""
        return self.value[0]

    @property
    def words(self) -> str:
        """What is wrong."""
        return self.value[1]


class FaultyARC(ARCModel):
    """The model with one fault."""

    def __init__(self, capacity: int, fault: ARCFault) -> None:
        super().__init__(capacity)
        self.fault: ARCFault = fault

    @override
    def choose(self, count: int, candidates: Sequence[OffloadKey]) -> list[OffloadKey]:
        fault, allowed = self.fault, set(candidates)
        victims: list[OffloadKey] = []
        for _ in range(count):
            first, second = (self.t1, self.t2)
            if not self._t1_gives(allowed):
                first, second = second, first
            source = first if any(key in allowed for key in first) else second
            order = reversed(source) if fault is ARCFault.NEWEST_FIRST else iter(source)
            victim = next(key for key in order if key in allowed)
            once = source is self.t1
            source.remove(victim)
            if fault is not (ARCFault.NO_GHOSTS_OF_T1 if once else ARCFault.NO_GHOSTS_OF_T2):
                ghosts = self.b1 if once != (fault is ARCFault.SWAPPED_GHOSTS) else self.b2
                if victim not in ghosts:
                    ghosts.append(victim)
            allowed.remove(victim)
            victims.append(victim)
        if fault is not ARCFault.UNBOUNDED_GHOSTS:
            bound = float(self.capacity)
            for ghosts, share in ((self.b1, self.target), (self.b2, bound - self.target)):
                most = share if fault is ARCFault.GHOSTS_BY_TARGET else bound
                del ghosts[: max(0, len(ghosts) - floor(most))]
        return victims

    def _t1_gives(self, allowed: set[OffloadKey]) -> bool:
        match self.fault:
            case ARCFault.T2_FIRST:
                return False
            case ARCFault.T1_FIRST:
                return True
            case ARCFault.ABOVE_TARGET:
                return len(self.t1) > floor(self.target)
            case ARCFault.COMPARES_T2:
                return len(self.t2) >= floor(self.target)
            case ARCFault.IDLE_ALONE:
                return sum(key in allowed for key in self.t1) >= floor(self.target)
            case _:
                return len(self.t1) >= floor(self.target)

    @override
    def admit(self, key: OffloadKey, request: RequestId, ends: Ends) -> None:
        match self.fault:
            case ARCFault.GHOSTS_REMAIN:
                self.t1.append(key)
            case ARCFault.GHOSTS_ENTER_T2 if key in self.b1 or key in self.b2:
                super().admit(key, request, ends)
                self.t1.remove(key)
                self.t2.append(key)
            case ARCFault.ADAPTS_LATE:
                super().adapt(key)
                super().admit(key, request, ends)
            case _:
                super().admit(key, request, ends)

    @override
    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in reversed(keys):
            if key in self.t1 and self.fault is ARCFault.TOUCH_STAYS:
                self.refresh(key)
            elif key in self.t1 and self.fault is ARCFault.TOUCH_PROMOTES_PENDING:
                self.promote(key)
            else:
                super().touch((key,))

    @override
    def access(self, keys: Sequence[OffloadKey], request: RequestId, ends: Ends) -> None:
        if self.fault is ARCFault.ACCESS_PROMOTES:
            for key in reversed(keys):
                if self.states.get(key, State.PENDING) is not State.PENDING:
                    self.promote(key)

    @override
    def finish(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only: Iterable[OffloadKey],
        reused: Iterable[OffloadKey],
        ends: Ends,
    ) -> None:
        inserted, used = set(insertion_only), set(reused)
        match self.fault:
            case ARCFault.FINISH_IGNORED:
                pass
            case ARCFault.HEAD_FIRST:
                backwards = prefix_order(key_groups, ends)[::-1]
                super().finish([backwards], inserted, used, {})
            case ARCFault.INSERTION_PROMOTES:
                super().finish(key_groups, (), inserted | used, ends)
            case ARCFault.INSERTION_STAYS_OLD:
                super().finish(key_groups, (), used, ends)
            case ARCFault.REUSE_STAYS:
                super().finish(key_groups, inserted | used, (), ends)
            case _:
                super().finish(key_groups, inserted, used, ends)

    @override
    def adapt(self, key: OffloadKey) -> None:
        fault, before = self.fault, self.target
        if fault is ARCFault.NEVER_ADAPTS or fault is ARCFault.ADAPTS_LATE:
            return
        lists = (list(self.b1), list(self.b2))
        super().adapt(key)
        step = max(
            1.0,
            len(lists[1]) / len(lists[0]) if key in lists[0] else 0.0,
            len(lists[0]) / len(lists[1]) if key in lists[1] and key not in lists[0] else 0.0,
        )
        sign = 1.0 if key in lists[0] else -1.0 if key in lists[1] else 0.0
        low, high = 0.0, float(self.capacity)
        match fault:
            case ARCFault.ADAPTS_THE_OTHER_WAY:
                sign = -sign
            case ARCFault.STEPS_OF_ONE:
                step = 1.0
            case ARCFault.NO_CEILING:
                high = inf
            case ARCFault.NO_FLOOR:
                low = -inf
            case ARCFault.GHOST_STAYS_OLD:
                self.b1[:], self.b2[:] = lists
            case _:
                return
        self.target: float = min(max(before + sign * step, low), high)

    def promote(self, key: OffloadKey) -> None:
        """To the recent end of T2."""
        (self.t1 if key in self.t1 else self.t2).remove(key)
        self.t2.append(key)
