"""`kvoffload synthesize`: a trace of made-up traffic with sessions, branches and shared prompts."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Annotated

import typer

from kvoffload.cli.problems import UsageError
from kvoffload.cli.results import ResultFile
from kvoffload.cli.screen import open_screen
from kvoffload.errors import InvalidValueError
from kvoffload.judge.generator import BLOCK_TOKENS, Traffic, synthesize, trace_lines
from kvoffload.replay.readers import TraceFormat
from kvoffload.wording import counted

_DEFAULT = Traffic()
HELP = """Write a trace of synthetic traffic: sessions, branches, shared system prompts and tools.

No public trace has both sessions and sharing. The same options and seed write the same file. In \
Qwen-Bailian's format (the default) it says which request continues which; in Mooncake's it does \
not. A name that ends in .gz is compressed.

Examples:

  kvoffload synthesize sessions.jsonl --sessions 2000 --seed 7

  kvoffload synthesize sessions.jsonl.gz --format mooncake --turns 12 --think-time 30
"""


def write(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file, .jsonl or .jsonl.gz.")],
    sessions: Annotated[int, typer.Option(help="How many sessions.")] = _DEFAULT.sessions,
    seed: Annotated[int, typer.Option(min=0, help="What all chance follows from.")] = 0,
    trace_format: Annotated[
        str, typer.Option("--format", metavar="F", help="bailian or mooncake.")
    ] = TraceFormat.BAILIAN.value,
    turns: Annotated[float, typer.Option(help="Requests a session, on average.")] = _DEFAULT.turns,
    branching: Annotated[
        float, typer.Option(help="The share of turns that go back to an earlier one.")
    ] = _DEFAULT.branching,
    tool_use: Annotated[
        float, typer.Option(help="The share of turns that a tool answers.")
    ] = _DEFAULT.tool_use,
    systems: Annotated[int, typer.Option(help="How many system prompts.")] = _DEFAULT.systems,
    system_tokens: Annotated[
        int, typer.Option(help="Tokens of a system prompt.")
    ] = _DEFAULT.system_tokens,
    tools: Annotated[int, typer.Option(help="How many tools.")] = _DEFAULT.tools,
    tool_tokens: Annotated[
        int, typer.Option(help="Tokens that describe a tool.")
    ] = _DEFAULT.tool_tokens,
    user_tokens: Annotated[
        float, typer.Option(help="Tokens of a message, on average.")
    ] = _DEFAULT.user_tokens,
    answer_tokens: Annotated[
        float, typer.Option(help="Tokens of an answer, on average.")
    ] = _DEFAULT.answer_tokens,
    session_gap: Annotated[
        float, typer.Option(help="Seconds between the beginnings of sessions, on average.")
    ] = _DEFAULT.session_gap,
    think_time: Annotated[
        float, typer.Option(help="Seconds from an answer to the next message, on average.")
    ] = _DEFAULT.think_time,
) -> None:
    """Write a trace of synthetic traffic."""
    found = {one.value: one for one in BLOCK_TOKENS}.get(trace_format)
    if found is None:
        names = " or ".join(one.value for one in BLOCK_TOKENS)
        raise UsageError(f"--format {trace_format}: {names}")
    try:
        traffic = Traffic(
            sessions=sessions,
            turns=turns,
            branching=branching,
            tool_use=tool_use,
            systems=systems,
            system_tokens=system_tokens,
            tools=tools,
            tool_tokens=tool_tokens,
            user_tokens=user_tokens,
            answer_tokens=answer_tokens,
            session_gap=session_gap,
            think_time=think_time,
        )
    except InvalidValueError as problem:
        raise UsageError(f"--{problem.field.replace('_', '-')}: {problem}") from problem
    file = ResultFile(str(out), option="synthesize")
    requests = synthesize(traffic, seed, BLOCK_TOKENS[found])
    data = trace_lines(requests, found)
    # Without a time in it, so that the same command writes the same bytes.
    file.write(gzip.compress(data, mtime=0) if out.suffix == ".gz" else data)
    distinct = len({block for request in requests for block in request.blocks})
    total = sum(len(request.blocks) for request in requests)
    open_screen(stderr=True).print(
        f"{out}: {counted(len(requests), 'request')}, {counted(total, 'block')}, "
        f"{distinct:,} distinct",
        soft_wrap=True,
        highlight=False,
        markup=False,
    )
