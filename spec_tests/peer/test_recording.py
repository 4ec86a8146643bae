"""WatchedPolicy inside vLLM's own manager: what it records is judged, replayed and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvoffload import CPUOffloadingManager
from kvoffload.cli import run
from kvoffload.replay import SAMPLE, CostModel, Counts, Replay, Trace, TraceRequest, survey
from kvoffload.vllm.control_plane import ControlPlane
from spec_tests.peer.alike import Alike
from stateful_models.logs import judge_log
from stateful_models.vllm import settings, watched
from stateful_models.vllm.manager import VLLMManager
from stateful_models.vllm.watched import close_logs

WATCHED = ("WatchedPolicy", "stateful_models.vllm.watched")
PROGRAMS = 60
CHUNKS = 1_000
MODEL = CostModel(chunk_bytes=512 * 131_072)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the logs."""
    monkeypatch.setenv(settings.LOG, str(tmp_path / "logs" / "calls.jsonl"))
    return tmp_path / "logs"


@pytest.mark.parametrize("policy", ["lru", "arc", "kvoffload.policies.lru:LRUCachePolicy"])
def test_their_manager_does_the_same_with_a_watched_policy(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, log: Path, policy: str
) -> None:
    """And vLLM's policies are acquitted, live and from their logs."""
    monkeypatch.setenv(settings.POLICY, policy)
    monkeypatch.setenv(settings.JUDGE, "report")
    bare = "lru" if ":" in policy else policy
    met: Counter[str] = Counter()
    for number in range(PROGRAMS):
        met += Alike(f"{bare} {number}", [(bare, None), WATCHED], mistakes=False).met
    close_logs()
    assert met["victims"] > 500
    logs = sorted(log.iterdir())
    assert len(logs) == PROGRAMS
    reports = [judge_log(path) for path in logs]
    assert sum(report.steps for report in reports) > met["steps"]
    assert [str(report) for report in reports if report.violations] == []


def recorded(monkeypatch: pytest.MonkeyPatch, control_plane: ControlPlane, policy: str) -> Counts:
    """The counts of a replay of the sample through their manager, recorded on its clock."""
    monkeypatch.setenv(settings.POLICY, policy)
    time = [0.0]
    monkeypatch.setattr(watched, "monotonic", lambda: time[0])
    manager = VLLMManager(CHUNKS, *WATCHED, control_plane=control_plane)

    def arriving() -> Iterator[TraceRequest]:
        with Trace(SAMPLE, limit=400).open() as requests:
            for request in requests:
                time[0] = request.arrival
                yield request

    counts = Replay(manager, MODEL).run(arriving())
    close_logs()
    return counts


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_recorded_run_is_judged_and_replayed_to_the_hits_that_the_manager_had(
    control_plane: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    log: Path,
    policy: str,
) -> None:
    counts = recorded(monkeypatch, control_plane, policy)
    assert counts.given_up == 0
    assert min(counts.block_hits, counts.evicted) > 300
    (path,) = log.iterdir()
    assert run(["verify", "--log", str(path)]) == 0
    assert f"a policy of {CHUNKS:,} chunks, called by vLLM" in capsys.readouterr().out
    trace = Trace(path)
    found = survey(trace)
    assert (found.requests, found.blocks, found.block_tokens) == (400, counts.blocks, 512)
    assert found.recorded_hits == counts.block_hits
    # Ours under theirs' name chooses as theirs, and so does theirs once more.
    for manager in (
        CPUOffloadingManager(CHUNKS, cache_policy=policy),
        VLLMManager(CHUNKS, policy, control_plane=control_plane),
    ):
        with trace.open() as requests:
            again = Replay(manager, MODEL).run(requests)
        assert (again.block_hits, again.evicted) == (counts.block_hits, counts.evicted)
    arguments = ["--capacity", str(CHUNKS), "--policy", policy]
    assert run(["replay", str(path), *arguments]) == 0
    out = capsys.readouterr().out
    assert f"the engine reused {counts.block_hits / counts.blocks:.4f} of blocks" in out
