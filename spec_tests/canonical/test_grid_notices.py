"""The reference broken in one place, its own proof switched off: the trial notices each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from attrs import evolve

from kvoffload.canonical import derivation, resharding
from kvoffload.canonical.pages import CopyRun
from kvoffload.canonical.parallel import HeadShare, KVParallelConfig
from kvoffload.canonical.resharding import PageCopy, Resharding
from kvoffload.canonical.runs import Axis, Stride, nested_runs, strides
from spec_tests.canonical.in_parts import findings_in_parts
from stateful_models.contract import Profile
from stateful_models.gallery.mappings import REFERENCE
from stateful_models.pages import check_mapper

if TYPE_CHECKING:
    from kvoffload.canonical.runs import Offsets

QUICK: Final = evolve(REFERENCE, recognise=None, derive_bare=None, layout_id=None)


def no_proof(*_: object, **__: object) -> None:
    pass


def heads_dealt_round(share: HeadShare, tp_rank: int) -> int:
    return tp_rank % share.num_shards


def writers_by_the_remainder(share: HeadShare, tp_rank: int) -> int:
    return tp_rank % share.num_writers


def writers_in_another_order(share: HeadShare, tp_rank: int) -> int:
    return share.num_writers - 1 - tp_rank % share.replication // share.dcp_size


def writers_without_dcp(share: HeadShare) -> int:
    return share.replication


def nothing_checked(share: HeadShare) -> None:
    pass


def pcp_inside_dcp(config: KVParallelConfig, rank: int) -> int:
    return rank % config.tp_size % config.dcp_size * config.pcp_size + rank // config.tp_size


def tokens_of_the_first(config: KVParallelConfig, rank: int) -> int:
    return 0


def one_token_in_turn(config: KVParallelConfig) -> int:
    return 1


def halves_of_its_own(fragment_size: int, axes: Sequence[Axis]) -> tuple[CopyRun, ...]:
    first, *rest = axes
    if first.length == 2:
        first = first._replace(canonical_step=first.local_step)
    return nested_runs(fragment_size, [first, *rest])


def a_run_a_place(fragment_size: int, axes: Sequence[Axis]) -> tuple[CopyRun, ...]:
    return tuple(
        CopyRun(
            run.local_offset + i * run.local_stride,
            run.canonical_offset + i * run.canonical_stride,
            run.fragment_size,
            1,
            run.fragment_size,
            run.fragment_size,
        )
        for run in nested_runs(fragment_size, axes)
        for i in range(run.num_fragments)
    )


def loops_inside_out(fragment_size: int, axes: Sequence[Axis]) -> tuple[CopyRun, ...]:
    return nested_runs(fragment_size, axes)[::-1]


def copies_in_another_order(left: Offsets, right: Offsets, size: Offsets) -> list[Stride]:
    return strides(left, right[::-1].copy(), size)


def copies_without_the_last(left: Offsets, right: Offsets, size: Offsets) -> list[Stride]:
    return strides(left, right, size)[: max(1, len(left) - 1)]


real_copies = Resharding.copies


def always_of_block_0(plan: Resharding, block_id: int = 0) -> tuple[PageCopy, ...]:
    return real_copies(plan, 0)


class Break(NamedTuple):
    """What is put in the place of what, and the clauses that it breaks."""

    owner: object
    name: str
    value: object
    clauses: frozenset[str]


def _break(owner: object, name: str, value: object, *clauses: str) -> Break:
    return Break(owner, name, value, frozenset(clauses))


BREAKS: Final = (
    _break(HeadShare, "shard", heads_dealt_round, "MAP-3", "MAP-4"),
    _break(HeadShare, "writer_index", writers_by_the_remainder, "MAP-3"),
    _break(HeadShare, "writer_index", writers_in_another_order, "MAP-4"),
    _break(HeadShare, "num_writers", property(writers_without_dcp), "MAP-3", "MAP-4"),
    _break(HeadShare, "__attrs_post_init__", nothing_checked, "MAP-4"),
    _break(KVParallelConfig, "cp_rank_of", pcp_inside_dcp, "MAP-4", "MAP-8"),
    _break(KVParallelConfig, "cp_rank_of", tokens_of_the_first, "MAP-3", "MAP-4", "MAP-8"),
    _break(KVParallelConfig, "tokens_in_turn", property(one_token_in_turn), "MAP-4", "MAP-8"),
    _break(derivation, "nested_runs", halves_of_its_own, "MAP-3", "MAP-5", "MAP-8"),
    _break(derivation, "nested_runs", a_run_a_place, "MAP-7"),
    _break(derivation, "nested_runs", loops_inside_out, "MAP-7"),
    _break(resharding, "strides", copies_in_another_order, "MAP-8"),
    _break(resharding, "strides", copies_without_the_last, "MAP-8"),
    _break(Resharding, "copies", always_of_block_0, "MAP-3"),
)


def name_of(broken: object) -> str:
    value = broken.value if isinstance(broken, Break) else broken
    value = value.fget if isinstance(value, property) else value
    return str(getattr(value, "__name__", value))


@pytest.mark.parametrize("broken", BREAKS, ids=name_of)
def test_the_trial_notices(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hasattr(broken.owner, broken.name)
    monkeypatch.setattr(broken.owner, broken.name, broken.value)
    for module in (derivation, resharding):
        monkeypatch.setattr(module, "verify_tiling", no_proof)
    missed = set(broken.clauses)
    for found in findings_in_parts(QUICK):
        if found.convicts(Profile.REFERENCE):
            missed.discard(found.clause)
        if not missed:
            return
    assert not missed


def test_the_proof_by_itself_refuses_what_does_not_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadShare, "writer_index", writers_by_the_remainder)
    (found,) = check_mapper(QUICK)
    assert found.clause == "MAP-4"
    assert found.message.startswith("refused what is legal")
    assert "MAP-3" in found.message
