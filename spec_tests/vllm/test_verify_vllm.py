"""`kvoffload verify --vllm`: its forms, what is shown, and tests that need no vLLM."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve

from kvoffload.cli.app import run
from kvoffload.cli.verify import spelled_out
from spec_tests.short_trials import COMMAND_LINE
from spec_tests.vllm.trials import POLICIES, request_for
from stateful_models import checking
from stateful_models.checking import BrokenClauseError, verdict_on
from stateful_models.trial.request import Request
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import Outcome, Report
from stateful_models.vllm.trial import hold_vllm_trial

BROKEN = f"{POLICIES / 'contexts.py'}:TrustingGapPolicy"
FALLBACK = f"{POLICIES / 'fallback.py'}:FallbackLRU"
Output = pytest.CaptureFixture[str]


def python(*arguments: str, path: Sequence[Path] = (), cwd: Path | None = None) -> str:
    """What a process of its own prints on standard output, and on standard error if it fails."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(each) for each in path] + sys.path)}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=env, cwd=cwd, check=False
    )
    return done.stdout + (done.stderr if done.returncode else "")


def test_a_bare_option_takes_no_value() -> None:
    assert spelled_out(["verify", "--vllm", "x.py:X"]) == ["verify", "--vllm=any", "x.py:X"]
    for given in (["verify", "--vllm=0.30", "x.py:X"], ["verify", "--", "--vllm"]):
        assert spelled_out(given) == given


