"""Policies that err once: one wrong answer or exception of an otherwise faultless policy.

For trying a manager's defences (STORE-10). `faulty(name)` makes the class, and says whether the
fault has come about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, TypeAlias

from attrs import define
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.lru import LRUCachePolicy

Victims: TypeAlias = "list[tuple[OffloadKey, ChunkStatus]]"

RAISES: Final = ("touch", "insert", "on_request_access", "on_request_finished", "evict")
"""Calls that raise; the fault is named "`call` raises"."""
ANSWERS: Final[Mapping[str, str]] = {
    "evict gives too few": "one victim fewer than it was asked for",
    "evict gives one twice": "its first victim instead of its last",
    "evict gives what is protected": "a key of the offer instead of a victim",
    "evict refuses": "None, though there are victims",
}
"""Answers of `evict`, and what it gives."""
FAULTS: Final = (*(f"{call} raises" for call in RAISES), *ANSWERS)
"""The names of all faults."""


class FaultError(RuntimeError):
    """What a faulty policy raises."""


@define
class Fault:
    """A fault: the class of policy that has it, and how often it came about."""

    policy_cls: type[CachePolicy]
    times: int = 0


def faulty(name: str) -> Fault:
    """The fault of this name, one of `FAULTS`, which a manager meets once in a generation."""

    class Faulty(LRUCachePolicy):
        _erred = False

        def _errs(self, when: str) -> bool:
            if self._erred or name != when:
                return False
            self._erred = True
            fault.times += 1
            return True

        def _raise(self, call: str) -> None:
            if self._errs(f"{call} raises"):
                raise FaultError(f"{call} failed")

        @override
        def clear(self) -> None:
            super().clear()
            # One that was cleared is as new.
            self._erred = False

        @override
        def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
            self._raise("touch")
            super().touch(keys, req_context)

        @override
        def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
            self._raise("insert")
            super().insert(key, chunk, req_context)

        @override
        def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
            self._raise("on_request_access")
            super().on_request_access(keys, req_context)

        @override
        def on_request_finished(
            self,
            key_groups: Sequence[Sequence[OffloadKey]],
            insertion_only_keys: Set[OffloadKey],
            reused_keys: Set[OffloadKey],
            req_context: ReqContext,
        ) -> None:
            self._raise("on_request_finished")
            super().on_request_finished(key_groups, insertion_only_keys, reused_keys, req_context)

        @override
        def evict(self, n: int, protected: Set[OffloadKey]) -> Victims | None:
            self._raise("evict")
            if name == "evict gives what is protected":
                offered = [(key, chunk) for key in protected if (chunk := self.get(key))]
                if offered and self._errs(name):
                    return offered[:1] + (super().evict(n - 1, protected) or [])
            victims = super().evict(n, protected)
            if not victims:
                return victims
            if self._errs("evict gives too few"):
                return victims[:-1]
            if len(victims) > 1 and self._errs("evict gives one twice"):
                return [*victims[:-1], victims[0]]
            return None if self._errs("evict refuses") else victims

    Faulty.__name__ = Faulty.__qualname__ = "Faulty"
    fault = Fault(Faulty)
    return fault
