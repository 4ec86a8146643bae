"""The path by torch: for each run and block one copy, all of its fragments at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvoffload.copying.plans import Direction, PagePlan

if TYPE_CHECKING:
    import torch

    from kvoffload.canonical.pages import CopyRun


def copy_page(
    page: PagePlan,
    direction: Direction,
    gpu: Sequence[torch.Tensor],
    host: Sequence[torch.Tensor],
) -> None:
    """Enqueue the copies of a page in torch's current stream.

    `gpu[t]` and `host[t]` are rows of uint8, on any two devices.
    """
    for run in page.runs:
        near = _fragments(gpu[page.tensor], run, run.local_offset, run.local_stride)
        far = _fragments(host[page.tensor], run, run.canonical_offset, run.canonical_stride)
        pairs = zip(page.gpu_rows.tolist(), page.host_rows.tolist(), strict=True)
        for gpu_row, host_row in pairs:
            if direction is Direction.STORE:
                far[host_row].copy_(near[gpu_row], non_blocking=True)
            else:
                near[gpu_row].copy_(far[host_row], non_blocking=True)


def _fragments(rows: torch.Tensor, run: CopyRun, offset: int, stride: int) -> torch.Tensor:
    """All fragments of a run in all rows, as a view: rows x fragments x bytes."""
    # A lone fragment has no stride that counts; the shortest that is valid keeps the view inside.
    step = run.fragment_size if run.num_fragments == 1 else stride
    return rows.as_strided(
        (rows.shape[0], run.num_fragments, run.fragment_size),
        (rows.stride(0), step, 1),
        int(rows.storage_offset()) + offset,
    )