@pytest.mark.usefixtures("short_trials")
def test_portability_stands_apart_from_the_verdict(
    capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    verdicts = tmp_path / "verdicts.json"
    shown = ["--only", "POL-7", "--json", str(verdicts)]
    assert run(["verify", "--vllm", BROKEN, *shown]) == 1
    text = capsys.readouterr().out
    assert "breaks POL-7" in text
    assert "vLLM 0.24 to 0.30 then: TypeError comes out of touch" in text
    assert "policy_driver(" in text
    table = text.partition("portability. ")[2]
    assert table.startswith(
        "It works in vLLM 0.26 to 0.29; the trial was held as in vLLM 0.27 to 0.29."
    )
    assert "import ChunkStatus instead" in " ".join(table.split())
    (report,) = json.loads(verdicts.read_text())
    assert (report["verdict"], report["vllm"]) == ("convicted", "0.29")
    rows = {row["version"]: row for row in report["portability"]}
    assert [name for name, row in rows.items() if row["tried_as"]] == ["0.29"]
    assert rows["0.33"]["loads"] is False
    assert set(rows["0.33"]["obstacles"][0]) == {"kind", "what", "edit", "place"}


@pytest.mark.usefixtures("short_trials")
def test_a_fallback_is_said_first(capsys: Output) -> None:
    assert run(["verify", "--vllm", FALLBACK, "--only", "POL-1"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith(
        "fallback.py:7: your module caught an ImportError at line 7 "
        "(vllm.v1.kv_offload.cpu.policies.base has no BlockStatus) and fell back to a dummy base, "
        "in vLLM 0.30 to 0.33"
    )
    assert "in vLLM 0.19 to 0.20" in rest[0]
    assert any("clean" in line for line in rest)


def test_what_loads_nowhere_is_untried_and_the_table_says_why(capsys: Output) -> None:
    assert run(["verify", "--vllm", f"{POLICIES / 'unanswered.py'}:OfScheduler"]) == 2
    text = " ".join(capsys.readouterr().out.split())
    assert "could not be tried" in text
    assert "It works in no vLLM that is known; no trial could be held." in text
    assert "is not in the stand-ins" in text


@pytest.mark.usefixtures("short_trials")
def test_a_version_can_be_named(capsys: Output) -> None:
    assert run(["verify", "--vllm=0.26.0", BROKEN, "--only", "POL-7"]) == 1
    assert 'TrustingGapPolicy", "0.26"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--vllm=0.18", FALLBACK], "--vllm=0.18: vLLM 0.18 is not known"),
        (["--vllm", "--manager", FALLBACK], "--vllm is for policies"),
        (["--vllm"], "name targets"),
    ],
)
def test_what_cannot_be_is_said(capsys: Output, options: list[str], problem: str) -> None:
    assert run(["verify", *options]) == 2
    assert problem in capsys.readouterr().err


def test_help_says_it(capsys: Output) -> None:
    assert run(["verify", "--help"]) == 0
    assert "--vllm" in capsys.readouterr().out


def test_the_test_that_is_printed_fails_as_the_trial_did() -> None:
    report = hold_vllm_trial(request_for(BROKEN, only=("POL-7",)))
    (clause,) = report.convictions
    assert BROKEN in clause.test
    code = f"{clause.test}\n\ntry:\n    test_pol_7()\nexcept AssertionError as error:\n"
    said = python("-c", f"{code}    print(type(error).__name__, error)\n")
    assert said.startswith(f"{BrokenClauseError.__name__} POL-7: touch raised TypeError")


def test_a_verdict_is_asked_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(request: Request) -> Report:
        return hold_trial(evolve(request, only=("POL-1", "POL-7")))

    # Of all that would be judged only what is asked for.
    monkeypatch.setattr(checking, "hold_trial", hold)
    assert not verdict_on(FALLBACK, "POL-1", level="smoke", vllm="0.29").broken
    assert verdict_on(BROKEN, "POL-7", level="smoke", vllm="0.29").convicts


SWITCHING = """
from stateful_models.checking import check_policy, keys, op
from stateful_models.vllm.policies import policy_driver

a, b, c = keys("a b c")
program = [
    op.PrepareStore("r1", (a, b)), op.CompleteStore("r1", (a, b)), op.PrepareStore("r2", (c,)),
]
for target, version in (
    ("environment.py:Strict", "0.33"),
    ("environment.py:Strict", "0.33"),
    ("environment.py:Strict", "0.25"),
    ("passing_on.py:PassingOn", "0.33"),
    ("block_hashes.py:HashLRU", "0.19"),
):
    driver = policy_driver(target, version)
    check_policy(driver, 2, program)
    policy = driver.build(2)
    kinds = [cls for cls in type(policy).__mro__ if cls.__module__.startswith("vllm")]
    print(version, driver.types.slot, driver.host.name, kinds[0].__name__)
"""


def test_one_process_may_try_several_versions() -> None:
    assert python("-c", SWITCHING, cwd=POLICIES).splitlines() == [
        "0.33 chunk_id vLLM 0.33 LRUCachePolicy",
        "0.33 chunk_id vLLM 0.33 LRUCachePolicy",
        "0.25 block_id vLLM 0.24 to 0.30 LRUCachePolicy",
        "0.33 chunk_id vLLM 0.33 CachePolicy",
        "0.19 block_id vLLM 0.19 to 0.21 CachePolicy",
    ]


def test_another_vllm_in_the_process_is_refused() -> None:
    code = (
        "import sys, types; sys.modules['vllm'] = types.ModuleType('vllm')\n"
        "from stateful_models.vllm.policies import policy_driver\n"
        f"policy_driver({FALLBACK!r}, '0.29')\n"
    )
    assert "VLLMLoadedError" in python("-c", code)


THEIRS = {
    "logger.py": "import logging\ninit_logger = logging.getLogger\n",
    "v1/kv_offload/base.py": """
from dataclasses import dataclass, field
OffloadKey = bytes
@dataclass
class ReqContext:
    req_id: str
    kv_transfer_params: dict | None = None
    kv_hints: object = None
    load_tier_filter: object = None
    ends: dict = field(default_factory=dict)
    def set_offload_key_position(self, key, end_token):
        self.ends[key] = end_token
    def get_offload_key_position(self, key):
        return self.ends.get(key)
""",
    "v1/kv_offload/cpu/policies/base.py": """
from abc import ABC
class ChunkStatus:
    def __init__(self, chunk_id):
        self.chunk_id, self.ref_cnt = chunk_id, -1
class CachePolicy(ABC):
    really = True
    def __init__(self, cache_capacity):
        self.cache_capacity = cache_capacity
    def on_store_miss(self, keys, req_context): self.touch(keys, req_context)
    def on_request_access(self, keys, req_context): pass
    def on_request_finished(self, key_groups, insertion_only_keys, reused_keys, req_context): pass
    def mark_evictable(self, key): pass
    def mark_non_evictable(self, key): pass
""",
    "v1/kv_offload/cpu/policies/factory.py": "class CachePolicyFactory: pass\n",
    "v1/kv_hints/__init__.py": "class KvHintAction: pass\nclass KvHintsEnvelope: pass\n",
    "v1/kv_offload/cpu/policies/lru.py": "class LRUCachePolicy: pass\n",
    "v1/kv_offload/cpu/policies/arc.py": "class ARCCachePolicy: pass\n",
}
"""As much of a vLLM that is installed as trials need."""


def test_what_is_installed_is_taken_where_that_is_asked_for(tmp_path: Path) -> None:
    for name, text in THEIRS.items():
        file = tmp_path / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "vllm-0.33.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n"
    (tmp_path / "vllm-0.33.0.dist-info/METADATA").write_text(metadata)
    policy = tmp_path / "mine.py"
    source = (POLICIES / "accesses.py").read_text()
    policy.write_text(f"{source}\n\nassert CachePolicy.really\n")
    (tmp_path / "shelf.py").write_text((POLICIES / "shelf.py").read_text())
    target = "mine.py:SecondChanceThatTakesOffers"
    command = (*COMMAND_LINE, "verify", "--vllm=installed", target, "--only", "POL-2")
    text = python(*command, path=[tmp_path], cwd=tmp_path)
    assert "breaks POL-2" in text
    assert "the trial was held as in the vLLM that is installed" in text
    assert f'"{target}", "installed"' in text
    (tmp_path / "vllm/v1/kv_offload/cpu/policies/base.py").write_text("import no_such_package\n")
    assert "cannot be imported" in python(*command, path=[tmp_path], cwd=tmp_path)


def test_where_none_is_installed_it_is_said() -> None:
    report = hold_vllm_trial(request_for(FALLBACK, vllm="installed"))
    assert report.verdict is Outcome.UNTRIED
    assert report.problem == "no vLLM is installed"


PAGE = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()


def blocks(kind: str) -> list[str]:
    """The blocks of the page that are of a kind, in order."""
    found: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
    return [text for each, text in found if each == kind]


@pytest.mark.usefixtures("short_trials")
def test_the_page_says_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    policy, _, test = blocks("py")
    (tmp_path / "gaps.py").write_text(policy)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)
    assert run(["verify", "--vllm", "gaps.py:Gaps", "--only", "POL-7"]) == 1
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    verdict, table = (block.splitlines() for block in blocks("")[:2])
    for line in (*verdict, *table):
        assert line in shown
    (tmp_path / "test_gaps.py").write_text(test)
    assert "1 failed" in python("-m", "pytest", "-q", "test_gaps.py", cwd=tmp_path)
