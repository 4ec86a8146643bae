"""Drivers of policies that were written for vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import ClassVar, TypeVar

from kvoffload import CachePolicy
from kvoffload.vllm.standins import VLLMProvider
from stateful_models.drivers import Driver, authored
from stateful_models.hosts import protocol_of
from stateful_models.loading import TargetError
from stateful_models.trial.arguments import Argument
from stateful_models.trial.named import find_driver
from stateful_models.trial.request import Request, Task
from stateful_models.vllm.types import VLLMTypes, answer_imports

P = TypeVar("P", bound=CachePolicy)


def as_host_of(provider: VLLMProvider, driver: Driver[P]) -> Driver[P]:
    """The driver, which calls its policy as that vLLM does, unless it says another host itself."""
    driver.types = VLLMTypes(provider)
    if all(name != "host" for name, _ in authored(driver)):
        driver.host = protocol_of(provider.version)
    return driver


def find_vllm_driver(request: Request, provider: VLLMProvider) -> Driver[CachePolicy]:
    """The driver of the policy that a request is about, whose imports are answered already.

    Raises TargetError.
    """
    if ":" not in request.target:
        raise TargetError(
            f"{request.target}: a policy that was written for vLLM is named pkg.mod:Class or "
            "file.py:Class"
        )
    return as_host_of(provider, find_driver(request))


def policy_driver(
    target: str,
    version: str,
    *,
    driver: str | None = None,
    arguments: Mapping[str, Argument] | None = None,
) -> Driver[CachePolicy]:
    """The driver of a policy that was written for vLLM, for a test: it is imported here, and what
    it imports of vLLM is answered by the stand-ins of that version, or by vLLM itself if it is
    "installed".

        check_policy(policy_driver("my_policy.py:MyPolicy", "0.30"), 1, [...])

    Targets and drivers are named as for `kvoffload verify`. One version answers at a time: for
    another one the target is imported anew. Raises TargetError, and VLLMError where modules of vLLM
    are loaded that are none of these.
    """
    answers = _Answers.of(version)
    request = Request(
        task=Task.POLICY, target=target, driver=driver, arguments=dict(arguments or {})
    )
    return answers.load(request)


def answer_no_more() -> None:
    """Undo what `policy_driver` did to the imports of this process, for tests that come after."""
    _Answers.none()


class _Answers:
    """What answers the imports of this process, and what was imported with it."""

    _now: ClassVar[_Answers | None] = None

    def __init__(self, version: str) -> None:
        self._version = version
        self._provider = answer_imports(version)
        self._loaded: set[str] = set()

    @classmethod
    def of(cls, version: str) -> _Answers:
        """Those of this version from now on, and none of another."""
        now = cls._now
        if now is None or now._version != version:
            cls.none()
            now = cls._now = cls(version)
        return now

    @classmethod
    def none(cls) -> None:
        """From now on imports are nobody's but Python's."""
        now, cls._now = cls._now, None
        if now is not None:
            now._leave()

    def load(self, request: Request) -> Driver[CachePolicy]:
        """The driver that is asked for. Raises TargetError."""
        before = set(sys.modules)
        try:
            return find_vllm_driver(request, self._provider)
        finally:
            names = (request.target, request.driver)
            new = set(sys.modules) - before
            self._loaded |= {name for name in new if is_beside(sys.modules[name], names)}

    def _leave(self) -> None:
        self._provider.uninstall()
        # With another version they are other modules.
        for name in self._loaded:
            sys.modules.pop(name, None)


def is_beside(module: ModuleType, names: Iterable[str | None]) -> bool:
    """Whether a module is one of those that are named, or of their folders or packages."""
    places = [name.rpartition(":")[0] for name in names if name]
    folders = {Path(place).resolve().parent for place in places if place.endswith(".py")}
    packages = {place.partition(".")[0] for place in places if not place.endswith(".py")}
    file = getattr(module, "__file__", None)
    folder = Path(file).resolve().parent if isinstance(file, str) else None
    return folder in folders or module.__name__.partition(".")[0] in packages
