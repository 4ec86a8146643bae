"""The path by a kernel: a Triton program for each piece of a fragment works its addresses out.

The plan goes to the GPU compressed, as rows and the numbers of a run. Host memory must be pinned:
the kernel reads and writes it where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from kvoffload.copying.plans import Direction, Memory, PagePlan

if TYPE_CHECKING:
    import torch

LARGEST_PIECE: Final = 1024
"""Bytes, or words of 8, that one program copies at most; a power of two."""
WORD: Final = 8


def is_available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def copy_page(
    page: PagePlan,
    direction: Direction,
    gpu: Sequence[Memory],
    host: Sequence[Memory],
    device: torch.device,
) -> list[torch.Tensor]:
    """Launch the kernel for each run of a page, in torch's current stream.

    Answers the tensors that the kernels read, which must live until they are done (ORD-2).
    """
    import torch

    from kvoffload.copying.cuda.triton_kernel import copy_fragments

    near, far = gpu[page.tensor], host[page.tensor]
    gpu_rows = torch.as_tensor(page.gpu_rows).to(device, non_blocking=True)
    host_rows = torch.as_tensor(page.host_rows).to(device, non_blocking=True)
    for run in page.runs:
        here = (gpu_rows, near.address + run.local_offset, near.row_step, run.local_stride)
        there = (host_rows, far.address + run.canonical_offset, far.row_step, run.canonical_stride)
        source, target = (here, there) if direction is Direction.STORE else (there, here)
        numbers = (run.fragment_size, *source[1:], *target[1:])
        is_wide = all(number % WORD == 0 for number in numbers)
        size = run.fragment_size // WORD if is_wide else run.fragment_size
        piece = min(LARGEST_PIECE, 1 << (size - 1).bit_length())
        num_pieces = -(-size // piece)
        copy_fragments(
            source,
            target,
            num_fragments=run.num_fragments,
            fragment_size=size,
            num_pieces=num_pieces,
            grid=len(page.gpu_rows) * run.num_fragments * num_pieces,
            piece=piece,
            is_wide=is_wide,
        )
    return [gpu_rows, host_rows]
