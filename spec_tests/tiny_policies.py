"""Small policies to try engines on, and a trial of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from random import Random
from typing import TypeVar

from attrs import evolve
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.drivers import Driver
from stateful_models.engines.base import PolicyTrial
from stateful_models.engines.runs import PLAIN, Surroundings
from stateful_models.invariants.policies import PolicyContract
from stateful_models.levels import QUICK, Level

P = TypeVar("P", bound=CachePolicy)

SHORT = evolve(QUICK, laws=40, patience_s=1_000.0)


def trial_of(
    driver: Driver[P],
    capabilities: Capabilities = NONE,
    *,
    level: Level = SHORT,
    seed: int = 0,
    surroundings: Surroundings = PLAIN,
) -> PolicyTrial[P]:
    """A trial of what the driver builds, without any limit of time."""
    return PolicyTrial(
        driver,
        lambda capacity: [PolicyContract(capabilities)],
        capabilities=capabilities,
        level=level,
        seed=seed,
        surroundings=surroundings,
    )


class Fifo(CachePolicy):
    """First in, first out; `choose` and the hooks are there to be overridden."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.chunks: dict[OffloadKey, ChunkStatus] = {}

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        return self.chunks.get(key)

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        self.chunks[key] = chunk

    @override
    def remove(self, key: OffloadKey) -> None:
        self.chunks.pop(key, None)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        return None

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        idle = [k for k, chunk in self.chunks.items() if chunk.ref_cnt == 0 and k not in protected]
        if len(idle) < n:
            return None
        return [(key, self.chunks.pop(key)) for key in self.choose(n, idle)]

    @override
    def clear(self) -> None:
        self.chunks.clear()

    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        """`n` of the idle keys, which are in the order of their insertion."""
        return idle[:n]


class SparesSessions(Fifo):
    """Spares chunks that a request of some session stored; what is removed is of none any more."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.spared: set[OffloadKey] = set()

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        hints = req_context.kv_transfer_params
        if hints is not None and "session" in hints:
            self.spared.add(key)

    @override
    def remove(self, key: OffloadKey) -> None:
        super().remove(key)
        self.spared.discard(key)

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        chosen = sorted(idle, key=self.spared.__contains__)[:n]
        self.spared.difference_update(chosen)
        return chosen

    @override
    def clear(self) -> None:
        super().clear()
        self.spared.clear()


class OfSessions(Driver[Fifo]):
    """Half of the requests are of a session."""

    @override
    def contexts(self) -> SearchStrategy[Mapping[str, object] | None]:
        return st.none() | st.just({"session": "s1"})


class Lru(Fifo):
    """Least recently touched."""

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        for key in reversed(list(keys)):
            if key in self.chunks:
                self.chunks[key] = self.chunks.pop(key)


class Mru(Lru):
    """Most recently touched."""

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return idle[::-1][:n]


class SeededRandom(Fifo):
    """Random victims, the same for a new policy and after a reset."""

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._random = Random(0)

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return self._random.sample(idle, n)

    @override
    def clear(self) -> None:
        super().clear()
        self._random = Random(0)


class EverySecond(Fifo):
    """Refuses every second time that it could evict, as it says."""

    may_refuse = "lets a store through every second time"

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self._asked = 0

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        self._asked += 1
        return super().evict(n, protected) if self._asked % 2 else None

    @override
    def clear(self) -> None:
        super().clear()
        self._asked = 0


class HandClock:
    """A clock that is moved by hand, and by a microsecond at each reading."""

    def __init__(self) -> None:
        self.microseconds = 0

    def __call__(self) -> float:
        self.microseconds += 1
        return self.microseconds / 1e6

    def restart(self) -> None:
        self.microseconds = 0

    def advance(self, seconds: float) -> None:
        self.microseconds += round(seconds * 1e6)

    @property
    def surroundings(self) -> Surroundings:
        return Surroundings(restart=self.restart, advance=self.advance)


class Expiring(Fifo):
    """What has been there for ten seconds goes first, the newest of it; else first in, first out.

    Every minute of its life, counted from when it was made, it turns the order round.
    """

    def __init__(self, cache_capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(cache_capacity)
        self._clock = clock
        self._born = clock()
        self._since: dict[OffloadKey, float] = {}

    @override
    def insert(self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext) -> None:
        super().insert(key, chunk, req_context)
        self._since[key] = self._clock()

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        now = self._clock()
        expired = [key for key in idle if now - self._since[key] > 10.0]
        others = [key for key in idle if key not in expired]
        chosen = [*expired[::-1], *others]
        if (now - self._born) % 120.0 > 60.0:
            chosen.reverse()
        return chosen[:n]

    @override
    def clear(self) -> None:
        super().clear()
        self._since.clear()


class Reborn(Expiring):
    """A reset is a birth."""

    @override
    def clear(self) -> None:
        super().clear()
        self._born = self._clock()


class BySecond(Fifo):
    """In every other second the newest goes."""

    def __init__(self, cache_capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(cache_capacity)
        self._clock = clock

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return idle[::-1][:n] if int(self._clock()) % 2 else idle[:n]


class ByAge(BySecond):
    """In every other second of its life, which a reset begins again, the newest goes."""

    def __init__(self, cache_capacity: int, clock: Callable[[], float]) -> None:
        super().__init__(cache_capacity, clock)
        self._born = clock()

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        age = self._clock() - self._born
        return idle[::-1][:n] if int(age) % 2 else idle[:n]

    @override
    def clear(self) -> None:
        super().clear()
        self._born = self._clock()


class TurnsAfterClear(Fifo):
    """Evicts the newest first, once it was cleared."""

    turned = False

    @override
    def clear(self) -> None:
        super().clear()
        self.turned = True

    @override
    def choose(self, n: int, idle: list[OffloadKey]) -> Sequence[OffloadKey]:
        return idle[::-1][:n] if self.turned else idle[:n]


LEGAL: tuple[type[Fifo], ...] = (Fifo, Lru, Mru, SeededRandom, EverySecond)
