"""Growth: what a policy still holds when keys and requests have passed through it (POL-4).

Whatever can be reached from the policy is counted: keys, requests, chunks, and objects of any
kind. A stream of ever new ones passes at one capacity; whenever it is counted, every request is
over and nothing is in flight. Growth is judged by slope, for nobody knows what a policy is meant
to remember: it is growth if in each half of a run twice as much comes to be held as in the half
of it before. What is held is the least that was counted in a stretch, so that one who cleans up
now and then is not taken for one who never does.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from typing_extensions import override

from kvoffload import CachePolicy, OffloadKey, make_offload_key
from kvoffload.judge.reachable import reachable
from kvoffload.judge.trend import grows
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.capabilities import SPARE_KEYS
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.fresh_values import FreshValues
from stateful_models.engines.runs import PolicyRun
from stateful_models.engines.samples import example_events, example_hints, examples
from stateful_models.host_types import OWN_TYPES, HostTypes
from stateful_models.programs import HostOperation
from stateful_models.reach import Reach

P = TypeVar("P", bound=CachePolicy)

CAPACITY: Final = 16
KEYS_OF_A_REQUEST: Final = 4
SAMPLES: Final = 24
"""How often is counted, from the first key of a churn to the last."""
SLACK: Final = 64
"""What may come to be held in half of a churn and is no growth yet."""
LONGEST: Final = 4
"""What seems to grow is followed for so many times the churn of the level, as it may stop."""
CYCLES: Final = 8
LONG_CYCLES: Final = 48
"""As often it is cleared where more is left after each time."""
LEAST: Final = 3
"""Keys or requests that must be left over in either half of these for it to be growth."""
LEFT_BY_CLEAR: Final = 8
"""Keys that may be left after a clear: those of the last call, say, which the next replaces."""
A_MINUTE: Final = 60.0


class Held(NamedTuple):
    """Distinct things that can be reached."""

    keys: int
    requests: int
    chunks: int
    values: int
    """Of hints."""
    objects: int


class Sample(NamedTuple):
    """What was held when so many keys had passed."""

    passed: int
    held: Held


class _Growth(NamedTuple):
    """What was held in the course of a churn, and which number of it grew; None if it failed."""

    samples: Sequence[Sample]
    kind: int | None


class Passed:
    """The keys, requests and hint values that passed, told by value; `held_by` finds them again."""

    def __init__(self, types: HostTypes = OWN_TYPES) -> None:
        self._types = types
        self._keys: dict[bytes, OffloadKey] = {}
        self._requests: set[str] = set()
        self._values: dict[object, str] = {}

    def __len__(self) -> int:
        return len(self._keys) // 2

    def key(self, key: OffloadKey) -> OffloadKey:
        """One more key; also its block hash alone counts as holding it."""
        self._keys[key] = self._keys[key[:-4]] = key
        return key

    def request(self, request: op.RequestId) -> op.RequestId:
        """One more request."""
        self._requests.add(request)
        return request

    def value(self, name: str, value: object) -> None:
        """One more value of the hint of this name."""
        self._values[value] = name

    def names_held_by(self, root: object, beside: Sequence[object]) -> list[str]:
        """The names of the hints of which values can be reached, but for a few."""
        leaves = (self._types.context, self._types.chunk)
        held = {
            thing
            for thing in reachable(root, beside=beside, leaves=leaves)
            if isinstance(thing, (str, int)) and thing in self._values
        }
        counts = Counter(self._values[value] for value in held)
        return [name for name, count in counts.items() if count > SLACK]

    def held_by(self, *roots: object, beside: Sequence[object] = ()) -> Held:
        """What can be reached from the roots.

        Not by weak references, and not through modules, classes or what functions find in their
        modules, nor through what is the host's: chunks, contexts, and `beside`.
        """
        keys: set[OffloadKey] = set()
        requests: set[str] = set()
        values: set[object] = set()
        chunks = 0
        objects = 0
        types = self._types
        for thing in reachable(*roots, beside=beside, leaves=(types.context, types.chunk)):
            objects += 1
            if isinstance(thing, bytes):
                if thing in self._keys:
                    keys.add(self._keys[thing])
            elif isinstance(thing, str):
                if thing in self._requests:
                    requests.add(thing)
                elif thing in self._values:
                    values.add(thing)
            elif type(thing) is int:
                if thing in self._values:
                    values.add(thing)
            elif isinstance(thing, types.context):
                # In some vLLM nothing in it tells whose it is.
                request: object = getattr(thing, "req_id", None)
                if isinstance(request, str) and request in self._requests:
                    requests.add(request)
            elif isinstance(thing, types.chunk):
                chunks += 1
        return Held(len(keys), len(requests), chunks, len(values), objects)


class _Churn(Generic[P]):
    """A policy through which a stream passes, request by request.

    A `plain` stream has nothing but new keys; in others some come again and again. With `fresh`
    values two requests share what no other has, of which the second ends it, `ending` how.
    """

    def __init__(
        self,
        trial: PolicyTrial[P],
        step_s: float,
        *,
        plain: bool,
        fresh: FreshValues | None = None,
        ending: Mapping[str, object] | None = None,
    ) -> None:
        self.passed = Passed(trial.driver.types)
        self.reach = Reach()
        # New values come with every second request, and keys with each.
        self.times: int = 1 if fresh is None else 2
        self._trial = trial
        self.run: PolicyRun[P] = PolicyRun(
            trial.driver, CAPACITY, (), surroundings=trial.surroundings, reach=self.reach
        )
        self._hints: list[Mapping[str, object] | None] = example_hints(trial)
        self._events = example_events(trial)
        self._step_s = step_s
        self._plain = plain
        self._fresh = fresh
        self._ending = ending or {}
        self._requests = 0
        self._named = 0
        self._lasting = tuple(make_offload_key(b"lasting%d" % n, 0) for n in range(3))
        self._earlier: list[OffloadKey] = []

    @property
    def sessions(self) -> int:
        """How many fresh values of each name passed."""
        return (self._requests + 1) // 2

    def until(self, passed: int) -> bool:
        """Let requests pass until so many keys have; False if the policy fails before."""
        while len(self.passed) < passed and not self.run.over:
            self._request()
            # The steps of a run are kept for those who judge it.
            self.run.played.clear()
        return not self.run.over

    def reset(self) -> None:
        """Clear the policy."""
        self.run.play(op.Reset())
        self._earlier.clear()

    def held(self) -> Held:
        """What the policy holds now."""
        return self.passed.held_by(self.run.policy, beside=self._hosts())

    def most_in(self, kind: int) -> str:
        """Which attribute of the policy most of what `Held` counts there is in, in words."""
        attributes: dict[str, object] = dict(getattr(self.run.policy, "__dict__", {}))
        for cls in type(self.run.policy).__mro__:
            for name in getattr(cls, "__slots__", ()):
                attributes.setdefault(name, getattr(self.run.policy, name, None))
        beside = [self.run.policy, *self._hosts()]
        most = {
            name: self.passed.held_by(value, beside=beside)[kind]
            for name, value in attributes.items()
        }
        if not any(most.values()):
            return ""
        return f", most of them in `{max(most, key=most.__getitem__)}`"

    def names_held(self) -> list[str]:
        """The hints of which the policy holds many values."""
        return self.passed.names_held_by(self.run.policy, self._hosts())

    def bound_beyond(self, held: int) -> str:
        """A number that the policy has and that may be a bound which was not come to yet."""
        attributes: dict[str, object] = dict(getattr(self.run.policy, "__dict__", {}))
        for name, value in attributes.items():
            if type(value) is int and held <= value < sys.maxsize // 2:
                return f"`{name}` of {value:,}"
        return ""

    def _hosts(self) -> list[object]:
        run = self.run
        return [run, run.subject, run.host, run.subject.driver, run.subject.contexts, self._trial]

    def _new(self, number: int) -> tuple[OffloadKey, ...]:
        self._named += number
        numbers = range(self._named - number, self._named)
        return tuple(
            self.passed.key(make_offload_key(b"passing%d" % n, n // KEYS_OF_A_REQUEST % 2))
            for n in numbers
        )

    def _request(self) -> None:
        number = self._requests
        self._requests += 1
        request = self.passed.request(f"passing-{number}")
        for operation in self._life(number, request):
            if not self.run.play(operation):
                return
        self.run.subject.contexts.forget(request)
        if self._fresh is not None and number % 2:
            for event in self._fresh.events(number // 2):
                self.run.play(event)

    def _hints_of(self, number: int) -> Mapping[str, object] | None:
        fresh, at = self._fresh, number // 2
        if fresh is None:
            return self._hints[number % len(self._hints)]
        if number % 2:
            return fresh.last_hints(at, self._ending)
        for name, value in fresh.of(at).items():
            self.passed.value(name, value)
        return fresh.hints(at)

    def _life(self, number: int, request: op.RequestId) -> Iterator[HostOperation]:
        """All that a request does. Its kind is one of eight, by its number."""
        kind, host = 0 if self._plain else number % 8, self.run.host
        yield op.NewRequest(request, self._hints_of(number))
        new = self._new(KEYS_OF_A_REQUEST)
        if number % 3:
            ends = tuple((key, 16 * (1 + place)) for place, key in enumerate(new))
            yield op.SetPositions(request, ends)
        yield op.Lookup(request, new[0])
        offer = new
        if kind in (1, 4):
            offer = (*self._lasting[: 1 + kind // 4], *new)
        elif kind == 2 and self._earlier:
            # What was evicted not long ago may be remembered.
            offer = (*self._earlier[:2], *new)
        elif kind == 3:
            # More than there is room for: misses that are never stored.
            offer = (*new, *self._new(CAPACITY - 3))
        elif kind == 6:
            ready = tuple(host.ready[:2])
            yield op.PrepareLoad(request, ready)
        elif kind == 7:
            yield op.Touch(request, self._new(2))
        yield op.PrepareStore(request, offer)
        if number % 2:
            yield op.FinishRequest(request)
        if host.pending:
            yield op.CompleteStore(request, tuple(host.pending), kind != 5)
        if host.pinned:
            yield op.CompleteLoad(request, tuple(host.pinned))
        if not number % 2:
            yield op.FinishRequest(request)
        self._earlier = [*self._earlier[-CAPACITY:], *new]
        if kind == 0:
            yield op.AdvanceClock(self._step_s)
        if self._events and self._fresh is None and kind in (1, 5):
            yield self._events[number % len(self._events)]


class Growth(Engine):
    """Counts what is held, at a quarter, half and all of `level.churn`, and after clears.

    `durations` are the spans of time that matter to the policy; time passes in such steps.
    `reads_hints` tells whether it was seen to ask for any.
    """

    name: ClassVar[str] = "growth"
    clauses: ClassVar[tuple[str, ...]] = ("POL-4",)

    def __init__(
        self,
        durations: Sequence[float] = (),
        reads_hints: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self._step_s = max(durations, default=A_MINUTE)
        self._reads_hints = reads_hints

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        until = trial.now() + trial.level.patience_s
        for plain in (False, True):
            trial.count()
            churn = _Churn(trial, self._step_s, plain=plain)
            growth = self._churned(trial, churn, until)
            if growth is not None and growth.kind is not None:
                self._report_growth(trial, churn, growth)
            if growth is not None:
                return
            if trial.driver.host.clears and not self._cleared(trial, churn):
                return
        self._vary(trial, until)

    def _vary(self, trial: PolicyTrial[P], until: float) -> None:
        """Let ever new values of hints pass. It grows if it does however a session ends."""
        hints, events = example_hints(trial), example_events(trial)

        def more(count: int) -> list[Mapping[str, object] | None]:
            return examples(trial.driver.contexts(), count, trial.seed)

        fresh = FreshValues(hints, events, more)
        if not (fresh.varies and (events or self._reads_hints())):
            return
        shown: tuple[_Churn[P], _Growth] | None = None
        for ending in fresh.endings:
            trial.count()
            churn = _Churn(trial, self._step_s, plain=False, fresh=fresh, ending=ending)
            growth = self._churned(trial, churn, until)
            if growth is None:
                return
            if growth.kind is None:
                trial.tried.discard("POL-4")
                trial.note(f"{self.name}: hint values could not be varied, for then it failed")
                return
            shown = shown or (churn, growth)
        if shown is None:
            return
        churn, growth = shown
        sessions = churn.sessions
        bound = churn.bound_beyond(sessions)
        if bound:
            # A smaller one may be given it (`--arg`); then it is seen.
            trial.tried.discard("POL-4")
            trial.note(
                f"{self.name}: it grows while {sessions:,} values of hints pass, and if {bound} is "
                "a bound, it was not come to"
            )
            return
        self._report_growth(trial, churn, growth, fresh)

    def _churned(self, trial: PolicyTrial[P], churn: _Churn[P], until: float) -> _Growth | None:
        """What grew while the stream passed; None if it passed and nothing did."""
        length = trial.level.churn * churn.times
        samples: list[Sample] = []
        self._sample(trial, churn, samples, length)
        growing = _growing(samples)
        # It may be that it only has not yet reached a bound of its own.
        while growing is not None and length < LONGEST * trial.level.churn:
            if churn.run.over or trial.is_over(until):
                break
            length *= 2
            self._sample(trial, churn, samples, length)
            growing = _growing(samples)
        evictions = churn.reach["eviction"]
        if churn.run.over or evictions < CAPACITY:
            why = (
                "it failed"
                if churn.run.over
                else f"only {counted(evictions, 'eviction')} came about"
            )
            if "POL-4" not in trial.tried:
                trial.declined["POL-4"] = f"when {len(churn.passed):,} keys had passed, {why}"
            return _Growth(samples, None)
        trial.reach.note("churn")
        trial.tried.add("POL-4")
        if growing is not None:
            return _Growth(samples, growing)
        self._compare_with_bound(trial, samples)
        return None

    def _sample(
        self, trial: PolicyTrial[P], churn: _Churn[P], samples: list[Sample], length: int
    ) -> None:
        stride = max(1, trial.level.churn // SAMPLES)
        while len(churn.passed) < length:
            trial.on_progress(self.name, min(1.0, len(churn.passed) / length))
            if not churn.until(min(length, len(churn.passed) + stride)):
                return
            samples.append(Sample(len(churn.passed), churn.held()))

    def _report_growth(
        self,
        trial: PolicyTrial[P],
        churn: _Churn[P],
        growth: _Growth,
        fresh: FreshValues | None = None,
    ) -> None:
        samples, kind = growth
        if kind is None:
            return
        what = "hint values" if Held._fields[kind] == "values" else Held._fields[kind]
        end = samples[-1]
        half = max((s for s in samples if 2 * s.passed <= end.passed), key=lambda s: s.passed)
        figures = (
            f"held {half.held[kind]:,} {what} after {half.passed:,} keys had passed, "
            f"{end.held[kind]:,} after {end.passed:,}{churn.most_in(kind)}"
        )
        weight, free = Kind.LIVENESS, True
        if fresh is not None:
            held = churn.names_held() or fresh.names
            names = ", ".join(f"`{name}`" for name in held) or "host events"
            figures = f"{figures}, while new values of {names} went by"
            free = fresh.are_free(held)
        if not free:
            # It may be that there are no others than those of the driver.
            weight = Kind.ADVICE
            figures = f"{figures}; the driver has a few values only, so this is advice"
        trial.found(
            Breach(
                "POL-4",
                weight,
                figures,
                self.name,
                expected=f"no growth with {CAPACITY} chunks and nothing in flight",
            )
        )

    def _compare_with_bound(self, trial: PolicyTrial[P], samples: Sequence[Sample]) -> None:
        bound = trial.capabilities.growth * CAPACITY + SPARE_KEYS
        later = [s for s in samples if 2 * s.passed > samples[-1].passed]
        most = max(later, key=lambda s: s.held.keys)
        if most.held.keys > bound:
            trial.found(
                Breach(
                    "POL-4",
                    Kind.ADVICE,
                    f"held {most.held.keys:,} keys after {most.passed:,} had passed, with "
                    f"{CAPACITY} chunks and nothing in flight",
                    self.name,
                    expected=f"at most {trial.capabilities.bound}, which is {bound:,}",
                    seen=f"{most.held.keys:,} keys",
                )
            )

    def _clear_often(self, churn: _Churn[P], left: list[Held], times: int) -> bool:
        """Clear so often, with keys passing in between; whether the run goes on."""
        for _ in range(times):
            churn.reset()
            left.append(churn.held())
            if not churn.until(len(churn.passed) + SLACK):
                return False
        return True

    def _cleared(self, trial: PolicyTrial[P], churn: _Churn[P]) -> bool:
        """Whether next to nothing is left after a clear, time and again."""
        left: list[Held] = []
        if not self._clear_often(churn, left, CYCLES):
            return False
        if any(left[-1][kind] > left[1][kind] for kind in (0, 1)):
            # What is left grows; it may be that it has a bound, which is then come to.
            if not self._clear_often(churn, left, LONG_CYCLES - CYCLES):
                return False
        for kind in (0, 1):
            what = Held._fields[kind]
            number = len(left)
            first, half, last = left[1][kind], left[number // 2 - 1][kind], left[-1][kind]
            where = churn.most_in(kind)
            if number == LONG_CYCLES and last - half >= LEAST and half - first >= LEAST:
                figures = (
                    f"{first:,} {what} were left after the 2nd clear, {half:,} after "
                    f"{number // 2}, {last:,} after {number}{where}"
                )
                trial.found(Breach("POL-4", Kind.LIVENESS, figures, self.name))
                return False
            if last > LEFT_BY_CLEAR:
                message = f"{last:,} {what} from before a clear are still held after it{where}"
                trial.found(Breach("POL-4", Kind.ADVICE, message, self.name))
                trial.note(f"{self.name}: {message}")
                return False
        return True


def _growing(samples: Sequence[Sample]) -> int | None:
    """Which number of `Held` grows as long as keys pass, if one does."""
    for kind in range(len(Held._fields)):
        if grows([(passed, held[kind]) for passed, held in samples], SLACK):
            return kind
    return None
