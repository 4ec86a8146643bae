"""Mistakes of drivers are told as such, and never convict the policy that they call."""

from pathlib import Path

import pytest
from typing_extensions import override

from kvoffload import ReqContext
from kvoffload.policies.lru import LRUCachePolicy
from spec_tests.tiny_policies import Fifo
from stateful_models.checking import check_policy, keys, op
from stateful_models.drivers import Driver, DriverFailedError
from stateful_models.loading import TargetError
from stateful_models.operations import HostEvent
from stateful_models.trial.driver_methods import check_event, check_methods
from stateful_models.trial.request import Request, Task
from stateful_models.trial.trials import hold_trial
from stateful_models.trial.verdicts import Outcome


class Sessions(Fifo):
    def end(self, name: str) -> None:
        """Nothing comes of it."""


class TooFew(Driver[Fifo]):
    def request_finished(self, policy: Fifo) -> None:  # type: ignore[override]  # the mistake
        raise AssertionError


class TooMany(Driver[Fifo]):
    def build(self, capacity: int, spare: int) -> Fifo:  # type: ignore[override]  # the mistake
        raise AssertionError


class NoMethod(Driver[Fifo]):
    looked_up = None  # type: ignore[assignment]  # the mistake


class Misspelt(Driver[Fifo]):
    def request_finish(self, policy: Fifo, context: ReqContext) -> None:
        raise AssertionError


class WithMethodsOfItsOwn(Driver[Fifo]):
    """Whatever it has beside the hooks, it calls, or nobody does."""

    @override
    def request_started(self, policy: Fifo, context: ReqContext) -> None:
        (lambda: self.before_started())()

    def before_started(self) -> None:
        """Called by what a method defines."""

    def summary(self) -> str:
        return "not called"

    def _looked_upon(self) -> None:
        """Nobody else's affair."""


class Plain(Driver[Fifo]):
    @override
    def request_finished(self, *arguments: object, **named: object) -> None:
        """Takes whatever there is."""


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (TooFew, r"request_finished is called with \(policy, context\), and takes \(policy\)"),
        (TooMany, r"build is called with \(capacity\), and takes \(capacity, spare\)"),
        (NoMethod, "looked_up is no method but None"),
        (Misspelt, "request_finish overrides nothing and is never called; is request_finished"),
    ],
)
def test_methods_that_cannot_be_called_are_refused(cls: type[Driver[Fifo]], message: str) -> None:
    with pytest.raises(TargetError, match=f"mine.py:Mine: {message}"):
        check_methods("mine.py:Mine", cls(Fifo), Driver)


def test_what_is_right_is_let_pass_and_what_nobody_calls_is_told() -> None:
    assert check_methods("mine", Plain(Fifo), Driver) == []
    assert check_methods("mine", WithMethodsOfItsOwn(Fifo), Driver) == [
        "the driver's summary overrides nothing, and nothing calls it"
    ]


def test_the_values_of_an_event_must_be_what_its_method_takes() -> None:
    policy = Sessions(4)
    check_event("driver", "target", policy, HostEvent("end", ("s1",)))
    message = r"driver: host_events calls end of target with \(\), and it takes \(name: str\)"
    with pytest.raises(TargetError, match=message.replace(": str", "")):
        check_event("driver", "target", policy, HostEvent("end"))


(a,) = keys("a")


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (TooFew(Sessions), "request_finished is called with .*, and takes"),
        (Driver[Fifo](Sessions), r"host_events has end\(\): TypeError: .* missing 1 required"),
    ],
)
def test_a_single_program_does_not_blame_the_policy_either(
    driver: Driver[Fifo], message: str
) -> None:
    with pytest.raises(DriverFailedError, match=message):
        check_policy(
            driver,
            1,
            [op.PrepareStore("r", (a,)), op.FinishRequest("r"), HostEvent("end")],
        )


class Raises(LRUCachePolicy):
    def end(self, name: str) -> None:
        len(name, name)  # type: ignore[call-arg]  # a mistake of the policy's own


def test_a_type_error_within_the_policy_is_its_own() -> None:
    with pytest.raises(AssertionError, match=r"POL-7: host_event raised TypeError: len\(\) takes"):
        check_policy(Raises, 1, [HostEvent("end", ("s1",))])


FILE = """
from hypothesis import strategies as st
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.drivers import Driver
from stateful_models.operations import HostEvent

class Sessions(LRUCachePolicy):
    def end(self, name):
        pass

class TooFew(Driver):
    def request_finished(self, policy):
        pass

class NoValues(Driver):
    def host_events(self):
        return st.just(HostEvent("end"))
"""


@pytest.mark.parametrize("name", ["TooFew", "NoValues"])
def test_the_target_of_such_a_driver_is_untried(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    request = Request(task=Task.POLICY, target="mine.py:Sessions", driver=f"mine.py:{name}")
    report = hold_trial(request)
    assert report.verdict is Outcome.UNTRIED
    assert report.problem.startswith(f"mine.py:{name}: ")
