"""Broken managers that a trial by name once let go, in a process of their own as anybody's."""

from collections.abc import Iterator
from typing import ClassVar

import pytest
from typing_extensions import override

from kvoffload import CPUOffloadingManager
from stateful_models import judge
from stateful_models import operations as op
from stateful_models.account import Account
from stateful_models.contract import Kind, Profile
from stateful_models.engines.manager_runs import usual_invariants
from stateful_models.engines.manager_small import SmallManagerPrograms
from stateful_models.engines.managers import ManagerTrial
from stateful_models.gallery.managers import BREAKS
from stateful_models.gallery.reports import (
    Evt1AnnouncesAtPrepare,
    Evt2RemovalsFirst,
    Evt5SilentReset,
)
from stateful_models.invariants import Finding, Invariant
from stateful_models.judge import Judge
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.programs import keys
from stateful_models.steps import Step
from stateful_models.trial.request import Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import Outcome


@pytest.mark.parametrize(
    ("manager_cls", "profile"),
    [(Evt1AnnouncesAtPrepare, Profile.REFERENCE), (Evt2RemovalsFirst, Profile.VLLM)],
)
def test_a_broken_manager_is_convicted_by_its_name(
    manager_cls: type[CPUOffloadingManager], profile: Profile
) -> None:
    target = f"{manager_cls.__module__}:{manager_cls.__qualname__}"
    clause = BREAKS[manager_cls]
    # What the shortest trial finds, a longer one does.
    request = Request(
        task=Task.MANAGER, target=target, profile=profile, only=(clause,), level="smoke"
    )
    report = hold_trial(request)
    assert report.verdict is Outcome.CONVICTED, report.problem
    assert report.of(clause).convicts


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize(
    ("manager_cls", "kind"), [(Evt2RemovalsFirst, Kind.HOST), (Evt5SilentReset, Kind.REFERENCE)]
)
def test_what_comes_about_rarely_is_among_the_small_programs(
    manager_cls: type[CPUOffloadingManager], kind: Kind, profile: Profile
) -> None:
    driver = ManagerDriver(manager_cls)
    able = driver.capabilities
    trial = ManagerTrial(driver, usual_invariants(able), capabilities=able, profile=profile)
    SmallManagerPrograms().run(trial)
    breach = trial.breaches[BREAKS[manager_cls], kind]
    assert breach.program is not None
    assert len(breach.program) <= 6


class Objects(Invariant[Account]):
    """Has a lot to say about a step."""

    TIMES: ClassVar[int] = 50

    @override
    def judge(self, step: Step, books: Account) -> Iterator[Finding]:
        for number in range(self.TIMES):
            yield Finding("OWN-1", f"objection {number}")


def test_however_much_is_found_a_step_is_put_into_words_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts: list[str] = []

    def counted(text: str) -> str:
        texts.append(text)
        return text

    monkeypatch.setattr(judge, "keys_in_short", counted)
    one = Judge[Account]([Objects()], Account(2), keep_last=3)
    for number in range(3):
        one.judge(Step(number, op.Lookup("r0", keys("a")[0]), None, None))
    violations = one.judge(Step(3, op.Lookup("r0", keys("a")[0]), None, None))
    assert len(violations) == Objects.TIMES
    assert {found.calls for found in violations} == {violations[0].calls}
    assert len(violations[0].calls) == 3
    # The kept calls of each of the steps, and the words of each objection.
    assert len(texts) == 4 * Objects.TIMES + (1 + 2 + 3 + 3)
