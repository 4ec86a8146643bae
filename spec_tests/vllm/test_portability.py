"""What a policy is in each version of vLLM: what is in its way there, and the edits."""

from pathlib import Path

import pytest

from kvoffload.vllm.versions import VERSIONS
from spec_tests.vllm.trials import POLICIES, request_for, rows_of
from stateful_models.trial.portability import Obstacle, Portability, recognised
from stateful_models.trial.verdicts import Outcome
from stateful_models.vllm.trial import hold_vllm_trial, portability

POLICY = """
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy


class Mine(CachePolicy):
    def __init__(self, cache_capacity):
        self.held = {}

    def get(self, key):
        return self.held.get(key)

    def insert(self, key, chunk, req_context=None):
        self.held[key] = chunk

    def remove(self, key):
        del self.held[key]

    def touch(self, keys, req_context=None):
        pass

    def evict(self, n, protected):
        idle = [k for k, c in self.held.items() if c.ref_cnt == 0 and k not in protected]
        return None if len(idle) < n else [(k, self.held.pop(k)) for k in idle[:n]]

    def clear(self):
        self.held.clear()
"""
"""One that works wherever its import does."""


def told(row: Portability, *, remarks: bool = False) -> list[tuple[str, str, str]]:
    """Kind, place and edit of what is in the way."""
    return [(o.kind, o.place, o.edit) for o in row.obstacles if o.grave or remarks]


