"""By what traffic policies are judged and what carries runs out, as the options of a command line
say it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from attrs import field, frozen

from kvoffload.cli.problems import UsageError
from kvoffload.errors import InvalidValueError
from kvoffload.judge.study import MakeManager, Source, workload_of
from kvoffload.judge.value import Plan
from kvoffload.replay.capacity import Capacity, in_short, parse_bytes
from kvoffload.replay.model import default_chunk_bytes
from kvoffload.replay.readers import TraceFormat
from kvoffload.replay.trace import SAMPLE

CAPACITIES = ("1%", "2%", "5%", "10%", "20%", "50%")
GPU_TIERS = ("0", "1%")
WARM_UP = "10%"
TRAFFIC, RUNS = "Traffic", "Runs"
# No trace has so many requests that they take more digits.
_WARM_UP = re.compile(r"([0-9]{1,18}|[0-9]{1,18}(?:\.[0-9]{1,18})?(?=%))(%)?", re.ASCII)

Traces: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="A trace: plain, .gz or .zst. Repeatable.",
        show_default="a sample of 1,000 requests",
        rich_help_panel=TRAFFIC,
    ),
]
Format: TypeAlias = Annotated[
    TraceFormat | None,
    typer.Option(
        "--format",
        case_sensitive=False,
        metavar="FORMAT",
        help="mooncake, bailian, callLog, oracleGeneral or csv, as in replay.",
        rich_help_panel=TRAFFIC,
    ),
]
SkipBadLines: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--skip-bad-lines", help="Pass over what cannot be read.", rich_help_panel=TRAFFIC
    ),
]
Limit: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Only the first so many requests.", rich_help_panel=TRAFFIC),
]
Sizes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--capacity",
        metavar="C",
        help="Chunks, a share of the working set (5%), or a size (8GiB). Repeatable.",
        show_default=" ".join(CAPACITIES),
        rich_help_panel=TRAFFIC,
    ),
]
GPUSizes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-chunks",
        metavar="C",
        help="The GPU tier in front, likewise; 0 for none. Repeatable.",
        show_default=" ".join(GPU_TIERS),
        rich_help_panel=TRAFFIC,
    ),
]
WarmUp: TypeAlias = Annotated[
    str,
    typer.Option(metavar="N|P%", help="So many requests warm up.", rich_help_panel=TRAFFIC),
]
ChunkBytes: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Bytes of a chunk (64MiB).",
        show_default="128 KiB a token",
        rich_help_panel=TRAFFIC,
    ),
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="So many processes; 1: this one, which waits for calls that never return.",
        show_default="one a core",
        rich_help_panel=RUNS,
    ),
]
Scheduler: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="A Dask cluster that sees the same files (extra dask).",
        show_default=False,
        rich_help_panel=RUNS,
    ),
]


def check_runs(jobs: int | None, scheduler: str | None) -> None:
    """Raise UsageError where two things should carry runs out."""
    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs or --scheduler, not both")


class Section(StrEnum):
    """A part of the page."""

    CONTRACT = "contract"
    VALUE = "value"
    SESSIONS = "sessions"
    HINTS = "hints"
    COST = "cost"


def _traces(given: Sequence[Path] | None) -> tuple[Path, ...]:
    return tuple(given or (SAMPLE,))


def _capacities(given: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(given or CAPACITIES)


def _gpu_tiers(given: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(given or GPU_TIERS)


@frozen(kw_only=True)
class Traffic:
    """The options that say by what traffic, as they were given; the usual for what was not."""

    traces: tuple[Path, ...] = field(converter=_traces)
    trace_format: TraceFormat | None
    skip_bad: bool
    limit: int | None
    capacities: tuple[str, ...] = field(converter=_capacities)
    gpu_chunks: tuple[str, ...] = field(converter=_gpu_tiers)
    warm_up: str
    chunk_bytes: str | None
    prefill_rate: float | None = None
    transfer_rate: float | None = None

    def sources(self) -> list[Source]:
        """The traces, in order; by paths that are the same to every process."""
        return [
            Source(path.absolute(), self.trace_format, skip_bad=self.skip_bad, limit=self.limit)
            for path in self.traces
        ]

    def words(self) -> list[str]:
        """The options again, as a command line has them."""
        given: list[str] = []
        for path in self.traces:
            given += ["--trace", str(path)] if path != SAMPLE else []
        given += [] if self.trace_format is None else ["--format", self.trace_format.value]
        given += ["--skip-bad-lines"] if self.skip_bad else []
        given += [] if self.limit is None else ["--limit", str(self.limit)]
        given += [] if self.chunk_bytes is None else ["--chunk-bytes", self.chunk_bytes]
        for each in self.capacities if self.capacities != CAPACITIES else ():
            given += ["--capacity", each]
        for each in self.gpu_chunks if self.gpu_chunks != GPU_TIERS else ():
            given += ["--gpu-chunks", each]
        given += [] if self.warm_up == WARM_UP else ["--warm-up", self.warm_up]
        if self.prefill_rate is not None and self.transfer_rate is not None:
            given += ["--prefill-rate", number_text(self.prefill_rate)]
            given += ["--transfer-rate", number_text(self.transfer_rate)]
        return given

    def plan(self, source: Source, policies: Mapping[str, MakeManager]) -> Plan:
        """What is run on one of the traces. Raises TraceError or InvalidValueError."""
        name = str(source.path)
        if name != name.encode(errors="replace").decode():
            raise InvalidValueError("trace", name, "named by text, for it is named in a page")
        workload = workload_of(source, 0)
        size = (
            default_chunk_bytes(workload.requests[0].block_tokens)
            if self.chunk_bytes is None
            else parse_bytes("chunk-bytes", self.chunk_bytes)
        )
        if size < 1:
            raise InvalidValueError("chunk-bytes", self.chunk_bytes, "at least 1")

        working_set = workload.distinct_blocks

        def chunks(texts: tuple[str, ...]) -> list[int]:
            return sorted({Capacity.parse(text).resolve(working_set, size) for text in texts})

        return Plan(
            source=source,
            policies=policies,
            capacities=chunks(self.capacities),
            gpu_chunks=chunks(self.gpu_chunks),
            warm_up=_warm_up(self.warm_up, len(workload.requests)),
            chunk_bytes=size,
            prefill_rate=self.prefill_rate,
            transfer_rate=self.transfer_rate,
        )


def number_text(number: float) -> str:
    """The number as a command line has it, exactly."""
    return str(number).removesuffix(".0")


def _warm_up(text: str, requests: int) -> int:
    """How many of so many requests warm up. Raises InvalidValueError."""
    found = _WARM_UP.fullmatch(text)
    if found is None:
        raise InvalidValueError("warm-up", in_short(text), "requests, or a share such as 10%")
    amount = Fraction(found[1])
    return int(amount * requests / 100) if found[2] else int(amount)
