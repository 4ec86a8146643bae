"""The random programs in shards, each of which one process plays by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

from kvoffload.vllm.control_plane import REAL
from spec_tests.peer.root import peer
from stateful_models.vllm.differential import Shard, Tally, run_shard

KINDS = (
    # The policy, whether it is the same one on both sides, and its share of the operations.
    ("lru", False, 4),
    ("arc", False, 4),
    ("lru", True, 1),
    ("arc", True, 1),
    (None, True, 1),
)
"""With which policies both managers are built: each with its own, or both with one that listens."""

SHARDS = 4
"""Of each kind, so that no core waits for another in the end."""


def shards_of(operations: int, seed: int) -> Sequence[Shard]:
    """Shards that play at least so many operations together."""
    parts = SHARDS * sum(share for _, _, share in KINDS)
    return [
        Shard(policy, -(-operations * share // parts), seed, number, tapped)
        for number in range(SHARDS)
        for policy, tapped, share in KINDS
    ]


def play_shard(shard: Shard) -> tuple[Shard, Tally]:
    """Play a shard on the vLLM that the environment names."""
    return shard, run_shard(peer(), shard)


def unpack(wheel: Path, root: Path) -> int:
    """Unpack vLLM's control plane, and what tells its version; gives the number of files."""
    folders = tuple(name.replace(".", "/") for name in REAL)
    with ZipFile(wheel) as packed:
        names = [
            name
            for name in packed.namelist()
            if name.startswith(tuple(f"{folder}/" for folder in folders))
            or name.removesuffix(".py") in folders
            or name.endswith(".dist-info/METADATA")
        ]
        packed.extractall(root, names)
    return len(names)
