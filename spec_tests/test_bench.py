"""The benchmark measures what it says: its traffic, its floor, its stand-ins and its arithmetic.

No time is asserted anywhere: what a figure is depends on the machine, what it is of does not.
"""

import io
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from numpy.typing import NDArray
from rich.console import Console

from kvoffload import (
    CanonicalKVCaches,
    CPULoadStoreSpec,
    GPULoadStoreSpec,
    OffloadKey,
    canonical_kv_caches,
    derive_mapping,
    make_offload_key,
)
from kvoffload.copying.layout import CopyLayout, PageRuns, Rows
from kvoffload.copying.plans import Memory, plan_store
from kvoffload.copying.worker import CopyWorker
from spec_tests.bench import child, copies, managers, pages, replays, sections
from spec_tests.bench.bare import (
    HIT,
    MISS,
    PENDING,
    Answer,
    BareContext,
    BareManager,
    BareOutput,
)
from spec_tests.bench.figures import (
    Figure,
    Section,
    at_least,
    at_most,
    ratio,
    ratio_of_ratios,
)
from spec_tests.bench.imports import OURS, measure_import
from spec_tests.bench.jobs import (
    ManagerJob,
    ManagerResult,
    PagesJob,
    PagesResult,
    ReplayJob,
    ReplayResult,
    Whose,
)
from spec_tests.bench.providers import Provider
from spec_tests.bench.sections import (
    COPY_OVER_PLAIN,
    PAGES_OF_VLLM,
    Plan,
    check_section,
    import_section,
    interleave,
    manager_section,
    pages_section,
)
from spec_tests.bench.tables import make_console, show_section
from spec_tests.bench.vllm_modules import VLLMMissingError, check_root, fetch_vllm, unpack_wheel
from spec_tests.bench.workload import (
    MIN_PREFIXES,
    PREFIX_BLOCKS,
    TAIL_BLOCKS,
    make_workload,
    num_prefixes,
)

ROOT = Path(__file__).resolve().parents[1]
REQUESTS, CAPACITY = 40, 300


# Traffic


def test_traffic_is_the_same_every_time_and_other_with_another_seed() -> None:
    first = make_workload(make_offload_key, REQUESTS, CAPACITY)
    assert first == make_workload(make_offload_key, REQUESTS, CAPACITY)
    assert first != make_workload(make_offload_key, REQUESTS, CAPACITY, seed=8)


def test_requests_share_prefixes_and_have_tails_of_their_own() -> None:
    workload = make_workload(make_offload_key, 200, CAPACITY)
    seen: set[OffloadKey] = set()
    heads: set[OffloadKey] = set()
    shared = 0
    for keys in workload.requests:
        assert PREFIX_BLOCKS[0] + TAIL_BLOCKS[0] <= len(keys)
        assert len(keys) <= PREFIX_BLOCKS[1] - 1 + TAIL_BLOCKS[1] - 1
        assert len(set(keys)) == len(keys)
        known = [key in seen for key in keys]
        # What is known is a prefix: nothing behind the first new block was there before.
        assert known == sorted(known, reverse=True)
        assert not any(known[len(keys) - TAIL_BLOCKS[0] :])
        shared += any(known)
        seen.update(keys)
        heads.add(keys[0])
    assert MIN_PREFIXES // 2 < len(heads) <= num_prefixes(CAPACITY)
    assert shared > 100
    assert len(set(workload.fill)) == CAPACITY
    assert seen.isdisjoint(workload.fill)
    assert workload.blocks == sum(len(keys) for keys in workload.requests)


def test_prefixes_do_not_all_fit_the_cache() -> None:
    assert num_prefixes(100) == MIN_PREFIXES
    assert num_prefixes(6_400) == 100
    assert num_prefixes(6_400) * PREFIX_BLOCKS[1] > 6_400


# The floor


