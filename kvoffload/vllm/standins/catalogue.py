"""Which modules vLLM's offloading had, and which classes beside those that the stand-ins have.

Read from the wheels like the versions. What stands here can be imported as in that vLLM; names of
classes give placeholders. Of modules outside offloading those are listed that policies import.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from attrs import frozen


@frozen
class CataloguedModule:
    """A module that there was in the releases from `since` to `until`, to this day if None.

    `classes` are the releases that brought some, and their names.
    """

    name: str
    since: str
    until: str | None = None
    classes: tuple[tuple[str, str], ...] = ()

    def existed(self, minor: str) -> bool:
        """Whether a minor release had it."""
        return has(minor, self.since) and has(self.until or minor, minor)

    def classes_in(self, minor: str) -> Iterator[str]:
        """The names of its classes in a minor release."""
        for since, names in self.classes:
            if has(minor, since):
                yield from names.split()


def has(minor: str, brought: str) -> bool:
    """Whether a minor release has what another one brought: it is that one, or came after it."""
    age, wanted = (tuple(map(int, each.split("."))) for each in (minor, brought))
    return age >= wanted


_FIRST = "0.19"
_ROOT = "vllm.v1.kv_offload"
_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"

MODULES: Final = (
    CataloguedModule("vllm", _FIRST),
    CataloguedModule("vllm.config", _FIRST, None, ((_FIRST, "VllmConfig"),)),
    CataloguedModule("vllm.envs", _FIRST),
    CataloguedModule("vllm.logger", _FIRST),
    CataloguedModule("vllm.utils", _FIRST),
    CataloguedModule("vllm.utils.math_utils", _FIRST),
    CataloguedModule("vllm.v1", _FIRST),
    CataloguedModule("vllm.v1.core", _FIRST),
    CataloguedModule("vllm.v1.core.kv_cache_utils", _FIRST, None, ((_FIRST, "KVCacheBlock"),)),
    CataloguedModule("vllm.v1.kv_cache_interface", _FIRST, None, ((_FIRST, "KVCacheConfig"),)),
    CataloguedModule("vllm.v1.request", _FIRST, None, ((_FIRST, "Request"),)),
    CataloguedModule("vllm.distributed", _FIRST),
    CataloguedModule("vllm.distributed.kv_transfer", _FIRST),
    CataloguedModule("vllm.distributed.kv_transfer.kv_connector", _FIRST),
    CataloguedModule(_CONNECTORS, _FIRST),
    CataloguedModule(f"{_CONNECTORS}.base", _FIRST, None, ((_FIRST, "KVConnectorBase_V1"),)),
    CataloguedModule(f"{_CONNECTORS}.offloading", _FIRST),
    CataloguedModule(
        f"{_CONNECTORS}.offloading.metrics",
        _FIRST,
        None,
        ((_FIRST, "OffloadingConnectorStats"),),
    ),
    CataloguedModule(
        f"{_CONNECTORS}.offloading_connector",
        _FIRST,
        None,
        ((_FIRST, "OffloadingConnector"),),
    ),
    CataloguedModule("vllm.v1.kv_hints", "0.31"),
    CataloguedModule("vllm.v1.kv_hints.protocol", "0.31"),
    CataloguedModule(_ROOT, _FIRST),
    CataloguedModule(
        f"{_ROOT}.abstract",
        _FIRST,
        "0.20",
        ((_FIRST, "LoadStoreSpec PrepareStoreOutput OffloadingEvent OffloadingManager"),),
    ),
    CataloguedModule(
        f"{_ROOT}.base",
        "0.21",
        None,
        (
            (
                "0.21",
                "LoadStoreSpec PrepareStoreOutput OffloadingEvent OffloadingManager "
                "BlockIDsLoadStoreSpec GPULoadStoreSpec CanonicalKVCacheTensor "
                "CanonicalKVCacheRef CanonicalKVCaches OffloadingSpec",
            ),
            ("0.23", "RequestOffloadingContext"),
            (
                "0.24",
                "OffloadingMetricMetadata OffloadingCounterMetadata OffloadingGaugeMetadata "
                "OffloadingHistogramMetadata OffloadingKVEventsConfig",
            ),
            ("0.25", "ScheduleEndContext TransferResult OffloadingWorker"),
            ("0.27", "CopyRun CanonicalPageMapping"),
            ("0.33", "ConfigInfo"),
        ),
    ),
    CataloguedModule(
        f"{_ROOT}.config",
        "0.26",
        None,
        (
            (
                "0.26",
                "OffloadingGroupConfig OffloadingModelConfig OffloadingCacheConfig "
                "OffloadingParallelConfig OffloadingConfig",
            ),
        ),
    ),
    CataloguedModule(f"{_ROOT}.factory", _FIRST, None, ((_FIRST, "OffloadingSpecFactory"),)),
    CataloguedModule(
        f"{_ROOT}.mediums",
        _FIRST,
        "0.20",
        ((_FIRST, "BlockIDsLoadStoreSpec GPULoadStoreSpec CPULoadStoreSpec"),),
    ),
    CataloguedModule(
        f"{_ROOT}.reuse_manager", _FIRST, "0.21", ((_FIRST, "FilterReusedOffloadingManager"),)
    ),
    CataloguedModule(
        f"{_ROOT}.spec",
        _FIRST,
        "0.20",
        ((_FIRST, "CanonicalKVCacheTensor CanonicalKVCacheRef CanonicalKVCaches OffloadingSpec"),),
    ),
    CataloguedModule(f"{_ROOT}.cpu", _FIRST),
    CataloguedModule(
        f"{_ROOT}.cpu.common",
        "0.21",
        None,
        (
            ("0.21", "CPULoadStoreSpec"),
            ("0.24", "CPUOffloadingMetrics"),
            ("0.33", "CPUOffloadingInfo"),
        ),
    ),
    CataloguedModule(f"{_ROOT}.cpu.manager", _FIRST, None, ((_FIRST, "CPUOffloadingManager"),)),
    CataloguedModule(f"{_ROOT}.cpu.spec", _FIRST, None, ((_FIRST, "CPUOffloadingSpec"),)),
    CataloguedModule(f"{_ROOT}.cpu.policies", _FIRST),
    CataloguedModule(f"{_ROOT}.cpu.policies.abstract", _FIRST, "0.20"),
    CataloguedModule(f"{_ROOT}.cpu.policies.base", "0.21"),
    CataloguedModule(f"{_ROOT}.cpu.policies.lru", _FIRST),
    CataloguedModule(f"{_ROOT}.cpu.policies.arc", _FIRST),
    CataloguedModule(f"{_ROOT}.cpu.policies.factory", "0.27"),
)
"""What can be imported."""

UNANSWERED: Final = (
    (f"{_ROOT}.cpu.gpu_worker", "0.21", None),
    (f"{_ROOT}.cpu.host_register", "0.32", None),
    (f"{_ROOT}.cpu.shared_offload_region", "0.20", None),
    (f"{_ROOT}.cpu.swap_blocks_triton", "0.23", None),
    (f"{_ROOT}.file_mapper", "0.22", None),
    (f"{_ROOT}.tiering", "0.22", None),
    (f"{_ROOT}.worker", _FIRST, "0.24"),
)
"""Modules and packages of offloading that there were, and that the stand-ins leave out."""

MANAGER_METHODS: Final = (
    (_FIRST, "lookup prepare_load touch complete_load prepare_store complete_store take_events"),
    ("0.22", "reset_cache"),
    ("0.23", "on_new_request on_request_finished"),
    ("0.24", "get_stats"),
    ("0.32", "get_load_source"),
    ("0.33", "config_info"),
)
"""Those that CPUOffloadingManager had, its base's among them, which policies with a manager of
their own patch."""


def answered(minor: str) -> dict[str, CataloguedModule]:
    """The modules that the stand-ins of a minor release have, by name."""
    return {module.name: module for module in MODULES if module.existed(minor)}


def left_out(minor: str, name: str) -> bool:
    """Whether a minor release had a module of this name that its stand-ins do not have, or may
    have had one: outside offloading not all are known."""
    if not any(_within(name, part) for part in (_ROOT, "vllm.v1.kv_hints")):
        return True
    return any(
        _within(name, part) and CataloguedModule(part, since, until).existed(minor)
        for part, since, until in UNANSWERED
    )


def manager_methods(minor: str) -> Iterator[str]:
    """The methods of CPUOffloadingManager in a minor release."""
    yield from CataloguedModule("", _FIRST, None, MANAGER_METHODS).classes_in(minor)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
