"""Deriving and proving the page mappings of a model, ours and vLLM's.

vLLM derives from tensors and configuration objects of its engine; they are stood in for by the few
attributes that it reads. Both answer for all workers of each layer and prove that they tile.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace
from typing import Final, NamedTuple

from attrs import frozen

from kvoffload import (
    AttentionLayer,
    Encoding,
    HeadShare,
    KVParallelConfig,
    canonical_kv_caches,
    derive_mapping,
)
from spec_tests.bench.jobs import PagesJob, PagesResult, Whose
from spec_tests.bench.vllm_modules import CONNECTOR, VLLMMissingError, load_vllm
from spec_tests.memory import Place, dense, permuted

REPETITIONS: Final = 15
NUM_BLOCKS: Final = 2


@frozen
class PageWorkload:
    """A model's layers under one configuration; they differ in head size, as no cache may help."""

    parallel: KVParallelConfig
    layers: dict[str, AttentionLayer]


def attention_layers(number: int, heads: int, encoding: Encoding) -> dict[str, AttentionLayer]:
    """So many layers of `heads` heads, each with another head size."""
    return {
        f"layers.{index}": AttentionLayer(
            total_kv_heads=heads, head_size=8 * index + 8, element_size_bytes=2, encoding=encoding
        )
        for index in range(number)
    }


_TP8: Final = KVParallelConfig(block_size=16, tp_size=8)
WORKLOADS: Final = {
    "80 layers at tp 8, token-major": PageWorkload(
        _TP8, attention_layers(80, 8, Encoding.PACKED_NHD)
    ),
    "80 layers at tp 8, head-major": PageWorkload(
        _TP8, attention_layers(80, 8, Encoding.PACKED_HND)
    ),
    # dcp divides the workers that keep a head, so 64 heads take 256 of them.
    "64 head-major heads, dcp 4, interleave 1": PageWorkload(
        KVParallelConfig(block_size=16, tp_size=256, dcp_size=4),
        attention_layers(1, 64, Encoding.PACKED_HND),
    ),
}


def measure_pages(job: PagesJob) -> PagesResult:
    """Carry out one job. Raises VLLMMissingError."""
    workload = WORKLOADS[job.workload]
    if job.whose is Whose.VLLM:
        if job.vllm_root is None:
            raise VLLMMissingError("the job does not say where vLLM's modules are")
        derive = theirs(workload, Path(job.vllm_root))
    elif job.with_tensors:
        derive = ours_from_tensors(workload)
    else:
        derive = ours(workload)
    derive()
    return PagesResult(seconds=median(_seconds(derive) for _ in range(REPETITIONS)))


def _seconds(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return time.process_time() - before


def ours(workload: PageWorkload) -> Callable[[], object]:
    """From descriptions alone."""
    return lambda: [
        derive_mapping(layer, workload.parallel, name=name)
        for name, layer in workload.layers.items()
    ]


def ours_from_tensors(workload: PageWorkload) -> Callable[[], object]:
    """From descriptions and the tensors that must not contradict them."""
    tensors = tensors_of(workload)
    return lambda: canonical_kv_caches(tensors, [workload.layers], workload.parallel)


def tensors_of(workload: PageWorkload) -> dict[str, Place]:
    """Each layer's tensor, in the shape in which vLLM shows a packed cache."""
    tensors: dict[str, Place] = {}
    for index, (name, layer) in enumerate(workload.layers.items()):
        heads, tokens = local_heads(layer, workload.parallel), workload.parallel.block_size
        row, address = 2 * layer.head_size, 4096 * (index + 1)
        if layer.encoding is Encoding.PACKED_HND:
            tensors[name] = dense(NUM_BLOCKS, heads, tokens, row, size=2, address=address)
        else:
            by_token = dense(NUM_BLOCKS, tokens, heads, row, size=2, address=address)
            tensors[name] = permuted(by_token, 0, 2, 1, 3)
    return tensors


def local_heads(layer: AttentionLayer, parallel: KVParallelConfig) -> int:
    """Heads of the layer that one worker keeps."""
    return HeadShare(layer.total_kv_heads, parallel.tp_size, parallel.dcp_size).local_heads


class _Interface(NamedTuple):
    """The classes by which vLLM's derivation tells layers apart, as far as it reads them."""

    attention: type[SimpleNamespace]
    uniform: type[SimpleNamespace]


def theirs(workload: PageWorkload, root: Path) -> Callable[[], object]:
    """vLLM's derivation with its proof. Raises VLLMMissingError."""
    load_vllm(root)
    interface = _stand_in_interface()
    module = importlib.import_module(f"{CONNECTOR}.offloading.canonical_mapping")
    parallel = workload.parallel
    (heads,) = {layer.total_kv_heads for layer in workload.layers.values()}
    specs = {
        name: interface.attention(
            block_size=parallel.block_size,
            num_kv_heads=local_heads(layer, parallel),
            head_size=layer.head_size,
            real_page_size_bytes=4
            * parallel.block_size
            * local_heads(layer, parallel)
            * layer.head_size,
            kv_quant_mode=SimpleNamespace(is_per_token_head=False),
        )
        for name, layer in workload.layers.items()
    }
    engine = SimpleNamespace(
        parallel_config=SimpleNamespace(
            tensor_parallel_size=parallel.tp_size,
            prefill_context_parallel_size=parallel.pcp_size,
            decode_context_parallel_size=parallel.dcp_size,
            cp_kv_cache_interleave_size=parallel.interleave,
            world_size=parallel.num_ranks,
            rank=0,
        ),
        model_config=SimpleNamespace(get_total_num_kv_heads=lambda: heads),
    )
    group = SimpleNamespace(
        kv_cache_spec=interface.uniform(kv_cache_specs=specs), layer_names=list(specs)
    )
    caches = SimpleNamespace(num_blocks=NUM_BLOCKS, kv_cache_groups=[group])
    tensors = _as_torch(tensors_of(workload))

    def derive() -> object:
        mappings: object = module.derive_canonical_mappings(engine, caches, tensors)
        return mappings

    return derive


def _stand_in_interface() -> _Interface:
    """Classes in the place of vLLM's own, before its derivation imports them."""
    interface: ModuleType = importlib.import_module("vllm.v1.kv_cache_interface")
    kinds = {
        name: type(name, (SimpleNamespace,), {})
        for name in ("AttentionSpec", "MLAAttentionSpec", "MambaSpec", "UniformTypeKVCacheSpecs")
    }
    for name, kind in kinds.items():
        setattr(interface, name, kind)
    return _Interface(kinds["AttentionSpec"], kinds["UniformTypeKVCacheSpecs"])


def _as_torch(tensors: dict[str, Place]) -> dict[str, object]:
    """The same places as instances of what stands in for torch's class."""
    torch = importlib.import_module("torch")
    tensor: type[object] = torch.Tensor
    shown: dict[str, object] = {}
    for name, place in tensors.items():
        members = {
            "shape": place.shape,
            "stride": staticmethod(place.stride),
            "element_size": staticmethod(place.element_size),
        }
        shown[name] = type("Tensor", (tensor,), members)()
    return shown
