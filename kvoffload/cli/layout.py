"""`kvoffload layout`: which bytes of a canonical page each worker keeps, to read and to look at."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvoffload.canonical.derivation import derive_mappings
from kvoffload.canonical.layers import Encoding, SingleLayer
from kvoffload.canonical.parallel import KVParallelConfig
from kvoffload.canonical.report import Configuration, Target, to_json
from kvoffload.canonical.resharding import Resharding
from kvoffload.canonical.strip import panels, rows_of
from kvoffload.cli.described import DTYPE, HEAD_SIZE, HEADS, LayerOptions, other_workers
from kvoffload.cli.problems import UsageError
from kvoffload.cli.results import TO_STDOUT, ResultFile, open_result, print_json
from kvoffload.cli.screen import open_screen
from kvoffload.cli.sheet import Sheet
from kvoffload.errors import InvalidValueError, MappingError

if TYPE_CHECKING:
    from kvoffload.canonical.picture import PictureFormat

HELP = """Show which bytes of the canonical page each worker keeps, and what moves where.

A layer and a parallel configuration give every worker's runs, proved to fit together: a row a \
worker, and the page as a strip coloured by rank. With --to, the copies from page to page that \
turn one configuration into another. Exit status: 0 done, 1 the results cannot be written, \
2 not possible as asked, with the arithmetic that failed.

Examples:

  kvoffload layout --heads 8 --head-size 128 --dtype float16 --tp 4

  kvoffload layout --tp 8 --to tp=2 --plot layout.svg

  kvoffload layout --mla 576 --dtype bfloat16 --tp 8 --dcp 2 --json -