def test_the_floor_orders_pins_and_reuses_slots() -> None:
    manager = BareManager(2)
    context = BareContext("request")
    one, two, three = (make_offload_key(bytes([i]), 0) for i in range(3))
    assert manager.lookup(one, context) is MISS
    output = manager.prepare_store([one, two], context)
    assert output is not None
    assert output.keys_to_store == [one, two]
    assert sorted(output.slots.tolist()) == [0, 1]
    assert manager.lookup(one, context) is PENDING
    assert manager.prepare_store([three], context) is None, "nothing is idle"
    manager.complete_store([one, two], context)
    assert manager.lookup(one, context) is HIT

    assert manager.prepare_load([two], context).tolist() == [output.slots[1]]
    evicting = manager.prepare_store([three], context)
    assert evicting is not None
    assert evicting.evicted_keys == [one], "the other is pinned"
    assert evicting.slots.tolist() == [output.slots[0]]
    manager.complete_load([two], context)
    manager.complete_store([three], context)
    manager.touch([two], context)
    again = manager.prepare_store([one], context)
    assert again is not None
    assert again.evicted_keys == [three], "the other was touched"


def measured(whose: Whose, policy: str, vllm_root: Path | None = None) -> ManagerResult:
    root = None if vllm_root is None else str(vllm_root)
    return managers.measure_manager(ManagerJob(whose, policy, CAPACITY, REQUESTS, root))


def counted(result: ManagerResult) -> tuple[int, int, int, int, int]:
    return result.blocks, result.hits, result.stored, result.evicted, result.refused


def test_the_floor_does_the_work_that_the_manager_does() -> None:
    # The same blocks are found, stored and evicted, so a difference in speed is one in promises.
    assert counted(measured(Whose.BARE, "lru")) == counted(measured(Whose.OURS, "lru"))


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_every_store_evicts_and_none_is_refused(policy: str) -> None:
    result = measured(Whose.OURS, policy)
    workload = make_workload(make_offload_key, REQUESTS, CAPACITY)
    assert result.blocks == workload.blocks
    assert 0 < result.hits < result.blocks
    assert result.evicted == result.stored > CAPACITY
    assert result.refused == 0


