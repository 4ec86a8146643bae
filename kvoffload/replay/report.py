"""What one replay found."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from attrs import asdict, frozen

from kvoffload.replay.counts import Counts
from kvoffload.replay.trace import Survey

RATIO_DIGITS = 6


@frozen
class Report:
    """One policy at one capacity.

    `capacity` is in chunks. `requests` and `token_hit_ratio` are None where the trace knows no
    requests or tokens. `refused` counts offers answered with None, each time. `checks` counts
    judgements by invariants, 0 when nothing was checked. `seconds` is the time the replay took,
    reading the trace apart (`reading_seconds`). `error`: what ended the run early, if anything.
    """

    policy: str
    capacity: int
    requests: int | None
    blocks: int
    block_hits: int
    block_hit_ratio: float
    token_hit_ratio: float | None
    max_block_hit_ratio: float
    evicted: int
    refused: int
    steps: int
    checks: int
    violations: int
    seconds: float
    capacity_asked: str
    manager: str
    peak_pinned: int
    stored: int
    failed_stores: int
    given_up: int
    waits: int
    resets: int
    events: int
    late_arrivals: int
    skipped_lines: int
    blocks_per_second: float
    reading_seconds: float
    violated_clauses: Sequence[str]
    error: str | None
    model: str


@frozen
class Judgement:
    """What the invariants said in one run: how often asked, how often broken, and which."""

    checks: int = 0
    violations: int = 0
    clauses: Sequence[str] = ()


@frozen
class Setting:
    """What one run was made of, in words; `capacity_chunks` is what the manager got."""

    policy: str
    manager: str
    capacity_asked: str
    capacity_chunks: int
    model: str


def make_report(
    setting: Setting,
    counts: Counts,
    survey: Survey,
    judgement: Judgement,
    *,
    seconds: float,
    reading_seconds: float,
    error: str | None = None,
) -> Report:
    """Turn counts into a report; ratios are rounded to six digits."""
    token_ratio = _ratio(counts.token_hits, counts.tokens) if survey.has_tokens else None
    return Report(
        policy=setting.policy,
        capacity=setting.capacity_chunks,
        requests=counts.requests if survey.has_tokens else None,
        blocks=counts.blocks,
        block_hits=counts.block_hits,
        block_hit_ratio=_ratio(counts.block_hits, counts.blocks),
        token_hit_ratio=token_ratio,
        max_block_hit_ratio=round(survey.max_block_hit_ratio, RATIO_DIGITS),
        evicted=counts.evicted,
        refused=counts.refused,
        steps=counts.steps,
        checks=judgement.checks,
        violations=judgement.violations,
        seconds=round(seconds, 4),
        capacity_asked=setting.capacity_asked,
        manager=setting.manager,
        peak_pinned=counts.peak_pinned,
        stored=counts.stored,
        failed_stores=counts.failed_stores,
        given_up=counts.given_up,
        waits=counts.waits,
        resets=counts.resets,
        events=counts.events,
        late_arrivals=counts.late_arrivals,
        skipped_lines=survey.skipped_lines,
        blocks_per_second=round(counts.blocks / seconds, 1) if seconds > 0 else 0.0,
        reading_seconds=round(reading_seconds, 4),
        violated_clauses=tuple(dict.fromkeys(judgement.clauses)),
        error=error,
        model=setting.model,
    )


def to_json(reports: Sequence[Report]) -> bytes:
    """The reports as a JSON list, an object each, in the order of the fields."""
    objects = [asdict(report) for report in reports]
    return msgspec.json.format(msgspec.json.encode(objects), indent=2) + b"\n"


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, RATIO_DIGITS) if whole else 0.0
