"""Every exception that kvoffload raises, in one place.

All of them derive from `KVOffloadError`, so a host can tell "the offloading tier refused this"
from a bug of its own with one `except`. Where Python has a fitting built-in (a bad value is a
`ValueError`, a missing key a `KeyError`), the exception derives from that too. Each is raised
before anything has changed, unless its docstring says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable


class KVOffloadError(Exception):
    """Base of every exception raised by kvoffload. They can be copied and pickled."""

    def __reduce__(self) -> tuple[Callable[..., KVOffloadError], tuple[object, ...]]:
        # The default calls the class with `args`, which is the message alone.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    cls: type[KVOffloadError], args: tuple[object, ...], attributes: dict[str, object]
) -> KVOffloadError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(attributes)
    return error


class InvalidValueError(KVOffloadError, ValueError):
    """A value was built from, or a call was given, an argument outside its domain.

    `field` names the argument and `value` is what was given.
    """

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} must be {expected}, got {value!r}")
        self.field = field
        self.value = value


class InvalidKeyError(KVOffloadError, ValueError):
    """Something passed as an offload key is not one (KEY-2): not bytes, or shorter than 5."""

    def __init__(self, key: object, reason: str) -> None:
        super().__init__(f"{key!r} is not an offload key: {reason}")
        self.key = key


class ChunkNotFoundError(KVOffloadError, KeyError):
    """A call needs a resident chunk and the key has none (LOAD-1, LOAD-4)."""

    def __init__(self, call: str, key: bytes) -> None:
        super().__init__(f"{call}: {key!r} is not resident")
        self.key = key

    def __str__(self) -> str:
        # KeyError shows the repr of its argument; a sentence should be shown as it is.
        return Exception.__str__(self)


class ChunkNotReadyError(KVOffloadError):
    """A load was asked for a chunk whose store has not completed yet (LOAD-1)."""

    def __init__(self, call: str, key: bytes) -> None:
        super().__init__(f"{call}: {key!r} is pending, its store has not completed")
        self.key = key


class NotPinnedError(KVOffloadError):
    """`complete_load` would release more pins than a chunk has (LOAD-4)."""

    def __init__(self, call: str, key: bytes, held: int, released: int) -> None:
        super().__init__(f"{call}: {key!r} has {held} pin(s), the call would release {released}")
        self.key = key
        self.held = held
        self.released = released


class UnknownTicketError(KVOffloadError, ValueError):
    """A completion carries a ticket that this manager never gave out (DONE-4)."""

    def __init__(self, call: str, ticket: object) -> None:
        super().__init__(f"{call}: ticket {ticket!r} was never given out by this manager")
        self.ticket = ticket


class RequestFinishedError(KVOffloadError):
    """A finished request would see another key (FIN-2)."""

    def __init__(self, call: str, request_id: str, key: bytes) -> None:
        super().__init__(f"{call}: request {request_id!r} has finished, it cannot see {key!r}")
        self.request_id = request_id
        self.key = key


class PolicyContractError(KVOffloadError):
    """A cache policy broke its contract; the manager's books are as before the call (STORE-10).

    Until `reset_cache`, the manager then answers look-ups, completions, statistics and events
    only. `policy` is the class name, `call` the hook, `clause` the clause that was broken, `what`
    how; an exception out of a hook is the `__cause__`.
    """

    def __init__(self, policy: str, call: str, clause: str, what: str) -> None:
        super().__init__(f"{policy}.{call} broke {clause}: {what}")
        self.policy = policy
        self.call = call
        self.clause = clause
        self.what = what


class UnknownPolicyError(KVOffloadError, ValueError):
    """No cache policy has this name, and no module to look it up in was given."""


class DuplicatePolicyError(KVOffloadError, ValueError):
    """A cache policy of this name is registered already."""


class NotAPolicyError(KVOffloadError, TypeError):
    """What was named as a cache policy lacks parts of the interface; the message lists them."""


class VLLMError(KVOffloadError):
    """What is asked of vLLM's modules cannot be had; each reason has a class of its own."""


class NoVLLMError(VLLMError, ImportError):
    """There is no vLLM, or no offloading in it, where one was looked for."""


class UnknownVLLMError(VLLMError, ValueError):
    """A vLLM of this version, or one that has these names, is not known."""


