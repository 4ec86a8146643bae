"""The harness of the mutation tests, on a module of a few lines whose mutants are known."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from spec_tests.mutation import __main__ as command
from spec_tests.mutation.equivalents import DeclarationError, Declared, load_declared, stale
from spec_tests.mutation.exclusions import (
    Configuration,
    ConfigurationError,
    load_configuration,
)
from spec_tests.mutation.generator import modules_of, mutants_of
from spec_tests.mutation.mutant import Mutant, MutantKey
from spec_tests.mutation.patching import NotPatchableError, apply
from spec_tests.mutation.trial import (
    BaselineError,
    Engine,
    Fate,
    Outcome,
    baseline,
    limits_from,
    try_all,
)
from spec_tests.mutation.verdict import Verdict, chosen, drawn

ROOT = Path(__file__).resolve().parents[1]
NAME = "tiny_subject.counting"
SOURCE = '''\
"""A module to be mutated."""

from functools import cache
from typing import cast


def double(number):
    return number + number


def unused(number):
    return number - 1


def spin(number):
    while number > 0:
        number -= 1
    return number


def limit(number, least=0):
    return least if number < least else number


class Base:
    def __init__(self, size):
        self.size = size


class Counter(Base):
    def __init__(self, size):
        super().__init__(size * 2)

    @property
    def half(self):
        return self.size / 2

    @classmethod
    def of_three(cls):
        return cls(3)

    def __repr__(self):
        return "Counter" + str(self.size)


def refuse(number):
    if number < 0:
        raise ValueError("negative", number, f"it is {number + 1}")
    return cast("int", number)
'''
NOTHING = Configuration(("tiny_subject",), {}, {})


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported; gone afterwards."""
    folder = tmp_path / "tiny_subject"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "counting.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    importlib.invalidate_caches()
    yield importlib.import_module(NAME)
    for name in ("tiny_subject", NAME):
        sys.modules.pop(name, None)


def mutants(tmp_path: Path, configuration: Configuration = NOTHING) -> list[Mutant]:
    found = modules_of(tmp_path, configuration.packages)
    return [m for module, path in found for m in mutants_of(module, path, configuration)]


def mutant(tmp_path: Path, function: str, comes: str) -> Mutant:
    """The one mutant of a function in which a text comes in."""
    (found,) = (
        m
        for m in mutants(tmp_path)
        if m.key.function == function and comes in m.change.partition(" -> ")[2]
    )
    return found


def engine_of(subject: ModuleType) -> Engine:
    """Tries all but `unused`."""

    def run() -> None:
        assert subject.double(3) == 6
        assert subject.spin(5) == 0
        assert [subject.limit(n) for n in (-1, 0, 1)] == [0, 0, 1]
        assert subject.limit(-5, -3) == -3
        assert subject.Counter(4).half == 4
        assert subject.Counter.of_three().size == 6

    return Engine("tiny", run)


def fates(
    subject: ModuleType, tried: list[Mutant], *, limit: float = 0.3, jobs: int = 2
) -> dict[MutantKey, Outcome]:
    outcomes = try_all(tried, [engine_of(subject)], limits={"tiny": limit}, jobs=jobs)
    return {outcome.mutant.key: outcome for outcome in outcomes}


