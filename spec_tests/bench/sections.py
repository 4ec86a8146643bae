"""The questions, and which runs answer each: interleaved, round after round.

A machine gets slower and faster while a benchmark runs. So what is compared is measured in turns,
never one thing five times and then the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TypeVar

from attrs import frozen

from spec_tests.bench.child import (
    measure_copies,
    measure_manager,
    measure_pages,
    measure_plan,
    measure_replay,
)
from spec_tests.bench.figures import (
    Figure,
    Ratio,
    Section,
    at_least,
    at_most,
    ratio,
    ratio_of_ratios,
)
from spec_tests.bench.imports import LEAST, OURS, WITH_NUMPY, measure_import
from spec_tests.bench.jobs import (
    CopyJob,
    ManagerJob,
    ManagerResult,
    PagesJob,
    PlanJob,
    ReplayJob,
    ReplayResult,
    Whose,
)

POLICIES = ("lru", "arc")
SPEED_OVER_VLLM = {"lru": at_least(4), "arc": at_least(1.5)}
SCALING_OVER_BARE = at_least(0.8)
MEMORY_OVER_VLLM = at_most(0.5)
CHECKED_OVER_UNCHECKED = at_most(10)
IMPORT_OVER_LEAST = at_most(2.5)
PAGES_OF_VLLM = {
    "80 layers at tp 8, token-major": at_least(1),
    "80 layers at tp 8, head-major": at_least(1),
    "64 head-major heads, dcp 4, interleave 1": at_least(5),
}
"""How many times as fast as vLLM's derivation, for each workload of `pages.WORKLOADS`."""
MEBIBYTE = 2**20

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
Narrator = Callable[[str, int, int], None]
"""Told what is done, how many runs of the section are over, and how many there are."""


@frozen
class Plan:
    """How much is measured. `vllm_root` is where vLLM's modules are, None without them."""

    runs: int = 5
    requests: int = 5_000
    capacities: tuple[int, int] = (10_000, 1_000_000)
    import_runs: int = 15
    replay_capacity: str = "5%"
    trace: str | None = None
    vllm_root: str | None = None


def interleave(
    jobs: Sequence[JobT],
    runs: int,
    measure: Callable[[JobT, int], ResultT],
    narrate: Callable[[JobT, int, int], None],
) -> list[list[ResultT]]:
    """Every job once a round, `runs` rounds; the results of each job, in the order of rounds."""
    results: list[list[ResultT]] = [[] for _ in jobs]
    for number in range(runs):
        for index, job in enumerate(jobs):
            narrate(job, number * len(jobs) + index, runs * len(jobs))
            results[index].append(measure(job, number))
    return results


@frozen
class _ManagerRuns:
    """All runs of the managers, by whose it is, policy and capacity."""

    plan: Plan
    results: dict[tuple[Whose, str, int], list[ManagerResult]]

    def speed(self, whose: Whose, policy: str, capacity: int) -> list[float]:
        """Blocks a second."""
        return [run.blocks_per_second for run in self.results[whose, policy, capacity]]

    def memory(self, whose: Whose, policy: str) -> list[float] | None:
        """MiB of the large cache; None where a run could not tell or was too small to show."""
        runs = self.results[whose, policy, self.plan.capacities[1]]
        known = [run.added_bytes / MEBIBYTE for run in runs if run.added_bytes is not None]
        return known if len(known) == len(runs) and min(known) > 0 else None

    def speed_ratios(self) -> list[Ratio]:
        pairs = [(policy, capacity) for policy in POLICIES for capacity in self.plan.capacities]
        ratios: list[Ratio] = []
        if self.plan.vllm_root is not None:
            ratios = [
                ratio(
                    f"{policy} over vLLM's {policy}, blocks a second at {capacity:,} chunks",
                    self.speed(Whose.OURS, policy, capacity),
                    self.speed(Whose.VLLM, policy, capacity),
                    SPEED_OVER_VLLM[policy],
                )
                for policy, capacity in pairs
            ]
        ratios += [
            ratio(
                f"{policy} over bare, blocks a second at {capacity:,} chunks",
                self.speed(Whose.OURS, policy, capacity),
                self.speed(Whose.BARE, "lru", capacity),
            )
            for policy, capacity in pairs
        ]
        return ratios

    def scaling_ratios(self) -> list[Ratio]:
        small, large = self.plan.capacities

        def scaling(whose: Whose, policy: str) -> Ratio:
            return ratio(policy, self.speed(whose, policy, large), self.speed(whose, policy, small))

        return [
            ratio_of_ratios(
                f"{policy}, {large:,} over {small:,} chunks, over the same of bare",
                scaling(Whose.OURS, policy),
                scaling(Whose.BARE, "lru"),
                SCALING_OVER_BARE,
            )
            for policy in POLICIES
        ]

    def memory_ratios(self) -> list[Ratio]:
        peer = self.memory(Whose.VLLM, "lru") if self.plan.vllm_root is not None else None
        large = self.plan.capacities[1]
        return [
            ratio(
                f"{policy} over vLLM's lru, memory of {large:,} chunks",
                added,
                peer,
                MEMORY_OVER_VLLM,
            )
            for policy in POLICIES
            if peer is not None and (added := self.memory(Whose.OURS, policy)) is not None
        ]

    def figures(self) -> list[Figure]:
        figures = [
            Figure(
                f"{_name(whose, policy)} at {capacity:,} chunks",
                "blocks/s",
                self.speed(whose, policy, capacity),
                f"hits {runs[0].hit_ratio:.4f}",
            )
            for (whose, policy, capacity), runs in self.results.items()
        ]
        large = self.plan.capacities[1]
        figures += [
            Figure(f"{_name(whose, policy)}, memory of {large:,} chunks", "MiB", added)
            for whose, policy, capacity in self.results
            if capacity == large and (added := self.memory(whose, policy)) is not None
        ]
        return figures


