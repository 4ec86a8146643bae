"""Machines as tests: one line each, all rules or some of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from hypothesis import HealthCheck, Phase
from hypothesis import settings as Settings  # noqa: N812 - a class with a small name
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from stateful_models.globs import fitting, is_chosen
from stateful_models.machines.failures import BrokenRunError

_ALWAYS: Final = (Phase.explain,)
_BEFORE_IT_FAILS: Final = (Phase.explain, Phase.shrink)
"""The phases of Hypothesis that are left out."""
_RULE: Final = "hypothesis_stateful_rule"
_FIRST: Final = "hypothesis_stateful_initialize_rule"
"""What Hypothesis marks the functions of rules with, the second for those that begin a run."""


def machine_test(
    machine: type[RuleBasedStateMachine],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    settings: Settings | None = None,
) -> Callable[[], None]:
    """A test that runs a machine, to be assigned to a name that begins with `test_`.

    `only` and `without` choose rules by globs over their names; those that begin a run are always
    there. `settings` are by default those of the active profile of Hypothesis; whatever they say,
    nothing fails for being slow. The first failure ends it. That of a policy is shown by the
    shortest program found for its host, and by nothing else; only what no such program shows is
    made short by Hypothesis. Raises ValueError for a glob that names no rule: what is tried would
    not be what was meant.
    """
    names = rule_names(machine)
    for glob in (*only, *without):
        if not fitting(glob, names):
            raise ValueError(
                f"{machine.__name__} has no rule called {glob!r}; it has {', '.join(names)}"
            )
    unwanted = [name for name in names if not is_chosen(name, only, without)]
    if len(unwanted) == len(names):
        raise ValueError(f"{machine.__name__} is left without a rule")
    # What is None is no rule.
    part = type(machine.__name__, (machine,), dict.fromkeys(unwanted)) if unwanted else machine

    def test() -> None:
        __tracebackhide__ = True
        failure = _failure(part, settings)
        if isinstance(failure, BrokenRunError):
            # The way through Hypothesis and the machine says nothing about the policy.
            raise failure.with_traceback(None) from None
        if failure is not None:
            raise failure

    test.__doc__ = machine.__doc__
    return test


def _failure(machine: type[RuleBasedStateMachine], settings: Settings | None) -> Exception | None:
    """The first failure of a machine, made short; None if there is none."""
    usual: Settings = machine.TestCase.settings if settings is None else settings
    failure: Exception | None = None
    for left_out in (_BEFORE_IT_FAILS, _ALWAYS):
        phases = [phase for phase in usual.phases if phase not in left_out]
        try:
            run_state_machine_as_test(
                machine,
                settings=Settings(
                    usual,
                    phases=phases,
                    report_multiple_bugs=False,
                    # How fast this machine is today says nothing about what is tried.
                    deadline=None,
                    suppress_health_check=[*usual.suppress_health_check, HealthCheck.too_slow],
                ),
            )
        except Exception as error:
            failure = error
        if failure is None or (isinstance(failure, BrokenRunError) and failure.shorten()):
            break
    return failure


def rule_names(machine: type[RuleBasedStateMachine]) -> list[str]:
    """The names of a machine's rules, in alphabetical order; not of those that begin a run."""
    return [name for name in dir(machine) if hasattr(getattr(machine, name, None), _RULE)]


def refuse_lost_rules(machine: type[RuleBasedStateMachine]) -> None:
    """Raise TypeError if a rule of a base is overridden by a method that is none.

    Hypothesis would leave it out without a word, and what it tried would be tried no more.
    """
    for name, own in vars(machine).items():
        if not callable(own) or hasattr(own, _RULE) or hasattr(own, _FIRST):
            continue
        for base in machine.__mro__[1:]:
            overridden = vars(base).get(name)
            if hasattr(overridden, _RULE) or hasattr(overridden, _FIRST):
                raise TypeError(
                    f"{machine.__name__}.{name} overrides the rule {name} of {base.__name__} and "
                    "is none: decorate it with @rule, or choose rules with machine_test(without=)"
                )
