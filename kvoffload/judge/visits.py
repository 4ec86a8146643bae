"""Visits: what a policy looks at, counted, since seconds differ from run to run and visits do not.

A visit is a read of a chunk's `ref_cnt`, or a hash or comparison of a key.
"""

from __future__ import annotations

from attrs import define
from typing_extensions import override

from kvoffload.policies.base import ChunkStatus


@define
class VisitMeter:
    """Counts visits while `counting`; one meter for all keys and chunks of a run."""

    counting: bool = False
    visits: int = 0

    def meet(self, slot: int) -> None:
        """The chunk of a slot is visited."""
        self.visits += 1


class CountedKey(bytes):
    """A key whose hashes and comparisons are visits. Each run derives a class with its meter."""

    meter: VisitMeter

    @override
    def __hash__(self) -> int:
        if self.meter.counting:
            self.meter.visits += 1
        return bytes.__hash__(self)

    @override
    def __eq__(self, other: object) -> bool:
        if self.meter.counting:
            self.meter.visits += 1
        return bytes.__eq__(self, other)

    @override
    def __lt__(self, other: bytes) -> bool:
        if self.meter.counting:
            self.meter.visits += 1
        return bytes.__lt__(self, other)

    @override
    def __gt__(self, other: bytes) -> bool:
        if self.meter.counting:
            self.meter.visits += 1
        return bytes.__gt__(self, other)

    @override
    def __le__(self, other: bytes) -> bool:
        if self.meter.counting:
            self.meter.visits += 1
        return bytes.__le__(self, other)

    @override
    def __ge__(self, other: bytes) -> bool:
        if self.meter.counting:
            self.meter.visits += 1
        return bytes.__ge__(self, other)


def counted_chunk(
    plain: type[ChunkStatus], slot: str, meter: VisitMeter, *, slots: tuple[str, ...] | None = None
) -> type[ChunkStatus]:
    """A host's class of chunks, where reads of `ref_cnt` are visits of what attribute `slot` says.

    `slots`: those that the class adds, for chunks that take no more memory than plain ones.
    """

    def read(chunk: ChunkStatus, name: str) -> object:
        if name == "ref_cnt" and meter.counting:
            meter.meet(getattr(chunk, slot))
        return plain.__getattribute__(chunk, name)

    namespace: dict[str, object] = {"__getattribute__": read}
    if slots is not None:
        namespace["__slots__"] = slots
    return type(plain.__name__, (plain,), namespace)


class SwitchedClasses:
    """Keys and chunks that count when switched on, and are as fast as plain ones when not.

    A cache of a million chunks is filled and timed with the same objects that are counted. The
    classes have the methods that count only while they are switched on.
    """

    def __init__(self) -> None:
        self.meter: VisitMeter = VisitMeter()
        counting_key = {
            name: method for name, method in vars(CountedKey).items() if callable(method)
        }
        self.key_class: type[bytes] = type("Key", (bytes,), {"__slots__": (), "meter": self.meter})
        self._methods: list[tuple[type, str, object]] = [
            (self.key_class, name, method) for name, method in counting_key.items()
        ]
        self.chunk_class: type[ChunkStatus] = self.chunks_like(ChunkStatus, "chunk_id")

    def chunks_like(self, plain: type[ChunkStatus], slot: str) -> type[ChunkStatus]:
        """Another host's class of chunks as one of these; as `counted_chunk` takes it."""
        counting = counted_chunk(plain, slot, self.meter, slots=())
        derived: type[ChunkStatus] = type(plain.__name__, (plain,), {"__slots__": ()})
        self._methods.append((derived, "__getattribute__", vars(counting)["__getattribute__"]))
        return derived

    def switch(self, on: bool) -> None:
        """Give the classes the methods that count, or take them away."""
        for cls, name, method in self._methods:
            if on:
                setattr(cls, name, method)
            elif name in vars(cls):
                delattr(cls, name)