class TestGeneration:
    def test_decorated_functions_are_mutated_too(self, subject: ModuleType, tmp_path: Path) -> None:
        assert subject.Counter(1).half == 1
        functions = {m.key.function for m in mutants(tmp_path)}
        assert {"double", "Counter.half", "Counter.of_three", "Counter.__init__"} <= functions

    def test_a_mutant_is_the_module_with_one_change(
        self, subject: ModuleType, tmp_path: Path
    ) -> None:
        assert subject.__file__ is not None
        one = mutant(tmp_path, "double", "number - number")
        assert one.change == "return number + number -> return number - number"
        assert one.text == SOURCE.replace("number + number\n", "number - number\n").replace(
            "    @property\n", "\n"
        ).replace("    @classmethod\n", "\n")

    @pytest.mark.usefixtures("subject")
    def test_a_key_stays_whatever_happens_elsewhere(self, tmp_path: Path) -> None:
        before = [m.key for m in mutants(tmp_path)]
        path = tmp_path / "tiny_subject" / "counting.py"
        path.write_text(SOURCE.replace("def double", "EXTRA = 1\n\n\ndef double"))
        assert [m.key for m in mutants(tmp_path)] == before
        assert len(set(before)) == len(before)

    @pytest.mark.usefixtures("subject")
    def test_exclusions_are_by_rule_and_by_function(self, tmp_path: Path) -> None:
        rules = {"f-strings": "", "strings-in-raise": "", "type-of-cast": ""}
        everything = {m.change for m in mutants(tmp_path)}
        kept = {
            m.change
            for m in mutants(tmp_path, Configuration(("tiny_subject",), rules, {"*.__repr__": ""}))
        }
        excluded = everything - kept
        assert kept < everything
        for part in ("XXnegativeXX", "number - 1}", 'cast("XXintXX"', "XXCounterXX"):
            assert any(part in change for change in excluded), part
        # Not a text: what an error carries is more than a message.
        assert any("None, f" in change for change in kept)

    def test_unknown_rules_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "pyproject.toml"
        path.write_text(
            "[tool.kvoffload-mutation]\n"
            "packages = []\n"
            'exclude-syntax = { "no-such-rule" = "?" }\n'
            "exclude-functions = {}\n"
        )
        with pytest.raises(ConfigurationError, match="no-such-rule"):
            load_configuration(path)

    def test_each_exclusion_of_this_project_has_a_reason(self) -> None:
        configuration = load_configuration(ROOT / "pyproject.toml")
        reasons = [*configuration.syntax.values(), *configuration.functions.values()]
        assert reasons
        assert all(reason.strip() for reason in reasons)


class TestFates:
    def test_killed_survived_and_timeout(self, subject: ModuleType, tmp_path: Path) -> None:
        killed = mutant(tmp_path, "double", "number - number")
        survived = mutant(tmp_path, "unused", "number + 1")
        endless = mutant(tmp_path, "spin", "number += 1")
        found = fates(subject, [killed, survived, endless])
        assert found[killed.key].fate is Fate.KILLED
        assert found[killed.key].engine == "tiny"
        assert found[killed.key].said.startswith("AssertionError")
        assert found[survived.key].fate is Fate.SURVIVED
        assert found[endless.key].fate is Fate.TIMEOUT
        # Nothing of it happened here.
        engine_of(subject).run()

    def test_defaults_properties_class_methods_and_super(
        self, subject: ModuleType, tmp_path: Path
    ) -> None:
        tried = [
            mutant(tmp_path, "limit", "least=1"),
            mutant(tmp_path, "Counter.half", "self.size * 2"),
            mutant(tmp_path, "Counter.of_three", "cls(4)"),
            mutant(tmp_path, "Counter.__init__", "size / 2"),
        ]
        assert {o.fate for o in fates(subject, tried).values()} == {Fate.KILLED}

    @pytest.mark.usefixtures("subject")
    def test_what_cannot_be_patched_is_no_fate(self, tmp_path: Path) -> None:
        one = mutant(tmp_path, "double", "number - number")
        (tmp_path / "tiny_subject" / "counting.py").write_text(SOURCE)
        module = sys.modules[NAME]
        del module.__dict__["double"]
        with pytest.raises(NotPatchableError, match="double"):
            apply(one)
        with pytest.raises(RuntimeError, match="double"):
            list(try_all([one], [], limits={}, jobs=1))

    @pytest.mark.usefixtures("subject")
    def test_one_that_waits_is_tried_again_and_then_given_up(self, tmp_path: Path) -> None:
        tries = tmp_path / "tries"

        def wait() -> None:
            with tries.open("a") as file:
                file.write("x")
            threading.Event().wait()

        one = mutant(tmp_path, "double", "number - number")
        (outcome,) = try_all([one], [Engine("waits", wait)], limits={"waits": 0.005}, jobs=1)
        assert outcome.fate is Fate.TIMEOUT
        assert tries.read_text() == "xx"

    def test_the_original_must_please_the_engines(self, subject: ModuleType) -> None:
        took = baseline([engine_of(subject)])
        assert limits_from(took)["tiny"] > took["tiny"]
        vars(subject)["double"] = subject.unused
        with pytest.raises(BaselineError, match="tiny: AssertionError"):
            baseline([engine_of(subject)])
        with pytest.raises(AssertionError):
            baseline([engine_of(subject), Engine("last", lambda: None)])