def written(tmp_path: Path, source: str) -> dict[str, Portability]:
    """The rows of `Mine` in a file of this source."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    return {row.version: row for row in portability(request_for(f"{file}:Mine"))}


def test_there_is_a_row_for_every_version() -> None:
    assert list(rows_of("accesses.py:SecondChance")) == [version.name for version in VERSIONS]


def test_imports_name_what_is_lacking_and_what_stands_for_it() -> None:
    rows = rows_of("accesses.py:SecondChance")
    assert told(rows["0.29"]) == [
        ("import", "accesses.py:8", "import BlockStatus instead of ChunkStatus, and read block_id")
    ]
    assert [each.what for each in rows["0.20"].grave] == [
        "no vllm.v1.kv_offload.base",
        "no vllm.v1.kv_offload.cpu.policies.base",
    ]
    assert "import OffloadKey from vllm.v1.kv_offload.abstract" in rows["0.20"].grave[0].edit
    assert "keys are block hashes" in rows["0.19"].grave[0].edit
    older = rows_of("block_hashes.py:HashLRU")["0.33"]
    assert [each.edit for each in older.grave] == [
        "import ChunkStatus instead of BlockStatus from vllm.v1.kv_offload.cpu.policies.base, "
        "and read chunk_id; import CachePolicy from vllm.v1.kv_offload.cpu.policies.base"
    ]


def test_signatures_are_held_against_the_calls_of_the_version() -> None:
    rows = rows_of("accesses.py:SecondChance")
    assert (rows["0.32"].loads, rows["0.32"].fits, rows["0.32"].works) == (True, False, False)
    assert [each.what for each in rows["0.32"].grave] == [
        "insert takes (key, chunk, req_context), and is called with (key, chunk)"
    ]
    newer = rows_of("request_hooks.py:FinishedFIFO")["0.33"]
    assert [each.edit for each in newer.grave] == [
        "def insert(self, key, chunk, req_context); with req_context=None it serves older ones too"
    ]


def test_hooks_that_nobody_calls_are_told_with_their_lines() -> None:
    row = rows_of("request_hooks.py:FinishedFIFO")["0.30"]
    assert row.works
    remark = row.obstacles[0]
    assert (
        remark.what
        == "never called there, so that nothing of it runs: on_store_miss, on_request_finished"
    )
    source = (POLICIES / "request_hooks.py").read_text().splitlines()
    first = int(remark.place.partition(":")[2].partition("-")[0])
    assert "def on_store_miss" in source[first - 1]


def test_one_that_never_evicts_without_marks_does_not_work_there() -> None:
    rows = rows_of("blocks.py:BlockLFU")
    assert told(rows["0.23"]) == [("round", "", "look at ref_cnt when evicting")]
    assert rows["0.25"].works


def test_hooks_of_the_version_that_are_not_there_are_told() -> None:
    remarks = rows_of("registering.py:Scored")["0.33"].obstacles
    assert [each.what for each in remarks] == [
        "when it is imported, it changes vllm.v1.kv_offload.cpu.policies.factory."
        "CachePolicyFactory._registry['scored']",
        "it has no on_store_miss and no on_request_finished: what CachePolicy does then is touch",
    ]


def test_internals_of_another_version_are_found_where_they_are_read() -> None:
    rows = rows_of("wrapper.py:Watchful")
    assert [each for each in told(rows["0.30"]) if each[0] == "internals"] == [
        ("internals", "wrapper.py:17", "read evictable_chunks")
    ]
    assert [each[2] for each in told(rows["0.29"]) if each[0] == "internals"] == [
        "read evictable_blocks",
        "read blocks",
    ]
    newer = rows_of("blocks_of_lru.py:IdleIsEnough")["0.33"]
    # What another class of the file reads is none of its affairs.
    assert told(newer) == [
        ("internals", "blocks_of_lru.py:19", "read _evictable, a set; the order is in _ranks")
    ]
    assert (newer.loads, newer.survives) == (True, False)


def test_a_fallback_is_told_with_its_line() -> None:
    rows = rows_of("fallback.py:FallbackLRU")
    (fallback,) = rows["0.33"].fallbacks
    assert fallback.place == "fallback.py:7"
    assert fallback.what.startswith("your module caught an ImportError at line 7 (")
    assert fallback.what.endswith("has no BlockStatus) and fell back to a dummy base")
    assert fallback.edit == "import ChunkStatus instead of BlockStatus, and read chunk_id"
    assert not any(rows[version].loads for version in ("0.33", "0.32", "0.30", "0.20", "0.19"))
    assert not rows["0.29"].fallbacks
    beside = rows_of("fallback_nowhere.py:NowhereFIFO")["0.33"].fallbacks
    assert [each.place for each in beside] == ["compat.py:6"]


@pytest.mark.parametrize(
    "guard",
    [
        "try:\n    from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus\n"
        "except:\n    pass\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n"
        "    from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus\n",
    ],
)
def test_what_it_goes_on_without_is_no_fallback(tmp_path: Path, guard: str) -> None:
    rows = written(tmp_path, guard + POLICY)
    assert rows["0.29"].works
    assert not rows["0.29"].fallbacks
    assert any("went on without" in each.what for each in rows["0.29"].obstacles)
    assert not any("went on without" in each.what for each in rows["0.30"].obstacles)


def test_what_is_imported_for_checkers_alone_is_not_lacking(tmp_path: Path) -> None:
    imports = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm.no import Such\n"
    assert all(row.works for row in written(tmp_path, imports + POLICY).values() if row.imports)


def test_one_may_work_in_many_versions(tmp_path: Path) -> None:
    rows = written(tmp_path, POLICY)
    works = [name for name, row in rows.items() if row.works]
    assert works == ["0.33", "0.32", "0.30", "0.29", "0.26", "0.25", "0.23", "0.21"]


def test_the_slot_of_another_version_is_found_where_it_is_read(tmp_path: Path) -> None:
    source = POLICY.replace("[key] = chunk", "[key] = chunk\n        print(chunk.block_id)")
    rows = written(tmp_path, source)
    assert told(rows["0.30"]) == [("slot", "mine.py:14", "read chunk_id")]
    assert rows["0.30"].survives is False
    assert rows["0.29"].works


def test_methods_that_are_lacking_are_named(tmp_path: Path) -> None:
    rows = written(tmp_path, POLICY.partition("    def clear")[0])
    assert told(rows["0.33"]) == [("abstract", "", "def clear(self)")]
    assert (rows["0.33"].loads, rows["0.33"].builds) == (False, None)
    assert rows["0.21"].works


def test_a_constructor_gets_the_capacity_alone(tmp_path: Path) -> None:
    rows = written(tmp_path, POLICY.replace("cache_capacity)", "cache_capacity, window)"))
    assert [each.kind for each in rows["0.33"].grave] == ["build"]
    assert "give all else a default" in rows["0.33"].grave[0].edit
    assert "mine.py" not in rows["0.33"].grave[0].what


def test_a_base_is_asked_for_where_the_factory_asserts_it() -> None:
    rows = rows_of("duck.py:Duck")
    assert [each.kind for each in rows["0.29"].grave] == ["base"]
    assert (rows["0.29"].loads, rows["0.26"].loads) == (False, True)
    assert "nothing asserts" in rows["0.26"].obstacles[0].what


def test_a_factory_function_is_no_class(tmp_path: Path) -> None:
    rows = written(
        tmp_path,
        POLICY.replace("class Mine", "class It") + "\n\ndef Mine(cache_capacity):\n"
        "    return It(cache_capacity)\n",
    )
    assert [each.kind for each in rows["0.33"].grave] == ["base"]
    assert "name of a class" in rows["0.33"].grave[0].what


def test_patches_are_told_and_are_in_nobodys_way() -> None:
    rows = rows_of("patching.py:PatchedIn")
    assert rows["0.26"].works
    assert "_CACHE_POLICIES['patched_in']" in rows["0.26"].obstacles[0].what
    (lacking,) = rows["0.29"].grave
    assert lacking.what.endswith("has no attribute '_CACHE_POLICIES' at patching.py:11")
    assert "cache_policy_module_path" in lacking.edit


def test_what_is_not_answered_is_named() -> None:
    row = rows_of("unanswered.py:OfScheduler")["0.33"]
    assert [each.what for each in row.grave] == [
        "vllm.v1.core.sched.scheduler.Scheduler is not in the stand-ins"
    ]
    assert "--vllm=installed" in row.grave[0].edit


def test_what_ends_the_process_is_in_the_way_and_nothing_else(tmp_path: Path) -> None:
    rows = written(tmp_path, f"import os\n{POLICY}\nos._exit(3)\n")
    assert "ends the process with status 3" in rows["0.33"].grave[0].what
    # Where its import fails before that, it is alive.
    assert "ends the process" not in rows["0.20"].grave[0].what


def test_a_module_may_raise_anything(tmp_path: Path) -> None:
    rows = written(tmp_path, f"{POLICY}\nraise SystemExit('not today')\n")
    assert rows["0.33"].grave[0].what == "its import raises SystemExit: not today at mine.py:28"
    rows = written(tmp_path, f"{POLICY}\nimport no_such_package\n")
    assert rows["0.33"].grave[0].edit == "install no_such_package, or import it where it is used"
    rows = written(tmp_path, "def broken(:\n")
    assert "SyntaxError" in rows["0.33"].grave[0].what


def test_a_first_round_is_gentle(tmp_path: Path) -> None:
    # It expects that what is touched is there: a matter of the contract, and none of versions.
    source = POLICY.replace("        pass", "        [self.held[key] for key in keys]")
    rows = written(tmp_path, source)
    assert rows["0.33"].works
    # What a host lacks is one of versions.
    rows = written(tmp_path, POLICY.replace("        pass", "        req_context.kv_hints"))
    assert [name for name, row in rows.items() if row.works] == ["0.33", "0.32"]
    assert "touch raises AttributeError" in rows["0.29"].grave[0].what


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("nothing.py:Mine", "no such file"),
        (f"{POLICIES / 'duck.py'}:Goose", "duck.py has no Goose"),
        (f"{POLICIES / 'registering.py'}:SHARED", "neither a class nor a factory"),
        ("lru", "neither pkg.mod:Class nor file.py:Class"),
    ],
)
def test_what_is_no_target_has_no_portability(target: str, problem: str) -> None:
    report = hold_vllm_trial(request_for(target))
    assert report.verdict is Outcome.UNTRIED
    assert problem in report.problem
    assert not report.portability


def test_one_that_can_be_called_nowhere_is_untried_with_the_reason() -> None:
    report = hold_vllm_trial(request_for(str(POLICIES / "sessions.py:SessionScores")))
    assert report.verdict is Outcome.UNTRIED
    assert report.problem.endswith(
        "it can be called in no version of vLLM from 0.19 to 0.33; in 0.29: evict takes "
        "(n, protected, urgent), and is called with (n, protected)"
    )
    edits = [each.edit for row in report.portability for each in row.grave]
    assert any("--driver" in edit for edit in edits)


def test_a_version_that_is_named_is_taken_or_nothing_is() -> None:
    report = hold_vllm_trial(request_for(str(POLICIES / "fallback.py:FallbackLRU"), vllm="0.33"))
    assert report.verdict is Outcome.UNTRIED
    assert "it cannot be called by vLLM 0.33: your module caught an ImportError" in report.problem


def test_the_newest_that_works_is_recognised_else_that_with_least_in_the_way() -> None:
    def row(version: str, *kinds: str, triable: bool = True) -> Portability:
        obstacles = tuple(Obstacle(kind=kind, what="") for kind in kinds)
        return Portability(
            version=version,
            imports=triable,
            builds=triable,
            fits=triable,
            loads=triable,
            survives=triable,
            obstacles=obstacles,
        )

    new, newer, old = row("3", "base", "slot"), row("2", "base"), row("1", "remark")
    assert recognised([new, newer, old]) == old
    assert recognised([new, newer]) == newer
    assert recognised([new, row("2", "base", triable=False)]) == new
    assert recognised([row("1", triable=False)]) is None