def manager_section(plan: Plan, narrate: Narrator) -> Section:
    """Speed of the manager at two sizes, and the memory that a full cache adds."""
    kinds = [(Whose.OURS, policy) for policy in POLICIES]
    kinds.append((Whose.BARE, "lru"))
    if plan.vllm_root is not None:
        kinds.extend((Whose.VLLM, policy) for policy in POLICIES)
    jobs = [
        ManagerJob(whose, policy, capacity, plan.requests, plan.vllm_root)
        for capacity in plan.capacities
        for whose, policy in kinds
    ]

    def say(job: ManagerJob, done: int, total: int) -> None:
        narrate(f"{_name(job.whose, job.policy)} at {job.capacity:,} chunks", done, total)

    results = interleave(jobs, plan.runs, measure_manager, say)
    found = _ManagerRuns(
        plan,
        {
            (job.whose, job.policy, job.capacity): runs
            for job, runs in zip(jobs, results, strict=True)
        },
    )
    notes: list[str] = []
    if plan.vllm_root is None:
        notes.append("vLLM's manager was not measured; --vllm downloads it.")
    ratios = [*found.speed_ratios(), *found.scaling_ratios(), *found.memory_ratios()]
    return Section("Speed and memory of the manager", ratios, found.figures(), notes)


def check_section(plan: Plan, narrate: Narrator) -> Section:
    """What `--check` costs, on the packaged sample and on the plan's trace."""
    traces = [None] if plan.trace is None else [None, plan.trace]
    jobs = [
        ReplayJob(trace, policy, plan.replay_capacity, checked)
        for trace in traces
        for policy in POLICIES
        for checked in (False, True)
    ]

    def name(job: ReplayJob) -> str:
        return f"{'sample' if job.trace is None else 'trace'}, {job.policy}"

    def say(job: ReplayJob, done: int, total: int) -> None:
        narrate(f"replay of the {name(job)}{', checked' if job.checked else ''}", done, total)

    results = interleave(jobs, plan.runs, measure_replay, say)
    ratios: list[Ratio] = []
    figures: list[Figure] = []
    notes: list[str] = []
    for index in range(0, len(jobs), 2):
        job, unchecked, checked = jobs[index], results[index], results[index + 1]
        ratios.append(
            ratio(
                f"{name(job)}: checked over unchecked",
                _seconds(checked),
                _seconds(unchecked),
                CHECKED_OVER_UNCHECKED,
            )
        )
        blocks = f"{unchecked[0].blocks:,} blocks"
        figures.append(Figure(name(job), "s", _seconds(unchecked), blocks))
        checks = f"{checked[0].checks:,} checks"
        figures.append(Figure(f"{name(job)}, checked", "s", _seconds(checked), checks))
        if checked[0].violations:
            notes.append(f"{name(job)}: {checked[0].violations:,} violations were found.")
    title = f"Cost of --check (capacity {plan.replay_capacity}; reading the trace apart)"
    return Section(title, ratios, figures, notes)