"""
LAYER, WORKERS, OUTPUT = "Layer", "Workers", "Output"
# Cells in a row of a picture; there are fewer dots across it.
MAX_DRAWN = 2048
# Beyond, a table or a picture takes minutes.
MAX_WORKERS = 4096
MAX_BLOCKS = 1 << 15
FORMATS: Final[Mapping[str, PictureFormat]] = {"png": "png", "svg": "svg"}


def layout(
    heads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="KV heads of the model, not of one worker.",
            show_default=str(HEADS),
            rich_help_panel=LAYER,
        ),
    ] = None,
    head_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Elements of a head.", show_default=str(HEAD_SIZE), rich_help_panel=LAYER
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="float16, bfloat16, float32, float8_e4m3fn, int8, ...",
            show_default=DTYPE,
            rich_help_panel=LAYER,
        ),
    ] = None,
    encoding: Annotated[
        Encoding | None,
        typer.Option(
            case_sensitive=False,
            metavar="ENCODING",
            help="packed-nhd, packed-hnd, split-nhd or split-hnd: K and V side by side or all K "
            "first, and heads inside tokens or tokens inside heads.",
            show_default=Encoding.PACKED_NHD.value,
            rich_help_panel=LAYER,
        ),
    ] = None,
    mla: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ELEMENTS",
            help="A latent row of so many elements a token, instead of heads (576).",
            rich_help_panel=LAYER,
        ),
    ] = None,
    second: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="BYTES",
            help="With --mla: a second cache that each row carries, as an indexer's keys.",
            rich_help_panel=LAYER,
        ),
    ] = None,
    opaque: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="BYTES",
            help="A page of a worker of which nothing is known but its size.",
            rich_help_panel=LAYER,
        ),
    ] = None,
    padded: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="BYTES",
            help="How far apart a worker's blocks lie, where that is more than the page.",
            rich_help_panel=LAYER,
        ),
    ] = None,
    tp: Annotated[int, typer.Option(min=1, help="tp_size.", rich_help_panel=WORKERS)] = 1,
    dcp: Annotated[int, typer.Option(min=1, help="dcp_size.", rich_help_panel=WORKERS)] = 1,
    pcp: Annotated[int, typer.Option(min=1, help="pcp_size.", rich_help_panel=WORKERS)] = 1,
    interleave: Annotated[
        int,
        typer.Option(
            min=1,
            help="Neighbouring tokens that a context-parallel worker keeps.",
            rich_help_panel=WORKERS,
        ),
    ] = 1,
    block_size: Annotated[
        int,
        typer.Option(min=1, help="Tokens in a block of one worker.", rich_help_panel=WORKERS),
    ] = 16,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="tp=N,...",
            help="Another configuration: what differs, of tp, dcp, pcp, interleave, block-size. "
            "Its canonical page has to span the same tokens.",
            rich_help_panel=WORKERS,
        ),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="With --to: the block that is copied, which decides whose replica is read.",
            show_default="0",
            rich_help_panel=WORKERS,
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(min=0, help="Show this worker only.", rich_help_panel=OUTPUT),
    ] = None,
    all_runs: Annotated[
        bool,
        typer.Option(
            "--all-runs",
            help="Shorten nothing: all ranks, runs, copies, rows.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE|-",
            help="Write the layout as JSON; with - nothing else goes to standard output.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.png|svg",
            help="Draw a picture of the layout; with --to, of the copies, too.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> None:
    """Show which bytes of the canonical page each worker keeps."""
    picture_format = None if plot is None else _picture_format(plot)
    if plot is not None and json is not None and os.path.realpath(plot) == os.path.realpath(json):
        raise UsageError(f"--plot {plot} and --json {json} are the same file")
    if block is not None and to is None:
        raise UsageError("--block goes with --to: it says which block is copied")
    screen = open_screen(stderr=json == TO_STDOUT)
    result_file = open_result(json)
    picture_file = None if plot is None else ResultFile(plot, option="--plot")
    options = LayerOptions(
        heads=heads,
        head_size=head_size,
        dtype=dtype,
        encoding=encoding,
        mla=mla,
        second=second,
        opaque=opaque,
        padded=padded,
    )
    try:
        layer = options.layer()
        parallel = KVParallelConfig(
            tp_size=tp,
            dcp_size=dcp,
            pcp_size=pcp,
            interleave=interleave,
            block_size=block_size,
            rank=rank or 0,
        )
        source = _configuration(layer, parallel, rank)
        target = None if to is None else _target(layer, source, to, block or 0, rank)
    except (InvalidValueError, MappingError) as error:
        raise UsageError(str(error)) from error
    if plot is not None:
        for side in (source, target.configuration) if target is not None else (source,):
            _require_drawable(plot, layer, side)
    written = to_json(layer, source, target)
    # The files first, but where one fails the rest is there.
    try:
        if result_file is not None:
            result_file.write(written)
        if picture_file is not None and picture_format is not None:
            from kvoffload.canonical.picture import draw_layout, render

            figure = draw_layout(layer, source, target, element=options.element)
            picture_file.write(render(figure, picture_format))
    finally:
        Sheet(screen, layer, options.element, all_runs).show(source, target)
    if json == TO_STDOUT:
        print_json(written)


def _configuration(
    layer: SingleLayer, parallel: KVParallelConfig, rank: int | None
) -> Configuration:
    if parallel.num_ranks > MAX_WORKERS:
        raise UsageError(
            f"{parallel.num_ranks:,} workers are too many to be shown, at most {MAX_WORKERS:,}"
        )
    shown = range(parallel.num_ranks) if rank is None else range(rank, rank + 1)
    return Configuration(parallel, derive_mappings(layer, parallel), shown)


def _target(
    layer: SingleLayer, source: Configuration, to: str, block: int, rank: int | None
) -> Target:
    target = _configuration(layer, other_workers(source.parallel, to), None)
    copies = Resharding(source.mappings, target.mappings).copies(block)
    shown = [copy for copy in copies if rank in (None, copy.source_rank)]
    return Target(target, block, shown)


def _require_drawable(plot: str, layer: SingleLayer, side: Configuration) -> None:
    """Raise UsageError for a picture that would take minutes, and show nothing."""
    from kvoffload.canonical.picture import MAX_ROWS

    found = panels(layer, side.parallel)
    longest = max(panel.num_columns for panel in found)
    if longest > MAX_DRAWN:
        raise UsageError(f"--plot {plot}: a row of {longest:,} is too long to be drawn")
    blocks = sum(
        (rows.end - rows.first) * max(1, sum(rank in side.shown for rank in segment.ranks))
        for panel in found
        for rows in rows_of(panel, side.mappings, max_rows=MAX_ROWS)
        for segment in rows.segments
    )
    if blocks > MAX_BLOCKS:
        raise UsageError(f"--plot {plot}: {blocks:,} coloured blocks are too many to be drawn")


def _picture_format(target: str) -> PictureFormat:
    """png or svg. Raises UsageError for another suffix, and where nothing can draw."""
    suffix = PurePath(target).suffix.removeprefix(".").lower()
    found = FORMATS.get(suffix)
    if found is None:
        raise UsageError(f"--plot {target}: a picture is a .png or an .svg")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'kvoffload[plot]'")
    return found
