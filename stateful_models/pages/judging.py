"""One case judged: each rule against the oracle, byte by byte.

What is right is found right by whole-array comparisons; words are looked for only when something
is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from attrs import evolve

from kvoffload.canonical.layers import AttentionLayer, Encoding, Layer
from stateful_models.contract import Kind
from stateful_models.models.pages import (
    Layout,
    contradictions,
    layout,
    names_of_bytes,
    place_in,
)
from stateful_models.pages.bytes_of import RunRow, row_of, slow_normal_form, written_out
from stateful_models.pages.cases import Case
from stateful_models.pages.covering import (
    LATER_BLOCKS,
    EveryByte,
    all_bytes,
    judge_canonical_cover,
    judge_ends,
    judge_local_cover,
    written,
)
from stateful_models.pages.findings import PageFinding, on
from stateful_models.pages.mapper import PageMapper, PageMapping, Spans


def judge_case(mapper: PageMapper, case: Case) -> list[PageFinding]:
    """What the mapper gets wrong in one case; nothing for what it gets right."""
    against = contradictions(case.layer, case.spread)
    if against:
        return list(_judge_refusal(mapper, case))
    try:
        mappings = tuple(mapper.derive(case.layer, case.spread))
    except mapper.refusals as error:
        return [on(case, "MAP-4", f"refused what is legal: {error}", expected="mappings")]
    except Exception as error:
        return [on(case, "MAP-4", _raised(error), expected="mappings")]
    truth = layout(case.layer, case.spread)
    if len(mappings) != len(truth.pages):
        return [
            on(
                case,
                "MAP-4",
                "there is one mapping for each rank, and there are tp x pcp of them",
                expected=f"{len(truth.pages)} mappings",
                seen=len(mappings),
            )
        ]
    return list(_judge_mappings(mapper, case, truth, mappings))


def _raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {error}"


def _judge_refusal(mapper: PageMapper, case: Case) -> Iterator[PageFinding]:
    against = contradictions(case.layer, case.spread)
    expected = f"a refusal: {against[0].reason}"
    try:
        answer = mapper.derive(case.layer, case.spread)
    except mapper.refusals as error:
        said = set(re.findall(r"\d+", str(error)))
        if not any(said.issuperset(map(str, one.numbers)) for one in against):
            yield on(
                case,
                "MAP-4",
                "the refusal does not tell the numbers that contradict each other",
                kind=Kind.REFERENCE,
                expected=" or ".join(str(one.numbers) for one in against),
                seen=error,
            )
    except Exception as error:
        yield on(case, "MAP-4", _raised(error), expected=expected)
    else:
        safe = _are_opaque(answer, case)
        message = "took as opaque what is illegal" if safe else "accepted what is illegal"
        kind = Kind.REFERENCE if safe else Kind.HOST
        seen = f"{len(answer)} mappings"
        yield on(case, "MAP-4", message, kind=kind, expected=expected, seen=seen)


def _are_opaque(mappings: Sequence[PageMapping], case: Case) -> bool:
    """Whether each rank keeps a page of its own whole: of no use to others, and no harm."""
    if len(mappings) != case.spread.num_ranks:
        return False
    page = mappings[0].local_page_size_bytes
    for rank, mapping in enumerate(mappings):
        rows = written_out([row_of(run) for run in mapping.runs])
        own = np.arange(page)
        if (
            mapping.parallelism_agnostic
            or mapping.num_writers != 1
            or mapping.local_page_size_bytes != page
            or mapping.canonical_page_size_bytes != page * len(mappings)
            or not np.array_equal(np.sort(rows.left), own)
            or not np.array_equal(rows.right, rows.left + rank * page)
        ):
            return False
    return True


def _judge_mappings(
    mapper: PageMapper, case: Case, truth: Layout, mappings: Sequence[PageMapping]
) -> Iterator[PageFinding]:
    yield from _judge_flags(case, truth, mappings)
    yield from _judge_writers(case, truth, mappings)
    wrong_sizes = list(_judge_sizes(case, truth, mappings))
    yield from wrong_sizes
    outside = list(judge_ends(case, mappings))
    yield from outside
    if outside:
        return
    every = all_bytes(mappings)
    uncovered = list(judge_local_cover(case, mappings, every))
    yield from uncovered
    yield from judge_canonical_cover(case, mappings, every)
    if not wrong_sizes:
        yield from _judge_places(case, truth, every)
    if not uncovered:
        yield from _judge_normal_form(case, mappings, every)
    if mapper.spans is not None:
        yield from _judge_spans(case, mappings, mapper.spans)


def _judge_flags(
    case: Case, truth: Layout, mappings: Sequence[PageMapping]
) -> Iterator[PageFinding]:
    flags = [mapping.parallelism_agnostic for mapping in mappings]
    if len(set(flags)) > 1:
        yield on(
            case,
            "MAP-8",
            "ranks disagree on whether other configurations can read their pages",
            expected="one answer",
            seen=_by_rank(flags),
        )
    elif truth.recognised and not flags[0]:
        claimed = Kind.REFERENCE if case.spread.cp_size > 1 else Kind.HOST
        yield on(
            case,
            "MAP-8",
            "a recognised mapping is not called agnostic of parallelism",
            kind=claimed,
            expected="parallelism_agnostic True",
            seen=flags[0],
        )
    elif flags[0] and not truth.recognised:
        yield on(
            case,
            "MAP-8",
            "an opaque page is called agnostic of parallelism: no other configuration can read it",
            expected="parallelism_agnostic False",
            seen=flags[0],
        )


def _judge_writers(
    case: Case, truth: Layout, mappings: Sequence[PageMapping]
) -> Iterator[PageFinding]:
    numbers = [mapping.num_writers for mapping in mappings]
    if len(set(numbers)) > 1:
        yield on(
            case,
            "MAP-3",
            "ranks disagree on how many keep the same bytes",
            expected=f"num_writers {truth.num_writers} on every rank",
            seen=_by_rank(numbers),
        )
        return
    if numbers[0] != truth.num_writers:
        yield on(
            case,
            "MAP-4" if truth.recognised else "MAP-5",
            "another number of workers keeps the same bytes",
            expected=f"num_writers {truth.num_writers}",
            seen=numbers[0],
        )
        return
    turns = [mapping.writer_index for mapping in mappings]
    for rank, mapping in enumerate(mappings):
        for block_id in (*range(numbers[0]), *range(LATER_BLOCKS, LATER_BLOCKS + numbers[0])):
            elected = block_id % numbers[0] == turns[rank]
            if mapping.is_writer(block_id) is not elected:
                yield on(
                    case,
                    "MAP-3",
                    f"is_writer({block_id}) of rank {rank} is not block_id % num_writers == "
                    "writer_index",
                    kind=Kind.REFERENCE,
                    expected=elected,
                    seen=mapping.is_writer(block_id),
                )
                return
    if tuple(turns) != truth.turns:
        yield on(
            case,
            "MAP-4",
            "workers that keep the same bytes do not take turns in order of rank",
            kind=Kind.REFERENCE,
            expected=_by_rank(truth.turns),
            seen=_by_rank(turns),
        )


def _by_rank(values: Sequence[object]) -> str:
    return "by rank " + ", ".join(map(str, values))


def _judge_sizes(
    case: Case, truth: Layout, mappings: Sequence[PageMapping]
) -> Iterator[PageFinding]:
    for rank, mapping in enumerate(mappings):
        expected = len(truth.pages[rank])
        if mapping.local_page_size_bytes != expected:
            yield on(
                case,
                "MAP-2",
                f"the page of rank {rank} has another size, without padding",
                expected=f"local_page_size_bytes {expected}",
                seen=mapping.local_page_size_bytes,
            )
            break
    sizes = [mapping.canonical_page_size_bytes for mapping in mappings]
    if len(set(sizes)) > 1:
        yield on(
            case,
            "MAP-3",
            "ranks disagree on the size of the canonical page",
            expected=f"canonical_page_size_bytes {len(truth.canonical)} on every rank",
            seen=_by_rank(sizes),
        )
    elif sizes[0] != len(truth.canonical):
        yield on(
            case,
            "MAP-4" if truth.recognised else "MAP-5",
            "the canonical page is not what a single worker would hold"
            if truth.recognised
            else "the canonical page is not that of all ranks, one after another",
            expected=f"canonical_page_size_bytes {len(truth.canonical)}",
            seen=sizes[0],
        )


def _judge_places(case: Case, truth: Layout, every: EveryByte) -> Iterator[PageFinding]:
    """Whether each byte of each page lies where a single worker would have it."""
    starts = np.cumsum([0, *map(len, truth.pages)])
    held = np.concatenate(truth.pages)[every.local + starts[every.rank]]
    there = truth.canonical[every.canonical]
    wrong = np.flatnonzero(there != held)
    if not len(wrong):
        return
    first = int(wrong[0])
    rank, local = int(every.rank[first]), int(every.local[first])
    names = names_of_bytes(case.layer, case.spread)
    are: list[int] = held[wrong].tolist()
    lie_on: list[int] = there[wrong].tolist()
    misplaced = [(names[one], names[other]) for one, other in zip(are, lie_on, strict=True)]
    parts_differ = any(
        (one.layer, one.part, one.byte) != (other.layer, other.part, other.byte)
        for one, other in misplaced
    )
    mistaken = _mistaken_for(case, every, parts_differ)
    # Bytes of another encoding, or of another part or place within a head, are MAP-5's; where only
    # token and head are wrong, they are counted wrongly.
    clause = "MAP-5" if parts_differ or mistaken or not truth.recognised else "MAP-4"
    expected = int(place_in(truth.canonical, held)[first])
    yield on(
        case,
        clause,
        f"byte {local} of the page of rank {rank} has a wrong place canonically{mistaken}",
        expected=f"byte {expected}, which is {misplaced[0][0]}",
        seen=(
            f"byte {int(every.canonical[first])}, which is {misplaced[0][1]}; "
            f"{len(wrong)} bytes of all pages are misplaced"
        ),
    )


def _mistaken_for(case: Case, every: EveryByte, parts_differ: bool) -> str:
    """The encoding that these are the right places for, in words; empty if there is none.

    Where all K are K and all V are V, it can only be the order of tokens and heads: with few
    tokens, other mistakes can look like split pages by chance.
    """
    layer = case.layer
    if isinstance(layer, AttentionLayer) and layer.encoding is not None:
        for encoding in Encoding:
            if encoding is layer.encoding:
                continue
            if not parts_differ and encoding.is_split is not layer.encoding.is_split:
                continue
            if _fits(evolve(layer, encoding=encoding), case, every):
                return f", as if it were {encoding.value}"
    return ""


def _fits(layer: Layer, case: Case, every: EveryByte) -> bool:
    """Whether each byte lies where it would if the layer were this one."""
    other = layout(layer, case.spread)
    starts = np.cumsum([0, *map(len, other.pages)])
    held = np.concatenate(other.pages)[every.local + starts[every.rank]]
    return bool((other.canonical[every.canonical] == held).all())


def _judge_normal_form(
    case: Case, mappings: Sequence[PageMapping], every: EveryByte
) -> Iterator[PageFinding]:
    sizes = [mapping.local_page_size_bytes for mapping in mappings]
    starts = np.cumsum([0, *sizes])
    facing = np.empty(int(starts[-1]), dtype=np.int64)
    facing[every.local + starts[every.rank]] = every.canonical
    known: dict[bytes, list[RunRow]] = {}
    for rank, mapping in enumerate(mappings):
        own = facing[starts[rank] : starts[rank + 1]]
        name = own.tobytes()
        if name not in known:
            known[name] = slow_normal_form(own)
        seen = [row_of(run) for run in mapping.runs]
        expected = known[name]
        if seen != expected:
            yield on(
                case,
                "MAP-7",
                f"the runs of rank {rank} are not in normal form",
                expected=f"{len(expected)} runs: {_rows(expected)}",
                seen=f"{len(seen)} runs: {_rows(seen)}",
            )
            return


def _rows(rows: Sequence[Sequence[int]]) -> str:
    shown = ", ".join(f"({', '.join(map(str, row))})" for row in rows[:4])
    return shown + (", ..." if len(rows) > 4 else "")


def _judge_spans(
    case: Case, mappings: Sequence[PageMapping], spans: Spans
) -> Iterator[PageFinding]:
    """Whether whoever copies reads a run as it is meant: in distinct runs, each once."""
    looked_at: set[object] = set()
    for rank, mapping in enumerate(mappings):
        for run in mapping.runs:
            row = row_of(run)
            if row in looked_at:
                continue
            looked_at.add(row)
            expected = [
                (row.left + i * row.left_step, row.right + i * row.right_step, row.size)
                for i in range(row.fragments)
            ]
            try:
                seen = [tuple(span) for span in spans(run)]
            except Exception as error:
                yield on(case, "MAP-1", _raised(error), expected=_rows(expected))
                return
            if seen != expected:
                yield on(
                    case,
                    "MAP-1",
                    f"the fragments of a run of rank {rank} are read wrongly: {written(run)}",
                    expected=_rows(expected),
                    seen=_rows(seen),
                )
                return
