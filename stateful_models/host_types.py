"""What a host hands to its policy: chunks and request contexts of its own classes."""

from __future__ import annotations

from typing import Final

from kvoffload import ChunkStatus, OffloadKey, ReqContext, TierFilter


class HostTypes:
    """The objects of one host. These are kvoffload's; hosts of other make derive.

    `chunk` takes the number of a slot, which its attribute `slot` then tells. What takes no context
    is called without; None: by whatever the policy takes.
    """

    chunk: type[ChunkStatus] = ChunkStatus
    slot: str = "chunk_id"
    context: type[ReqContext] = ReqContext
    insert_takes_context: bool | None = None
    touch_takes_context: bool | None = None

    def make_context(self, request: str) -> ReqContext:
        """The context of a request of this id, as it is before anything is known of it."""
        return self.context(request)

    def announce(
        self, context: ReqContext, hints: dict[str, object] | None, tiers: TierFilter
    ) -> None:
        """Give a context what its client sent; None for a request that came without."""
        if hints is not None:
            context.kv_transfer_params = hints
        context.load_tier_filter = tiers

    def set_position(self, context: ReqContext, key: OffloadKey, end: int) -> None:
        """Tell a context where in its request a key ends, in tokens."""
        context.set_offload_key_position(key, end)


OWN_TYPES: Final = HostTypes()
"""Those of kvoffload's own manager."""
