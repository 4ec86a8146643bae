"""What all lines of a call log have in common, and what can stand in several of them."""

from __future__ import annotations

import builtins
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, cast

import msgspec
from attrs import asdict, evolve

from kvoffload import errors as own_errors
from kvoffload.errors import PolicyContractError
from kvoffload.replay.hints import HintOfType, readable, type_name, value_line, value_of
from kvoffload.replay.readers.call_log import LOG_VERSION
from stateful_models import steps
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.logs.pseudonyms import Pseudonyms
from stateful_models.monitor import Setup
from stateful_models.operations import Operation, RequestId
from stateful_models.steps import NOTHING_VISIBLE, Result, Visible

NotFinite: TypeAlias = Literal["nan", "inf", "-inf"]
Figure: TypeAlias = float | NotFinite
"""JSON has no word for these three."""

_OWN_ERRORS = (own_errors, steps)


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The first line: what the calls below were made of, and how they were written.

    `host` is who made them, in the words of whoever recorded it. `hints`: whether what clients
    sent was written as it was, the types alone, or the fields that are `listed` and nothing of
    others. `timed`: lines say when they were written.
    """

    kvoffload_log: int
    kind: Literal["manager", "policy"]
    num_chunks: int | None
    store_threshold: int
    enable_events: bool
    capabilities: dict[str, bool | int | str]
    host: str | None
    hints: Literal["types", "values", "listed"]
    salt_id: str
    listed: tuple[str, ...] = ()
    timed: bool = False

    def setup(self) -> Setup:
        """What was watched. Raises ValueError for capabilities that there are not."""
        return Setup(
            kind=self.kind,
            num_chunks=self.num_chunks,
            store_threshold=self.store_threshold,
            enable_events=self.enable_events,
            capabilities=_capabilities_of(self.capabilities),
        )


def header_of(
    setup: Setup, names: Pseudonyms, host: str | None, *, hints: Hints, timed: bool = False
) -> Header:
    """The header of a log of this subject."""
    listed = hints if isinstance(hints, frozenset) else ()
    return Header(
        kvoffload_log=LOG_VERSION,
        kind=setup.kind,
        num_chunks=setup.num_chunks,
        store_threshold=setup.store_threshold,
        enable_events=setup.enable_events,
        capabilities=_capabilities_line(setup.capabilities),
        host=host,
        hints="listed" if isinstance(hints, frozenset) else "values" if hints else "types",
        salt_id=names.salt_id,
        listed=tuple(sorted(map(readable, listed))),
        timed=timed,
    )


def _capabilities_line(capabilities: Capabilities) -> dict[str, bool | int | str]:
    # What makes another policy, or a model, to compare with, is code and in no log.
    stated = asdict(capabilities, recurse=False)
    return {
        name: readable(value) if isinstance(value, str) else value
        for name, value in stated.items()
        if isinstance(value, (bool, int, str))
    }


def _capabilities_of(stated: Mapping[str, bool | int | str]) -> Capabilities:
    known = asdict(NONE, recurse=False)
    for name, value in stated.items():
        # What is declined is declined with a reason, and None where it is not.
        kind = str if known.get(name) is None else type(known[name])
        if name not in known or type(value) is not kind:
            raise ValueError(f"capabilities: {name} = {value!r} is none")
    # Each has the type of its field now.
    return evolve(NONE, **stated)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class ErrorLine(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a call raised: the name of its class, and those above it that a reader knows too."""

    name: str
    text: str
    kinds: list[str]
    clause: str | None = None


class Line(
    msgspec.Struct,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    tag_field="call",
):
    """One call. What it returned is in the fields of its own, None too where it raised `error`.

    `generation` and `stale_completions` are what the subject showed of itself afterwards. `time`:
    seconds from the beginning of the log.
    """

    time: float | None = None
    error: ErrorLine | None = None
    generation: int | None = None
    stale_completions: int | None = None

    @abstractmethod
    def operation(self) -> Operation:
        """The call as a value. Raises ValueError for what is no key."""

    def result(self) -> Result:
        """What it returned. Raises ValueError for what is no key."""
        return None

    def visible(self) -> Visible:
        """What the subject showed of itself."""
        if self.generation is None and self.stale_completions is None:
            return NOTHING_VISIBLE
        return Visible(self.generation, self.stale_completions)


Hints: TypeAlias = bool | frozenset[str]
"""What is written of hints: their values, the types alone, or the fields of these names alone."""


def hints_line(hints: Mapping[str, object] | None, written: Hints) -> dict[str, object] | None:
    """The hints of a request, as far as they are written."""
    if hints is None:
        return None
    if isinstance(written, frozenset):
        hints = {name: value for name, value in hints.items() if name in written}
    write = value_line if written else type_name
    return {readable(str(name)): write(value) for name, value in hints.items()}


def hints_of(line: Mapping[str, object] | None, *, values: bool) -> dict[str, object] | None:
    """The hints that a line tells; `HintOfType` where it tells the type alone."""
    if line is None:
        return None
    if not values:
        return {name: HintOfType(str(type_)) for name, type_ in line.items()}
    return {name: value_of(value) for name, value in line.items()}


def figure_line(value: float) -> Figure:
    """A figure as JSON can hold it."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def error_line(
    error: BaseException, names: Pseudonyms, requests: Iterable[RequestId], *, quotes: bool
) -> ErrorLine:
    """What was raised, with keys and requests under their names."""
    kinds = [cls.__name__ for cls in type(error).__mro__ if _is_known(cls)]
    clause = error.clause if isinstance(error, PolicyContractError) else None
    try:
        text = str(error)
    except Exception:
        text = ""
    return ErrorLine(type(error).__name__, names.text(text, requests, quotes=quotes), kinds, clause)


class LoggedError(Exception):
    """What a call raised, as a log tells it; also of the classes that it was of."""

    def __str__(self) -> str:
        return str(self.args[0])


def error_of(line: ErrorLine | None) -> BaseException | None:
    """An exception of that name, text and, as far as they are known, classes."""
    if line is None:
        return None
    kinds = tuple(filter(None, map(_known_class, line.kinds)))
    # `type` does not say that what it makes derives from its bases.
    cls = cast("type[LoggedError]", type(line.name, (LoggedError, *kinds), {}))
    error = cls.__new__(cls)
    error.args = (line.text,)
    if isinstance(error, PolicyContractError):
        error.clause = line.clause or ""
    return error


def _is_known(cls: type) -> bool:
    return _known_class(cls.__name__) is cls


def _known_class(name: str) -> type[BaseException] | None:
    for module in (*_OWN_ERRORS, builtins):
        cls: object = getattr(module, name, None)
        if (
            isinstance(cls, type)
            and issubclass(cls, Exception)
            and cls is not Exception
            # These two cannot be made without what they are about.
            and not issubclass(cls, (ExceptionGroup, UnicodeError))
        ):
            return cls
    return None
