"""What one request has seen of one manager in one generation (FIN-1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
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

    __slots__ = ("_suffixes", "finished", "inserted", "missed", "reused", "seen")

    def __init__(self, suffixes: set[bytes]) -> None:
        """`suffixes`: those of all keys that any request has missed; added to by this one."""
        self._suffixes = suffixes
        self.seen: dict[OffloadKey, None] = {}
        self.missed: set[OffloadKey] = set()
        self.inserted: set[OffloadKey] = set()
        self.reused: set[OffloadKey] = set()
        self.finished: bool = False

    def unseen(self, keys: Sequence[OffloadKey]) -> dict[OffloadKey, None]:
        """Those of `keys` that the request has not seen, in order, each once."""
        seen = self.seen
        if seen and not seen.keys().isdisjoint(keys):
            return {key: None for key in keys if key not in seen}
        return dict.fromkeys(keys)

    def see(self, keys: dict[OffloadKey, None]) -> None:
        """The request sees these, found or missed; the dict is kept."""
        if self.seen:
            self.seen.update(keys)
        else:
            self.seen = keys

    def miss(self, keys: Set[OffloadKey]) -> None:
        """The policy is told that the request misses these, of which there are some."""
        self.missed |= keys
        suffixes = list(map(GROUP_SUFFIX, keys))
        # Mostly all are the same, which is seen without a hash of each.
        all_same = suffixes.count(suffixes[0]) == len(suffixes)
        self._suffixes.update(suffixes[:1] if all_same else suffixes)

    def reuse(self, keys: Iterable[OffloadKey]) -> None:
        """The request found these ready."""
        if self.inserted:
            self.reused.update(key for key in keys if key not in self.inserted)
        else:
            self.reused.update(keys)

    def key_groups(self, req_context: ReqContext) -> tuple[tuple[OffloadKey, ...], ...]:
        """The keys seen, by group ascending; a group by position when all of it have one."""
        keys = list(self.seen)
        # What one request finds another has missed, so these are the groups of all that is seen.
        if len(self._suffixes) == 1 and keys:
            return (tuple(order_by_position(keys, req_context)),)
        groups: defaultdict[bytes, list[OffloadKey]] = defaultdict(list)
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
