"""How running code is watched: by `sys.monitoring` where there is one, else as by a debugger."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Protocol, Self, TypeAlias

from typing_extensions import override

from kvoffload.errors import KVOffloadError

TraceFunction: TypeAlias = Callable[[FrameType, str, object], "TraceFunction | None"]
Missing: TypeAlias = "dict[int, set[int]]"
"""By the id of a code, its lines, or its instructions, that have not run."""
Saw: TypeAlias = Callable[[int, int], object]
"""Told the id of a code, and the line or the instruction of it that runs."""

# Others that watch this process have numbers of their own, 0 to 3; ours is looked for from the top.
_TOOL_IDS = (4, 5, 3, 2, 1, 0)


class NoToolIDError(KVOffloadError):
    """Six tools watch this process already, as many as Python allows."""

    def __init__(self) -> None:
        super().__init__("no tool id of sys.monitoring is free to watch which lines run")


class Watch(Protocol):
    """Takes what runs out of what is missing, between start and stop."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


class Watching:
    """Watches while it is entered, again and again; `close` once it is not needed any more."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._watch.stop()

    def close(self) -> None:
        """Watch no longer, nor be in the way of another tool."""
        self._watch.close()


class _Tracer:
    """Watches with `sys.settrace`: calls of foreign code and of code that is done cost a lookup."""

    def __init__(self, missing: Missing) -> None:
        self._missing = missing

    def start(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._on_call)

    def stop(self) -> None:
        sys.settrace(self._before)

    def close(self) -> None:
        return None

    def _on_call(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        return self._on_line if self._missing.get(id(frame.f_code)) else None

    def _on_line(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        if event == "line":
            missing = self._missing[id(frame.f_code)]
            missing.discard(frame.f_lineno)
            if not missing:
                frame.f_trace = None
                return None
        return self._on_line


class _InstructionTracer(_Tracer):
    """The same by instructions, of which it tells only those that are missing."""

    def __init__(self, missing: Missing, saw: Saw) -> None:
        super().__init__(missing)
        self._saw = saw

    @override
    def _on_call(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        missing = self._missing.get(id(frame.f_code))
        if not missing:
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._on_opcode

    def _on_opcode(self, frame: FrameType, event: str, argument: object) -> TraceFunction | None:
        code = id(frame.f_code)
        missing = self._missing[code]
        if event == "opcode" and frame.f_lasti in missing:
            self._saw(code, frame.f_lasti)
            if not missing:
                frame.f_trace = None
                return None
        return self._on_opcode


if sys.version_info >= (3, 12):

    class _Monitor:
        """Watches with `sys.monitoring`: only these codes, each line until it has run.

        With `saw` by instructions.
        """

        def __init__(
            self, codes: Sequence[CodeType], missing: Missing, saw: Saw | None = None
        ) -> None:
            self._codes = codes
            self._missing = missing
            events = sys.monitoring.events
            self._callbacks: dict[int, Callable[[CodeType, int], object]] = (
                {events.LINE: self._on_line, events.PY_START: self._on_start}
                if saw is None
                else {events.INSTRUCTION: self._on_instruction}
            )
            self._saw = saw
            self._tool: int | None = None
            self._entered = False

        def start(self) -> None:
            if self._tool is None:
                self._tool = self._open()
            self._entered = True

        def stop(self) -> None:
            # What is watched stays so: to change it costs more than a call of the target.
            self._entered = False

        def close(self) -> None:
            if self._tool is None:
                return
            for code in self._codes:
                sys.monitoring.set_local_events(self._tool, code, 0)
            for event in self._callbacks:
                sys.monitoring.register_callback(self._tool, event, None)
            sys.monitoring.free_tool_id(self._tool)
            self._tool = None

        def _open(self) -> int:
            tool = next((each for each in _TOOL_IDS if not sys.monitoring.get_tool(each)), None)
            if tool is None:
                raise NoToolIDError
            sys.monitoring.use_tool_id(tool, "kvoffload trial")
            for event, callback in self._callbacks.items():
                sys.monitoring.register_callback(tool, event, callback)
            for code in self._codes:
                if self._missing[id(code)]:
                    sys.monitoring.set_local_events(tool, code, sum(self._callbacks))
            return tool

        def _on_start(self, code: CodeType, offset: int) -> object:
            # Python 3.13 tells of no line in a function that stands on one.
            return self._on_line(code, code.co_firstlineno)

        def _on_line(self, code: CodeType, line: int) -> object:
            if not self._entered:
                return None
            self._missing[id(code)].discard(line)
            return sys.monitoring.DISABLE

        def _on_instruction(self, code: CodeType, offset: int) -> object:
            if not self._entered or self._saw is None:
                return None
            self._saw(id(code), offset)
            return sys.monitoring.DISABLE


def watch_lines(codes: Sequence[CodeType], missing: Missing) -> Watch:
    """Watches which of the missing lines of these codes run, and takes them out."""
    if sys.version_info >= (3, 12):
        return _Monitor(codes, missing)
    else:
        return _Tracer(missing)


def watch_instructions(codes: Sequence[CodeType], missing: Missing, saw: Saw) -> Watch:
    """Tells which of the missing instructions of these codes run; who is told takes them out."""
    if sys.version_info >= (3, 12):
        return _Monitor(codes, missing, saw)
    else:
        return _InstructionTracer(missing, saw)
