"""One measurement as a value, and what came of it; both travel between processes as JSON."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct


class Whose(Enum):
    """Whose manager it is."""

    OURS = "kvoffload"
    BARE = "bare"
    VLLM = "vLLM"


class ManagerJob(Struct, frozen=True, tag=True):
    """Send the generated traffic through a full cache of `capacity` chunks."""

    whose: Whose
    policy: str
    capacity: int
    requests: int
    vllm_root: str | None = None


class ReplayJob(Struct, frozen=True, tag=True):
    """Replay a trace, by default the packaged sample, with each call judged or not.

    `capacity` is one of the command line: chunks, a share, or infinite.
    """

    trace: str | None
    policy: str
    capacity: str
    checked: bool


class PagesJob(Struct, frozen=True, tag=True):
    """Derive and prove the page mappings of a workload, by its name in `pages.WORKLOADS`.

    `with_tensors` has ours recognise tensors too; vLLM's derivation always does.
    """

    whose: Whose
    workload: str
    with_tensors: bool = False
    vllm_root: str | None = None


class CopyJob(Struct, frozen=True, tag=True):
    """Copy a workload of `copies.COPIES`, by name, there and back, beside a plain copy by torch."""

    workload: str


class PlanJob(Struct, frozen=True, tag=True):
    """Plan a canonical transfer at tp 2 and submit it, beside a list of its fragments."""

    total_kv_heads: int


Job: TypeAlias = ManagerJob | ReplayJob | PagesJob | CopyJob | PlanJob


class ManagerResult(Struct, frozen=True, tag=True):
    """`seconds` are of processor time, for the traffic alone.

    `added_bytes` is what filling the cache added to the process, None where not known.
    """

    seconds: float
    blocks: int
    hits: int
    stored: int
    evicted: int
    refused: int
    added_bytes: int | None

    @property
    def blocks_per_second(self) -> float:
        return self.blocks / self.seconds

    @property
    def hit_ratio(self) -> float:
        return self.hits / self.blocks


class ReplayResult(Struct, frozen=True, tag=True):
    """`seconds` are of processor time, for the driver alone: the trace was read before."""

    seconds: float
    requests: int
    blocks: int
    checks: int
    violations: int


class PagesResult(Struct, frozen=True, tag=True):
    """`seconds` are of processor time, for all layers once."""

    seconds: float


class CopyResult(Struct, frozen=True, tag=True):
    """Seconds by the clock, medians of one process, for the same `num_bytes` each."""

    plain: float
    store: float
    load: float
    num_bytes: int


class PlanResult(Struct, frozen=True, tag=True):
    """Seconds by the clock, medians of one process."""

    plan: float
    by_fragment: float
    num_fragments: int


Result: TypeAlias = ManagerResult | ReplayResult | PagesResult | CopyResult | PlanResult