def declare(path: Path, *entries: tuple[Mutant, str], change: str | None = None) -> None:
    path.write_text(
        "".join(
            "[[equivalent]]\n"
            f'module = "{one.key.module}"\n'
            f'function = "{one.key.function}"\n'
            f'digest = "{one.key.digest}"\n'
            f"change = '''{change or one.change}'''\n"
            f'proof = "{proof}"\n'
            for one, proof in entries
        )
    )


class TestDeclarations:
    @pytest.mark.usefixtures("subject")
    def test_stale_ones_are_found(self, tmp_path: Path) -> None:
        one = mutant(tmp_path, "limit", "number <= least")
        path = tmp_path / "equivalent.toml"
        declare(path, (one, "equal to the limit is the limit"))
        declared = load_declared(path)
        assert stale(declared, mutants(tmp_path)) == []
        assert stale(declared, []) == list(declared.values())
        declare(path, (one, "another change under the same digest"), change="a -> b")
        assert len(stale(load_declared(path), mutants(tmp_path))) == 1

    @pytest.mark.usefixtures("subject")
    def test_each_has_one_line_of_proof_and_stands_once(self, tmp_path: Path) -> None:
        one = mutant(tmp_path, "limit", "number <= least")
        path = tmp_path / "equivalent.toml"
        declare(path, (one, " "))
        with pytest.raises(DeclarationError, match="proof"):
            load_declared(path)
        declare(path, (one, "so"), (one, "so"))
        with pytest.raises(DeclarationError, match="twice"):
            load_declared(path)

    def test_those_of_this_project_have_proofs(self) -> None:
        assert load_declared(command.EQUIVALENT) is not None


class TestVerdict:
    def verdict(
        self,
        fate: Fate,
        tmp_path: Path,
        *,
        declared: bool = False,
        out_of_date: bool = False,
        num_all: int = 100,
    ) -> Verdict:
        one = mutant(tmp_path, "limit", "number <= least")
        declaration = Declared(one.key, one.change, "so")
        return Verdict(
            [Outcome(one, fate, "tiny" if fate is Fate.KILLED else "", "", 0.0)],
            {one.key: declaration} if declared else {},
            [declaration] if out_of_date else [],
            num_all,
        )

    @pytest.mark.usefixtures("subject")
    def test_objections(self, tmp_path: Path) -> None:
        survived, killed = Fate.SURVIVED, Fate.KILLED
        assert self.verdict(killed, tmp_path).objections == []
        assert self.verdict(Fate.TIMEOUT, tmp_path).objections == []
        (few,) = self.verdict(survived, tmp_path).objections
        assert "0.0% killed, 90% wanted" in few
        assert self.verdict(survived, tmp_path, declared=True).objections == []
        (wrong,) = self.verdict(killed, tmp_path, declared=True).objections
        assert "declared equivalent, but tiny tells it" in wrong
        (old,) = self.verdict(killed, tmp_path, out_of_date=True).objections
        assert old.startswith("stale")
        (many,) = self.verdict(survived, tmp_path, declared=True, num_all=30).objections
        assert "more than 3%" in many

    @pytest.mark.usefixtures("subject")
    def test_rows_count_a_declared_mutant_as_nothing_else(self, tmp_path: Path) -> None:
        row = self.verdict(Fate.SURVIVED, tmp_path, declared=True).total
        assert (row.mutants, row.killed, row.survived, row.declared) == (1, 0, 0, 1)
        assert row.score == 1.0

    @pytest.mark.usefixtures("subject")
    def test_a_sample_hardly_changes_with_what_it_is_drawn_from(self, tmp_path: Path) -> None:
        every = mutants(tmp_path)
        few = drawn(every, 4, 7)
        assert len({m.key for m in few}) == 4
        assert drawn(every[::-1], 4, 7) == few
        assert drawn([m for m in every if m is not few[0]], 4, 7)[:3] == few[1:]
        assert any(drawn(every, 4, seed) != few for seed in range(5))
        assert len(drawn(every, 1_000, 7)) == len(every)

    @pytest.mark.usefixtures("subject")
    def test_some_are_chosen_by_part_of_their_key(self, tmp_path: Path) -> None:
        every = mutants(tmp_path)
        assert chosen(every, []) == every
        assert {m.key.function for m in chosen(every, [":spin:"])} == {"spin"}


