"""Exported files: roots alone, nothing twice, lines that fit, and no import that nobody uses."""

import ast
import sys
from collections.abc import Callable, Iterator, Set
from types import ModuleType

import pytest
from attrs import evolve
from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models import operations as op
from stateful_models.checking import BrokenClauseError, keys
from stateful_models.contract import CLAUSES, Kind
from stateful_models.engines.base import Breach
from stateful_models.programs import Program
from stateful_models.trial.arguments import Argument
from stateful_models.trial.code_text import WIDTH
from stateful_models.trial.export import export_tests
from stateful_models.trial.pasting import program_test, verdict_test
from stateful_models.trial.request import Request, Task, report_on
from stateful_models.trial.verdicts import ClauseVerdict, Outcome, Report, Verdict

A, B = keys("a b")
STORED = (op.PrepareStore("r1", (A,)), op.CompleteStore("r1", (A,)))
TAKES_OFFERED = Program(1, [*STORED, op.PrepareStore("r1", (A, B))])
HINTED = TAKES_OFFERED.with_operations(
    [op.NewRequest("r1", {"session": "x" * 60, "share": [0.123456789] * 4}), *STORED]
)


class TakesOffered(LRUCachePolicy):
    """Heeds no protection as long as it is `rash`."""

    def __init__(self, cache_capacity: int, rash: bool = True) -> None:
        super().__init__(cache_capacity)
        self.rash = rash

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey]
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        return super().evict(n, set() if self.rash else protected)


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the exported file."""
    module = ModuleType("theirs")
    vars(module)["TakesOffered"] = TakesOffered
    monkeypatch.setitem(sys.modules, "theirs", module)


def broken(
    clause: str, program: Program | None, request: Request, *, follows: str = ""
) -> ClauseVerdict:
    """A conviction with its test."""
    breach = Breach(clause, Kind.SAFETY, "it is wrong", "random")
    test = (
        verdict_test(request, breach) if program is None else program_test(request, breach, program)
    )
    return ClauseVerdict(
        id=clause,
        kind="S",
        source="own",
        verdict=Verdict.BROKEN,
        sentence=CLAUSES[clause].sentence,
        convicts=True,
        test=test,
        follows=follows,
    )


def report(
    *clauses: tuple[str, Program | None],
    follows: str = "",
    target: str = "theirs.py:TakesOffered",
    driver: str | None = None,
    **arguments: Argument,
) -> Report:
    """A trial that convicted of these; the last one `follows` from another."""
    request = Request(task=Task.POLICY, target=target, driver=driver, arguments=arguments)
    verdicts = [broken(clause, program, request) for clause, program in clauses]
    verdicts[-1] = evolve(verdicts[-1], follows=follows)
    return evolve(report_on(request, Outcome.CONVICTED), clauses=tuple(verdicts))


def exported(*reports: Report) -> tuple[str, dict[str, object]]:
    """The text of a file, which reads as it should, and what is in it."""
    text = export_tests(reports)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    tree = ast.parse(text)
    imported = list(imported_names(tree))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert sorted(imported) == sorted(set(imported) & used)
    names: dict[str, object] = {}
    exec(compile(text, "<exported>", "exec"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == text.count("def test_")
    return text, names


def imported_names(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (one.asname or one.name for one in statement.names)


def test_what_follows_has_no_test_of_its_own() -> None:
    text, names = exported(
        report(("POL-2", TAKES_OFFERED), ("POL-1", TAKES_OFFERED), follows="POL-2")
    )
    assert "test_takesoffered_pol_2" in names
    assert "test_takesoffered_pol_1" not in names
    assert '("clause", ("POL-1",))' in text


def verdict_given(*, broken: bool) -> Callable[..., ClauseVerdict]:
    """In place of a whole trial."""

    def verdict_on(target: str, clause: str, **options: object) -> ClauseVerdict:
        return ClauseVerdict(
            id=clause,
            kind="S",
            source="own",
            verdict=Verdict.BROKEN if broken else Verdict.HELD,
            sentence="So it is.",
            seen="another program",
            convicts=broken,
        )

    return verdict_on


def test_an_exported_program_fails_once_until_no_program_breaks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, names = exported(report(("POL-2", TAKES_OFFERED)))
    assert text.count("def test_") == 1
    test = names["test_takesoffered_pol_2"]
    assert callable(test)
    with pytest.raises(BrokenClauseError, match="POL-2"):
        test()
    monkeypatch.setattr(TakesOffered, "evict", LRUCachePolicy.evict)
    monkeypatch.setitem(names, "verdict_on", verdict_given(broken=True))
    with pytest.raises((AssertionError, pytest.fail.Exception), match="another program"):
        test()
    monkeypatch.setitem(names, "verdict_on", verdict_given(broken=False))
    test()


def test_what_only_a_trial_shows_is_asked_once() -> None:
    text, _ = exported(report(("POL-2", TAKES_OFFERED), ("POL-6", None)))
    assert text.count("def test_") == 2
    assert '("clause", ("POL-6",))' in text


def test_a_module_is_imported_from_once() -> None:
    invariants = ("theirs.py:Few", "theirs.py:Many")
    request = Request(task=Task.POLICY, target="theirs.py:TakesOffered", invariants=invariants)
    breach = Breach("OWN-1", Kind.CLAIM, "too many", "random", invariant="Many")
    text = program_test(request, breach, TAKES_OFFERED)
    assert "from theirs import Many, TakesOffered\n" in text
    assert text.count("from theirs") == 1


def test_a_grid_has_one_test_for_all_arguments_with_which_it_is_the_same() -> None:
    text, names = exported(
        report(("POL-2", TAKES_OFFERED), rash=True),
        report(("POL-2", TAKES_OFFERED), ("POL-6", None), rash=False),
    )
    assert text.count("op.PrepareStore(") == 2
    assert text.count("verdict_on(") == 1
    grid = '@pytest.mark.parametrize("given", [{"rash": True}, {"rash": False}], ids=str)'
    assert text.count(grid) == 2
    assert text.count("def test_") == 2
    assert text.count('("POL-2", given)') == 1
    names["verdict_on"] = verdict_given(broken=False)
    test = names["test_takesoffered_pol_2"]
    assert callable(test)
    with pytest.raises(BrokenClauseError):
        test(given={"rash": True})
    test(given={"rash": False})


def test_what_differs_with_the_arguments_has_a_test_each() -> None:
    text, names = exported(
        report(("POL-2", TAKES_OFFERED), rash=True), report(("POL-2", HINTED), rash=False)
    )
    assert {"test_takesoffered_pol_2", "test_takesoffered_pol_2_2"} <= names.keys()
    assert text.count("def test_") == 2
    assert text.count('("POL-2", given)') == 2


def test_the_trial_of_a_clause_is_asked_for_under_all_arguments() -> None:
    """Also under those of which none of its programs came."""
    clean = evolve(report(("POL-2", None), rash=None), clauses=(), verdict=Outcome.CLEAN)
    tried = report(("POL-2", TAKES_OFFERED), rash=True), report(("POL-2", HINTED), rash=False)
    text, _ = exported(*tried, clean)
    assert '"given", [{"rash": True}, {"rash": None}]' in text
    assert '"given", [{"rash": False}]' in text


def test_a_program_of_some_arguments_alone_leaves_its_clause_to_the_trial() -> None:
    """Where they stand in it in another way, none can be put in their place."""
    one, other = report(("POL-2", TAKES_OFFERED), rash=True), report(("POL-6", None), rash=False)
    laid_out = evolve(one.clauses[0], test=one.clauses[0].test.replace('{"rash"', '{ "rash"'))
    text, _ = exported(evolve(one, clauses=(laid_out,)), other)
    assert "def test_takesoffered_pol_2() -> None:" in text
    assert '("clause", ("POL-2", "POL-6"))' in text


def test_a_target_that_is_named_twice_has_one_test_of_a_conviction() -> None:
    text, _ = exported(report(("POL-2", TAKES_OFFERED)), report(("POL-2", TAKES_OFFERED)))
    assert text.count("op.Reset(") == 0
    assert text.count("def test_takesoffered_pol_2") == 1


class Heedful(TakesOffered):
    """What another file has under the name of the one that heeds no protection."""

    evict = LRUCachePolicy.evict


@pytest.mark.parametrize("long", [False, True])
def test_each_of_two_classes_of_one_name_is_played_against_its_own_program(
    long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "R" + "a" * 43 if long else "TakesOffered"
    vars(sys.modules["theirs"])[own] = TakesOffered
    module = ModuleType("others")
    vars(module)[own] = Heedful
    monkeypatch.setitem(sys.modules, "others", module)
    text, names = exported(
        *(
            report(("POL-2", TAKES_OFFERED), target=f"{file}.py:{own}", rash=0.12345678901)
            for file in ("theirs", "others")
        )
    )
    assert f"{own} as {own}_2" in text
    # One that makes a line too long is called by its own name within its test.
    assert (f"    {own} = {own}_2\n" in text) == long
    monkeypatch.setitem(names, "verdict_on", verdict_given(broken=False))
    test, other = (names[f"test_{each}_{own.lower()}_pol_2"] for each in ("theirs", "others"))
    assert callable(test)
    assert callable(other)
    with pytest.raises(BrokenClauseError):
        test()
    other()


def test_a_target_that_shares_its_name_with_none_is_called_by_it_alone() -> None:
    text, _ = exported(
        report(("POL-2", TAKES_OFFERED)), report(("POL-6", None), target="others.py:Heedful")
    )
    assert "def test_takesoffered_pol_2" in text
    assert "def trial_of_heedful(" in text


def test_what_is_known_is_not_asked_for() -> None:
    one = report(("POL-2", TAKES_OFFERED), ("POL-6", None))
    known = [evolve(clause, known=True, convicts=False) for clause in one.clauses[:1]]
    text, _ = exported(evolve(one, clauses=(*known, *one.clauses[1:])))
    assert '"clause", ("POL-6",)' in text
    assert "check_policy" not in text


def test_long_calls_are_laid_out() -> None:
    text, names = exported(report(("POL-7", HINTED)))
    assert '        op.NewRequest(\n            "r1",\n            {"session": "x" * 60, ' in text
    assert "test_takesoffered_pol_7" in names


def test_nothing_is_exported_of_what_could_not_be_tried() -> None:
    text, _ = exported(evolve(report(("POL-2", TAKES_OFFERED)), verdict=Outcome.UNTRIED))
    assert "def test" not in text
