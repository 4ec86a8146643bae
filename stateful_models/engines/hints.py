"""Hostile hints: what a client may send, which nothing checks before a policy reads it (POL-7)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from random import Random
from typing import ClassVar, Final, TypeVar, cast

from attrs import evolve
from typing_extensions import override

from kvoffload import CachePolicy
from stateful_models import operations as op
from stateful_models.contract import CLAUSES, Kind
from stateful_models.drivers import COMMON_HINTS
from stateful_models.engines.base import MAX_HANGING, Breach, Demand, Engine, PolicyTrial
from stateful_models.engines.drawing import Hints
from stateful_models.engines.runs import ComparedRun, PolicyRun
from stateful_models.engines.samples import drawn_programs, example_hints
from stateful_models.programs import HostOperation, Program, keys

P = TypeVar("P", bound=CachePolicy)

MAX_NAMES: Final = 16
"""As many names of hints are tried: those of the examples first, then those asked for."""
HOSTILE_REQUEST: Final = "hostile"
MOST_HANGING: Final = MAX_HANGING - 1
"""So many calls that hang end it, so that the engines behind it are not given up for them."""
_GRAVE: Final = (Kind.SAFETY, Kind.HOST, Kind.LIVENESS)


def hostile_values() -> list[object]:
    """Values that a hint may have where another kind is expected, new ones each time."""
    return [
        None,
        "x",
        1,
        0,
        -1,
        1.5,
        float("nan"),
        float("inf"),
        float("-inf"),
        True,
        [],
        ["x", None],
        {},
        {"x": {"x": [1, "x"]}},
        "",
        "12",
        b"x",
        {1, 2},
        -(10**9),
        10**309,
        "9" * 5_000,
    ]


def hostile_hints(examples: Collection[Hints], names: Collection[str]) -> list[Hints]:
    """The examples with one hint missing or hostile: each name in turn, value after value.

    A name may be one within a hint that is a dict itself, as in `routing.session_id`. All that a
    client may leave out comes first.
    """
    hinted: list[Mapping[str, object]] = [example for example in examples if example] or [{}]
    common = [name for example in COMMON_HINTS for name in example or ()]
    every = (*(name for example in hinted for name in example), *names, *common)
    tried = list(dict.fromkeys(every))[:MAX_NAMES]
    hostile: list[Hints] = [None, {}, {"unheard_of": "x"}]
    for name in tried:
        hostile += [without_hint(example, name) for example in hinted[:2] if name in example]
    for number in range(len(hostile_values())):
        for place, name in enumerate(tried):
            # A value each, so that nothing a policy does to one shows in another.
            example = hinted[(number + place) % len(hinted)]
            hostile.append(with_hint(example, name, hostile_values()[number]))
    return hostile


class HostileHints(Engine):
    """Requests with hostile hints among others with the author's, each on short programs.

    `names` gives the names of hints that the policy was seen to ask for. Whatever goes wrong then,
    and would not with the hints that the driver says to be usual, is a breach of POL-7. Invariants
    of the author's own are asked as well, and find what they find.
    """

    name: ClassVar[str] = "hostile hints"
    clauses: ClassVar[tuple[str, ...]] = ("POL-7",)
    judges_all: ClassVar[bool] = True

    def __init__(
        self, names: Callable[[], Collection[str]] = tuple, durations: tuple[float, ...] = ()
    ) -> None:
        super().__init__()
        self._names = names
        self._known: frozenset[Demand] = frozenset()
        self._durations = durations

    @override
    def run(self, trial: PolicyTrial[P]) -> None:
        usual = example_hints(trial)
        # What is made short later is in the trial's breaches by then.
        self._known = frozenset(trial.breaches)
        programs = list(self._programs(trial, usual))
        convicted = False
        for number, program in enumerate(self.paced(trial, programs), 1):
            trial.reach.note("hostile hints")
            trial.tried.add("POL-7")
            run = trial.run(program)
            if trial.judged(run, self.name, trial.own):
                # Where one of them objects a run is over, and shows no more.
                run = trial.run_by_contract(program)
            breach = None if convicted else self._broken_by(trial, program, usual, run)
            if breach is not None:
                trial.found(breach, lambda shorter: self._broken_by(trial, shorter, usual))
                if not trial.own:
                    return
                convicted = True
            if convicted and trial.hung >= MOST_HANGING:
                trial.ended(self, number, len(programs))
                return

    def _programs(self, trial: PolicyTrial[P], usual: list[Hints]) -> Iterator[Program]:
        """One program for each hostile value of each hint, and drawn ones with several."""
        hostile = hostile_hints(usual, self._names())
        chance = Random(f"{trial.seed} {self.name}")
        for number, hints in enumerate(hostile):
            yield visit(hints, usual[number % len(usual)], positions=chance.random() < 0.5)
        drawn = drawn_programs(trial, trial.level.laws, self.name, durations=self._durations)
        for program in drawn:
            yield program.with_operations(
                evolve(one, hints=chance.choice(hostile))
                if isinstance(one, op.NewRequest) and chance.random() < 0.5
                else one
                for one in program.operations
            )

    def _broken_by(
        self,
        trial: PolicyTrial[P],
        program: Program,
        usual: list[Hints],
        run: PolicyRun[P] | None = None,
    ) -> Breach | None:
        run = trial.run_by_contract(program) if run is None else run
        # What an author or a claim asks for is asked of usual hints.
        first = next((found for found in run.violations if found.kind in _GRAVE), None)
        if first is None:
            return None
        program = program.cut(len(run.operations))
        demand = (first.clause, first.kind)
        if demand in self._known:
            # It does that with usual hints too, if perhaps not in this program.
            return None
        raised = first.clause == "POL-7"
        harmless_run = run
        # Whom it evicts hangs on every hint, so that one harmless run proves little; what raises
        # does so for what it read.
        for hints in usual[-1:] if raised else usual:
            harmless = program.with_operations(
                evolve(one, hints=hints)
                if isinstance(one, op.NewRequest) and one.hints not in usual
                else one
                for one in program.operations
            )
            if harmless == program:
                return None
            harmless_run = trial.run_by_contract(harmless)
            if any((other.clause, other.kind) == demand for other in harmless_run.violations):
                return None
        return Breach(
            "POL-7",
            Kind.SAFETY,
            first.message if raised else f"{first.message} ({first.clause}), after hostile hints",
            self.name,
            program,
            expected="that it goes as well as with usual hints, whatever a client sends",
            seen=first.message,
            runs=(
                ComparedRun("with usual hints", harmless_run.played),
                ComparedRun("with hostile hints", run.played),
            ),
            promise=CLAUSES["POL-7"].part(Kind.SAFETY).sentence,
        )


def visit(hints: Hints, usual: Hints, *, positions: bool = False) -> Program:
    """A request with these hints meets every call there is, beside requests with usual ones.

    After they have ended, everything that is idle is evicted.
    """
    a, b, c, d, e, x = keys("a b/1 c d e x")
    fresh = keys("f g h")
    hostile = HOSTILE_REQUEST
    ends = tuple((key, 16 * n) for n, key in enumerate((a, b, c, d, e), 1))
    operations: list[HostOperation] = [
        op.NewRequest("usual", usual),
        op.PrepareStore("usual", (a,)),
        op.CompleteStore("usual", (a,)),
        op.NewRequest(hostile, hints),
        *([op.SetPositions(hostile, ends)] if positions else []),
        op.Lookup(hostile, a),
        op.PrepareStore(hostile, (b, c)),
        op.CompleteStore(hostile, (b, c)),
        op.PrepareLoad(hostile, (a, b)),
        op.Touch(hostile, (a, b, x)),
        op.CompleteLoad(hostile, (a, b)),
        op.PrepareStore(hostile, (c, d)),
        op.CompleteStore(hostile, (d,), success=False),
        op.PrepareStore(hostile, (e,)),
        op.CompleteStore(hostile, (e,)),
        op.FinishRequest("usual"),
        op.FinishRequest(hostile),
        op.NewRequest("later", usual),
        op.PrepareStore("later", fresh[:1]),
        op.CompleteStore("later", fresh[:1]),
        op.PrepareLoad("later", fresh[:1]),
        op.CompleteLoad("later", fresh[:1]),
        op.FinishRequest("later"),
        op.NewRequest("last", usual),
        op.PrepareStore("last", keys("i j k")),
    ]
    return Program(3, operations)


def without_hint(hints: Mapping[str, object], name: str) -> dict[str, object]:
    """The hints with one missing."""
    return {other: value for other, value in hints.items() if other != name}


def with_hint(hints: Mapping[str, object], name: str, value: object) -> dict[str, object]:
    """The hints with another value for one; `outer.inner` is one within a dict."""
    outer, _, inner = name.partition(".")
    if not inner:
        return {**hints, name: value}
    held = hints.get(outer)
    # What is in it is not looked at.
    within = cast("dict[str, object]", held) if isinstance(held, dict) else {}
    return {**hints, outer: with_hint(within, inner, value)}
