"""Transfers: what tells a worker which blocks to move, and what it reports (SPECS-1)."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from attrs import field, frozen

from kvoffload.errors import InvalidValueError
from kvoffload.keys import OffloadKey
from kvoffload.validation import instance, optional_instance, require_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    BlockIDs: TypeAlias = "NDArray[np.int32]"

INT32_MAX = 2**31 - 1


class LoadStoreSpec:
    """What a worker needs to find one side of a transfer; each medium has its own subclass."""


class BlockIDsLoadStoreSpec(LoadStoreSpec, ABC):
    """Blocks addressed by number.

    `block_ids`: shape (n,), int32, read-only, one number a block, in transfer order (SPECS-1).
    Raises InvalidValueError for a number that is negative, above 2**31 - 1, or no integer.
    """

    def __init__(self, block_ids: Sequence[int] | BlockIDs) -> None:
        self._block_ids: BlockIDs | list[int] = _int32_array("block_ids", block_ids)

    @property
    def block_ids(self) -> BlockIDs:
        # The array is made where it is first looked at, which is hardly ever the scheduler.
        ids = self._block_ids
        if isinstance(ids, list):
            ids = self._block_ids = _int32_array("block_ids", ids)
        return ids

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        # An array that was pickled or copied has forgotten that it is read-only.
        if not isinstance(self._block_ids, list):
            self._block_ids.setflags(write=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(map(int, self._block_ids))})"


class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Blocks in GPU memory, group after group (SPECS-1).

    `group_sizes[g]` blocks belong to group g, so they sum to len(block_ids); None means one
    group. The blocks of a group follow each other in their request, and `block_indices[g]` is
    the index there of the first: a worker whose chunks hold several blocks finds out from it
    how far into its first chunk a group begins. Raises InvalidValueError when the counts
    contradict each other.
    """

    def __init__(
        self,
        block_ids: Sequence[int] | BlockIDs,
        group_sizes: Sequence[int] | None,
        block_indices: Sequence[int],
    ) -> None:
        super().__init__(block_ids)
        count = len(self._block_ids)
        sizes = (count,) if group_sizes is None else tuple(group_sizes)
        indices = tuple(block_indices)
        for size in sizes:
            require_int("group_sizes", size, 0)
        for index in indices:
            require_int("block_indices", index, 0)
        if sum(sizes) != count:
            raise InvalidValueError(
                "group_sizes", list(sizes), f"sizes that sum to the {count} block ids"
            )
        if len(indices) != len(sizes):
            raise InvalidValueError(
                "block_indices", list(indices), f"one index for each of {len(sizes)} group(s)"
            )
        self.group_sizes: Sequence[int] = sizes
        self.block_indices: Sequence[int] = indices

    def __repr__(self) -> str:
        return (
            f"GPULoadStoreSpec({self.block_ids.tolist()}, group_sizes={list(self.group_sizes)}, "
            f"block_indices={list(self.block_indices)})"
        )


@frozen
class PrepareStoreOutput:
    """What `prepare_store` decided.

    `keys_to_store[i]` goes to the place that `store_spec` has at i; `evicted_keys` made room.
    `ticket` names this attempt in its completion (DONE-4); None from managers without tickets.
    """

    keys_to_store: list[OffloadKey]
    store_spec: LoadStoreSpec = field(validator=instance(LoadStoreSpec))
    evicted_keys: list[OffloadKey]
    ticket: int | None = None


def _non_negative_or_none(_: object, attribute: object, value: float | None) -> None:
    if value is not None and not value >= 0:
        raise InvalidValueError(getattr(attribute, "name", "value"), value, "None or >= 0")


@frozen
class TransferResult:
    """A finished job: moved `transfer_size` bytes in `transfer_time` seconds, where known."""

    job_id: int
    success: bool = field(validator=instance(bool))
    transfer_size: int | None = field(
        default=None, validator=[optional_instance(int), _non_negative_or_none]
    )
    transfer_time: float | None = field(
        default=None, validator=[optional_instance((int, float)), _non_negative_or_none]
    )


def _int32_array(name: str, values: Sequence[int] | BlockIDs) -> BlockIDs:
    # numpy costs more to import than all of kvoffload, and only specs need it.
    import numpy as np

    array = np.asarray(values)
    if array.ndim == 1 and array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidValueError(name, values, "a flat sequence of ints")
    if array.size and (int(array.min()) < 0 or int(array.max()) > INT32_MAX):
        raise InvalidValueError(name, values, f"ints in [0, {INT32_MAX}]")
    result = array.astype(np.int32)
    result.setflags(write=False)
    return result