class Recorder(BareManager):
    """The floor, with each call and its keys written down."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.calls: list[tuple[str, list[OffloadKey]]] = []
        self.contexts: list[BareContext] = []
        self.to_store: list[list[OffloadKey]] = []

    def on_new_request(self, context: BareContext) -> None:
        self.calls.append(("new", []))
        self.contexts.append(context)

    def lookup(self, key: OffloadKey, context: BareContext) -> Answer:
        self.calls.append(("lookup", [key]))
        return super().lookup(key, context)

    def prepare_load(self, keys: Sequence[OffloadKey], context: BareContext) -> NDArray[np.int32]:
        self.calls.append(("load", list(keys)))
        return super().prepare_load(keys, context)

    def complete_load(self, keys: Sequence[OffloadKey], context: BareContext) -> None:
        self.calls.append(("loaded", list(keys)))
        super().complete_load(keys, context)

    def touch(self, keys: Sequence[OffloadKey], context: BareContext) -> None:
        self.calls.append(("touch", list(keys)))
        super().touch(keys, context)

    def prepare_store(self, keys: Sequence[OffloadKey], context: BareContext) -> BareOutput:
        self.calls.append(("store", list(keys)))
        output = super().prepare_store(keys, context)
        assert output is not None
        self.to_store.append(output.keys_to_store)
        return output

    def complete_store(self, keys: Sequence[OffloadKey], context: BareContext) -> None:
        self.calls.append(("stored", list(keys)))
        super().complete_store(keys, context)

    def on_request_finished(self, context: BareContext) -> None:
        self.calls.append(("finished", []))


def test_a_request_makes_the_calls_of_a_scheduler() -> None:
    made: list[Recorder] = []

    def make_manager(capacity: int, policy: str) -> Recorder:
        made.append(Recorder(capacity))
        return made[-1]

    provider = Provider(make_offload_key, BareContext, make_manager, HIT)
    result = managers.measure(provider, ManagerJob(Whose.BARE, "lru", CAPACITY, REQUESTS))
    workload = make_workload(make_offload_key, REQUESTS, CAPACITY)
    (recorder,) = made
    fill, calls = recorder.calls[:4], recorder.calls[4:]
    assert fill == [
        ("new", []),
        ("store", workload.fill),
        ("stored", workload.fill),
        ("finished", []),
    ]
    total_hits = 0
    for context, keys, to_store in zip(
        recorder.contexts[1:], workload.requests, recorder.to_store[1:], strict=True
    ):
        ends = [context.positions[key] for key in keys]
        assert ends == list(range(16, 16 * len(keys) + 1, 16))
        made_for_it = calls[: calls.index(("finished", [])) + 1]
        calls = calls[len(made_for_it) :]
        # The last look-up misses, as every tail is new.
        hits = [name for name, _ in made_for_it].count("lookup") - 1
        assert made_for_it == [
            ("new", []),
            *(("lookup", [key]) for key in keys[: hits + 1]),
            *([("load", keys[:hits]), ("loaded", keys[:hits])] if hits else []),
            ("touch", keys),
            ("store", keys[hits:]),
            ("stored", to_store),
            ("finished", []),
        ]
        total_hits += hits
    assert calls == []
    assert total_hits == result.hits > 0


# Replays


def test_a_checked_replay_makes_the_calls_of_an_unchecked_one(tmp_path: Path) -> None:
    trace = short_trace(tmp_path)
    unchecked = replays.measure_replay(ReplayJob(str(trace), "lru", "50%", checked=False))
    checked = replays.measure_replay(ReplayJob(str(trace), "lru", "50%", checked=True))
    assert (checked.requests, checked.blocks) == (unchecked.requests, unchecked.blocks) == (4, 10)
    assert unchecked.checks == 0
    assert checked.checks > checked.blocks
    assert checked.violations == 0


def short_trace(tmp_path: Path) -> Path:
    """Four requests of Mooncake's format."""
    prompts = ([1, 2], [1, 2, 3], [4, 5], [1, 2, 6])
    lines = (
        f'{{"timestamp": {number * 1000}, "input_length": {len(blocks) * 512}, '
        f'"output_length": 1, "hash_ids": {blocks}}}'
        for number, blocks in enumerate(prompts)
    )
    path = tmp_path / "short.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


# vLLM's modules

FAKE_VLLM = {
    "vllm/__init__.py": "raise RuntimeError('the real package was imported')",
    "vllm/logger.py": "raise RuntimeError('a module that was not wanted was imported')",
    "vllm/v1/kv_offload/__init__.py": "",
    "vllm/v1/kv_offload/base.py": """
import torch
from torch.cuda import Stream
from vllm.config import VllmConfig
from vllm.logger import init_logger

from kvoffload import LookupResult, ReqContext, make_offload_key

logger = init_logger(__name__)
logger.debug_once("said once")


class Kept(VllmConfig["type"]):
    stream: Stream | None = None
    dtype: torch.dtype | None = None
""",
    "vllm/v1/kv_offload/cpu/__init__.py": "",
    "vllm/v1/kv_offload/cpu/manager.py": """
from prometheus_client import Gauge

from vllm.v1.kv_offload.base import Kept
from kvoffload import CPUOffloadingManager
""",
    "vllm/v1/kv_offload.txt": "not a module",
    "vllm/v1/kv_offloading.py": "raise RuntimeError('only its name begins alike')",
}


@pytest.fixture
def vllm_root(tmp_path: Path) -> Path:
    """What stands for an unpacked wheel: modules as they import each other, ours within."""
    for name, text in FAKE_VLLM.items():
        path = tmp_path / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "unpacked"


def test_wanted_modules_are_loaded_and_the_others_stood_in_for(vllm_root: Path) -> None:
    # In a process of its own, as it changes how modules are found.
    job = ManagerJob(Whose.VLLM, "lru", CAPACITY, REQUESTS, str(vllm_root))
    assert counted(child.measure_manager(job, 0)) == counted(measured(Whose.OURS, "lru"))


def test_a_root_without_the_manager_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(VLLMMissingError, match=r"manager\.py"):
        check_root(tmp_path)
    with pytest.raises(VLLMMissingError, match="where"):
        measured(Whose.VLLM, "lru")


