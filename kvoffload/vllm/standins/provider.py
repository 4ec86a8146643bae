"""What a trial needs of some vLLM, whichever answers for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from kvoffload.keys import OffloadKey
from kvoffload.vllm.standins.asked import AskedBook
from kvoffload.vllm.standins.classes import Classes
from kvoffload.vllm.versions import VLLMVersion


@runtime_checkable
class _Places(Protocol):
    def set_offload_key_position(self, key: OffloadKey, end_token: int) -> None: ...


class VLLMProvider(ABC):
    """One vLLM, under whose names a policy can be imported from `install` to `uninstall`.

    Used as a context manager it is installed inside.
    """

    def __init__(self, version: VLLMVersion) -> None:
        self.version = version
        self._book = AskedBook(version)

    @abstractmethod
    def install(self) -> Self:
        """From now on `import vllm` is answered.

        Raises VLLMLoadedError if other modules of the name are loaded.
        """

    @abstractmethod
    def uninstall(self) -> None:
        """Undo `install`; what was imported stays usable to those who hold it."""

    def __enter__(self) -> Self:
        return self.install()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.uninstall()

    @property
    def asked(self) -> tuple[str, ...]:
        """The modules that were imported and the names that were read of them, in order."""
        return tuple(self._book.asked)

    @property
    def absent(self) -> tuple[str, ...]:
        """What was asked for, and is not in this vLLM: Python's own error was raised."""
        return tuple(self._book.absent)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """What was asked for, and this vLLM has or may have, but not what answers for it."""
        return tuple(self._book.unanswered)

    @property
    @abstractmethod
    def patched(self) -> tuple[str, ...]:
        """The names of vLLM's modules and classes, and the entries of their tables, that were
        set, replaced or deleted since."""

    @property
    @abstractmethod
    def classes(self) -> Classes:
        """The classes that policies are made of and given."""

    @property
    def chunk_status(self) -> type:
        """The class of status objects; built with the slot."""
        return self.classes.status

    @property
    def base_policy(self) -> type:
        """CachePolicy."""
        return self.classes.policy

    def make_context(
        self,
        req_id: str,
        kv_transfer_params: Mapping[str, object] | None = None,
        positions: Mapping[OffloadKey, int] | None = None,
        kv_hints: object = None,
    ) -> object:
        """A request context with as much of this as contexts of this vLLM carry; None where it has
        no contexts. `kv_transfer_params` and `kv_hints` arrive as they are."""
        made = self.classes.context
        if made is None:
            return None
        carried: dict[str, object] = {
            "req_id": req_id,
            "kv_transfer_params": kv_transfer_params,
            "kv_hints": kv_hints,
        }
        context: object = made(
            **{name: value for name, value in carried.items() if name in self.version.context}
        )
        for key, end in (positions or {}).items():
            self.set_position(context, key, end)
        return context

    def set_position(self, context: object, key: OffloadKey, end_token: int) -> None:
        """Say where a key of the request ends, if contexts of this vLLM know that."""
        if isinstance(context, _Places):
            context.set_offload_key_position(key, end_token)

    def make_hints(self, actions: Mapping[str, Mapping[str, object]]) -> object:
        """What `kv_hints` is in a request with these actions (payloads by type); None where there
        are no such hints."""
        action, envelope = self.classes.hint_action, self.classes.hints_envelope
        if action is None or envelope is None:
            return None
        made: list[object] = [
            action(f"a{index}", kind, "1", dict(payload))
            for index, (kind, payload) in enumerate(actions.items())
        ]
        return envelope("1", "m0", made)
