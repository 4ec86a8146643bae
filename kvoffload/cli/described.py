"""What the options of `kvoffload layout` describe: a layer, workers, and other workers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from attrs import evolve, frozen

from kvoffload.canonical.layers import (
    AttentionLayer,
    Encoding,
    LatentLayer,
    OpaqueLayer,
    SingleLayer,
)
from kvoffload.canonical.parallel import KVParallelConfig
from kvoffload.cli.problems import UsageError

HEADS, HEAD_SIZE, DTYPE = 8, 128, "float16"

# By the names of torch, and those that engines give to caches.
_BYTES: Final = {
    "float64": 8,
    "double": 8,
    "float32": 4,
    "float": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
}
_SUB_BYTE: Final = re.compile(r"u?int[1-7]|float4_\w+|(nv|mx)?fp[46]\w*")
_OVERRIDES: Final = {
    "tp": "tp_size",
    "dcp": "dcp_size",
    "pcp": "pcp_size",
    "interleave": "interleave",
    "block-size": "block_size",
}


def element_size(dtype: str) -> int:
    """Bytes of an element of a type. Raises UsageError for an unknown or a smaller one."""
    name = dtype.removeprefix("torch.").lower()
    if name in _BYTES:
        return _BYTES[name]
    if _SUB_BYTE.fullmatch(name):
        raise UsageError(
            f"--dtype {dtype}: elements smaller than a byte are not mapped, no byte of a page "
            "would be one element's alone"
        )
    raise UsageError(f"--dtype {dtype}: not one of {', '.join(_BYTES)}")


@frozen(kw_only=True)
class LayerOptions:
    """The options that describe a layer; None where one was not given."""

    heads: int | None
    head_size: int | None
    dtype: str | None
    encoding: Encoding | None
    mla: int | None
    second: int | None
    opaque: int | None
    padded: int | None

    @property
    def element(self) -> str:
        """The type of the layer's elements."""
        return DTYPE if self.dtype is None else self.dtype

    def layer(self) -> SingleLayer:
        """The layer. Raises UsageError for options that do not go together."""
        attention = {
            "--heads": self.heads,
            "--head-size": self.head_size,
            "--encoding": self.encoding,
        }
        if self.opaque is not None:
            others = {"--mla": self.mla, "--second": self.second, "--dtype": self.dtype}
            _refuse("--opaque is a page of which nothing is known", {**attention, **others})
            return OpaqueLayer(page_size_bytes=self.opaque, padded_page_size_bytes=self.padded)
        size = element_size(self.element)
        if self.mla is not None:
            _refuse("--mla is a row that all heads share", attention)
            return LatentLayer(
                row_elements=self.mla,
                element_size_bytes=size,
                second_row_bytes=self.second or 0,
                padded_page_size_bytes=self.padded,
            )
        if self.second is not None:
            raise UsageError("--second goes with --mla: it is carried beside the latent row")
        return AttentionLayer(
            total_kv_heads=HEADS if self.heads is None else self.heads,
            head_size=HEAD_SIZE if self.head_size is None else self.head_size,
            element_size_bytes=size,
            encoding=self.encoding or Encoding.PACKED_NHD,
            padded_page_size_bytes=self.padded,
        )


def other_workers(parallel: KVParallelConfig, text: str) -> KVParallelConfig:
    """`parallel` with the overrides of `--to`, such as `tp=2,block-size=32`.

    Raises UsageError for what is no override, and where the canonical page would span other
    tokens; MappingError and InvalidValueError as `KVParallelConfig`.
    """
    changes: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        field = _OVERRIDES.get(name)
        if field is None or re.fullmatch(r"[0-9]{1,18}", value) is None:
            raise UsageError(
                f"--to {text}: {part!r} is not one of "
                f"{', '.join(f'{known}=N' for known in _OVERRIDES)}"
            )
        if field in changes:
            raise UsageError(f"--to {text}: {name} twice")
        changes[field] = int(value)
    other = evolve(parallel, rank=0, **changes)
    if other.span != parallel.span:
        fits, left = divmod(parallel.span, other.cp_size)
        hint = "" if left else f"; block-size={fits} would fit"
        raise UsageError(
            f"--to {text}: its canonical page spans {_arithmetic(other)} tokens, the other one's "
            f"{_arithmetic(parallel)}{hint}"
        )
    return other


def _arithmetic(parallel: KVParallelConfig) -> str:
    return (
        f"block-size {parallel.block_size} x dcp {parallel.dcp_size} x pcp {parallel.pcp_size} "
        f"= {parallel.span}"
    )


def _refuse(why: str, options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{why}: {', '.join(given)} cannot be given with it")
