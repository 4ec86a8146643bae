"""An offloading specification: one configuration, and the manager and worker made from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvoffload.config import OffloadingConfig
from kvoffload.errors import InvalidValueError
from kvoffload.events import OffloadingKVEventsConfig
from kvoffload.manager import OffloadingManager
from kvoffload.metrics import OffloadingMetricMetadata
from kvoffload.worker import OffloadingWorker

if TYPE_CHECKING:
    from kvoffload.canonical.pages import CanonicalKVCaches


class OffloadingSpec(ABC):
    """What a connector builds once in the scheduler and once in each worker (SPECS-2).

    Options common to all specifications, read from `config.extra_config`:
    `offload_prompt_only` (default True) leaves out blocks made while decoding, which many
    chat templates drop before the next turn; `self_describing_kv_events` (default False) asks
    for events that carry hashes and tokens. Raises InvalidValueError for an option of a wrong
    type: the text "false" is not False.
    """

    @classmethod
    def build_metric_definitions(
        cls, extra_config: Mapping[str, object]
    ) -> dict[str, OffloadingMetricMetadata]:
        """The metrics that the manager of this specification reports, by name."""
        return {}

    def __init__(self, config: OffloadingConfig) -> None:
        if not isinstance(config, OffloadingConfig):
            raise InvalidValueError("config", config, "an OffloadingConfig")
        self.config: OffloadingConfig = config
        self.extra_config: Mapping[str, object] = config.extra_config
        self.replicated_layout: bool = False
        self.kv_events_config: OffloadingKVEventsConfig = OffloadingKVEventsConfig(
            enable_kv_cache_events=config.enable_kv_cache_events,
            self_describing_kv_events=flag_option(
                config.extra_config, "self_describing_kv_events", default=False
            ),
        )
        self.offload_prompt_only: bool = flag_option(
            config.extra_config, "offload_prompt_only", default=True
        )
        self.tokens_per_block: tuple[int, ...] = tuple(g.tokens_per_block for g in config.groups)
        self.tokens_per_hash: int = config.cache.tokens_per_hash
        self.blocks_per_chunk: int = config.cache.blocks_per_chunk

    @abstractmethod
    def get_manager(self) -> OffloadingManager:
        """The scheduler's manager: built on the first call, the same object ever after."""

    @abstractmethod
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The worker for these caches: built on the first call, the same object ever after."""


def flag_option(options: Mapping[str, object], name: str, *, default: bool) -> bool:
    """A boolean option: true or false, or 1 or 0. Raises InvalidValueError for anything else."""
    value = options.get(name, default)
    if value is True or value is False:
        return value
    if type(value) is int and value in (0, 1):
        return value == 1
    raise InvalidValueError(name, value, "true or false")


def int_option(options: Mapping[str, object], name: str, *, default: int, minimum: int) -> int:
    """An integer option. Raises InvalidValueError for anything else or below `minimum`."""
    value = options.get(name, default)
    if type(value) is int and value >= minimum:
        return value
    raise InvalidValueError(name, value, f"an int >= {minimum}")


def text_option(options: Mapping[str, object], name: str, *, default: str | None) -> str | None:
    """A text option, None when absent and without default. Raises InvalidValueError."""
    value = options.get(name, default)
    if value is None or isinstance(value, str):
        return value
    raise InvalidValueError(name, value, "a text")
