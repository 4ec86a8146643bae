"""Call logs of live engines as traces: which request accessed which keys, and when.

A call log (`stateful_models.logs` writes it) has the calls of one manager or policy. What another
policy would have been called cannot be read from it, since its victims would have been others; what
can is the traffic: when each request first accessed something, the keys that it accessed with the
tokens at which they end, and the hints it came with as far as their values were written.

A log of a policy knows what its host told it. Keys that a request looked up in vain and did not
offer either are not in it, nor are keys that an admission filter kept from the policy, and a
request that had to wait for a pending chunk arrives when it went on.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Final, TypeAlias

import msgspec
from attrs import define, field
from typing_extensions import override

from kvoffload.errors import TraceError
from kvoffload.keys import GROUP_BYTES
from kvoffload.replay.hints import HintOfType, value_of
from kvoffload.replay.readers.base import MAX_NUMBER, TraceFormat, TraceReader
from kvoffload.replay.readers.jsonl import decode
from kvoffload.replay.request import TraceRequest
from kvoffload.replay.streams import Source

LOG_VERSION: Final = 2
READABLE_LOGS: Final = (1, 2)
"""Versions of the format; 2 added times, lists of fields and extra hooks."""

ACCESSES: Final = frozenset(
    ("insert", "lookup", "on_request_access", "on_store_miss", "prepare_load", "prepare_store")
)
"""Calls that say which keys a request accesses."""
FINISH: Final = "on_request_finished"
SAMPLE_STEPS: Final = 256
"""So many distances between keys of a request tell how many tokens a block has."""

_GROUP_DIGITS: Final = 2 * GROUP_BYTES
_GROUP: Final = "0" * _GROUP_DIGITS
_NUMBER_DIGITS: Final = 16
"""How much of the name of a key becomes the number of its block."""

RequestName: TypeAlias = tuple[str, int]


class _Header(msgspec.Struct):
    kvoffload_log: int
    timed: bool = False


class _Call(msgspec.Struct):
    """What matters here of any line; each kind has a part of it."""

    call: str = ""
    time: float = 0.0
    request: str = ""
    context: int | None = None
    key: str = ""
    keys: Sequence[str] = ()
    key_groups: Sequence[Sequence[str]] = ()
    positions: Sequence[tuple[str, int]] = ()
    reused: frozenset[str] = frozenset()
    hints: Mapping[str, object] | None = None
    hint_values: bool = False


@define(eq=False)
class _Seen:
    """What the log has said of one request."""

    arrival: float
    keys: dict[str, None] = field(factory=dict)
    ends: dict[str, int] = field(factory=dict)
    hints: dict[str, object] | None = None
    reused: int | None = None
    finished: bool = False

    def finish(self, call: _Call) -> None:
        """Take the order of keys from the end of the request, where the end tells it."""
        self.finished = True
        groups = [list(_of_group(group)) for group in call.key_groups]
        if any(groups):
            self.keys = {key: None for group in groups for key in group}
            self.reused = len(call.reused.intersection(self.keys))

    def as_request(self, block_tokens: int | None) -> TraceRequest:
        keys = list(self.keys)
        if self.ends.keys() >= self.keys.keys():
            keys.sort(key=self.ends.__getitem__)
        blocks = [int(key[:_NUMBER_DIGITS], 16) for key in keys]
        tokens = None if block_tokens is None else _tokens(keys, self.ends, block_tokens)
        return TraceRequest(
            arrival=self.arrival,
            blocks=blocks,
            block_tokens=block_tokens,
            input_tokens=tokens,
            output_tokens=None if block_tokens is None else 0,
            hints=self.hints,
            recorded_hits=self.reused,
        )


class CallLogReader(TraceReader):
    """Requests in the order of their first access, each as soon as those before it have finished.

    Keys of group 0 are blocks; those of other groups are left out. Tokens are those of the blocks
    that were accessed: what a request found on the GPU, and never asked for, is no part of its
    prompt here. `block_tokens` is the usual distance between its keys' ends, None where the log
    does not tell ends, as that of a manager. A log that ends in the middle of a line is read up to
    there.
    """

    format: ClassVar[TraceFormat] = TraceFormat.CALL_LOG

    def __init__(self, block_tokens: int | None = None) -> None:
        self.block_tokens = block_tokens

    @classmethod
    def of(cls, source: Source) -> CallLogReader:
        """A reader for `source`, of which it reads the beginning."""
        steps: Counter[int] = Counter()
        for _, call in _calls(source):
            ends = sorted({end for key, end in call.positions if _is_of_group(key)})
            steps.update(b - a for a, b in pairwise(ends))
            if steps.total() >= SAMPLE_STEPS:
                break
        common = steps.most_common(1)
        return cls(common[0][0] if common else None)

    @override
    def read(self, source: Source) -> Iterator[TraceRequest]:
        running: dict[RequestName, _Seen] = {}
        # In the order of their first access.
        waiting: deque[_Seen] = deque()
        for number, call in _calls(source):
            if not call.request:
                continue
            name = (call.request, call.context or 0)
            seen = running.get(name)
            if seen is None and (call.call in ACCESSES or call.positions or call.hints is not None):
                if not 0 <= call.time <= MAX_NUMBER:
                    source.refuse(str(number), f"time must be in [0, 2**53], got {call.time!r}")
                    continue
                seen = running[name] = _Seen(call.time)
                waiting.append(seen)
            if seen is None:
                continue
            if not all(0 <= end <= MAX_NUMBER for _, end in call.positions):
                source.refuse(str(number), "the ends of keys must be in [0, 2**53]")
                continue
            if call.hints is not None and call.hint_values:
                seen.hints = _written(call.hints)
            seen.ends.update(call.positions)
            if call.call in ACCESSES:
                accessed = (call.key,) if call.key else call.keys
                seen.keys.update(dict.fromkeys(_of_group(accessed)))
            elif call.call == FINISH:
                seen.finish(call)
                del running[name]
                while waiting and waiting[0].finished:
                    yield waiting.popleft().as_request(self.block_tokens)
        # Those that never ended, and those that came after them.
        for seen in waiting:
            yield seen.as_request(self.block_tokens)


def _calls(source: Source) -> Iterator[tuple[int, _Call]]:
    """The calls of the log with their lines. Raises TraceError for what is no log to replay."""
    decoder = msgspec.json.Decoder(_Call)
    lines = source.lines(may_be_cut=True, ahead=False)
    number, text = next(lines, (1, b""))
    header = decode(source, number, text, msgspec.json.Decoder(_Header))
    if header is None:
        raise TraceError(f"{source.path}:{number}: no header of a call log")
    if header.kvoffload_log not in READABLE_LOGS:
        raise TraceError(
            f"{source.path}:{number}: the log is of version {header.kvoffload_log}; these are "
            f"read: {' and '.join(map(str, READABLE_LOGS))}"
        )
    if not header.timed:
        raise TraceError(
            f"{source.path}:{number}: the log does not say when anything happened, so that it "
            "cannot be replayed; CallLog.to takes a clock"
        )
    for number, text in lines:
        call = decode(source, number, text, decoder)
        if call is not None:
            yield number, call


_is_of_group = re.compile(rf"[0-9a-f]{{{_NUMBER_DIGITS},}}{_GROUP}").fullmatch


def _of_group(keys: Iterable[str]) -> Iterator[str]:
    return filter(_is_of_group, keys)


def _tokens(keys: Sequence[str], ends: Mapping[str, int], block_tokens: int) -> int:
    """The tokens of these blocks; one that is not full is told by where it and others end."""
    total, before = 0, 0
    for key in keys:
        end = ends.get(key)
        if end is None:
            total += block_tokens
        else:
            total += min(block_tokens, max(end - before, 0))
            before = end
    return total


def _written(hints: Mapping[str, object]) -> dict[str, object]:
    """The hints of which the values are there."""
    values = {name: value_of(value) for name, value in hints.items()}
    return {name: value for name, value in values.items() if not isinstance(value, HintOfType)}
