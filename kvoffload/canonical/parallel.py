"""Which tokens and heads a worker keeps: the arithmetic of ranks, in one place (MAP-4)."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve, field, frozen

from kvoffload.canonical.arguments import require_instance
from kvoffload.config import OffloadingParallelConfig
from kvoffload.errors import MappingError
from kvoffload.validation import int_at_least, require_int


@frozen(kw_only=True)
class KVParallelConfig:
    """How the KV cache of a layer is spread over workers, and which of them this one is (MAP-4).

    Tensor parallelism spreads heads. Context parallelism, over decode (dcp, inside the tensor
    group) and prefill (pcp, beside it), spreads tokens: `interleave` of them to each worker in
    turn. `block_size` counts the tokens in one worker's block. `rank` is in
    [0, tp_size * pcp_size).
    Raises MappingError for a rank that does not exist, and where context-parallel workers would
    get parts of an interleave.
    """

    tp_size: int = field(default=1, validator=int_at_least(1))
    dcp_size: int = field(default=1, validator=int_at_least(1))
    pcp_size: int = field(default=1, validator=int_at_least(1))
    interleave: int = field(default=1, validator=int_at_least(1))
    block_size: int = field(validator=int_at_least(1))
    rank: int = field(default=0, validator=int_at_least(0))

    def __attrs_post_init__(self) -> None:
        if self.rank >= self.num_ranks:
            raise MappingError(
                f"rank {self.rank} is not below tp_size {self.tp_size} x pcp_size {self.pcp_size} "
                f"= {self.num_ranks}"
            )
        if self.cp_size > 1 and self.block_size % self.interleave:
            raise MappingError(
                f"interleave {self.interleave} does not divide block_size {self.block_size}: "
                f"{self.block_size} % {self.interleave} = {self.block_size % self.interleave}, "
                f"and {self.cp_size} context-parallel workers share the tokens"
            )

    @classmethod
    def from_offloading(
        cls, config: OffloadingParallelConfig, *, block_size: int, interleave: int = 1
    ) -> KVParallelConfig:
        """The configuration of an engine's worker; its ranks must be exactly tp x pcp (MAP-4).

        Raises MappingError if they are not, as with pipeline parallelism.
        """
        require_instance("config", config, OffloadingParallelConfig)
        if config.world_size != config.tp_size * config.pcp_size:
            raise MappingError(
                f"world_size {config.world_size} is not tp_size {config.tp_size} x pcp_size "
                f"{config.pcp_size} = {config.tp_size * config.pcp_size}"
            )
        return cls(
            tp_size=config.tp_size,
            dcp_size=config.dcp_size,
            pcp_size=config.pcp_size,
            interleave=interleave,
            block_size=block_size,
            rank=config.rank,
        )

    @property
    def num_ranks(self) -> int:
        """How many workers there are."""
        return self.tp_size * self.pcp_size

    @property
    def cp_size(self) -> int:
        """Over how many workers the tokens are spread."""
        return self.dcp_size * self.pcp_size

    @property
    def span(self) -> int:
        """Tokens in a canonical page: the blocks of all context-parallel workers."""
        return self.block_size * self.cp_size

    @property
    def tp_rank(self) -> int:
        """This worker among those that spread heads."""
        return self.tp_rank_of(self.rank)

    @property
    def cp_rank(self) -> int:
        """This worker among those that spread tokens."""
        return self.cp_rank_of(self.rank)

    def tp_rank_of(self, rank: int) -> int:
        """Worker number `rank` among those that spread heads."""
        self._require_rank(rank)
        return rank % self.tp_size

    def cp_rank_of(self, rank: int) -> int:
        """Worker number `rank` among those that spread tokens: by prefill group, then decode."""
        self._require_rank(rank)
        return rank // self.tp_size * self.dcp_size + rank % self.tp_size % self.dcp_size

    @property
    def tokens_in_turn(self) -> int:
        """Neighbouring tokens of the canonical page that one worker keeps: I, or all of them."""
        return self.block_size if self.cp_size == 1 else self.interleave

    def canonical_token(self, token: int) -> int:
        """Which token of the canonical page is token number `token` of this worker's block."""
        require_int("token", token, 0, self.block_size - 1)
        turn, place = divmod(token, self.tokens_in_turn)
        return (turn * self.cp_size + self.cp_rank) * self.tokens_in_turn + place

    def at(self, rank: int) -> KVParallelConfig:
        """The same for another worker."""
        return evolve(self, rank=rank)

    def ranks(self) -> Iterator[KVParallelConfig]:
        """The same for each worker, in order of rank."""
        return map(self.at, range(self.num_ranks))

    def _require_rank(self, rank: int) -> None:
        if type(rank) is not int or not 0 <= rank < self.num_ranks:
            require_int("rank", rank, 0, self.num_ranks - 1)


@frozen
class HeadShare:
    """Which KV heads each worker keeps, and how often each head is kept (MAP-4).

    Raises MappingError, with the arithmetic, where heads and workers do not divide.
    """

    total_kv_heads: int = field(validator=int_at_least(1))
    tp_size: int = field(validator=int_at_least(1))
    dcp_size: int = field(validator=int_at_least(1))

    def __attrs_post_init__(self) -> None:
        heads, tp = self.total_kv_heads, self.tp_size
        if heads % tp and tp % heads:
            raise MappingError(
                f"neither of {heads} KV heads and tp_size {tp} divides the other: "
                f"{heads} % {tp} = {heads % tp}, {tp} % {heads} = {tp % heads}"
            )
        if self.replication % self.dcp_size:
            raise MappingError(
                f"dcp_size {self.dcp_size} does not divide the {self.replication} workers that "
                f"keep each head (max(1, tp_size {tp} // {heads} KV heads)): "
                f"{self.replication} % {self.dcp_size} = {self.replication % self.dcp_size}"
            )

    @property
    def replication(self) -> int:
        """Workers of a tensor-parallel group that keep the same heads."""
        return max(1, self.tp_size // self.total_kv_heads)

    @property
    def num_shards(self) -> int:
        """Into how many parts the heads are cut."""
        return min(self.total_kv_heads, self.tp_size)

    @property
    def local_heads(self) -> int:
        """Heads in one part."""
        return self.total_kv_heads // self.num_shards

    @property
    def num_writers(self) -> int:
        """Workers that keep the same heads of the same tokens, and take turns to write them."""
        return self.replication // self.dcp_size

    def shard(self, tp_rank: int) -> int:
        """Which part of the heads that worker keeps."""
        self._require_tp_rank(tp_rank)
        return tp_rank // self.replication

    def writer_index(self, tp_rank: int) -> int:
        """That worker's place among those that take turns."""
        self._require_tp_rank(tp_rank)
        return tp_rank % self.replication // self.dcp_size

    def _require_tp_rank(self, tp_rank: int) -> None:
        if type(tp_rank) is not int or not 0 <= tp_rank < self.tp_size:
            require_int("tp_rank", tp_rank, 0, self.tp_size - 1)
