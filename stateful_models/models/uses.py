"""What the models share whose policies are told by uses: who uses what, and in which order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from kvoffload.keys import OffloadKey
from stateful_models.models.policy import Ends, PolicyModel, State, prefix_order
from stateful_models.operations import RequestId


class UseModel(PolicyModel):
    """A touch uses its keys; a request that ends, those that it reused. A pending key is not used.

    With `tail_first` keys come last first, and those that a request only inserted are renewed.
    `reached` are those of the `SITUATIONS` that a run came to: without them its victims say little.
    """

    SITUATIONS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, capacity: int, tail_first: bool = False) -> None:
        super().__init__(capacity)
        self.tail_first: bool = tail_first
        self.reached: set[str] = set()

    @abstractmethod
    def use(self, key: OffloadKey) -> None:
        """A key that is resident, and not pending, was used."""

    @abstractmethod
    def renew(self, key: OffloadKey) -> None:
        """A resident key becomes the newest of the list that it is in."""

    def want(self, key: OffloadKey) -> None:
        """A key was used, resident or not."""
        if self.states.get(key, State.PENDING) is not State.PENDING:
            self.use(key)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys[::-1] if self.tail_first else keys:
            self.want(key)

    def miss(self, keys: Sequence[OffloadKey]) -> None:
        pass

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
        keys = prefix_order(key_groups, ends)
        for key in keys[::-1] if self.tail_first else keys:
            if key in used:
                self.want(key)
            elif self.tail_first and key in inserted and key in self.states:
                self.renew(key)


def first_of(keys: Sequence[OffloadKey], allowed: Iterable[OffloadKey]) -> OffloadKey | None:
    """The first of `keys` that is allowed, None if none is."""
    return next((key for key in keys if key in allowed), None)
