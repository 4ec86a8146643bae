"""What stands in front of a policy that is called by another protocol than our manager's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from kvoffload.keys import OffloadKey
from kvoffload.policies.base import CachePolicy, ChunkStatus
from kvoffload.requests import ReqContext


class Front(CachePolicy):
    """Passes on the calls to a policy, and is told of requests what that policy may need to know.

    A host calls these beside those of a policy. `policy` is the one that is meant when something
    is measured; `tells_lookups`: it wants to be told of each key that is looked up; `evicts_more`:
    it may evict more than it is asked for, as it has declared. What it gives to the policy as a
    chunk is a `chunk` with the number of a slot, which its attribute `slot` then tells; None: it
    gives what it is given.
    """

    policy: CachePolicy
    tells_lookups: bool
    evicts_more: bool
    chunk: type[ChunkStatus] | None
    slot: str

    @abstractmethod
    def request_started(self, context: ReqContext) -> None:
        """A request was announced to the host."""

    @abstractmethod
    def looked_up(self, key: OffloadKey, found: bool, context: ReqContext) -> None:
        """A key was looked up."""

    @abstractmethod
    def offered(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """Keys are about to be offered."""

    @abstractmethod
    def scheduled(self, keys: Sequence[OffloadKey], context: ReqContext) -> None:
        """A request is scheduled, to load these keys."""

    @abstractmethod
    def request_over(self, context: ReqContext) -> None:
        """A request ended, and the policy has been told."""

    @abstractmethod
    def host_objects(self) -> Iterable[object]:
        """The chunks and contexts of the other protocol's host, which a policy may hold."""