def test_only_wanted_modules_come_out_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in FAKE_VLLM.items():
            archive.writestr(name, text)
    unpack_wheel(wheel, tmp_path / "out")
    out = {p.relative_to(tmp_path / "out").as_posix() for p in tmp_path.glob("out/**/*.py")}
    assert out == {name for name in FAKE_VLLM if name.startswith("vllm/v1/kv_offload/")}


def test_what_was_fetched_before_is_not_fetched_again(tmp_path: Path, vllm_root: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    vllm_root.rename(cache / "vllm-0.33.0")
    assert fetch_vllm(cache) == cache / "vllm-0.33.0"


# Processes


def test_a_job_and_its_result_travel_between_processes(tmp_path: Path) -> None:
    job = ManagerJob(Whose.BARE, "lru", CAPACITY, REQUESTS)
    assert counted(child.measure_manager(job, 1)) == counted(measured(Whose.BARE, "lru"))
    replay = ReplayJob(str(short_trace(tmp_path)), "arc", "3", checked=True)
    assert child.measure_replay(replay, 1).violations == 0


def test_a_failed_measurement_says_why(tmp_path: Path) -> None:
    job = ReplayJob(str(tmp_path / "absent.jsonl"), "lru", "3", checked=False)
    with pytest.raises(child.MeasurementFailedError, match=r"absent\.jsonl"):
        child.measure_replay(job, 0)


def test_a_round_hashes_alike_in_every_process() -> None:
    program = ["-c", "print(hash(b'key'))"]
    assert child.run_python(program, 1) == child.run_python(program, 1)
    assert child.run_python(program, 1) != child.run_python(program, 2)


def test_the_checkout_is_what_is_measured() -> None:
    where = child.run_python(["-c", f"{OURS}; print(kvoffload.__file__)"], 0)
    assert Path(where.decode().strip()).is_relative_to(ROOT)
    assert measure_import(OURS, 0) > 0


# Figures


def test_jobs_take_turns() -> None:
    calls: list[tuple[str, int]] = []
    said: list[tuple[str, int, int]] = []

    def measure(job: str, round_number: int) -> str:
        calls.append((job, round_number))
        return f"{job}{round_number}"

    def narrate(job: str, done: int, total: int) -> None:
        said.append((job, done, total))

    assert interleave(["a", "b"], 2, measure, narrate) == [["a0", "a1"], ["b0", "b1"]]
    assert calls == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert said == [("a", 0, 4), ("b", 1, 4), ("a", 2, 4), ("b", 3, 4)]


def test_a_ratio_is_of_medians_and_its_range_of_rounds() -> None:
    found = ratio("x over y", [10.0, 40.0, 30.0], [5.0, 10.0, 30.0])
    assert found.value == 30 / 10
    assert list(found.rounds) == [2, 4, 1]
    quotient = ratio_of_ratios("z", found, ratio("w", [2.0, 2.0, 2.0], [1.0, 1.0, 2.0]))
    assert quotient.value == 3 / 2
    assert list(quotient.rounds) == [1, 2, 1]
    with pytest.raises(ValueError, match="shorter"):
        ratio("of other rounds", [1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("value", "met_at_least", "met_at_most"),
    [(3.9, False, True), (4.0, True, True), (4.1, True, False)],
)
def test_a_target_includes_its_bound(value: float, met_at_least: bool, met_at_most: bool) -> None:
    assert at_least(4).is_met(value) is met_at_least
    assert at_most(4).is_met(value) is met_at_most
    assert (str(at_least(4)), str(at_most(2.5))) == (">= 4", "<= 2.5")


def shown(section: Section) -> str:
    out = io.StringIO()
    show_section(Console(file=out, width=120), section)
    return out.getvalue()


def test_a_section_shows_ratios_targets_and_what_is_behind_them() -> None:
    section = Section(
        "Title",
        [
            ratio("good", [8.0], [2.0], at_least(4)),
            ratio("bad", [1.0], [2.0], at_least(0.8)),
            ratio("free", [3.0], [2.0]),
        ],
        [Figure("speed", "blocks/s", [1000.0, 3000.0, 2000.0], "hits 0.5")],
        ["A note [0]."],
    )
    lines = [line.split() for line in shown(section).splitlines()]
    assert ["good", "4", "4", "to", "4", ">=", "4", "yes"] in lines
    assert ["bad", "0.5", "0.5", "to", "0.5", ">=", "0.8", "no"] in lines
    assert ["free", "1.5", "1.5", "to", "1.5"] in lines
    assert ["speed", "2,000", "1,000", "3,000", "blocks/s", "hits", "0.5"] in lines
    assert ["A", "note", "[0]."] in lines


def test_output_to_a_pipe_is_wide_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    console = make_console()
    assert console.width == 120
    show_section(console, Section("Title", [ratio("x" * 60, [1.0], [1.0], at_least(1))], []))
    assert "x" * 60 in capsys.readouterr().out


# Page mappings


@pytest.mark.parametrize("name", list(pages.WORKLOADS))
def test_tensors_of_a_workload_confirm_its_descriptions(name: str) -> None:
    """What is timed with tensors comes to the same mappings as without, each recognised."""
    workload = pages.WORKLOADS[name]
    assert len(set(workload.layers.values())) == len(workload.layers)
    caches = canonical_kv_caches(pages.tensors_of(workload), [workload.layers], workload.parallel)
    assert isinstance(caches, CanonicalKVCaches)
    for ref, layer in zip(caches.group_data_refs[0], workload.layers.values(), strict=True):
        assert ref.mapping == derive_mapping(layer, workload.parallel)
    assert name in PAGES_OF_VLLM


def test_page_mappings_are_measured_by_name() -> None:
    result = pages.measure_pages(PagesJob(Whose.OURS, list(pages.WORKLOADS)[-1]))
    assert result.seconds > 0
    with pytest.raises(VLLMMissingError, match="does not say where"):
        pages.measure_pages(PagesJob(Whose.VLLM, list(pages.WORKLOADS)[-1]))


# Copies


def test_a_plan_comes_to_the_addresses_of_the_list_of_fragments() -> None:
    """What is compared does the same work."""
    workload = copies.canonical(4)
    layout = CopyLayout(
        gpu=[Rows(5, workload.page_size_bytes)] * 2,
        host=[Rows(5, workload.host_page_size_bytes)] * 2,
        groups=(tuple(PageRuns(tensor, workload.runs) for tensor in range(2)),),
    )
    blocks, slots = GPULoadStoreSpec([3, 0, 4], None, [0]), CPULoadStoreSpec([1, 4, 2])
    gpu, host = [Memory(7, 100_000), Memory(9, 100_001)], [Memory(5, 200_000), Memory(6, 200_001)]
    addresses = plan_store(layout, blocks, slots).written_out(gpu, host)
    pieces = copies.fragment_list(layout, blocks, slots, gpu, host)
    assert list(zip(*(part.tolist() for part in addresses), strict=True)) == pieces
    assert len(pieces) == 2 * 3 * 16


def test_both_ways_are_taken_by_the_device_and_nothing_is_copied() -> None:
    workload = copies.canonical(2)
    gpu = np.ones((4, workload.page_size_bytes), dtype=np.uint8)
    host = np.zeros((4, workload.host_page_size_bytes), dtype=np.uint8)
    layout = CopyLayout(
        gpu=[Rows(*gpu.shape)], host=[Rows(*host.shape)], groups=((PageRuns(0, workload.runs),),)
    )
    blocks, slots = GPULoadStoreSpec([3, 0], None, [0]), CPULoadStoreSpec([1, 2])
    device = copies.ParkedDevice([gpu], [host])
    worker = CopyWorker(layout, device)
    assert worker.submit_store(1, blocks, slots)
    assert (device.num_accepted, worker.get_finished()) == (2 * 16, [])
    memories = [copies.memory_of(gpu)], [copies.memory_of(host)]
    pieces = copies.fragment_list(layout, blocks, slots, *memories)
    copies.submit_list(device, device.new_stream("list"), pieces)
    assert device.num_accepted == len(pieces) == 2 * 16
    worker.shutdown()
    assert not host.any()


def test_every_copy_has_a_target_or_is_said_to_have_none() -> None:
    assert list(COPY_OVER_PLAIN) == list(copies.COPIES)
    assert copies.COPIES["canonical, tp 2, 8 local heads"].runs[0].fragment_size == 4096


# The whole


def measured_here(job: ManagerJob, round_number: int) -> ManagerResult:
    """In this process, except where modules have to be found elsewhere."""
    if job.whose is Whose.VLLM:
        return child.measure_manager(job, round_number)
    return managers.measure_manager(job)


def replayed_here(job: ReplayJob, _: int) -> ReplayResult:
    return replays.measure_replay(job)


def paged_here(job: PagesJob, _: int) -> PagesResult:
    return pages.measure_pages(job)


@pytest.fixture
def few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is measured, and not of where."""
    monkeypatch.setattr(sections, "measure_manager", measured_here)
    monkeypatch.setattr(sections, "measure_replay", replayed_here)
    monkeypatch.setattr(sections, "measure_pages", paged_here)


@pytest.mark.nightly
@pytest.mark.usefixtures("few_processes")
def test_sections_answer_every_question(tmp_path: Path, vllm_root: Path) -> None:
    plan = Plan(
        runs=1,
        requests=3,
        capacities=(200, 300),
        import_runs=1,
        replay_capacity="50%",
        trace=str(short_trace(tmp_path)),
        vllm_root=str(vllm_root),
    )
    said: list[str] = []

    def narrate(what: str, done: int, total: int) -> None:
        said.append(what)

    manager = manager_section(plan, narrate)
    assert len(said) == len(set(said)) == 10, "five managers at two capacities"
    questions = {found.what: found.target for found in manager.ratios}
    for capacity in plan.capacities:
        lru, arc = (
            questions[f"{policy} over vLLM's {policy}, blocks a second at {capacity} chunks"]
            for policy in ("lru", "arc")
        )
        assert (lru, arc) == (at_least(4), at_least(1.5))
    assert questions["lru, 300 over 200 chunks, over the same of bare"] == at_least(0.8)
    assert manager.notes == []

    check = check_section(plan, narrate)
    assert [str(found.target) for found in check.ratios] == ["<= 10"] * 4
    assert check.notes == [], "no violations"

    page = pages_section(evolve(plan, vllm_root=None), narrate)
    assert len(page.figures) == 2 * len(PAGES_OF_VLLM)
    assert page.ratios == []
    assert "--vllm" in page.notes[0]

    (least, with_numpy) = import_section(plan, narrate).ratios
    assert least.target == at_most(2.5)
    assert with_numpy.target is None


@pytest.mark.usefixtures("few_processes")
def test_without_vllm_the_section_says_so() -> None:
    plan = Plan(runs=1, requests=2, capacities=(200, 300))
    section = manager_section(plan, lambda what, done, total: None)
    assert not any("vLLM" in found.what for found in section.ratios)
    (note,) = section.notes
    assert "--vllm" in note


def test_the_command_prints_tables_and_leaves_progress_to_stderr() -> None:
    done = run_bench("--only", "check", "--runs", "1", "--capacity", "5%")
    assert done.returncode == 0, done.stderr
    assert "sample, lru: checked over unchecked" in done.stdout
    assert "\x1b" not in done.stdout
    assert "4 of 4: replay of the sample, arc, checked" in done.stderr
    assert "of 4:" not in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--vllm-root", "absent"], "manager.py"),
        (["--trace", "absent.jsonl"], "absent.jsonl"),
        (["--capacity", "many"], "many"),
    ],
)
def test_what_cannot_be_measured_is_said_with_status_2(options: list[str], said: str) -> None:
    done = run_bench(*options)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def run_bench(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spec_tests.bench", *options],
        cwd=ROOT,
        env=child.environment(0),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
