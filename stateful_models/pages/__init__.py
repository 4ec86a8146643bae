"""Putting page mappings on trial: MAP-1 to MAP-8 and ID-1, against an independent oracle.

Any derivation will do, as long as what it answers with has the attributes of `PageMapping`; the
classes of vLLM have them. Ten lines put one's own on trial:

    from stateful_models.pages import PageMapper, check_mapper

    def derive(layer, spread):
        return [my_mapping(layer, tp_size=spread.tp_size, ..., rank=rank)
                for rank in range(spread.num_ranks)]

    def test_my_mappings() -> None:
        mapper = PageMapper(derive=derive, refusals=(ValueError,))
        convictions = [one for one in check_mapper(mapper) if one.convicts()]
        assert not convictions, convictions[0]

A finding has the clause and its sentence, the smallest case that shows it, and which bytes of
which rank were expected and seen. It `convicts` under a profile: what only the reference is held
to, such as the normal form of runs, is reported and convicts nobody else.

Cases are data: `check_mapper(mapper, cases=GRID.cases())` tries every combination that MAP-4 speaks
of, `sample` draws some of them, `drawn_pairs` makes pairs of configurations that must read each
other's pages.
"""

from __future__ import annotations

from stateful_models.models.pages import Spread
from stateful_models.pages.cases import (
    GRID,
    SMALL_GRID,
    Case,
    Grid,
    Pair,
    drawn_pairs,
    sample,
    unusual,
)
from stateful_models.pages.descriptions import judge_bare, judge_recognition
from stateful_models.pages.findings import PageFinding
from stateful_models.pages.judging import judge_case
from stateful_models.pages.mapper import (
    BareAttention,
    DirectCopy,
    DirectRun,
    PageMapper,
    PageMapping,
    Run,
    Span,
    StandInTensor,
)
from stateful_models.pages.moving import judge_pairs
from stateful_models.pages.naming import Persisted, judge_ids, persisted
from stateful_models.pages.trial import CLAUSES_JUDGED, Findings, check_mapper

__all__ = [
    "CLAUSES_JUDGED",
    "GRID",
    "SMALL_GRID",
    "BareAttention",
    "Case",
    "DirectCopy",
    "DirectRun",
    "Findings",
    "Grid",
    "PageFinding",
    "PageMapper",
    "PageMapping",
    "Pair",
    "Persisted",
    "Run",
    "Span",
    "Spread",
    "StandInTensor",
    "check_mapper",
    "drawn_pairs",
    "judge_bare",
    "judge_case",
    "judge_ids",
    "judge_pairs",
    "judge_recognition",
    "persisted",
    "sample",
    "unusual",
]
