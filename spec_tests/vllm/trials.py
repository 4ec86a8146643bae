"""What tests of policies for vLLM share: the policies, and their trials."""

from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from stateful_models.trial.portability import Portability
from stateful_models.trial.request import Request, Task
from stateful_models.trial.verdicts import Report
from stateful_models.vllm.trial import hold_vllm_trial, portability

POLICIES = Path(__file__).parent / "policies"


@frozen
class Case:
    """A policy of the fixtures and what is to be said of it.

    `tried_as` is the version that it is recognised as; `works` are all in which it does. `convicts`
    and `reported` are the clauses that it breaks and that follow from nothing else.
    """

    target: str
    tried_as: str
    works: str
    convicts: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    driver: str | None = None
    environment: Mapping[str, str] = field(factory=dict)

    def __str__(self) -> str:
        return self.target.rpartition(":")[2]

    @property
    def request(self) -> Request:
        """The shortest trial."""
        return request_for(
            str(POLICIES / self.target),
            driver=None if self.driver is None else str(POLICIES / self.driver),
            environment=self.environment,
            # Processes with other hash seeds take as long as the trial.
            without=() if "POL-5" in self.reported else ("POL-5",),
        )


def request_for(
    target: str,
    *,
    driver: str | None = None,
    environment: Mapping[str, str] | None = None,
    vllm: str | None = None,
    only: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
) -> Request:
    """What is asked of a target that is written for vLLM."""
    return Request(
        task=Task.POLICY,
        target=target,
        driver=driver,
        level="smoke",
        unhurried=True,
        only=only,
        without=without,
        environment=environment or {},
        vllm=vllm,
    )


def tried(case: Case) -> Report:
    """The report on it."""
    return hold_vllm_trial(case.request)


def rows_of(target: str, driver: str | None = None) -> dict[str, Portability]:
    """What a policy of the fixtures is in each version."""
    request = request_for(
        str(POLICIES / target), driver=None if driver is None else str(POLICIES / driver)
    )
    return {row.version: row for row in portability(request)}