class VLLMLoadedError(VLLMError):
    """Other modules of the name `vllm` are loaded already, and a process can have only one."""


class NotInStandInsError(VLLMError, ImportError):
    """The stand-ins of a vLLM do not have this name, or have no more than the name.

    `asked` is the full name, with what was done with it, and `vllm` the version.
    """

    def __init__(self, asked: str, vllm: str) -> None:
        super().__init__(f"{asked} is not in the stand-ins of {vllm}")
        self.asked = asked
        self.vllm = vllm


class ModuleNotInStandInsError(NotInStandInsError, ModuleNotFoundError):
    """The stand-ins of a vLLM do not have this module."""


class WorkerUnavailableError(KVOffloadError):
    """There is no worker for the device that was asked for."""


class MappingError(KVOffloadError):
    """A canonical page mapping contradicts its description or itself (MAP clauses)."""


class TilingError(MappingError):
    """The mappings of a layer's workers do not fit together; the message says where and whose.

    `layer` is its name, `clause` what is broken, `ranks` the workers concerned, none where no
    worker has what is missing. `missing` and `doubled` are the first bytes [start, end) that no
    run covers or that two cover: of the worker's page for MAP-2, of the canonical one for MAP-3.
    """

    def __init__(
        self,
        layer: str,
        clause: str,
        ranks: tuple[int, ...],
        what: str,
        *,
        missing: tuple[int, int] | None = None,
        doubled: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(f"{layer}: {what} ({clause})")
        self.layer = layer
        self.clause = clause
        self.ranks = ranks
        self.missing = missing
        self.doubled = doubled


class TransferError(KVOffloadError, ValueError):
    """A transfer cannot be planned; nothing of it has been copied (COPY-2, COPY-3).

    Each reason has a class of its own.
    """


class TransferCountError(TransferError):
    """The two sides of a transfer have different numbers of blocks, or groups (COPY-2)."""


class BlockOutOfRangeError(TransferError):
    """A block or a slot that no tensor has (COPY-3)."""


class DoubledDestinationError(TransferError):
    """A transfer would write the same bytes twice, and which come last nobody could say."""


class PartialChunkError(TransferError):
    """A store covers part of a chunk, and nobody said that the rest holds nothing (COPY-6)."""


class DeviceError(KVOffloadError):
    """A device cannot do what it was asked to, or is not there."""


class DeviceClosedError(DeviceError):
    """Work was enqueued on a device that has been closed."""


class StreamDeadlockError(KVOffloadError):
    """Work is pending and none of it can go on; the message lists who waits for what."""


class HostMemoryError(KVOffloadError, MemoryError):
    """The system does not give as much host memory as was asked for."""


class MemoryClosedError(KVOffloadError):
    """Rows were asked for of host memory that has been closed."""


class RegionError(KVOffloadError):
    """A region of memory shared by the ranks of a host cannot be used; `path` is its file.

    Each reason has a class of its own.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class RegionMismatchError(RegionError):
    """Living ranks of the engine share a region of another size, layout or number of ranks."""


class RegionBusyError(RegionError):
    """The rank is attached already, by a process (or a part of one) that lives.

    Either two engines have one id, or an earlier process of the rank has not ended yet.
    """


class NotARegionError(RegionError):
    """The file of that name belongs to another user, or is no region of this version."""


class RegionSpaceError(RegionError):
    """The file system has no room for the region."""


class RegionUnsupportedError(RegionError):
    """This system cannot share memory like that; the message says what it lacks."""


class PageNotReadyError(KVOffloadError):
    """A canonical page was to be loaded that nobody stored, or not all its writers (COPY-6).

    `awaited` are the ranks that have not written yet, None where no store has begun.
    """

    def __init__(self, page_id: int, awaited: tuple[int, ...] | None) -> None:
        why = "was not stored" if awaited is None else f"waits for the bytes of ranks {awaited}"
        super().__init__(f"page {page_id} {why}")
        self.page_id = page_id
        self.awaited = awaited


class InvariantError(KVOffloadError):
    """A structure found itself inconsistent in `check()`; the message shows its internals."""


class TraceError(KVOffloadError):
    """A trace cannot be read; the message names the file and, where there is one, the line."""
