"""What has been asked of stand-ins."""

from __future__ import annotations

from kvoffload.errors import ModuleNotInStandInsError, NotInStandInsError
from kvoffload.vllm.versions import VLLMVersion


class AskedBook:
    """What has been asked of the stand-ins, each once, in the order of the first time."""

    def __init__(self, version: VLLMVersion) -> None:
        self.version = version
        self.asked: dict[str, None] = {}
        self.absent: dict[str, None] = {}
        self.unanswered: dict[str, None] = {}

    def missing(self, name: str) -> NotInStandInsError:
        """Take note of a name that is not answered; the error to raise."""
        self.unanswered[name] = None
        return NotInStandInsError(name, str(self.version))

    def missing_module(self, name: str) -> ModuleNotInStandInsError:
        """Take note of a module that is not answered; the error to raise."""
        self.unanswered[name] = None
        return ModuleNotInStandInsError(name, str(self.version))
