"""The kit convicts every broken policy of the gallery of its own mistake, and no legal one.

CI tries those that the lot fell on, some for each demand; the night tries all. What the laws of
`policy_laws` can show of a broken one is shown of every one in CI too (`test_policy_gallery`).
"""

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

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARDS = 2
PARTS = pytest.mark.parametrize("part", ["lot", pytest.param("all", marks=pytest.mark.nightly)])
LEAST_BROKEN = {"lot": 25, "all": 90}
LEAST_LEGAL = {"lot": 5, "all": 15}


class Tried(TypedDict):
    """What came of one policy."""

    name: str
    convicted: bool
    programs: int
    breaches: list[str]


def shard(kind: str, part: str, number: int) -> list[Tried]:
    """What one of the processes says that try a part of the gallery."""
    done = subprocess.run(
        [sys.executable, "-m", "spec_tests.gallery_policies", kind, part, str(number), str(SHARDS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def gallery(kind: str, part: str) -> Mapping[str, Tried]:
    with ThreadPoolExecutor(SHARDS) as pool:
        shards = pool.map(partial(shard, kind, part), range(SHARDS))
    return {tried["name"]: tried for each in shards for tried in each}


@PARTS
def test_each_broken_policy_is_convicted_of_its_mistake_and_most_at_once(part: str) -> None:
    broken = gallery("broken", part)
    assert len(broken) >= LEAST_BROKEN[part]
    missed = {name: tried["breaches"] for name, tried in broken.items() if not tried["convicted"]}
    assert missed == {}
    programs = {name: tried["programs"] for name, tried in broken.items()}
    assert {name: number for name, number in programs.items() if number > 2_000} == {}
    assert median(programs.values()) <= 50


@PARTS
def test_no_legal_policy_is_convicted(part: str) -> None:
    legal = gallery("legal", part)
    assert len(legal) >= LEAST_LEGAL[part]
    assert {name: tried["breaches"] for name, tried in legal.items() if tried["convicted"]} == {}
