"""Sessions: what a policy is worth to whom, turn by turn, and who gets nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from attrs import frozen

from kvoffload.judge.engine import Engine
from kvoffload.judge.outcome import Counts, Outcome
from kvoffload.judge.resampling import Interval, share_of
from kvoffload.judge.residency import (
    WINDOW,
    History,
    Regret,
    ResidencyWatch,
    Stranded,
)
from kvoffload.judge.workload import Workload
from kvoffload.manager import OffloadingManager
from kvoffload.replay.request import TraceRequest

TURNS = 8
"""So many turns are told apart; the last of them stands for all later ones too."""

BRANCHES = 8
"""Where more different prompts go on from one point than these, it is the end of a shared head,
such as a system prompt, and no turn of a conversation."""

NOBODY = -1

_LAST_TURN = 2**31
"""Turns beyond are told as this one."""


@frozen(eq=False)
class Sessions:
    """Which request continues which, in order of arrival.

    `previous[i]` is the request that request i continues, -1 if it begins a session; one can be
    continued several times (a branch). `session[i]` is the request that began it, `turn[i]` counts
    from 1. `told`: the trace says so itself; otherwise it is inferred from prompts.
    """

    previous: Counts
    session: Counts
    turn: Counts
    told: bool

    @classmethod
    def of(cls, requests: Sequence[TraceRequest]) -> Sessions:
        """The sessions of a trace: as its chats say, if all its requests have one, else inferred.

        A chat whose parent is not in the trace begins a session, at the turn that it says.
        Without chats, a request continues the earlier one whose whole blocks are its prefix: the
        longest such, and of several the latest. A prompt without a whole block beyond a shared
        head (`shared_heads`) is continued by none: nothing tells whose it is.
        """
        told = bool(requests) and all(request.chat is not None for request in requests)
        previous = _told(requests) if told else _inferred(requests)
        session: list[int] = []
        turn: list[int] = []
        for number, (request, before) in enumerate(zip(requests, previous, strict=True)):
            first = before == NOBODY
            session.append(number if first else session[before])
            said = request.chat.turn if told and request.chat is not None else 1
            said = min(max(said, 1), _LAST_TURN)
            turn.append(said if first or told else turn[before] + 1)
        return cls(
            np.array(previous, np.int64),
            np.array(session, np.int64),
            np.array(turn, np.int64),
            told,
        )


def _told(requests: Sequence[TraceRequest]) -> list[int]:
    latest: dict[int, int] = {}
    previous: list[int] = []
    for number, request in enumerate(requests):
        chat = request.chat
        parent = None if chat is None else chat.parent_chat_id
        previous.append(NOBODY if parent is None else latest.get(parent, NOBODY))
        if chat is not None:
            latest[chat.chat_id] = number
    return previous


def _inferred(requests: Sequence[TraceRequest]) -> list[int]:
    # By the last whole block of a prompt, which stands for the whole prefix.
    latest: dict[int, int] = {}
    previous: list[int] = []
    heads = shared_heads(requests)
    for number, (request, head) in enumerate(zip(requests, heads, strict=True)):
        blocks = request.blocks
        continued = (latest[block] for block in reversed(blocks) if block in latest)
        previous.append(next(continued, NOBODY))
        size, tokens = request.block_tokens, request.input_tokens
        whole = len(blocks)
        if size is not None and tokens is not None:
            whole = min(whole, tokens // size)
        if whole > head:
            latest[blocks[whole - 1]] = number
    return previous


def shared_heads(requests: Sequence[TraceRequest]) -> Counts:
    """For each request, how many blocks at its head it shares with many others.

    Up to the last block behind which the trace has more than BRANCHES different ones.
    """
    behind: dict[int, set[int]] = {}
    for request in requests:
        for block, following in pairwise(request.blocks):
            behind.setdefault(block, set()).add(following)
    hubs = {block for block, following in behind.items() if len(following) > BRANCHES}
    heads = [
        max((depth + 1 for depth, block in enumerate(one.blocks) if block in hubs), default=0)
        for one in requests
    ]
    return np.array(heads, np.int64)


def infinite(workload: Workload) -> Outcome:
    """What an infinite CPU tier serves: whatever came up before."""
    seen: set[int] = set()
    blocks: list[int] = []
    tokens: list[int] = []
    for number, (request, on_gpu) in enumerate(
        zip(workload.requests, workload.gpu_hits, strict=True)
    ):
        end = on_gpu
        while end < len(request.blocks) and request.blocks[end] in seen:
            end += 1
        seen.update(request.blocks)
        blocks.append(end - on_gpu)
        tokens.append(workload.tokens_of(number, on_gpu, end))
    return Outcome(np.array(blocks, np.int64), np.array(tokens, np.int64))


@frozen(kw_only=True)
class TurnHits:
    """Tokens a request that the CPU tier served, over the `requests` of one turn.

    `p10` of these requests (one in ten) got so many or fewer, `p50` half of them, `p90` nine in
    ten; `infinite_p50` is the median of what an infinite cache would serve. Blocks instead of
    tokens where the trace has none.
    """

    turn: int
    and_later: bool
    requests: int
    p10: int
    p50: int
    p90: int
    infinite_p50: int


@frozen(kw_only=True)
class Starved:
    """Requests that got nothing, of those for which there was something: an infinite cache
    would have served them a block at least. `share` is None if there are none of the latter."""

    starved: int
    of: int
    share: Interval | None


@frozen(kw_only=True)
class SessionReport:
    """One run, as those who sent the requests saw it; of requests after the warm-up only.

    `told`: the trace itself says which request continues which. `continuing` requests of all
    `requests` continue another one.
    """

    told: bool
    requests: int
    continuing: int
    turns: tuple[TurnHits, ...]
    starved: Starved
    starved_beyond_heads: Starved
    stranded: Stranded
    regret: Regret


class SessionRun(NamedTuple):
    """One run of the engine, which gives its value and what sessions had of it."""

    outcome: Outcome
    report: SessionReport


def hits_by_turn(
    sessions: Sessions, outcome: Outcome, possible: Outcome, after: int = 0
) -> tuple[TurnHits, ...]:
    """Hit tokens by turn, of requests after the first `after`; turns without any are left out."""
    turns = np.minimum(sessions.turn, TURNS)
    turns[:after] = 0
    return tuple(
        TurnHits(
            turn=turn,
            and_later=turn == TURNS,
            requests=int((turns == turn).sum()),
            p10=_quantile(outcome.token_hits[turns == turn], 10),
            p50=_quantile(outcome.token_hits[turns == turn], 50),
            p90=_quantile(outcome.token_hits[turns == turn], 90),
            infinite_p50=_quantile(possible.token_hits[turns == turn], 50),
        )
        for turn in range(1, TURNS + 1)
        if (turns == turn).any()
    )


def starved(
    workload: Workload,
    outcome: Outcome,
    possible: Outcome,
    after: int = 0,
    heads: Counts | None = None,
) -> Starved:
    """Who got nothing although there was something, of requests after the first `after`.

    With `heads`, so many blocks at the head of each request do not count.
    """
    on_gpu = np.array(workload.gpu_hits, np.int64)
    least = on_gpu if heads is None else np.maximum(on_gpu, heads)
    could = (on_gpu + possible.block_hits > least)[after:]
    without = could & (on_gpu + outcome.block_hits <= least)[after:]
    share = share_of(without.astype(np.int64), could.astype(np.int64)) if could.any() else None
    return Starved(starved=int(without.sum()), of=int(could.sum()), share=share)


def run_sessions(
    manager: OffloadingManager,
    workload: Workload,
    *,
    after: int = 0,
    window: int = WINDOW,
    history: History | None = None,
    hints: Callable[[int], dict[str, object] | None] = lambda number: None,
    proceed: Callable[[int], object] = lambda done: None,
) -> SessionRun:
    """Run a workload once, for its value and its sessions together.

    `after`: the requests of the warm-up, of which no figure of sessions is taken. `history` spares
    building it, where several runs have one workload. What the manager raises passes through.
    """
    watch = ResidencyWatch(history or History.of(workload), after=after)
    outcome = Engine(manager, workload, hints=hints, changed=watch, proceed=proceed).run()
    sessions, possible = Sessions.of(workload.requests), infinite(workload)
    report = SessionReport(
        told=sessions.told,
        requests=max(len(workload.requests) - after, 0),
        continuing=int((sessions.previous[after:] != NOBODY).sum()),
        turns=hits_by_turn(sessions, outcome, possible, after),
        starved=starved(workload, outcome, possible, after),
        starved_beyond_heads=starved(
            workload, outcome, possible, after, shared_heads(workload.requests)
        ),
        stranded=watch.stranded(),
        regret=watch.regret(window),
    )
    return SessionRun(outcome, report)


def _quantile(values: Counts, percent: int) -> int:
    """The smallest of the values that so many percent of them do not exceed."""
    ordered = np.sort(values)
    return int(ordered[max(-(-len(ordered) * percent // 100), 1) - 1])