def pages_section(plan: Plan, narrate: Narrator) -> Section:
    """What deriving and proving page mappings takes, beside vLLM's."""
    root = plan.vllm_root
    ways = [
        ("kvoffload", Whose.OURS, False),
        ("kvoffload, with tensors", Whose.OURS, True),
        *([("vLLM", Whose.VLLM, True)] if root is not None else []),
    ]
    jobs = [
        (f"{way}: {workload}", PagesJob(whose, workload, with_tensors, root))
        for workload in PAGES_OF_VLLM
        for way, whose, with_tensors in ways
    ]

    def measure(named: tuple[str, PagesJob], round_number: int) -> float:
        return measure_pages(named[1], round_number).seconds

    def say(named: tuple[str, PagesJob], done: int, total: int) -> None:
        narrate(named[0], done, total)

    results = interleave(jobs, plan.runs, measure, say)
    seconds = {name: runs for (name, _), runs in zip(jobs, results, strict=True)}
    ratios: list[Ratio] = []
    if root is not None:
        for workload, target in PAGES_OF_VLLM.items():
            peer = seconds[f"vLLM: {workload}"]
            for way, _, with_tensors in ways[:2]:
                own = seconds[f"{way}: {workload}"]
                what = f"vLLM's time over that of {way}: {workload}"
                ratios.append(ratio(what, peer, own, None if with_tensors else target))
    figures = [Figure(name, "ms", [run * 1e3 for run in runs]) for name, runs in seconds.items()]
    notes = [] if root is not None else ["vLLM's derivation was not measured; --vllm downloads it."]
    return Section("Deriving and proving page mappings", ratios, figures, notes)


COPY_OVER_PLAIN = {
    "direct, pages of 16 KiB": None,
    "direct, pages of 64 KiB": at_least(0.75),
    "direct, pages of 256 KiB": at_least(0.85),
    "direct, pages of 1 MiB": None,
    "canonical, tp 2, 8 local heads": at_least(0.5),
    "canonical, tp 2, 1 local head": None,
}
"""Speed of a copy in units of a plain one, for each workload of `copies.COPIES`."""
PLAN_OVER_FRAGMENTS = at_least(3)
PLAN_HEADS = 2


def copies_section(plan: Plan, narrate: Narrator) -> Section:
    """What copies of the host device take, beside one plain copy; and what planning takes."""
    title = "Copies of the host device, one thread, shuffled blocks"
    if find_spec("torch") is None:
        return Section(title, [], [], ["Not measured: a plain copy is torch's, which is missing."])
    jobs = [CopyJob(workload) for workload in COPY_OVER_PLAIN]

    def say(job: CopyJob, done: int, total: int) -> None:
        narrate(job.workload, done, total)

    results = interleave(jobs, plan.runs, measure_copies, say)
    ratios: list[Ratio] = []
    figures: list[Figure] = []
    for job, runs in zip(jobs, results, strict=True):
        plain = [run.plain for run in runs]
        figures.append(
            Figure(
                f"plain copy beside {job.workload}",
                "GB/s",
                [run.num_bytes / run.plain / 1e9 for run in runs],
            )
        )
        for way, seconds in (
            ("store", [run.store for run in runs]),
            ("load", [run.load for run in runs]),
        ):
            what = f"{way} over plain copy: {job.workload}"
            ratios.append(ratio(what, plain, seconds, COPY_OVER_PLAIN[job.workload]))
    planned = [measure_plan(PlanJob(PLAN_HEADS), number) for number in range(plan.runs)]
    ratios.append(
        ratio(
            "plan, expansion and submission of a canonical transfer, over a list of fragments",
            [run.by_fragment for run in planned],
            [run.plan for run in planned],
            PLAN_OVER_FRAGMENTS,
        )
    )
    number = f"{planned[0].num_fragments:,} fragments"
    figures.append(
        Figure("plan, addresses and submission", "ms", [run.plan * 1e3 for run in planned], number)
    )
    figures.append(
        Figure(
            "list of fragments and submission",
            "ms",
            [run.by_fragment * 1e3 for run in planned],
            number,
        )
    )
    return Section(title, ratios, figures)


def import_section(plan: Plan, narrate: Narrator) -> Section:
    """What `import kvoffload` costs beside the least that any library of its kind imports."""
    statements = [LEAST, OURS, WITH_NUMPY]
    for statement in statements:
        # Leaves compiled modules behind, so that no measured run has to compile.
        measure_import(statement, 0)
    least, ours, with_numpy = interleave(statements, plan.import_runs, measure_import, narrate)
    ratios = [
        ratio(f"{OURS} over {LEAST}", ours, least, IMPORT_OVER_LEAST),
        ratio(f"{WITH_NUMPY} over {LEAST}", with_numpy, least),
    ]
    figures = [
        Figure(statement, "ms", [seconds * 1e3 for seconds in runs])
        for statement, runs in zip(statements, (least, ours, with_numpy), strict=True)
    ]
    return Section("Cost of the import", ratios, figures)


def _name(whose: Whose, policy: str) -> str:
    return whose.value if whose is Whose.BARE else f"{whose.value} {policy}"


def _seconds(runs: Sequence[ReplayResult]) -> list[float]:
    return [run.seconds for run in runs]
