"""The kit convicts every broken policy of the gallery of its own mistake, and no legal one."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
SHARDS = 2


class Tried(TypedDict):
    """What came of one policy."""

    name: str
    convicted: bool
    programs: int
    breaches: list[str]


def shard(kind: str, number: int) -> list[Tried]:
    """What a process says that tries one part of the gallery."""
    done = subprocess.run(
        [sys.executable, "-m", "spec_tests.gallery_policies", kind, str(number), str(SHARDS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def gallery(kind: str) -> Mapping[str, Tried]:
    with ThreadPoolExecutor(SHARDS) as pool:
        parts = pool.map(partial(shard, kind), range(SHARDS))
    return {tried["name"]: tried for part in parts for tried in part}


def test_every_broken_policy_is_convicted_of_its_mistake_and_most_at_once() -> None:
    broken = gallery("broken")
    assert len(broken) >= 90
    missed = {name: tried["breaches"] for name, tried in broken.items() if not tried["convicted"]}
    assert missed == {}
    programs = {name: tried["programs"] for name, tried in broken.items()}
    assert {name: number for name, number in programs.items() if number > 2_000} == {}
    assert median(programs.values()) <= 50


def test_no_legal_policy_is_convicted() -> None:
    legal = gallery("legal")
    assert len(legal) >= 15
    assert {name: tried["breaches"] for name, tried in legal.items() if tried["convicted"]} == {}
