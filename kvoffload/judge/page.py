"""The judgement as one page of Markdown, with the command that gives each figure again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvoffload.judge.cost_page import cost_lines
from kvoffload.judge.hint_page import hint_lines
from kvoffload.judge.layout import NOTHING, again, ends, interval_text, row, size_text, table_head
from kvoffload.judge.report import Contract, Judgement
from kvoffload.judge.session_page import session_lines
from kvoffload.judge.value import OPTIMUM, Point, TierValue, TraceValue
from kvoffload.wording import percent


def page(judgement: Judgement, pictures: Mapping[str, str] | None = None) -> str:
    """The page. `pictures` has file names beside it by what they show; None without matplotlib."""
    return "\n".join(_lines(judgement, pictures)) + "\n"


def _lines(judgement: Judgement, pictures: Mapping[str, str] | None) -> Iterator[str]:
    yield f"# {judgement.name}, judged"
    yield ""
    yield from _what(judgement)
    if judgement.contract is not None:
        yield from _contract(judgement.contract, judgement.commands.get("contract", ""))
    for number, value in enumerate(judgement.values):
        yield from _value(judgement, value)
        name = (pictures or {}).get(f"curves-{number}")
        if name is not None:
            yield f"![Token hit ratio over the capacity, {value.trace}]({name})"
            yield ""
    for number, sessions in enumerate(judgement.sessions):
        yield from session_lines(sessions, judgement.commands.get("sessions", ""))
        name = (pictures or {}).get(f"turns-{number}")
        if name is not None:
            yield f"![Hit ratio by turn, {sessions.trace}]({name})"
            yield ""
    for hints in judgement.hints:
        yield from hint_lines(hints, judgement.commands.get("hints", ""))
    if judgement.cost is not None:
        yield from cost_lines(
            judgement.cost,
            judgement.name,
            judgement.commands.get("cost", ""),
            driven=judgement.driver is not None or judgement.vllm is not None,
            picture=(pictures or {}).get("cost"),
        )
    if pictures is None:
        yield "There are no pictures: they need matplotlib (`pip install 'kvoffload[plot]'`)."
        yield ""
    if judgement.notes:
        yield "## Notes"
        yield ""
        yield from (f"- {note}" for note in judgement.notes)
        yield ""
    yield f"All of it again: `{judgement.command}`"


def _what(judgement: Judgement) -> Iterator[str]:
    given = [f"target `{judgement.target}`"]
    if judgement.driver is not None:
        given.append(f"driver `{judgement.driver}`")
    if judgement.vllm is not None:
        given.append(f"written for vLLM {judgement.vllm}")
    given += [f"{name}={value!r}" for name, value in judgement.arguments.items()]
    host = f"called as by {judgement.host}; so are LRU and ARC. " if judgement.host else ""
    yield f"{', '.join(given)}; {host}kvoffload {judgement.version}."
    yield ""


def _contract(contract: Contract, command: str) -> Iterator[str]:
    yield "## Contract"
    yield ""
    if contract.problem:
        yield f"Not tried: {contract.problem}"
    else:
        held = f"{contract.held} clauses held, level {contract.level}, host {contract.host}"
        cut = ", ".join(f"{engine} {percent(share)}" for engine, share in contract.cut.items())
        yield f"**{contract.verdict}**: {held}{cut and f'; cut by time: {cut}'}."
        if contract.held_clauses:
            yield ""
            yield f"Held: {', '.join(contract.held_clauses)}."
            yield ""
    yield from (f"- {line.id} {line.verdict}: {line.what}" for line in contract.not_held)
    yield ""
    yield from again(command)


def _value(judgement: Judgement, value: TraceValue) -> Iterator[str]:
    yield f"## Value on {value.trace}"
    yield ""
    unit = "tokens" if value.tokens_known else "blocks, for the trace has no tokens"
    size = f" of {value.block_tokens} tokens" if value.block_tokens else ""
    yield (
        f"{value.requests:,} requests, {value.blocks:,} blocks{size}; the working set is "
        f"{value.working_set:,} chunks of {size_text(value.chunk_bytes)}. The first "
        f"{value.warm_up:,} requests warm up and are left out; written and refused are of the "
        f"whole trace. Hits: the share of {unit} that the CPU tier saves, of blocks in brackets, "
        "with 95% intervals. Gap: the share closed of the way from LRU to the optimum, in tokens. "
        "Requests carry no hints here; what they add is under Hints."
    )
    yield ""
    for tier in value.tiers:
        yield from _tier(judgement.name, value, tier)
    yield from again(judgement.commands.get("value", ""))


def _tier(name: str, value: TraceValue, tier: TierValue) -> Iterator[str]:
    where = "Without a GPU tier"
    if tier.gpu_chunks:
        where = (
            f"Behind a GPU tier of {tier.gpu_chunks:,} chunks, which itself serves "
            f"{tier.gpu_token_hits:.4f} ({tier.gpu_block_hits:.4f})"
        )
    yield f"{where}; an infinite CPU tier: {_hits(tier.infinite)}"
    yield ""
    others = [each for each in _names(tier.points) if each not in (name, OPTIMUM)]
    is_base = not any(point.over_lru for point in tier.of(name))
    modelled = any(point.saved_s is not None for point in tier.points)
    head = ["chunks", "of set", name, *others, OPTIMUM]
    if not is_base:
        head += ["over lru", "gap"]
    head += ["written", "refused"]
    if modelled:
        head.append("model: s saved a request")
    yield from table_head(head)
    for place, own in enumerate(tier.of(name)):
        cells = [f"{own.capacity:,}", f"{own.of_working_set:.4f}", _hits(own, interval=True)]
        cells += [_hits(tier.of(each)[place]) for each in (*others, OPTIMUM)]
        if not is_base:
            cells += [interval_text(own.over_lru, signed=True), interval_text(own.gap_closed)]
        cells += [
            NOTHING if own.written_bytes is None else size_text(own.written_bytes),
            NOTHING if own.refused is None else f"{own.refused:,}",
        ]
        if modelled:
            cells.append(NOTHING if own.saved_s is None else f"{own.saved_s:.4f}")
        yield row(cells)
    yield ""
    failed = [point for point in tier.points if point.problem]
    for point in failed:
        yield f"- **{point.policy} at {point.capacity:,} chunks**: {point.problem}"
    if failed:
        yield ""
    if modelled and value.prefill_rate is not None and value.transfer_rate is not None:
        yield (
            f"The last column is a model: tokens found over {value.prefill_rate:,.0f} tokens/s of "
            f"prefill, less their bytes over {value.transfer_rate / 1e9:g} GB/s."
        )
        yield ""


def _names(points: Sequence[Point]) -> Iterable[str]:
    return dict.fromkeys(point.policy for point in points)


def _hits(point: Point, *, interval: bool = False) -> str:
    tokens, blocks = point.token_hits, point.block_hits
    if tokens is None or blocks is None:
        return NOTHING
    sure = f" {ends(tokens)}" if interval else ""
    return f"{tokens.value:.4f}{sure} ({blocks.value:.4f})"
