"""Layers, workers, tokens and runs in words, for the terminal and for pictures."""

from __future__ import annotations

from kvoffload.canonical.layers import AttentionLayer, LatentLayer, Layer, OpaqueLayer, PackedLayers
from kvoffload.canonical.pages import CanonicalPageMapping, CopyRun
from kvoffload.canonical.parallel import HeadShare, KVParallelConfig
from kvoffload.canonical.resharding import DirectRun
from kvoffload.wording import counted

_SHOWN_TURNS = 3


def describe_layer(layer: Layer, element: str | None = None) -> str:
    """What a layer keeps; `element` is the type of its elements where that is known."""
    if isinstance(layer, PackedLayers):
        return "; ".join(describe_layer(one, element) for one in layer.layers)
    if isinstance(layer, OpaqueLayer):
        return f"opaque, {layer.page_size_bytes:,} bytes of every worker"
    size = counted(layer.element_size_bytes, "byte")
    elements = f"elements of {size}" if element is None else f"{element} ({size})"
    if isinstance(layer, LatentLayer):
        second = f", then {layer.second_row_bytes:,} bytes" if layer.second_row_bytes else ""
        return f"one latent row a token (MLA): {layer.row_elements:,} {elements}{second}"
    heads = counted(layer.total_kv_heads, "KV head")
    encoding = "unknown encoding" if layer.encoding is None else _encoding(layer)
    return f"{heads} of {layer.head_size:,} {elements}; {encoding}"


def describe_parallel(parallel: KVParallelConfig) -> str:
    """`tp 8, dcp 2, interleave 4`; what is 1, or plays no part, is left out."""
    parts = [f"tp {parallel.tp_size}"]
    if parallel.dcp_size > 1:
        parts.append(f"dcp {parallel.dcp_size}")
    if parallel.pcp_size > 1:
        parts.append(f"pcp {parallel.pcp_size}")
    if parallel.cp_size > 1:
        parts.append(f"interleave {parallel.interleave}")
    return ", ".join(parts)


def describe_span(parallel: KVParallelConfig) -> str:
    """The tokens of a canonical page, with the arithmetic."""
    return (
        f"{parallel.span:,} tokens (block_size {parallel.block_size} x dcp {parallel.dcp_size} "
        f"x pcp {parallel.pcp_size})"
    )


def describe_heads(layer: Layer, parallel: KVParallelConfig) -> str:
    """Which heads worker `parallel.rank` keeps: `0-3`; `all` where they share what is kept."""
    if isinstance(layer, LatentLayer):
        return "all"
    if not isinstance(layer, AttentionLayer):
        return "-"
    share = HeadShare(layer.total_kv_heads, parallel.tp_size, parallel.dcp_size)
    first = share.shard(parallel.tp_rank) * share.local_heads
    return describe_range(first, first + share.local_heads)


def describe_tokens(parallel: KVParallelConfig) -> str:
    """Which tokens of the canonical page worker `parallel.rank` keeps: `0-3, 8-11 .. 24-27`."""
    turn = parallel.tokens_in_turn
    turns = parallel.block_size // turn
    shortened = turns > _SHOWN_TURNS
    shown = (*range(_SHOWN_TURNS - 1), turns - 1) if shortened else range(turns)
    firsts = [parallel.canonical_token(place * turn) for place in shown]
    *named, last = [describe_range(first, first + turn) for first in firsts]
    return f"{', '.join(named)} .. {last}" if shortened else ", ".join((*named, last))


def describe_turns(mapping: CanonicalPageMapping) -> str:
    """Which blocks this worker writes: `0, 2, 4, ...`; all, where it is the only one."""
    if mapping.num_writers == 1:
        return "every block"
    ids = (mapping.writer_index + turn * mapping.num_writers for turn in range(3))
    return f"blocks {', '.join(map(str, ids))}, ..."


def describe_run(run: CopyRun | DirectRun) -> str:
    """`0 -> 1,024: 16 x 512 bytes, every 512 -> every 4,096`: from one page to the other."""
    left, right, size, num_fragments, left_step, right_step = _fields(run)
    start = f"{left:,} -> {right:,}: "
    if num_fragments == 1:
        return f"{start}{counted(size, 'byte')}"
    steps = f"every {left_step:,} -> every {right_step:,}"
    return f"{start}{num_fragments:,} x {counted(size, 'byte')}, {steps}"


def describe_range(first: int, end: int) -> str:
    """`3`, `0-7`: numbers from `first` up to but not including `end`."""
    return str(first) if end - first == 1 else f"{first}-{end - 1}"


def describe_ranks(ranks: tuple[int, ...]) -> str:
    """`0,1`, `0-7`, `0,2..14`: ranks in order, shortened where they are equally far apart."""
    if len(ranks) > 2:
        step = ranks[1] - ranks[0]
        if ranks == tuple(range(ranks[0], ranks[-1] + 1, step)):
            if step == 1:
                return describe_range(ranks[0], ranks[-1] + 1)
            if len(ranks) > 4:
                return f"{ranks[0]},{ranks[1]}..{ranks[-1]}"
    return ",".join(map(str, ranks))


def _encoding(layer: AttentionLayer) -> str:
    if layer.encoding is None:
        return "unknown encoding"
    parts = "K before V" if layer.encoding.is_split else "K and V side by side"
    order = "tokens in heads" if layer.encoding.is_head_major else "heads in tokens"
    return f"{layer.encoding.value}: {parts}, {order}"


def _fields(run: CopyRun | DirectRun) -> tuple[int, int, int, int, int, int]:
    if isinstance(run, DirectRun):
        return run
    return (
        run.local_offset,
        run.canonical_offset,
        run.fragment_size,
        run.num_fragments,
        run.local_stride,
        run.canonical_stride,
    )
