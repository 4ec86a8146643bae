"""The test for a checkout, on vLLM's own control plane: all its programs, on LRU, ARC and ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from spec_tests.built import ROOT
from spec_tests.peer.root import VARIABLE
from spec_tests.vllm.in_tree import REGISTERED
from stateful_models.vllm.in_tree import NAME, in_tree_test

POLICIES = {
    "ours_lru": "LRUCachePolicy",
    "ours_arc": "ARCCachePolicy",
    "broken": "stateful_models.gallery.broken_policies.victims:Pol2ProtectedVictim",
}


def test_all_that_is_documented_holds_of_lru_arc_and_ours(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(in_tree_test(), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "spec_tests.vllm.in_tree", NAME],
        cwd=tmp_path,
        env={
            "PYTHONPATH": str(ROOT),
            # It may be relative to where the session was started.
            VARIABLE: str(Path(os.environ[VARIABLE]).resolve()),
            REGISTERED: "\n".join(f"{name} {target}" for name, target in POLICIES.items()),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = dict(re.findall(r"\[([\w-]+)\] (PASSED|FAILED)", done.stdout))
    ways = ("alone", "in_manager")
    assert outcomes == {
        f"{name}-{way}": "FAILED" if name == "broken" else "PASSED"
        for name in ("lru", "arc", *POLICIES)
        for way in ways
    }, done.stdout + done.stderr
