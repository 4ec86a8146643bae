"""Transfers that were prepared and not completed: who holds which pins and pending chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum

from attrs import frozen

from kvoffload.errors import InvariantError, UnknownTicketError
from kvoffload.keys import OffloadKey
from kvoffload.policies.base import ChunkStatus


class TransferKind(Enum):
    """What a transfer holds: a pin for each occurrence of a key, or pending chunks."""

    LOAD = "load"
    STORE = "store"


@frozen
class OutstandingTransfer:
    """A transfer of a request that has not been completed, with the keys it still holds (PIN-2).

    A key loaded twice is listed twice.
    """

    ticket: int
    kind: TransferKind
    keys: tuple[OffloadKey, ...]


class Transfer:
    """What one `prepare_load` or `prepare_store` holds; `chunks[i]` is that of `keys[i]`."""

    __slots__ = ("_remaining", "chunks", "keys", "kind", "request_id", "ticket")

    def __init__(
        self,
        ticket: int,
        kind: TransferKind,
        request_id: str,
        keys: list[OffloadKey],
        chunks: list[ChunkStatus],
    ) -> None:
        self.ticket: int = ticket
        self.kind: TransferKind = kind
        self.request_id: str = request_id
        self.keys: list[OffloadKey] = keys
        self.chunks: list[ChunkStatus] = chunks
        # Counted only once part of the transfer is completed, which few ever see.
        self._remaining: Counter[OffloadKey] | None = None

    def is_whole(self, keys: list[OffloadKey]) -> bool:
        """Whether `keys` are just what the transfer began with, nothing of it completed yet."""
        return self._remaining is None and self.keys == keys

    @property
    def remaining(self) -> Counter[OffloadKey]:
        if self._remaining is None:
            self._remaining = Counter(self.keys)
        return self._remaining

    def held_of(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Those of `keys` that it holds, each as often as it does."""
        left = Counter(self.keys) if self._remaining is None else self._remaining.copy()
        held: list[OffloadKey] = []
        for key in keys:
            if left[key] > 0:
                left[key] -= 1
                held.append(key)
        return held

    def drop(self, key: OffloadKey) -> bool:
        """Let go of one occurrence of `key`; whether there was one."""
        if self._remaining is None and key not in self.keys:
            # Nothing is let go of, so the transfer is still whole.
            return False
        remaining = self.remaining
        if remaining[key] <= 0:
            return False
        remaining[key] -= 1
        if not remaining[key]:
            del remaining[key]
        return True

    def keys_left(self) -> tuple[OffloadKey, ...]:
        if self._remaining is None:
            return tuple(self.keys)
        return tuple(self._remaining.elements())


class OpenTransfers:
    """Open transfers by ticket and by request. Tickets count up and are never given out twice."""

    def __init__(self) -> None:
        self._next_ticket = 0
        self._by_ticket: dict[int, Transfer] = {}
        self._by_request: dict[str, dict[int, Transfer]] = {}

    def open(
        self,
        kind: TransferKind,
        request_id: str,
        keys: list[OffloadKey],
        chunks: list[ChunkStatus],
    ) -> int:
        """Begin a transfer that holds `keys`; the lists are kept. Without keys, just a ticket."""
        ticket = self._next_ticket
        self._next_ticket = ticket + 1
        if keys:
            transfer = Transfer(ticket, kind, request_id, keys, chunks)
            self._by_ticket[ticket] = transfer
            of_request = self._by_request.get(request_id)
            if of_request is None:
                self._by_request[request_id] = {ticket: transfer}
            else:
                of_request[ticket] = transfer
        return ticket

    def find_whole(
        self, kind: TransferKind, request_id: str, keys: list[OffloadKey]
    ) -> Transfer | None:
        """The request's oldest transfer of just `keys`, nothing of it completed yet.

        Most completions are of one; then its chunks are known, and that it holds them.
        """
        for transfer in self._by_request.get(request_id, {}).values():
            if transfer.kind is kind and transfer.is_whole(keys):
                return transfer
        return None

    def find_ticket(self, call: str, ticket: int, kind: TransferKind) -> Transfer | None:
        """The transfer under `ticket`, None if it is over or of the other kind.

        Raises UnknownTicketError for a ticket that was never given out.
        """
        if type(ticket) is not int or not 0 <= ticket < self._next_ticket:
            raise UnknownTicketError(call, ticket)
        transfer = self._by_ticket.get(ticket)
        return transfer if transfer is not None and transfer.kind is kind else None

    def close_whole(self, transfer: Transfer) -> None:
        """The transfer lets go of everything."""
        del self._by_ticket[transfer.ticket]
        of_request = self._by_request[transfer.request_id]
        del of_request[transfer.ticket]
        if not of_request:
            del self._by_request[transfer.request_id]

    def close_part(self, transfer: Transfer, keys: list[OffloadKey]) -> None:
        """The transfer lets go of `keys`, which it holds."""
        for key in keys:
            self._drop(transfer, key)

    def close(self, kind: TransferKind, request_id: str, keys: list[OffloadKey]) -> None:
        """Whoever holds `keys` lets go of them: this request first, the oldest transfer first."""
        own = [t for t in self._by_request.get(request_id, {}).values() if t.kind is kind]
        for key in keys:
            for transfer in self._holders(kind, own):
                if self._drop(transfer, key):
                    break

    def outstanding(self, request_id: str) -> tuple[OutstandingTransfer, ...]:
        """What the request holds, oldest transfer first (PIN-2)."""
        return tuple(
            OutstandingTransfer(transfer.ticket, transfer.kind, transfer.keys_left())
            for transfer in self._by_request.get(request_id, {}).values()
        )

    def clear(self) -> None:
        """Let go of everything; tickets go on counting."""
        self._by_ticket.clear()
        self._by_request.clear()

    def held_counts(self, kind: TransferKind) -> Counter[OffloadKey]:
        """How often each key is held by transfers of this kind."""
        return Counter(
            key
            for transfer in self._by_ticket.values()
            if transfer.kind is kind
            for key in transfer.keys_left()
        )

    def check(self) -> None:
        """Raise InvariantError unless both indexes hold the same, and nothing empty."""
        of_requests = {
            ticket: transfer
            for of_request in self._by_request.values()
            for ticket, transfer in of_request.items()
        }
        if (
            of_requests != self._by_ticket
            or not all(self._by_request.values())
            or not all(transfer.keys_left() for transfer in self._by_ticket.values())
            or max(self._by_ticket, default=-1) >= self._next_ticket
        ):
            raise InvariantError(
                f"open transfers: by ticket {self._by_ticket}, by request {self._by_request}"
            )

    def _holders(self, kind: TransferKind, first: list[Transfer]) -> Iterator[Transfer]:
        yield from first
        yield from [t for t in self._by_ticket.values() if t.kind is kind]

    def _drop(self, transfer: Transfer, key: OffloadKey) -> bool:
        dropped = transfer.drop(key)
        if dropped and not transfer.remaining:
            self.close_whole(transfer)
        return dropped
