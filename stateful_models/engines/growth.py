"""Growth: what a policy still holds when keys and requests have passed through it (POL-4).

Whatever can be reached from the policy is counted: keys, requests, chunks, and objects of any
kind. A stream of ever new ones passes at one capacity; whenever it is counted, every request is
over and nothing is in flight. Growth is judged by slope, for nobody knows what a policy is meant
to remember: it is growth if in each half of a run twice as much comes to be held as in the half
of it before. What is held is the least that was counted in a stretch, so that one who cleans up
now and then is not taken for one who never does.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from logging import Logger
from threading import Thread
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext, make_offload_key
from stateful_models import operations as op
from stateful_models.capabilities import SPARE_KEYS
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.runs import PolicyRun
from stateful_models.engines.samples import example_events, example_hints
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

_NOT_OF_THE_POLICY: Final = (type, ModuleType, CodeType, FrameType, Logger, Thread)


class Held(NamedTuple):
    """Distinct things that can be reached."""

    keys: int
    requests: int
    chunks: int
    objects: int


class Sample(NamedTuple):
    """What was held when so many keys had passed."""

    passed: int
    held: Held


class Passed:
    """The keys and requests that passed, told by value; `held_by` finds them again."""

    def __init__(self) -> None:
        self._keys: dict[bytes, OffloadKey] = {}
        self._requests: set[str] = set()

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

    def held_by(self, *roots: object, beside: Sequence[object] = ()) -> Held:
        """What can be reached from the roots.

        Not by weak references, and not through modules, classes or what functions find in their
        modules, nor through what is the host's: chunks, contexts, and `beside`.
        """
        keys: set[OffloadKey] = set()
        requests: set[str] = set()
        chunks = 0
        seen = {id(one) for one in beside}
        mine = len(seen)
        stack = list(roots)
        while stack:
            thing = stack.pop()
            if id(thing) in seen or isinstance(thing, _NOT_OF_THE_POLICY):
                continue
            seen.add(id(thing))
            if isinstance(thing, bytes):
                if thing in self._keys:
                    keys.add(self._keys[thing])
            elif isinstance(thing, str):
                if thing in self._requests:
                    requests.add(thing)
            elif isinstance(thing, ReqContext):
                if thing.req_id in self._requests:
                    requests.add(thing.req_id)
            elif isinstance(thing, ChunkStatus):
                chunks += 1
            elif isinstance(thing, FunctionType):
                stack += (thing.__closure__, thing.__defaults__, thing.__kwdefaults__)
                stack.append(thing.__dict__)
            else:
                stack += gc.get_referents(thing)
                if isinstance(thing, dict):
                    # Text as a key refers to nothing, and the collector is not told of it.
                    names: dict[object, object] = thing
                    stack += dict[object, object].keys(names)
        return Held(len(keys), len(requests), chunks, len(seen) - mine)


class _Churn(Generic[P]):
    """A policy through which a stream passes, request by request.

    A `plain` stream has nothing but new keys; in others some come again and again.
    """

    def __init__(self, trial: PolicyTrial[P], step_s: float, *, plain: bool) -> None:
        self.passed = Passed()
        self.reach = Reach()
        self._trial = trial
        self.run: PolicyRun[P] = PolicyRun(
            trial.driver, CAPACITY, (), surroundings=trial.surroundings, reach=self.reach
        )
        self._hints: list[Mapping[str, object] | None] = example_hints(trial)
        self._events = example_events(trial)
        self._step_s = step_s
        self._plain = plain
        self._requests = 0
        self._named = 0
        self._lasting = tuple(make_offload_key(b"lasting%d" % n, 0) for n in range(3))
        self._earlier: list[OffloadKey] = []

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

    def _life(self, number: int, request: op.RequestId) -> Iterator[HostOperation]:
        """All that a request does. Its kind is one of eight, by its number."""
        kind, host = 0 if self._plain else number % 8, self.run.host
        yield op.NewRequest(request, self._hints[number % len(self._hints)])
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
        if self._events and kind in (1, 5):
            yield self._events[number % len(self._events)]


class Growth(Engine):
    """Counts what is held, at a quarter, half and all of `level.churn`, and after clears.

    `durations` are the spans of time that matter to the policy; time passes in such steps.
    """

    name: ClassVar[str] = "growth"
    clauses: ClassVar[tuple[str, ...]] = ("POL-4",)

    def __init__(self, durations: Sequence[float] = ()) -> None:
        super().__init__()
        self._step_s = max(durations, default=A_MINUTE)

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        until = trial.now() + trial.level.patience_s
        for plain in (False, True):
            trial.count()
            churn = _Churn(trial, self._step_s, plain=plain)
            if not self._churned(trial, churn, until):
                return
            if trial.driver.host.clears and not self._cleared(trial, churn):
                return

    def _churned(self, trial: PolicyTrial[P], churn: _Churn[P], until: float) -> bool:
        """Whether the stream passed, and nothing grew."""
        length = trial.level.churn
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
            why = "it failed" if churn.run.over else f"only {evictions} evictions came about"
            if "POL-4" not in trial.tried:
                trial.declined["POL-4"] = f"when {len(churn.passed):,} keys had passed, {why}"
            return False
        trial.reach.note("churn")
        trial.tried.add("POL-4")
        if growing is not None:
            self._report_growth(trial, churn, samples, growing)
            return False
        self._compare_with_bound(trial, samples)
        return True

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
        self, trial: PolicyTrial[P], churn: _Churn[P], samples: Sequence[Sample], kind: int
    ) -> None:
        what = Held._fields[kind]
        end = samples[-1]
        half = max((s for s in samples if 2 * s.passed <= end.passed), key=lambda s: s.passed)
        figures = (
            f"held {half.held[kind]:,} {what} after {half.passed:,} keys had passed, "
            f"{end.held[kind]:,} after {end.passed:,}{churn.most_in(kind)}"
        )
        trial.found(
            Breach(
                "POL-4",
                Kind.LIVENESS,
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
    # From after so many eighths of the churn to so many; of what grows in proportion twice as much
    # is held at the start of the third as of the second, and the last two show that it goes on.
    bounds = ((1, 2), (2, 4), (4, 8), (6, 7), (7, 8))
    end = samples[-1].passed if samples else 0
    stretches = [
        [held for passed, held in samples if low * end < 8 * passed <= high * end]
        for low, high in bounds
    ]
    if not all(stretches):
        return None
    for kind in range(len(Held._fields)):
        least = [min(held[kind] for held in stretch) for stretch in stretches]
        before, after, lately = least[1] - least[0], least[2] - least[1], least[4] - least[3]
        grew = before > SLACK // 4 and after > SLACK and after > 1.2 * before
        if grew and lately > after / 5:
            return kind
    return None
