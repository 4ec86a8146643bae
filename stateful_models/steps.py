"""Steps: an operation together with what came of it, as far as the caller can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from attrs import field, frozen

from kvoffload.events import OffloadingEvent
from kvoffload.keys import OffloadKey
from kvoffload.lookup import LookupResult
from kvoffload.requests import RequestOffloadingContext
from stateful_models.loading import words_of
from stateful_models.operations import Operation, PolicyOperation, keys_text


class BadAnswerError(TypeError):
    """A call answered what no host can read: it counts as raised by whoever answered."""


@frozen
class Loaded:
    """Answer to a load: the slot of each key, and the ticket if the manager gives any.

    `slots` is None where the spec does not number blocks, as those of other media.
    """

    slots: tuple[int, ...] | None
    ticket: int | None = None

    def __str__(self) -> str:
        return f"slots {_slots_text(self.slots)}"


@frozen
class Stored:
    """Answer to an offer that was accepted: `keys[i]` goes to `slots[i]`; `evicted` made room."""

    keys: tuple[OffloadKey, ...]
    slots: tuple[int, ...] | None
    evicted: tuple[OffloadKey, ...]
    ticket: int | None = None

    def __str__(self) -> str:
        text = f"store {keys_text(self.keys)} at {_slots_text(self.slots)}"
        return f"{text}, evicted {keys_text(self.evicted)}" if self.evicted else text


@frozen
class Delivered:
    """Events of a full drain."""

    events: tuple[OffloadingEvent, ...]

    def __str__(self) -> str:
        return " ".join(_event_text(event) for event in self.events) or "no events"


@frozen
class Held:
    """Answer to what a request still holds: the keys of its loads and of its stores."""

    loads: tuple[OffloadKey, ...]
    stores: tuple[OffloadKey, ...]

    def __str__(self) -> str:
        return f"loads {keys_text(self.loads)}, stores {keys_text(self.stores)}"


@frozen
class Reported:
    """Figures by name; a histogram as its `_count` and `_sum`."""

    values: Mapping[str, float]

    def __str__(self) -> str:
        return " ".join(f"{_short(name)}={n:g}" for name, n in self.values.items())


@frozen
class Found:
    """Answer of a policy's `get`: the slot of its chunk. `own` if it is the chunk inserted."""

    slot: int
    own: bool = True

    def __str__(self) -> str:
        return f"slot {self.slot}" if self.own else f"slot {self.slot}, another chunk"


@frozen
class Victim:
    """One chunk given up by a policy. `own` if it is the chunk that was inserted for the key."""

    key: OffloadKey
    slot: int
    own: bool = True


@frozen
class Victims:
    """Answer of a policy's `evict`, in its order."""

    victims: tuple[Victim, ...]

    @property
    def keys(self) -> tuple[OffloadKey, ...]:
        """The keys given up."""
        return tuple(victim.key for victim in self.victims)

    def __str__(self) -> str:
        return f"evicted {keys_text(self.keys)}"


Result: TypeAlias = (
    LookupResult
    | Loaded
    | Stored
    | Delivered
    | Held
    | Reported
    | Found
    | Victims
    | RequestOffloadingContext
    | None
)
"""What a call returned. None: nothing, a refused offer, a policy without the key or victims."""


class Visible(NamedTuple):
    """State that a subject shows of itself without being called; None where it does not."""

    generation: int | None = None
    stale_completions: int | None = None


NOTHING_VISIBLE = Visible()


@frozen
class Step:
    """One operation performed: its place in the run, and either `result` or `error`.

    `visible` is the state shown after it. `told` is what a manager told its cache policy during
    the call, None where nobody listened. `silent`: no code of the subject was called for it.
    """

    number: int
    operation: Operation
    result: Result = None
    error: BaseException | None = None
    visible: Visible = NOTHING_VISIBLE
    told: tuple[PolicyOperation, ...] | None = None
    silent: bool = field(default=False, eq=False)

    def __str__(self) -> str:
        if self.error is not None:
            answer = f"raised {type(self.error).__name__}: {words_of(self.error)}"
        elif isinstance(self.result, LookupResult):
            answer = self.result.name
        elif isinstance(self.result, RequestOffloadingContext):
            answer = self.result.policy.value
        else:
            answer = str(self.result)
        return f"{self.number:4}  {self.operation} -> {answer}"


def _slots_text(slots: tuple[int, ...] | None, limit: int = 8) -> str:
    if slots is None:
        return "unnumbered blocks"
    rest = f" ... {len(slots) - limit} more" if len(slots) > limit else ""
    return f"[{' '.join(map(str, slots[:limit]))}{rest}]"


def _short(name: str) -> str:
    return name.removeprefix("vllm:kv_offload_").removeprefix("cpu_")


def _event_text(event: OffloadingEvent) -> str:
    return f"{'-' if event.removed else '+'}{keys_text(event.keys)}"
