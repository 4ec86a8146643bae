"""vLLM's own manager as a target: how it is named, and the driver of what is named so.

`vllm-manager` is that of the installed vLLM, `vllm-manager@DIR` that of the vLLM in a folder, a
checkout or an unpacked wheel. The name is all that a trial, a test and a list of known failures
need to know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, cast

from kvoffload import OffloadingManager
from kvoffload.errors import NoVLLMError, VLLMError
from kvoffload.vllm.control_plane import ControlPlane, load_control_plane
from stateful_models.loading import TargetError, describe
from stateful_models.manager_drivers import ManagerDriver
from stateful_models.vllm.manager import VLLMManager, VLLMManagerDriver

NAME: Final = "vllm-manager"
_AT: Final = f"{NAME}@"


def manager_target(root: Path | None) -> str:
    """The name of vLLM's manager in a folder, or that of the installed vLLM."""
    return NAME if root is None else f"{_AT}{root}"


def is_manager_target(target: str) -> bool:
    """Whether it is the manager of a vLLM that is named."""
    return target == NAME or target.startswith(_AT)


def root_of(target: str) -> Path | None:
    """The folder that a target names, None for the installed vLLM."""
    return Path(target.removeprefix(_AT)) if target.startswith(_AT) else None


def manager_driver(
    target: str, arguments: Mapping[str, object] | None = None
) -> ManagerDriver[OffloadingManager]:
    """The driver of the manager that a target names. Raises TargetError."""
    driver = VLLMManagerDriver(_plane_of(target), arguments)
    # Whoever has it by a name builds and calls whatever manager it is.
    return cast("ManagerDriver[OffloadingManager]", driver)


def manager_maker(target: str) -> Callable[..., VLLMManager]:
    """What builds the manager that a target names, for a driver of an author's own.

    Raises TargetError.
    """
    return partial(VLLMManager, control_plane=_plane_of(target))


def _plane_of(target: str) -> ControlPlane:
    try:
        return load_control_plane(root_of(target))
    except NoVLLMError as error:
        raise TargetError(f"{target}: {error} (--root DIR)") from error
    except VLLMError as error:
        raise TargetError(f"{target}: {error}") from error
    # What is in a folder may be anything, and lack a library.
    except Exception as error:
        raise TargetError(f"{target}: cannot be loaded: {describe(error)}") from error
