"""Growth: what a policy still holds when keys and requests have passed through it (POL-4).

A stream of ever new ones passes at one capacity. Growth is judged by slope, for nobody knows what
a policy is meant to remember: it is growth if in each half of a run twice as much comes to be held
as in the half of it before. What is held is the least that was counted in a stretch, so that one
who cleans up now and then is not taken for one who never does.

Where a policy is to be told that a session is over, it may never be: a client that crashes says
nothing, so that to wait for its hint is growth. What the host itself promises to tell, by an event,
is between it and the policy; that there is no other bound is advice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, TypeAlias, TypeVar

from typing_extensions import override

from kvoffload import CachePolicy
from kvoffload.judge.trend import grows
from kvoffload.wording import counted
from stateful_models.capabilities import SPARE_KEYS
from stateful_models.contract import CLAUSES, Kind
from stateful_models.engines.base import Breach, Engine, PolicyTrial
from stateful_models.engines.churn import CAPACITY, SLACK, Churn, Held, Sample
from stateful_models.engines.fresh_values import FreshValues
from stateful_models.engines.samples import example_events, example_hints, examples

P = TypeVar("P", bound=CachePolicy)

SAMPLES: Final = 24
"""How often is counted, from the first key of a churn to the last."""
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


UNENDED: Final = ", and nothing said that they are over, as when clients crash"
UNTOLD: Final = (
    ", without the events of the driver that say they are over; a host may promise one for each, "
    "so this is advice"
)
FEW: Final = (
    "; this is advice, as the driver sends a few values only, of which there may be no others: "
    "where there are, let it draw them (`st.uuids().map(str)`), and this is a breach of class L"
)


class _Growth(NamedTuple):
    """What was held in the course of a churn, and which number of it grew; None if it failed."""

    samples: Sequence[Sample]
    kind: int | None


_Shown: TypeAlias = tuple[Churn[P], _Growth]
"""Something that grew, with the stream in which it did."""
_Churned: TypeAlias = tuple[Churn[P], _Growth | None]


class Growth(Engine):
    """Counts what is held, at a quarter, half and all of `level.churn`, and after clears.

    `durations` are the spans of time that matter to the policy; time passes in such steps.
    `reads_hints` tells whether it was seen to ask for any. What grows is followed for up to
    `longest` times that churn.
    """

    name: ClassVar[str] = "growth"
    clauses: ClassVar[tuple[str, ...]] = ("POL-4",)

    def __init__(
        self,
        durations: Sequence[float] = (),
        reads_hints: Callable[[], bool] = lambda: True,
        longest: int = LONGEST,
    ) -> None:
        super().__init__()
        self._longest = longest
        self._step_s = max(durations, default=A_MINUTE)
        self._reads_hints = reads_hints

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        until = trial.now() + trial.level.patience_s
        for plain in (False, True):
            trial.count()
            churn = Churn(trial, self._step_s, plain=plain)
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
        shown: _Shown[P] | None = None
        for ending in fresh.endings:
            churn, growth = self._fresh_churn(trial, until, fresh, [ending])
            if growth is None:
                if fresh.names:
                    self._leave_open(trial, until, fresh, shown)
                return
            if self._failed(trial, growth):
                return
            shown = shown or (churn, growth)
        if shown is not None:
            self._report_shown(trial, shown, fresh)

    def _leave_open(
        self,
        trial: PolicyTrial[P],
        until: float,
        fresh: FreshValues,
        shown: _Shown[P] | None,
    ) -> None:
        """Let ever new values pass of which nothing says that they are over.

        `shown`: it was seen to grow after some endings and not after others.
        """
        if shown is not None:
            self._report_shown(trial, shown, fresh, UNENDED)
            return
        # All that may be left unsaid at once, and then that alone of which most was kept.
        churn, growth = self._fresh_churn(trial, until, fresh, fresh.unended, events_tell=False)
        if growth is None or self._failed(trial, growth):
            return
        kept = [churn.most_kept_ending()]
        churn, growth = self._fresh_churn(trial, until, fresh, kept, events_tell=False)
        if growth is None or self._failed(trial, growth):
            return
        why = UNENDED
        if fresh.told_by_events:
            _, told = self._fresh_churn(trial, until, fresh, kept)
            if told is None:
                why = UNTOLD
            elif self._failed(trial, told):
                return
        self._report_shown(trial, (churn, growth), fresh, why)

    def _fresh_churn(
        self,
        trial: PolicyTrial[P],
        until: float,
        fresh: FreshValues,
        endings: Sequence[Mapping[str, object]],
        *,
        events_tell: bool = True,
    ) -> _Churned[P]:
        """Let sessions pass that end like these, in turn."""
        trial.count()
        churn = Churn(
            trial,
            self._step_s,
            plain=False,
            fresh=fresh,
            endings=endings,
            events_tell=events_tell,
        )
        return churn, self._churned(trial, churn, until, SLACK // len(endings))

    def _failed(self, trial: PolicyTrial[P], growth: _Growth) -> bool:
        if growth.kind is None:
            trial.tried.discard("POL-4")
            trial.note(f"{self.name}: hint values could not be varied, for then it failed")
        return growth.kind is None

    def _report_shown(
        self, trial: PolicyTrial[P], shown: _Shown[P], fresh: FreshValues, why: str = ""
    ) -> None:
        churn, growth = shown
        sessions = churn.sessions
        # One that was come to only lately does not show in what was held.
        bound = churn.bound_beyond(sessions * 7 // 8)
        if bound:
            # A smaller one may be given it (`--arg`); then it is seen.
            trial.tried.discard("POL-4")
            trial.note(
                f"{self.name}: it grows while {sessions:,} values of hints pass, and if {bound} is "
                "a bound, it was not come to, or only just"
            )
            return
        self._report_growth(trial, churn, growth, fresh, why)

    def _churned(
        self, trial: PolicyTrial[P], churn: Churn[P], until: float, slack: int = SLACK
    ) -> _Growth | None:
        """What grew while the stream passed; None if it passed and nothing did."""
        length = trial.level.churn * churn.times
        samples: list[Sample] = []
        self._sample(trial, churn, samples, length)
        growing = _growing(samples, slack)
        # It may be that it only has not yet reached a bound of its own.
        while growing is not None and length < self._longest * trial.level.churn:
            if churn.run.over or trial.is_over(until):
                break
            length *= 2
            self._sample(trial, churn, samples, length)
            growing = _growing(samples, slack)
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
        self, trial: PolicyTrial[P], churn: Churn[P], samples: list[Sample], length: int
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
        churn: Churn[P],
        growth: _Growth,
        fresh: FreshValues | None = None,
        why: str = "",
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
            figures = f"{figures}, while new values of {names} went by{why or _ended(fresh)}"
            free = fresh.are_free(held)
        if why == UNTOLD:
            # What its host promises is not known here.
            weight = Kind.ADVICE
        elif not free:
            # It may be that there are no others than those of the driver.
            weight = Kind.ADVICE
            figures = f"{figures}{FEW}"
        trial.found(
            Breach(
                "POL-4",
                weight,
                figures,
                self.name,
                # Advice or not, it is no bound that was passed: there is none.
                promise=CLAUSES["POL-4"].part(Kind.LIVENESS).sentence,
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

    def _clear_often(self, churn: Churn[P], left: list[Held], times: int) -> bool:
        """Clear so often, with keys passing in between; whether the run goes on."""
        for _ in range(times):
            churn.reset()
            left.append(churn.held())
            if not churn.until(len(churn.passed) + SLACK):
                return False
        return True

    def _cleared(self, trial: PolicyTrial[P], churn: Churn[P]) -> bool:
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


def _ended(fresh: FreshValues) -> str:
    """That each was ended which went by, as far as the driver can say that."""
    said = [
        *(["its last hints"] if len(fresh.endings) > 1 else []),
        *(f"`{name}`" for name in fresh.told_by_events),
    ]
    return f", each ended in every way that the driver shows ({', '.join(said)})" if said else ""


def _growing(samples: Sequence[Sample], slack: int) -> int | None:
    """Which number of `Held` grows as long as keys pass, if one does."""
    for kind in range(len(Held._fields)):
        if grows([(passed, held[kind]) for passed, held in samples], slack):
            return kind
    return None
