"""What a policy is in one version of vLLM: what is in its way there, and the edits.

It tries no clause. Whatever answers imports is installed here, and stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import isabstract, signature
from typing import Final

from attrs import evolve

from kvoffload import CachePolicy
from kvoffload.errors import VLLMError
from kvoffload.vllm.standins import VLLMProvider
from kvoffload.vllm.versions import VERSIONS, Loading, VLLMVersion
from stateful_models import operations as op
from stateful_models.drivers import Driver, DriverFailedError, authored
from stateful_models.engines.runs import BUILD_PATIENCE, PolicyRun, Surroundings
from stateful_models.loading import TargetError, find
from stateful_models.programs import HostOperation, keys
from stateful_models.signatures import not_taken
from stateful_models.trial.driver_methods import arguments_of
from stateful_models.trial.hang import DidNotReturn, time_limit
from stateful_models.trial.portability import FALLBACK, REMARK, Obstacle, Portability
from stateful_models.trial.request import Request
from stateful_models.vllm.edits import POLICY, edit_for_call, edit_for_error
from stateful_models.vllm.files import ARC, LRU, AuthorsFiles, Caught, lines_of
from stateful_models.vllm.policies import find_vllm_driver
from stateful_models.vllm.source import PACKAGE
from stateful_models.vllm.types import answer_imports

_BASES: Final = frozenset({POLICY, LRU, ARC})
TARGET: Final = "target"
"""The kind of obstacle that there is no target of this name."""
CAPACITY: Final = 2
PATIENCE_S: Final = 2.0
"""Real seconds for which one call is waited."""
LOADING_PATIENCE_S: Final = 60.0
MARK: Final = "mark_evictable"
_HOOKS: Final = tuple(dict.fromkeys(hook for each in VERSIONS for hook in each.hooks))
_OF_INTERFACES: Final = (AttributeError, ImportError, NameError, TypeError)
"""What is raised where something is not as it is expected; all else may be the policy's fault."""
_TOUCHING: Final = ("on_store_miss", "on_request_finished")
"""Hooks whose defaults touch."""


def probe(request: Request) -> Portability:
    """What the policy is in the version that `request.vllm` names, whose stand-ins stay."""
    name = request.vllm or ""
    try:
        return evolve(_Probe(request, answer_imports(name)).row(), version=name)
    except VLLMError as error:
        return Portability(version=name, obstacles=(Obstacle(kind=TARGET, what=str(error)),))


class _OverError(Exception):
    """Nothing more can be found out."""


