"""A layout as JSON: what was asked, and every worker's mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from attrs import asdict, frozen

from kvoffload.canonical.identity import layout_id
from kvoffload.canonical.layers import AttentionLayer, LatentLayer, Layer, OpaqueLayer, PackedLayers
from kvoffload.canonical.pages import CanonicalPageMapping
from kvoffload.canonical.parallel import KVParallelConfig
from kvoffload.canonical.resharding import PageCopy

_KINDS: Mapping[type, str] = {
    AttentionLayer: "attention",
    LatentLayer: "latent",
    OpaqueLayer: "opaque",
}


@frozen
class Configuration:
    """A parallel configuration, and every worker's mapping under it, in order of rank.

    `shown` are the ranks that are asked for.
    """

    parallel: KVParallelConfig
    mappings: tuple[CanonicalPageMapping, ...]
    shown: range

    @property
    def workers(self) -> list[tuple[KVParallelConfig, CanonicalPageMapping]]:
        """Those that are asked for, each with its mapping."""
        return [(self.parallel.at(rank), self.mappings[rank]) for rank in self.shown]


@frozen
class Target:
    """The other configuration, and the copies of block `block_id` to it."""

    configuration: Configuration
    block_id: int
    copies: Sequence[PageCopy]


def to_json(layer: Layer, source: Configuration, target: Target | None = None) -> bytes:
    """A layout, and the copies to another one, as a JSON object with a line end.

    Sizes, offsets and strides are in bytes.
    """
    identity = layout_id(layer, source.parallel)
    # attrs' asdict gives a plain dict of whatever the fields hold.
    written: dict[str, Any] = {
        "layer": _layer(layer),
        "parallel": _parallel(source.parallel),
        "layout_id": {"digest": identity.digest, "fields": dict(identity.fields)},
        "canonical_page_size_bytes": source.mappings[0].canonical_page_size_bytes,
        "ranks": _ranks(source),
    }
    if target is not None:
        written["to"] = {
            "parallel": _parallel(target.configuration.parallel),
            "ranks": _ranks(target.configuration),
            "block_id": target.block_id,
            "copies": [
                {
                    "source_rank": copy.source_rank,
                    "target_rank": copy.target_rank,
                    "num_bytes": copy.num_bytes,
                    "runs": [run._asdict() for run in copy.runs],
                }
                for copy in target.copies
            ],
        }
    return msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n"


def _layer(layer: Layer) -> Mapping[str, object]:
    if isinstance(layer, PackedLayers):
        layers = [_layer(one) for one in layer.layers]
        return {"kind": "packed", **asdict(layer), "layers": layers}
    return {"kind": _KINDS[type(layer)], **asdict(layer)}


def _parallel(parallel: KVParallelConfig) -> Mapping[str, int]:
    return {
        "tp_size": parallel.tp_size,
        "dcp_size": parallel.dcp_size,
        "pcp_size": parallel.pcp_size,
        "interleave": parallel.interleave,
        "block_size": parallel.block_size,
        "num_ranks": parallel.num_ranks,
        "span": parallel.span,
    }


def _ranks(configuration: Configuration) -> list[Mapping[str, object]]:
    return [
        {
            "rank": worker.rank,
            "tp_rank": worker.tp_rank,
            "cp_rank": worker.cp_rank,
            "num_writers": mapping.num_writers,
            "writer_index": mapping.writer_index,
            "local_page_size_bytes": mapping.local_page_size_bytes,
            "runs": [asdict(run) for run in mapping.runs],
        }
        for worker, mapping in configuration.workers
    ]
