"""Synthetic traffic that has both sessions and sharing, which no public trace has.

A session begins with one of a few system prompts and some of the tools, in the same order
everywhere, so that prefixes are shared. Each turn sends all that was said before, and more: a
message of the user, or the result of a tool, which comes at once. A session may branch: somebody
goes back to an earlier turn and says something else there. Everything follows from a seed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import isfinite, log
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from attrs import evolve, field, frozen

from kvoffload.errors import InvalidValueError
from kvoffload.replay.readers import TraceFormat
from kvoffload.replay.request import ChatTurn, TraceRequest
from kvoffload.validation import int_at_least

if TYPE_CHECKING:
    from attrs import Attribute

    from kvoffload.validation import Validator

BLOCK_TOKENS: Final = {TraceFormat.MOONCAKE: 512, TraceFormat.BAILIAN: 16}
"""The formats that synthetic traffic is written in, and the tokens a block has there."""

OUTPUT_RATE: Final = 50.0
"""Tokens a second of an answer."""

TOOL_SECONDS: Final = 2.0
"""How long a tool takes, on average."""

_SPREAD: Final = 0.7
_LONGEST_S: Final = 1e8
"""Some years: arrivals are still told to the millisecond."""


def _within(low: float, high: float) -> Validator:
    def check(_: object, attribute: Attribute[float], value: float) -> None:
        if not (isfinite(value) and low <= value < high):
            raise InvalidValueError(attribute.name, value, f"in [{low:g}, {high:g})")

    return check


@frozen(kw_only=True)
class Traffic:
    """What the traffic is like. Counts of tokens are means; those of a prompt's parts are fixed.

    `turns`: the mean number of requests in a session. `branching`: the share of turns that go back
    to an earlier one. `tool_use`: the share of turns that a tool answers, after TOOL_SECONDS, and
    no user. `session_gap` and `think_time`: mean seconds between the beginnings of sessions, and
    between an answer and the user's next message. System prompts are chosen as by Zipf's law, each
    of the `tools` with a chance of a half. Raises InvalidValueError.
    """

    sessions: int = field(default=200, validator=int_at_least(1))
    turns: float = field(default=5.0, validator=_within(1, 1_000))
    branching: float = field(default=0.05, validator=_within(0, 1))
    tool_use: float = field(default=0.3, validator=_within(0, 1))
    systems: int = field(default=4, validator=int_at_least(1))
    system_tokens: int = field(default=2_000, validator=int_at_least(0))
    tools: int = field(default=6, validator=int_at_least(0))
    tool_tokens: int = field(default=400, validator=int_at_least(0))
    user_tokens: float = field(default=400.0, validator=_within(1, 1e6))
    answer_tokens: float = field(default=300.0, validator=_within(1, 1e6))
    session_gap: float = field(default=5.0, validator=_within(0, _LONGEST_S))
    think_time: float = field(default=60.0, validator=_within(0, _LONGEST_S))


@frozen
class _Text:
    """Some text that stands for itself: so many tokens of it."""

    which: int
    tokens: int


@frozen
class _Sent:
    """A request before its blocks have numbers."""

    arrival_ms: int
    prompt: tuple[_Text, ...]
    answer: _Text
    chat: ChatTurn

    @property
    def said(self) -> tuple[_Text, ...]:
        return (*self.prompt, self.answer)

    @property
    def tokens(self) -> int:
        return sum(text.tokens for text in self.prompt)


def synthesize(
    traffic: Traffic, seed: int = 0, block_tokens: int = BLOCK_TOKENS[TraceFormat.BAILIAN]
) -> list[TraceRequest]:
    """The requests of this traffic in order of arrival, at whole milliseconds.

    Equal seeds give equal requests, and the texts do not depend on `block_tokens`. Blocks are
    numbered as they come up; equal numbers mean equal text after equal text. Raises
    InvalidValueError for blocks without a token.
    """
    if block_tokens < 1:
        raise InvalidValueError("block_tokens", block_tokens, "at least 1")
    sent = sorted(_Writer(traffic, seed).sessions(), key=lambda one: one.arrival_ms)
    first = sent[0].arrival_ms
    # Chats are numbered by arrival too: a request continues one that came before it.
    numbers = {one.chat.chat_id: number for number, one in enumerate(sent)}
    blocks = _Blocks(block_tokens)
    return [
        TraceRequest(
            arrival=(one.arrival_ms - first) / 1000,
            blocks=blocks.of(one.prompt),
            block_tokens=block_tokens,
            input_tokens=one.tokens,
            output_tokens=one.answer.tokens,
            chat=evolve(
                one.chat,
                chat_id=numbers[one.chat.chat_id],
                parent_chat_id=None
                if one.chat.parent_chat_id is None
                else numbers[one.chat.parent_chat_id],
            ),
        )
        for one in sent
    ]


class _Writer:
    """Draws sessions, one after the other, from one seed."""

    def __init__(self, traffic: Traffic, seed: int) -> None:
        self._traffic = traffic
        self._random = np.random.default_rng(seed)
        self._systems = [_Text(n, traffic.system_tokens) for n in range(traffic.systems)]
        shared = range(traffic.systems, traffic.systems + traffic.tools)
        self._tools = [_Text(n, traffic.tool_tokens) for n in shared]
        self._texts = traffic.systems + traffic.tools
        self._chats = 0

    def sessions(self) -> Iterable[_Sent]:
        begun = 0.0
        for _ in range(self._traffic.sessions):
            yield from self._session(begun)
            begun += self._seconds(self._traffic.session_gap)

    def _session(self, begun: float) -> Iterable[_Sent]:
        traffic, random = self._traffic, self._random
        before: list[_Sent] = []
        at = begun
        for _ in range(int(random.geometric(1 / traffic.turns))):
            by_tool = bool(before) and random.random() < traffic.tool_use
            branches = not by_tool and len(before) > 1 and random.random() < traffic.branching
            parent = before[int(random.integers(len(before) - 1))] if branches else None
            if before:
                parent = parent or before[-1]
                at += before[-1].answer.tokens / OUTPUT_RATE
                at += self._seconds(TOOL_SECONDS if by_tool else traffic.think_time)
            said = self._opening() if parent is None else parent.said
            one = _Sent(
                arrival_ms=round(at * 1000),
                prompt=(*said, self._own(traffic.user_tokens)),
                answer=self._own(traffic.answer_tokens),
                chat=ChatTurn(
                    chat_id=self._chats,
                    parent_chat_id=None if parent is None else parent.chat.chat_id,
                    turn=1 if parent is None else parent.chat.turn + 1,
                    kind="tool" if by_tool else "text",
                ),
            )
            self._chats += 1
            before.append(one)
            yield one

    def _opening(self) -> tuple[_Text, ...]:
        weights = list(accumulate(1 / (n + 1) for n in range(len(self._systems))))
        which = bisect_right(weights, self._random.random() * weights[-1])
        tools = [tool for tool in self._tools if self._random.random() < 1 / 2]
        return (self._systems[which], *tools)

    def _own(self, mean: float) -> _Text:
        """Text that nobody else has, of some length around this mean."""
        scale = log(mean) - _SPREAD**2 / 2
        tokens = max(1, round(self._random.lognormal(scale, _SPREAD)))
        self._texts += 1
        return _Text(self._texts - 1, tokens)

    def _seconds(self, mean: float) -> float:
        return float(self._random.exponential(mean))


class _Blocks:
    """Numbers for blocks: the same one for the same text behind the same block, else a new one."""

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._numbers: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}

    def of(self, prompt: Sequence[_Text]) -> list[int]:
        """The blocks of a prompt in order; the last one may be partial."""
        starts = list(accumulate((text.tokens for text in prompt), initial=0))
        total = starts[-1]
        blocks: list[int] = []
        at = 0
        for begin in range(0, total, self._size):
            end = min(begin + self._size, total)
            while starts[at + 1] <= begin:
                at += 1
            pieces: list[tuple[int, int, int]] = []
            part = at
            while part < len(prompt) and starts[part] < end:
                start = max(begin, starts[part])
                stop = min(end, starts[part + 1])
                if start < stop:
                    here = starts[part]
                    pieces.append((prompt[part].which, start - here, stop - here))
                part += 1
            content = (blocks[-1] if blocks else -1, tuple(pieces))
            blocks.append(self._numbers.setdefault(content, len(self._numbers)))
        return blocks


def trace_lines(requests: Iterable[TraceRequest], trace_format: TraceFormat) -> bytes:
    """Requests as a trace of this format, which its reader reads as they are; Mooncake's has no
    chats. Raises InvalidValueError for another format, or blocks of another size than its own."""
    size = BLOCK_TOKENS.get(trace_format)
    if size is None:
        names = " or ".join(one.value for one in BLOCK_TOKENS)
        raise InvalidValueError("trace_format", trace_format.value, names)
    lines: list[dict[str, object]] = []
    for number, request in enumerate(requests):
        if request.block_tokens != size:
            raise InvalidValueError("block_tokens", request.block_tokens, f"{size} in this format")
        ms = round(request.arrival * 1000)
        line: dict[str, object] = {}
        if trace_format is TraceFormat.BAILIAN:
            chat = request.chat or ChatTurn(number, None, 1, "text")
            parent = -1 if chat.parent_chat_id is None else chat.parent_chat_id
            line |= {"chat_id": chat.chat_id, "parent_chat_id": parent, "timestamp": ms / 1000}
            line |= {"turn": chat.turn, "type": chat.kind}
        else:
            line["timestamp"] = ms
        line |= {
            "input_length": request.input_tokens,
            "output_length": request.output_tokens,
            "hash_ids": list(request.blocks),
        }
        lines.append(line)
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@frozen(kw_only=True)
class Rotation:
    """Traffic whose optimum is known: sessions that take turns in strict rotation.

    Each prompt begins with `shared` blocks that all have, then has the session's own: `first` at
    its first turn, and `more` at each turn after it. Raises InvalidValueError.
    """

    sessions: int = field(validator=int_at_least(1))
    turns: int = field(validator=int_at_least(1))
    shared: int = field(default=0, validator=int_at_least(0))
    first: int = field(default=1, validator=int_at_least(0))
    more: int = field(default=0, validator=int_at_least(0))

    def requests(self) -> list[TraceRequest]:
        """One request a second, a block a token."""
        longest = self.first + self.more * (self.turns - 1)
        found: list[TraceRequest] = []
        for turn in range(self.turns):
            for session in range(self.sessions):
                own = self.shared + session * longest
                size = self.first + self.more * turn
                blocks = [*range(self.shared), *range(own, own + size)]
                found.append(TraceRequest(float(len(found)), blocks, 1, len(blocks), 0))
        return found

    def optimum(self, capacity: int) -> int:
        """The most blocks that a cache of `capacity` chunks can serve, of all requests together.

        A shared block is wanted by every request: to keep it saves one at each, more than anything
        else in its slot. All own blocks wait as long for their next use as one rotation takes, so
        what is left of the slots serves at most one block each from one rotation to the next, and
        does so if there are as many: what was kept is kept on, and new blocks are added to it.
        """
        at_each = min(capacity, self.shared) * (self.sessions * self.turns - 1)
        slots = max(capacity - self.shared, 0)
        for turn in range(self.turns - 1):
            at_each += min(slots, self.sessions * (self.first + self.more * turn))
        return at_each
