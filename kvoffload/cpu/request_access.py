"""What one request has seen of one manager in one generation (FIN-1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from kvoffload.errors import InvariantError
from kvoffload.keys import GROUP_BYTES, OffloadKey
from kvoffload.policies.base import order_by_position
from kvoffload.requests import ReqContext

GROUP_SUFFIX = itemgetter(slice(-GROUP_BYTES, None))


class RequestAccess:
    """Keys in the order in which the request first saw them, and how it came to see each.

    `missed`: the policy was told of their miss. `inserted`: stored by the request. `reused`:
    found ready, though not inserted by the request before (LOAD-5).
    """

    __slots__ = ("finished", "inserted", "missed", "reused", "seen")

    def __init__(self) -> None:
        self.seen: dict[OffloadKey, None] = {}
        self.missed: set[OffloadKey] = set()
        self.inserted: set[OffloadKey] = set()
        self.reused: set[OffloadKey] = set()
        self.finished: bool = False

    def unseen(self, keys: Sequence[OffloadKey]) -> dict[OffloadKey, None]:
        """Those of `keys` that the request has not seen, in order, each once."""
        seen = self.seen
        if seen:
            return {key: None for key in keys if key not in seen}
        return dict.fromkeys(keys)

    def see(self, keys: dict[OffloadKey, None]) -> None:
        """The request has seen these, which `unseen` named."""
        if self.seen:
            self.seen.update(keys)
        else:
            self.seen = keys

    def reuse(self, keys: Iterable[OffloadKey]) -> None:
        """The request found these ready."""
        if self.inserted:
            self.reused.update(key for key in keys if key not in self.inserted)
        else:
            self.reused.update(keys)

    def key_groups(self, req_context: ReqContext) -> tuple[tuple[OffloadKey, ...], ...]:
        """The keys seen, by group ascending; a group by position when all of it have one."""
        keys = list(self.seen)
        suffixes = set(map(GROUP_SUFFIX, keys))
        if len(suffixes) == 1:
            return (tuple(order_by_position(keys, req_context)),)
        groups: dict[bytes, list[OffloadKey]] = {suffix: [] for suffix in suffixes}
        for key in keys:
            groups[key[-GROUP_BYTES:]].append(key)
        return tuple(
            tuple(order_by_position(groups[suffix], req_context)) for suffix in sorted(groups)
        )

    def check(self) -> None:
        """Raise InvariantError if something was inserted, missed or reused but never seen."""
        unseen = (self.missed | self.inserted | self.reused) - self.seen.keys()
        if unseen:
            raise InvariantError(f"request record: {unseen} not in {list(self.seen)}")
