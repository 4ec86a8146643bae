"""vLLM's manager as a target, without vLLM: names, the command line, and tests to paste."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kvoffload.cli import run
from stateful_models.checking import UntriableError, check_manager, verdict_on
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach
from stateful_models.loading import TargetError
from stateful_models.operations import PrepareStore
from stateful_models.programs import Program, keys
from stateful_models.trial.arguments import Argument
from stateful_models.trial.pasting import program_test, verdict_test
from stateful_models.trial.request import Request, Task
from stateful_models.vllm.manager_target import (
    NAME,
    is_manager_target,
    manager_driver,
    manager_maker,
    manager_target,
    root_of,
)

BREACH = Breach("EVT-5", Kind.REFERENCE, "a/0 is not ready", "random")
PROGRAM = Program(1, (PrepareStore("r1", keys("a")),))


@pytest.mark.parametrize("root", [None, Path("/a folder/vllm@0.33"), Path("..")])
def test_a_name_says_which_vllm_it_is(root: Path | None) -> None:
    name = manager_target(root)
    assert is_manager_target(name)
    assert root_of(name) == root


@pytest.mark.parametrize("name", ["cpu", "vllm", "vllm-managers", "my_vllm-manager@x"])
def test_other_names_are_of_others(name: str) -> None:
    assert not is_manager_target(name)


def test_a_folder_without_vllm_is_told(tmp_path: Path) -> None:
    name = manager_target(tmp_path)
    told = rf"{tmp_path}: .* holds no vLLM with offloading.*\(--root DIR\)"
    with pytest.raises(TargetError, match=told):
        manager_driver(name)
    with pytest.raises(TargetError, match=told):
        manager_maker(name)
    with pytest.raises(UntriableError, match=told):
        check_manager(name, 1, ())
    with pytest.raises(UntriableError, match=told):
        verdict_on(name, "EVT-5", manager=True)


def test_a_folder_that_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    package = tmp_path / "vllm" / "v1" / "kv_offload"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import no_such_library", encoding="utf-8")
    with pytest.raises(TargetError, match=r"cannot be loaded: .*no_such_library"):
        manager_driver(manager_target(tmp_path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--vllm-manager", "lru"], "goes with no other"),
        (["--vllm-manager", "--log", "calls.jsonl"], "nor with --log"),
        (["--vllm-manager", "--vllm"], "goes with no other"),
        (["lru", "--root", "."], "--root says where the vLLM of --vllm-manager is"),
        (["--root", "."], "--root says where the vLLM of --vllm-manager is"),
    ],
)
def test_it_is_a_target_by_itself(
    capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert run(["verify", *options]) == 2
    assert told in capsys.readouterr().err


def test_a_trial_without_vllm_says_what_to_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "--vllm-manager", "--root", str(tmp_path)]) == 2
    out = " ".join(capsys.readouterr().out.split())
    assert f"{NAME}@{tmp_path} could not be tried: {tmp_path} holds no vLLM with offloading" in out


@pytest.mark.parametrize(
    ("driver", "arguments", "target", "imported"),
    [
        (None, {}, '"vllm-manager@here"', None),
        (
            None,
            {"cache_policy": "arc"},
            'manager_driver("vllm-manager@here", {"cache_policy": "arc"})',
            "from stateful_models.vllm.manager_target import manager_driver",
        ),
        (
            "my_driver.py:MyDriver",
            {"a": True},
            'MyDriver(manager_maker("vllm-manager@here"), {"a": True})',
            "from stateful_models.vllm.manager_target import manager_maker",
        ),
    ],
)
def test_a_test_to_paste_names_it(
    driver: str | None, arguments: Mapping[str, Argument], target: str, imported: str | None
) -> None:
    request = Request(
        task=Task.MANAGER, target="vllm-manager@here", driver=driver, arguments=arguments
    )
    text = program_test(request, BREACH, PROGRAM)
    assert f"check_manager({target}, 1, [" in text
    assert imported is None or imported in text
    # What is under the names is not there; the rest has to be Python.
    compile(text, "pasted", "exec")


def test_a_test_that_asks_for_the_verdict_names_it() -> None:
    request = Request(task=Task.MANAGER, target="vllm-manager@here")
    assert 'verdict_on("vllm-manager@here", "EVT-5", manager=True)' in verdict_test(request, BREACH)
