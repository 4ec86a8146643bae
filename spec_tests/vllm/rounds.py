"""Random rounds of calls as a host makes them, played on several sides that must agree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, Protocol, TypeAlias

from kvoffload import OffloadKey, make_offload_key
from kvoffload.vllm.standins import VLLMProvider
from stateful_models.models.policy import PolicyModel
from stateful_models.operations import RequestId

KEYS: Final = tuple(make_offload_key(bytes([index]) * 4, index % 2) for index in range(14))
CAPACITY: Final = 5
RUNNING: Final = 3

Keys: TypeAlias = Sequence[OffloadKey]


class Side(ABC):
    """One that the rounds are played on."""

    @abstractmethod
    def insert(self, key: OffloadKey, slot: int, request: RequestId) -> None: ...

    @abstractmethod
    def references(self, key: OffloadKey, count: int) -> None:
        """The number of loads is this now, after 0 or before it; 0 also when a store ends."""

    @abstractmethod
    def remove(self, key: OffloadKey) -> None: ...

    @abstractmethod
    def touch(self, keys: Keys, request: RequestId) -> None: ...

    @abstractmethod
    def miss(self, keys: Keys, request: RequestId) -> None: ...

    @abstractmethod
    def access(self, keys: Keys, request: RequestId) -> None: ...

    @abstractmethod
    def finish(
        self, groups: Sequence[Keys], stored: Keys, reused: Keys, who: RequestId
    ) -> None: ...

    @abstractmethod
    def evict(self, count: int, protected: Keys) -> list[OffloadKey] | None: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def begin(self, request: RequestId, ends: Mapping[OffloadKey, int]) -> None:
        """The request is another one from now on."""

    @abstractmethod
    def resident(self) -> list[OffloadKey]:
        """The keys that are there."""


class _Status(Protocol):
    ref_cnt: int


class Called(Side):
    """A policy of some vLLM, called as that version calls it."""

    def __init__(self, vllm: VLLMProvider, policy: type) -> None:
        self.vllm = vllm
        self.policy: object = policy(CAPACITY)
        self.contexts: dict[RequestId, object] = {}
        self.statuses: dict[OffloadKey, _Status] = {}

    def call(self, name: str, *arguments: object) -> object:
        """A method with as many of the arguments as it takes; None if it has no such method."""
        parameters = self.vllm.version.parameters(name)
        if parameters is None:
            return None
        method: Callable[..., object] = getattr(self.policy, name)
        return method(*arguments[: len(parameters)])

    def insert(self, key: OffloadKey, slot: int, request: RequestId) -> None:
        status: _Status = self.vllm.chunk_status(slot)
        self.statuses[key] = status
        self.call("insert", key, status, self.contexts[request])

    def references(self, key: OffloadKey, count: int) -> None:
        status = self.statuses[key]
        before, status.ref_cnt = status.ref_cnt, count
        if count == 0:
            self.call("mark_evictable", key)
        elif before == 0:
            self.call("mark_non_evictable", key)

    def remove(self, key: OffloadKey) -> None:
        self.call("remove", key)
        del self.statuses[key]

    def touch(self, keys: Keys, request: RequestId) -> None:
        # One that can be read once only, as hosts pass them.
        self.call("touch", iter(keys), self.contexts[request])

    def miss(self, keys: Keys, request: RequestId) -> None:
        self.call("on_store_miss", list(keys), self.contexts[request])

    def access(self, keys: Keys, request: RequestId) -> None:
        self.call("on_request_access", iter(keys), self.contexts[request])

    def finish(self, groups: Sequence[Keys], stored: Keys, reused: Keys, who: RequestId) -> None:
        self.call(
            "on_request_finished", tuple(groups), set(stored), set(reused), self.contexts[who]
        )

    def evict(self, count: int, protected: Keys) -> list[OffloadKey] | None:
        answer = self.call("evict", count, set(protected))
        if answer is None:
            return None
        assert isinstance(answer, list)
        victims: list[tuple[OffloadKey, object]] = answer
        for key, status in victims:
            assert status is self.statuses.pop(key)
        return [key for key, _ in victims]

    def clear(self) -> None:
        self.call("clear")
        self.statuses.clear()

    def begin(self, request: RequestId, ends: Mapping[OffloadKey, int]) -> None:
        self.contexts[request] = self.vllm.make_context(request, None, ends)

    def resident(self) -> list[OffloadKey]:
        found = [key for key in KEYS if self.call("get", key) is not None]
        for key in found:
            assert self.call("get", key) is self.statuses[key]
        return found


class Modelled(Side):
    """A model, told what a version tells its policy."""

    def __init__(self, vllm: VLLMProvider, model: PolicyModel) -> None:
        self.version = vllm.version
        self.model = model
        self.ends: dict[RequestId, Mapping[OffloadKey, int]] = {}

    def insert(self, key: OffloadKey, slot: int, request: RequestId) -> None:
        positioned = "req_context" in (self.version.parameters("insert") or ())
        self.model.insert(key, request, self.ends[request] if positioned else {})

    def references(self, key: OffloadKey, count: int) -> None:
        if count == 0:
            self.model.mark_evictable(key)
        else:
            self.model.mark_non_evictable(key)

    def remove(self, key: OffloadKey) -> None:
        self.model.remove(key)

    def touch(self, keys: Keys, request: RequestId) -> None:
        self.model.touch(keys)

    def miss(self, keys: Keys, request: RequestId) -> None:
        if "on_store_miss" in self.version.hooks:
            self.model.miss(keys)

    def access(self, keys: Keys, request: RequestId) -> None:
        if "on_request_access" in self.version.hooks:
            self.model.access(keys, request, self.ends[request])

    def finish(self, groups: Sequence[Keys], stored: Keys, reused: Keys, who: RequestId) -> None:
        if "on_request_finished" in self.version.hooks:
            self.model.finish(groups, stored, reused, self.ends[who])

    def evict(self, count: int, protected: Keys) -> list[OffloadKey] | None:
        return self.model.evict(count, protected)

    def clear(self) -> None:
        self.model.clear()

    def begin(self, request: RequestId, ends: Mapping[OffloadKey, int]) -> None:
        self.ends[request] = ends

    def resident(self) -> list[OffloadKey]:
        return [key for key in KEYS if key in self.model.states]


class Rounds:
    """What a host knows, and its calls; every side gets each of them, and all must answer alike.

    `reach` counts what happened.
    """

    def __init__(self, seed: int, sides: Sequence[Side], clears: bool) -> None:
        self.random = Random(seed)
        self.sides = sides
        self.references: dict[OffloadKey, int] = {}
        self.begun = 0
        self.running: list[RequestId] = []
        self.reach: Counter[str] = Counter()
        moves = [self.store, self.store, self.end_store, self.end_store, self.load, self.end_load]
        self.moves: list[Callable[[], None]] = [*moves, self.touch, self.access, self.finish]
        if clears:
            self.moves.append(self.seldom_clear)
        for _ in range(RUNNING):
            self.begin()

    def play(self, count: int) -> None:
        """So many moves, at random."""
        for _ in range(count):
            self.random.choice(self.moves)()
            expected = [key for key in KEYS if key in self.references]
            assert [side.resident() for side in self.sides] == [expected] * len(self.sides)

    def begin(self) -> None:
        request = f"r{self.begun}"
        self.begun += 1
        self.running.append(request)
        ends = {key: self.random.randrange(1, 5) for key in KEYS if self.random.random() < 0.8}
        for side in self.sides:
            side.begin(request, ends)

    def some(self, keys: Keys) -> list[OffloadKey]:
        """Some of the keys, at most three, in any order."""
        return self.random.sample(keys, self.random.randrange(min(3, len(keys)) + 1))

    def store(self) -> None:
        request = self.random.choice(self.running)
        offer = self.some(KEYS)
        missing = [key for key in offer if key not in self.references]
        for side in self.sides:
            side.miss(missing, request)
            side.access(offer, request)
        # More than there is, now and then.
        room = CAPACITY - len(self.references) - self.random.randrange(3)
        if len(missing) > room and not self.evict(len(missing) - room, offer):
            return
        for key in missing:
            if len(self.references) < CAPACITY:
                slot = self.random.randrange(100)
                self.references[key] = -1
                for side in self.sides:
                    side.insert(key, slot, request)

    def evict(self, count: int, protected: Keys) -> bool:
        answers = [side.evict(count, protected) for side in self.sides]
        victims = answers[0]
        assert answers == [victims] * len(answers)
        self.reach["refused" if victims is None else f"victims: {min(count, 2)}"] += 1
        for key in victims or ():
            assert self.references.pop(key) == 0
            assert key not in protected
        return victims is not None

    def with_references(self, wanted: Callable[[int], bool]) -> list[OffloadKey]:
        return [key for key, count in self.references.items() if wanted(count)]

    def end_store(self) -> None:
        for key in self.some(self.with_references(lambda count: count < 0)):
            if self.random.random() < 0.1:
                self.reach["failed stores"] += 1
                del self.references[key]
                for side in self.sides:
                    side.remove(key)
            else:
                self.references[key] = 0
                for side in self.sides:
                    side.references(key, 0)

    def load(self) -> None:
        for key in self.some(self.with_references(lambda count: count >= 0)):
            self.count(key, +1)

    def end_load(self) -> None:
        for key in self.some(self.with_references(lambda count: count > 0)):
            self.reach["loads"] += 1
            self.count(key, -1)

    def count(self, key: OffloadKey, change: int) -> None:
        self.references[key] += change
        for side in self.sides:
            side.references(key, self.references[key])

    def touch(self) -> None:
        keys, request = self.some(KEYS), self.random.choice(self.running)
        for side in self.sides:
            side.touch(keys, request)

    def access(self) -> None:
        keys, request = self.some(KEYS), self.random.choice(self.running)
        for side in self.sides:
            side.access(keys, request)

    def finish(self) -> None:
        request = self.running.pop(self.random.randrange(RUNNING))
        seen = self.random.sample(KEYS, 4)
        groups = [[key for key in seen if key[-1] == group] for group in (0, 1)]
        stored, reused = seen[:2], seen[2:3]
        for side in self.sides:
            side.finish(groups, stored, reused, request)
        self.begin()

    def seldom_clear(self) -> None:
        if self.random.random() < 0.1:
            self.reach["resets"] += 1
            self.references.clear()
            for side in self.sides:
                side.clear()
