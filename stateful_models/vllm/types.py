"""What answers the imports of a policy for vLLM, and what its host hands to it."""

from __future__ import annotations

from typing import cast

from typing_extensions import override

from kvoffload import ChunkStatus, OffloadKey, ReqContext, TierFilter
from kvoffload.vllm.standins import StandIns, VLLMProvider, installed
from kvoffload.vllm.versions import VLLMVersion, find_version
from stateful_models.host_types import HostTypes
from stateful_models.trial.portability import INSTALLED


def answer_imports(name: str) -> VLLMProvider:
    """From now on imports of vllm are answered for the version of this name, or by what is
    installed.

    Raises VLLMError if there is no such version, if none is installed or it cannot be imported, or
    if something else of the name is loaded already.
    """
    provider = installed() if name == INSTALLED else StandIns(find_version(name))
    return provider.install()


class VLLMTypes(HostTypes):
    """The status objects and contexts of one vLLM; a context has what it had there, and no more.

    Where there were no contexts, the driver alone gets some.
    """

    def __init__(self, provider: VLLMProvider) -> None:
        self._provider = provider
        version = provider.version
        # As far as that vLLM has them, chunks and contexts are like ours; where not, it is for the
        # policy to know.
        self.chunk: type[ChunkStatus] = cast("type[ChunkStatus]", provider.chunk_status)
        self.slot: str = version.slot
        if version.context:
            self.context: type[ReqContext] = type(self.make_context(""))
        self.insert_takes_context: bool | None = _takes_context(version, "insert")
        self.touch_takes_context: bool | None = _takes_context(version, "touch")

    @override
    def make_context(self, request: str) -> ReqContext:
        made = self._provider.make_context(request)
        return ReqContext(request) if made is None else cast("ReqContext", made)

    @override
    def announce(
        self, context: ReqContext, hints: dict[str, object] | None, tiers: TierFilter
    ) -> None:
        if hints is not None:
            context.kv_transfer_params = hints
        if "load_tier_filter" in self._provider.version.context:
            context.load_tier_filter = tiers

    @override
    def set_position(self, context: ReqContext, key: OffloadKey, end: int) -> None:
        self._provider.set_position(context, key, end)


def _takes_context(version: VLLMVersion, method: str) -> bool:
    return "req_context" in (version.parameters(method) or ())