class _Probe:
    def __init__(self, request: Request, provider: VLLMProvider) -> None:
        self._request = request
        self._provider = provider
        self._version: VLLMVersion = provider.version
        self._obstacles: list[Obstacle] = []
        self._names = (request.target, request.driver)
        self._files = AuthorsFiles(provider.version, self._names, set(sys.modules))
        self._idle_hooks: frozenset[str] = frozenset()
        self._caught: list[Caught] = []
        self._imports = self._loads = False
        self._subclass: bool | None = None
        self._builds: bool | None = None
        self._fits: bool | None = None
        self._survives: bool | None = None

    def row(self) -> Portability:
        """All that can be found out."""
        with suppress(_OverError):
            self._look()
        return Portability(
            version=self._version.name,
            oldest=self._version.minors[0],
            releases=str(self._version.releases),
            loads=self._loads,
            imports=self._imports,
            subclass=self._subclass,
            builds=self._builds,
            fits=self._fits,
            survives=self._survives,
            obstacles=tuple(sorted(self._obstacles, key=lambda each: not each.grave)),
        )

    def _look(self) -> None:
        target = self._load()
        patched = self._provider.patched
        self._look_at_base(target)
        driver = self._driver()
        self._obstacles += self._files.strange_attributes(target, self._provider.base_policy)
        if patched:
            self._remark(f"when it is imported, it changes {', '.join(patched)}")
        sample = self._build(target, driver)
        self._look_at_methods(sample, driver)
        if self._fits:
            self._play(driver)

    def _load(self) -> object:
        """The target. What keeps its module from being imported is all that there is then."""
        before = set(sys.modules)
        error: BaseException | None = None
        target: object = None
        try:
            with time_limit(LOADING_PATIENCE_S):
                target = find(self._request.target)
        except (TargetError, DidNotReturn) as failed:
            error = failed
        unanswered = self._provider.unanswered
        self._files = AuthorsFiles(self._version, self._names, before)
        if error is None:
            self._imports = True
            self._caught = list(self._files.caught_imports())
            for name in unanswered:
                self._remark(f"{name} is not in the stand-ins")
            return target
        cause = error.__cause__
        if cause is None:
            raise self._over(TARGET, str(error))
        failing = list(self._files.failing_imports())
        self._obstacles += failing
        if not failing:
            edit = edit_for_error(cause, self._version)
            self._in_the_way("import", f"its import raises {self._files.told(cause)}", edit)
        raise _OverError

    def _look_at_base(self, target: object) -> None:
        version, base = self._version, self._provider.base_policy
        self._subclass = isinstance(target, type) and issubclass(target, base)
        checked = version.loading is Loading.MODULE_PATH
        self._loads = self._subclass or not checked
        fell_back = False
        for source, guard, lack in self._caught:
            what = f"your module caught an ImportError at line {guard.line} ({lack.what}) and"
            place = source.place(guard.line)
            if self._subclass or guard.names.isdisjoint(_BASES):
                self._remark(f"{what} went on without", place=place)
            else:
                fell_back = True
                self._in_the_way(FALLBACK, f"{what} fell back to a dummy base", lack.edit, place)
        if fell_back:
            self._loads = False
        if self._subclass or fell_back:
            return
        if not callable(target):
            raise self._over(TARGET, f"{self._request.target}: neither a class nor a factory")
        derive = f"derive from {version.policy_module}.{POLICY}"
        if not isinstance(target, type):
            text = "a factory function, and what vLLM is told is the name of a class"
            self._in_the_way("base", text, "name the class")
        elif checked:
            self._in_the_way("base", f"no subclass of {POLICY}, which its factory asserts", derive)
        else:
            self._remark(f"no subclass of {POLICY}, which nothing asserts there", derive)

    def _driver(self) -> Driver[CachePolicy]:
        try:
            with time_limit(LOADING_PATIENCE_S):
                return find_vllm_driver(self._request, self._provider)
        except (TargetError, DidNotReturn) as error:
            lacking = self._missing_methods()
            if lacking:
                self._loads = False
                for method in lacking:
                    self._in_the_way(
                        "abstract",
                        f"it lacks {method}, which {POLICY} asks for",
                        edit_for_call(method, self._version.parameters(method) or (), self._version)
                        if method != "__init__"
                        else "def __init__(self, cache_capacity)",
                    )
            else:
                self._in_the_way("driver", str(error))
            raise _OverError from error

    def _missing_methods(self) -> list[str]:
        with suppress(TargetError):
            target = find(self._request.target)
            if isinstance(target, type) and isabstract(target):
                return sorted(getattr(target, "__abstractmethods__", ()))
        return []

    def _build(self, target: object, driver: Driver[CachePolicy]) -> CachePolicy:
        if self._request.arguments and self._request.driver is None:
            names = ", ".join(self._request.arguments)
            self._remark(f"vLLM passes cache_capacity alone: {names} can only have the default")
        try:
            with time_limit(BUILD_PATIENCE * PATIENCE_S):
                sample = driver.build(CAPACITY)
        except KeyboardInterrupt:
            raise
        # A constructor may raise anything, and exit.
        except BaseException as error:
            self._builds = self._loads = False
            strange = not_taken(driver.target, self._request.arguments)
            if strange and isinstance(error, TypeError):
                raise self._over(
                    TARGET, f"{self._request.target}: cannot be built: {strange}"
                ) from error
            self._in_the_way(
                "build",
                f"{getattr(target, '__name__', 'it')}(cache_capacity={CAPACITY}) fails: "
                f"{self._files.told(error)}",
                "vLLM passes cache_capacity alone: give all else a default"
                if isinstance(error, TypeError)
                else "",
            )
            raise _OverError from error
        self._builds = True
        return sample

    def _look_at_methods(self, sample: CachePolicy, driver: Driver[CachePolicy]) -> None:
        """Whether its methods take what they are called with, and which are never called."""
        version, kind = self._version, type(sample)
        driven = dict(authored(driver))
        self._fits = True
        for name, parameters, abstract in version.methods:
            method: object = getattr(sample, name, None)
            if not callable(method):
                if abstract:
                    edit = edit_for_call(name, parameters, version)
                    self._does_not_fit(f"it has no {name}", edit)
            elif name not in driven and not _binds(method, len(parameters)):
                self._does_not_fit(
                    f"{name} takes {arguments_of(method)}, and is called with "
                    f"({', '.join(parameters)})",
                    edit_for_call(name, parameters, version)
                    if len(parameters) != 2 or name != "evict"
                    else "call it so in a driver (--driver), if a manager of your own does",
                )
        lineage = [cls for cls in reversed(kind.__mro__) if _is_authors(cls)]
        own = {name: value for cls in lineage for name, value in vars(cls).items()}
        idle = [hook for hook in _HOOKS if hook in own and version.parameters(hook) is None]
        self._idle_hooks = frozenset(idle)
        if idle:
            lines = [lines_of(own[hook]) for hook in idle]
            text = f"never called there, so that nothing of it runs: {', '.join(idle)}"
            self._remark(text, place=", ".join(filter(None, lines)))
        of_vllm = any(cls.__name__ in (LRU, ARC) for cls in kind.__mro__ if not _is_authors(cls))
        left = [hook for hook in _TOUCHING if hook in version.hooks and hook not in own]
        if left and self._subclass and not of_vllm:
            self._remark(f"it has no {' and no '.join(left)}: what {POLICY} does then is touch")

    def _play(self, driver: Driver[CachePolicy]) -> None:
        """A first round of everything."""
        surroundings = Surroundings(patience_s=PATIENCE_S)
        error: BaseException | None = None
        run: PolicyRun[CachePolicy] | None = None
        try:
            run = PolicyRun(driver, CAPACITY, (), surroundings=surroundings)
            for operation in _round():
                if not run.play(operation):
                    break
        except (DriverFailedError, ImportError) as failed:
            error = failed
        self._survives = error is None
        if error is not None:
            self._in_the_way("round", self._files.told(error))
        steps = [] if run is None else [step for played in run.played for step in played.steps]
        refused = any(type(each.operation) is op.Evict and each.result is None for each in steps)
        failing = next((step for step in steps if step.error is not None), None)
        if failing is None or failing.error is None:
            if refused and MARK in self._idle_hooks:
                self._survives = False
                what = f"it evicts nothing where {MARK} is never called"
                self._in_the_way("round", what, "look at ref_cnt when evicting")
            return
        what = f"{failing.operation.verb} raises {self._files.told(failing.error)}"
        if not isinstance(failing.error, _OF_INTERFACES):
            self._remark(f"{what}, which is for the contract")
            return
        self._survives = False
        if not any(each.kind in ("internals", "slot") for each in self._obstacles):
            self._in_the_way("round", what)

    def _does_not_fit(self, what: str, edit: str) -> None:
        self._fits = False
        self._in_the_way("signature", what, edit)

    def _in_the_way(self, kind: str, what: str, edit: str = "", place: str = "") -> None:
        self._obstacles.append(Obstacle(kind=kind, what=what, edit=edit, place=place))

    def _remark(self, what: str, edit: str = "", place: str = "") -> None:
        self._in_the_way(REMARK, what, edit, place)

    def _over(self, kind: str, what: str) -> _OverError:
        self._in_the_way(kind, what)
        return _OverError()


