"""What all lines of a call log have in common, and what can stand in several of them."""

from __future__ import annotations

import builtins
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, cast

import msgspec
from attrs import asdict, evolve, frozen
from typing_extensions import override

from kvoffload import errors as own_errors
from kvoffload.errors import PolicyContractError
from stateful_models import steps
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.logs.pseudonyms import Pseudonyms, readable
from stateful_models.monitor import Setup
from stateful_models.operations import Operation, RequestId
from stateful_models.steps import NOTHING_VISIBLE, Result, Visible

VERSION: Final = 1

NotFinite: TypeAlias = Literal["nan", "inf", "-inf"]
Figure: TypeAlias = float | NotFinite
"""JSON has no word for these three."""

DEPTH: Final = 8
"""How deep hints are written, where their values are."""

_OWN_ERRORS = (own_errors, steps)


class Header(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The first line: what the calls below were made of, and how they were written.

    `host` is who made them, in the words of whoever recorded it. `hints`: whether what clients
    sent was written as it was, or the types alone.
    """

    kvoffload_log: int
    kind: Literal["manager", "policy"]
    num_chunks: int | None
    store_threshold: int
    enable_events: bool
    capabilities: dict[str, bool | int | str]
    host: str | None
    hints: Literal["types", "values"]
    salt_id: str

    def setup(self) -> Setup:
        """What was watched. Raises ValueError for capabilities that there are not."""
        return Setup(
            kind=self.kind,
            num_chunks=self.num_chunks,
            store_threshold=self.store_threshold,
            enable_events=self.enable_events,
            capabilities=_capabilities_of(self.capabilities),
        )


def header_of(setup: Setup, names: Pseudonyms, host: str | None, *, hints: bool) -> Header:
    """The header of a log of this subject."""
    return Header(
        kvoffload_log=VERSION,
        kind=setup.kind,
        num_chunks=setup.num_chunks,
        store_threshold=setup.store_threshold,
        enable_events=setup.enable_events,
        capabilities=_capabilities_line(setup.capabilities),
        host=host,
        hints="values" if hints else "types",
        salt_id=names.salt_id,
    )


def _capabilities_line(capabilities: Capabilities) -> dict[str, bool | int | str]:
    # What makes another policy, to compare with, is for engines that make one.
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

    `generation` and `stale_completions` are what the subject showed of itself afterwards.
    """

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


@frozen
class HintOfType:
    """Stands for a hint of which only the type was written, by its name in JSON."""

    type: str

    @override
    def __repr__(self) -> str:
        return f"<{self.type}>"


def hints_line(hints: Mapping[str, object] | None, *, values: bool) -> dict[str, object] | None:
    """The hints of a request, or their types."""
    if hints is None:
        return None
    write = _plain if values else _type_of
    return {readable(str(name)): write(value) for name, value in hints.items()}


def hints_of(line: Mapping[str, object] | None, *, values: bool) -> dict[str, object] | None:
    """The hints that a line tells; `HintOfType` where it tells the type alone."""
    if line is None:
        return None
    if not values:
        return {name: HintOfType(str(type_)) for name, type_ in line.items()}
    return {name: _value_of(value) for name, value in line.items()}


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


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case Mapping():
            return "object"
        case _:
            return type(value).__name__


# In a line of values, an object with this only name is a value that JSON cannot hold.
_OF_TYPE = "?"
_NUMBER = "?number"


def _plain(value: object, depth: int = DEPTH) -> object:
    # Clients send anything, and a line must be written whatever it is.
    match value:
        case None | bool():
            return value
        case str():
            return readable(value)
        case int() | float():
            exact = isinstance(value, float) and math.isfinite(value)
            small = isinstance(value, int) and abs(value) < 2**63
            if exact or small:
                return value
            return {_NUMBER: hex(value) if isinstance(value, int) else repr(value)}
        case list() | tuple() if depth:
            elements = cast("Sequence[object]", value)
            return [_plain(element, depth - 1) for element in elements]
        case Mapping() if depth:
            entries = cast("Mapping[object, object]", value)
            return {readable(str(k)): _plain(v, depth - 1) for k, v in entries.items()}
        case _:
            return {_OF_TYPE: _type_of(value)}


def _value_of(value: object) -> object:
    if isinstance(value, list):
        elements = cast("list[object]", value)
        return [_value_of(element) for element in elements]
    if not isinstance(value, dict):
        return value
    entries = cast("dict[str, object]", value)
    if entries.keys() == {_OF_TYPE}:
        return HintOfType(str(entries[_OF_TYPE]))
    if entries.keys() == {_NUMBER}:
        text = str(entries[_NUMBER])
        return int(text, 16) if "x" in text else float(text)
    return {name: _value_of(each) for name, each in entries.items()}
