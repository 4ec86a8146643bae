"""Policies for vLLM, sound and broken, with the stand-ins of the version that they are for.

Each broken one is wrong in one way, and no sound one is convicted of anything.
"""

import pytest

from kvoffload import CachePolicy, TierFilter
from kvoffload.policies.lru import LRUCachePolicy
from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.versions import find_version
from spec_tests.lots import by_lot
from spec_tests.vllm.trials import POLICIES, Case, request_for, tried
from stateful_models.drivers import Driver
from stateful_models.hosts import VLLM_021, VLLM_030
from stateful_models.trial.verdicts import Outcome
from stateful_models.vllm.policies import as_host_of
from stateful_models.vllm.trial import hold_vllm_trial

CASES = [
    Case("block_hashes.py:HashLRU", "0.20", "0.19 0.20"),
    Case("block_hashes.py:HashLRUThatForgetsPins", "0.20", "0.19 0.20", ("POL-2",)),
    Case("blocks.py:BlockLFU", "0.25", "0.25"),
    Case("blocks.py:BlockLFUThatSkipsMarks", "0.25", "0.25", ("POL-2",)),
    Case("blocks.py:BlockLFUWithBadTouch", "0.25", "0.25", reported=("POL-4",)),
    Case("contexts.py:GapPolicy", "0.29", "0.26 0.29"),
    Case("contexts.py:TrustingGapPolicy", "0.29", "0.26 0.29", ("POL-7",)),
    Case("contexts.py:StubbornGapPolicy", "0.29", "0.26 0.29", ("POL-3",)),
    Case("request_hooks.py:FinishedFIFO", "0.32", "0.30 0.32"),
    Case("request_hooks.py:FinishedFIFOThatExpectsKeys", "0.32", "0.30 0.32", ("POL-7",)),
    Case("request_hooks.py:FinishedFIFOThatGivesFewer", "0.32", "0.30 0.32", ("POL-2",)),
    Case("accesses.py:SecondChance", "0.33", "0.33"),
    Case("accesses.py:SecondChanceThatNeverForgets", "0.33", "0.33", reported=("POL-4",)),
    Case("accesses.py:SecondChanceThatRemembersResets", "0.33", "0.33", ("POL-6",), ("POL-4",)),
    Case("accesses.py:SecondChanceThatTakesOffers", "0.33", "0.33", ("POL-2",)),
    Case("accesses.py:SecondChanceThatRefusesHalfway", "0.33", "0.33", ("POL-2",)),
    Case("wrapper.py:Watchful", "0.33", "0.33"),
    Case("wrapper.py:WatchfulThatMiscounts", "0.33", "0.33", ("POL-3",)),
    Case("passing_on.py:PassingOn", "0.33", "0.33", driver="passing_on.py:AroundAnother"),
    Case(
        "passing_on.py:PassingOnInPart",
        "0.33",
        "0.33",
        ("POL-7",),
        driver="passing_on.py:AroundAnother",
    ),
    Case("blocks_of_lru.py:NewestStays", "0.29", "0.19 0.20 0.21 0.23 0.25 0.26 0.29"),
    Case("blocks_of_lru.py:IdleIsEnough", "0.29", "0.25 0.26 0.29", ("POL-2",)),
    Case(
        "sessions.py:SessionScores", "0.29", "0.26 0.29", driver="sessions_driver.py:SessionsDriver"
    ),
    Case(
        "sessions.py:SessionScoresWithBadScore",
        "0.29",
        "0.26 0.29",
        ("POL-7",),
        driver="sessions_driver.py:SessionsDriver",
    ),
    Case("hints.py:Retained", "0.33", "0.33", driver="hints.py:RetainingDriver"),
    Case("hints.py:RetainedTooLong", "0.33", "0.33", ("POL-3",), driver="hints.py:RetainingDriver"),
    Case("fallback.py:FallbackLRU", "0.29", "0.26 0.29"),
    Case("fallback_nowhere.py:NowhereFIFO", "0.33", ""),
    Case("duck.py:Duck", "0.26", "0.26"),
    Case("patching.py:PatchedIn", "0.26", "0.19 0.20 0.21 0.23 0.25 0.26"),
    Case("registering.py:Scored", "0.33", "0.33"),
    Case("registering.py:ScoredByAll", "0.33", "0.33", reported=("POL-5",)),
    Case("environment.py:Strict", "0.33", "0.19 0.20 0.21 0.23 0.25 0.26 0.29 0.30 0.32 0.33"),
    Case(
        "environment.py:Strict",
        "0.33",
        "0.19 0.20 0.21 0.23 0.25 0.26 0.29 0.30 0.32 0.33",
        ("POL-2",),
        environment={"STRICT_OFFERS": "0"},
    ),
]


@pytest.mark.parametrize("case", by_lot(CASES, one_of=2), ids=str)
def test_verdicts_are_true(case: Case) -> None:
    report = tried(case)
    assert not report.problem
    broken = [clause for clause in report.clauses if clause.broken and not clause.follows]
    told = [(clause.id, clause.seen) for clause in broken]
    assert {clause.id for clause in broken if clause.convicts} == set(case.convicts), told
    assert {clause.id for clause in broken if not clause.convicts} == set(case.reported), told
    expected = Outcome.CONVICTED if case.convicts else Outcome.CLEAN
    assert report.verdict is expected
    assert report.vllm == case.tried_as
    assert [row.version for row in report.portability if row.tried_as] == [case.tried_as]
    works = [row.version for row in reversed(report.portability) if row.works]
    assert " ".join(works) == case.works
    # What was found can be found again, by a test that needs no vLLM either.
    for clause in broken:
        assert not clause.test or f'"{case.tried_as}"' in clause.test


SCHEDULER = "vllm.v1.core.sched is not in the stand-ins of vLLM 0.33"


@pytest.mark.parametrize("version", [None, "0.33"])
def test_what_is_asked_for_later_and_is_not_there_convicts_nobody(version: str | None) -> None:
    report = hold_vllm_trial(request_for(str(POLICIES / "lazily.py:Lazily"), vllm=version))
    assert report.verdict is Outcome.UNTRIED
    assert report.problem.endswith(SCHEDULER)


def test_what_is_done_without_is_told() -> None:
    # Of these clauses it would be convicted if it were held against it.
    target = str(POLICIES / "lazily.py:LazilyIfThere")
    report = hold_vllm_trial(request_for(target, only=("POL-[27]",)))
    assert report.verdict is Outcome.CLEAN
    assert f"{SCHEDULER}, and the target goes on without" in report.notes


class OfItsOwn(Driver[CachePolicy]):
    host = VLLM_021


def test_a_driver_gets_the_host_and_the_types_of_the_version_unless_it_says_otherwise() -> None:
    provider = StandIns(find_version("0.30"))
    usual = as_host_of(provider, Driver[CachePolicy](LRUCachePolicy))
    assert (usual.host, usual.types.slot) == (VLLM_030, "chunk_id")
    own = as_host_of(provider, OfItsOwn(LRUCachePolicy))
    assert (own.host, own.types.chunk) == (VLLM_021, provider.chunk_status)
    context = usual.types.make_context("r1")
    usual.types.announce(context, {"a": 1}, TierFilter.ALL)
    assert (context.req_id, context.kv_transfer_params) == ("r1", {"a": 1})
