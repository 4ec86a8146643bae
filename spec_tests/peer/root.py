"""Where the vLLM is that kvoffload is held against."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from kvoffload.errors import NoVLLMError
from kvoffload.vllm.control_plane import ControlPlane, load_control_plane

VARIABLE: Final = "KVOFFLOAD_PEER_ROOT"


def peer() -> ControlPlane:
    """The control plane in the folder that the environment names.

    Raises NoVLLMError if it names none, or one that holds no vLLM.
    """
    root = os.environ.get(VARIABLE)
    if not root:
        raise NoVLLMError(f"{VARIABLE} does not name the folder that holds vllm")
    return load_control_plane(Path(root))
