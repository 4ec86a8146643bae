"""Trials of policies that were written for vLLM: which version they are for, and how they do.

What a policy is in each version is asked first; its trial is held with the stand-ins of the one
that it is recognised as.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from attrs import evolve

from kvoffload.vllm.versions import find_version
from stateful_models.trial.portability import INSTALLED, Portability, recognised
from stateful_models.trial.process import run_child
from stateful_models.trial.request import Request, encode_request
from stateful_models.trial.trials import hold_trial, untried
from stateful_models.trial.verdicts import Report
from stateful_models.vllm.probe import TARGET
from stateful_models.vllm.survey import versions_for

SURVEY: Final = "stateful_models.vllm.survey"
STAGE: Final = "portability"
PATIENCE_S: Final = 600.0


def hold_vllm_trial(
    request: Request,
    on_progress: Callable[[str, float], None] = lambda engine, share: None,
    poll: Callable[[], object] = lambda: None,
) -> Report:
    """Try a policy with the vLLM of the request, by default the version that it is recognised as;
    and tell what it is in every version.

    Raises UnknownVLLMError for a version that is not known.
    """
    wanted = request.vllm
    if wanted is not None and wanted != INSTALLED:
        wanted = find_version(wanted).name
    rows = portability(request, on_progress, poll)
    named = {row.version: row for row in rows}
    chosen = recognised(rows) if wanted is None else named[wanted]
    if chosen is not None and chosen.triable:
        report = hold_trial(evolve(request, vllm=chosen.version), on_progress, poll)
        marked = (evolve(row, tried_as=row is chosen) for row in rows)
        return evolve(report, portability=tuple(marked))
    suspects = rows if chosen is None else [chosen]
    no_target = [each.what for row in suspects for each in row.obstacles if each.kind == TARGET]
    if no_target:
        return untried(request, no_target[0])
    problem = _in_no_version(rows) if chosen is None else _in_this_version(chosen)
    return evolve(untried(request, f"{request.target}: {problem}"), portability=tuple(rows))


def portability(
    request: Request,
    on_progress: Callable[[str, float], None] = lambda engine, share: None,
    poll: Callable[[], object] = lambda: None,
) -> list[Portability]:
    """What the target is in each version, the newest first; before them what is installed, if the
    request is for that."""
    names = versions_for(request)
    rows: dict[str, Portability] = {}
    on_progress(STAGE, 0.0)

    def listen(line: bytes) -> None:
        row = msgspec.json.decode(line, type=Portability)
        rows[row.version] = row
        on_progress(STAGE, len(rows) / len(names))

    run_child(
        SURVEY,
        encode_request(request),
        env=request.environment,
        hash_seed=0,
        timeout_s=PATIENCE_S,
        on_message=listen,
        poll=poll,
    )
    return [rows.get(name, Portability(version=name)) for name in names]


def _in_no_version(rows: Sequence[Portability]) -> str:
    nearest = min(rows, key=lambda row: (not row.imports, not row.builds, len(row.grave)))
    found = "; ".join(each.what for each in nearest.grave)
    return (
        f"it can be called in no version of vLLM from {rows[-1].version} to {rows[0].version}; in "
        f"{nearest.version}: {found}"
    )


def _in_this_version(row: Portability) -> str:
    found = "; ".join(each.what for each in row.grave)
    which = "the vLLM that is installed" if row.version == INSTALLED else f"vLLM {row.version}"
    return f"it cannot be called by {which}: {found}"