class TestCommand:
    @pytest.fixture
    def run(
        self, subject: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> CliRunner:
        (tmp_path / "pyproject.toml").write_text(
            "[tool.kvoffload-mutation]\n"
            'packages = ["tiny_subject"]\n'
            "exclude-syntax = {}\n"
            'exclude-functions = { "*:refuse" = "not tried", "*.__repr__" = "a repr" }\n'
        )
        monkeypatch.setattr(command, "ROOT", tmp_path)
        monkeypatch.setattr(command, "EQUIVALENT", tmp_path / "equivalent.toml")
        monkeypatch.setattr(command, "ENGINES", (engine_of(subject),))
        declare(tmp_path / "equivalent.toml")
        return CliRunner()

    def test_too_few_killed_is_a_failure(self, run: CliRunner) -> None:
        result = run.invoke(command.app, ["--only", ":unused:"])
        assert result.exit_code == 1
        assert "survived: tiny_subject.counting:unused:" in result.output
        assert "+    return number + 1" in result.output
        assert "0.0% killed, 90% wanted" in result.output

    def test_enough_killed_is_none(self, run: CliRunner, tmp_path: Path) -> None:
        told = tmp_path / "outcomes.txt"
        result = run.invoke(command.app, ["--only", ":double:", "--outcomes", str(told)])
        assert result.exit_code == 0, result.output
        assert "100.0%" in result.output
        assert told.read_text().startswith("killed\ttiny_subject.counting:double:")

    def test_a_stale_declaration_is_a_failure(self, run: CliRunner, tmp_path: Path) -> None:
        one = mutant(tmp_path, "double", "number - number")
        declare(tmp_path / "equivalent.toml", (one, "wrong"), change="a -> b")
        result = run.invoke(command.app, ["--only", ":of_three:"])
        assert result.exit_code == 1
        assert "stale declaration" in result.output

    def test_a_sample_is_drawn_by_its_seed(self, run: CliRunner, tmp_path: Path) -> None:
        def sample(seed: int) -> set[str]:
            told = tmp_path / "outcomes.txt"
            arguments = ["--sample", "4", "--seed", str(seed), "--outcomes", str(told)]
            result = run.invoke(command.app, arguments)
            assert f"(sample 4, seed {seed})" in result.output
            return {line.split("\t")[1] for line in told.read_text().splitlines()}

        assert len(sample(1)) == 4
        assert sample(1) == sample(1)
        assert sample(1) != sample(2)

    def test_a_sample_leaves_out_what_is_declared(self, run: CliRunner, tmp_path: Path) -> None:
        one = next(m for m in mutants(tmp_path) if m.key.function == "unused")
        declare(tmp_path / "equivalent.toml", (one, "nobody calls it"))
        told = tmp_path / "outcomes.txt"

        def tried(*options: str) -> str:
            run.invoke(command.app, ["--only", ":unused:", "--outcomes", str(told), *options])
            return told.read_text()

        assert str(one.key) in tried()
        assert str(one.key) not in tried("--sample", "99")
