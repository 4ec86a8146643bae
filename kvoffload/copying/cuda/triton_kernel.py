"""The kernel itself. Importing this module imports Triton.

`TRITON_INTERPRET=1` in the environment, before the import, runs it on the CPU, where addresses are
those of host memory.
"""

# Triton's language has the look of Python and types of its own: there is nothing here for a type
# checker but the function that launches it.
# pyright: basic, reportMissingImports=false, reportArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

    Side: TypeAlias = tuple[torch.Tensor, int, int, int]
    """Rows, the address of the first fragment in row 0, bytes between rows and fragments."""


@triton.jit
def _copy_fragments(
    source_rows,
    source_address,
    source_row_step,
    source_stride,
    target_rows,
    target_address,
    target_row_step,
    target_stride,
    num_fragments,
    fragment_size,
    num_pieces,
    piece: tl.constexpr,
    is_wide: tl.constexpr,
):
    # All in the first dimension of the grid: the others end at 65,535.
    whole = tl.program_id(0) // num_pieces
    block = (whole // num_fragments).to(tl.int64)
    fragment = (whole % num_fragments).to(tl.int64)
    source = (
        source_address + tl.load(source_rows + block) * source_row_step + fragment * source_stride
    )
    target = (
        target_address + tl.load(target_rows + block) * target_row_step + fragment * target_stride
    )
    place = (tl.program_id(0) % num_pieces).to(tl.int64) * piece + tl.arange(0, piece)
    inside = place < fragment_size
    if is_wide:
        words = tl.load(source.to(tl.pointer_type(tl.int64)) + place, mask=inside)
        tl.store(target.to(tl.pointer_type(tl.int64)) + place, words, mask=inside)
    else:
        values = tl.load(source.to(tl.pointer_type(tl.uint8)) + place, mask=inside)
        tl.store(target.to(tl.pointer_type(tl.uint8)) + place, values, mask=inside)


def copy_fragments(
    source: Side,
    target: Side,
    *,
    num_fragments: int,
    fragment_size: int,
    num_pieces: int,
    grid: int,
    piece: int,
    is_wide: bool,
) -> None:
    """Copy the fragments of one run in all rows, `piece` of their bytes each of `grid` programs.

    Where `is_wide`, fragments and pieces count words of 8 bytes, at addresses that are multiples.
    """
    _copy_fragments[(grid,)](
        *source, *target, num_fragments, fragment_size, num_pieces, piece=piece, is_wide=is_wide
    )