def _round() -> list[HostOperation]:
    """Stores, a load, an eviction, the end of a request, a reset: as gentle as can be, for what is
    not there or goes wrong is for the contract."""
    a, b, c, d = keys("a b c d")
    return [
        op.NewRequest("r1"),
        op.SetPositions("r1", ((a, 16), (b, 32))),
        op.Lookup("r1", a),
        op.PrepareStore("r1", (a, b)),
        op.CompleteStore("r1", (a, b)),
        op.PrepareLoad("r1", (a, b)),
        op.CompleteLoad("r1", (b, a)),
        op.FinishRequest("r1"),
        op.NewRequest("r2"),
        op.PrepareStore("r2", (c,)),
        op.CompleteStore("r2", (c,)),
        op.FinishRequest("r2"),
        op.Reset(),
        op.NewRequest("r3"),
        op.PrepareStore("r3", (d,)),
        op.CompleteStore("r3", (d,)),
        op.FinishRequest("r3"),
    ]


def _is_authors(cls: type) -> bool:
    package = cls.__module__.partition(".")[0]
    return package not in ("abc", "builtins", "kvoffload", "typing", PACKAGE)


def _binds(method: Callable[..., object], arguments: int) -> bool:
    try:
        signature(method).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        # No signature to be had; a call will show it.
        return True
    return True
