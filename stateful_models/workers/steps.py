"""Steps of a trial as values, and how they are drawn, wherever the numbers come from."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, TypeAlias

from attrs import evolve, frozen

from kvoffload.copying.layout import CopyLayout
from kvoffload.copying.places import Side
from stateful_models.models.worker import Place, Transfer, num_slots_needed

Pick: TypeAlias = Callable[[int], int]
"""A number below another, however it is found."""


class Fault(Enum):
    """What the device does to a copy."""

    NONE = "none"
    BROKEN = "goes wrong when it runs"
    REFUSED = "cannot be enqueued"


class Misfit(Enum):
    """What is wrong with a submission that must be refused."""

    TOO_MANY_SLOTS = "a slot more than there are chunks"
    TOO_FEW_SLOTS = "a slot less than there are chunks"
    PART_OF_A_CHUNK = "part of a chunk, and nobody said that the rest holds nothing"
    NO_SUCH_SLOT = "a slot that host memory does not have"
    NO_SUCH_BLOCK = "a block that the GPU does not have"


@frozen
class Kernel:
    """A kernel of the engine's reads and writes rows on the GPU."""

    reads: tuple[Place, ...]
    writes: tuple[Place, ...]

    def __str__(self) -> str:
        parts = [
            f"{verb} {', '.join(f'block {one.row} of tensor {one.tensor}' for one in places)}"
            for verb, places in (("reads", self.reads), ("writes", self.writes))
            if places
        ]
        return f"a kernel {' and '.join(parts) or 'touches nothing'}"


@frozen
class Submit:
    """A job: a store, a load, or an expedited load."""

    is_store: bool
    transfer: Transfer
    expedited: bool = False
    fault: Fault = Fault.NONE
    misfit: Misfit | None = None

    def __str__(self) -> str:
        what = "store" if self.is_store else "expedited load" if self.expedited else "load"
        one = self.transfer
        blocks, slots = f"blocks {list(one.blocks)}", f"slots {list(one.slots)}"
        way = f"{blocks} to {slots}" if self.is_store else f"{slots} to {blocks}"
        details = f", groups of {list(one.sizes)} from {list(one.firsts)} on"
        fault = "" if self.fault is Fault.NONE else f"; the copy {self.fault.value}"
        misfit = "" if self.misfit is None else f"; {self.misfit.value}"
        return f"{what} {way}{details}{fault}{misfit}"


@frozen
class Run:
    """The device goes on, as the picks of this turn say."""

    def __str__(self) -> str:
        return "the device goes on"


@frozen
class WaitFor:
    """The caller waits for jobs, among them perhaps some that nobody knows."""

    jobs: tuple[int, ...]

    def __str__(self) -> str:
        return f"wait for jobs {list(self.jobs)}"


@frozen
class Collect:
    """The caller asks what has finished."""

    def __str__(self) -> str:
        return "get_finished"


@frozen
class Shutdown:
    """The caller shuts the worker down."""

    def __str__(self) -> str:
        return "shutdown"


Step: TypeAlias = Kernel | Submit | Run | WaitFor | Collect | Shutdown


@frozen
class Turn:
    """A step, and who goes next on the device meanwhile, by numbers among those that can."""

    step: Step
    picks: tuple[int, ...] = ()


MOST_BLOCKS: Final = 3
"""Of one group in one transfer."""


def draw_transfer(pick: Pick, layout: CopyLayout, other: Transfer | None = None) -> Transfer:
    """Blocks and slots in any order, each once; groups of any size that begin anywhere.

    None of them is of the `other` transfer.
    """
    factor = layout.blocks_per_chunk
    taken = other or Transfer((), (), (), ())
    num_blocks = min(rows.num_rows for rows in layout.gpu)
    free_blocks = [block for block in range(num_blocks) if block not in taken.blocks]
    free_slots = [slot for slot in range(layout.num_slots) if slot not in taken.slots]
    sizes: list[int] = []
    firsts: list[int] = []
    blocks: list[int] = []
    slots: list[int] = []
    for _ in layout.groups:
        first = pick(2 * factor)
        # One to most, or none.
        size = min((pick(MOST_BLOCKS + 1) + 1) % (MOST_BLOCKS + 1), len(free_blocks))
        while num_slots_needed(factor, size, first) > len(free_slots):
            size -= 1
        sizes.append(size)
        firsts.append(first)
        blocks += [free_blocks.pop(pick(len(free_blocks))) for _ in range(size)]
        slots += [
            free_slots.pop(pick(len(free_slots)))
            for _ in range(num_slots_needed(factor, size, first))
        ]
    return Transfer(tuple(blocks), tuple(sizes), tuple(firsts), tuple(slots))


def draw_submit(
    pick: Pick, layout: CopyLayout, *, is_store: bool, other: Transfer | None = None
) -> Submit:
    """A job that a worker must take; it touches nothing of the `other` transfer."""
    transfer = draw_transfer(pick, layout, other)
    fault = [*Fault, *[Fault.NONE] * 9][-1 - pick(12)]
    return Submit(is_store, transfer, not is_store and bool(pick(2)), fault)


def draw_misfit(pick: Pick, layout: CopyLayout, *, is_store: bool) -> Submit | None:
    """A job that it must refuse; None where the draw gave none."""
    transfer = draw_transfer(pick, layout)
    misfit = list(Misfit)[pick(len(Misfit))]
    spare = [slot for slot in range(layout.num_slots) if slot not in transfer.slots]
    slots, blocks = transfer.slots, transfer.blocks
    if misfit is Misfit.TOO_MANY_SLOTS and spare:
        wrong = evolve(transfer, slots=(*slots, spare[0]))
    elif misfit is Misfit.TOO_FEW_SLOTS and slots:
        wrong = evolve(transfer, slots=slots[:-1])
    elif misfit is Misfit.PART_OF_A_CHUNK and is_store and null_blocks_of(layout, transfer):
        wrong = transfer
    elif misfit is Misfit.NO_SUCH_SLOT and slots:
        wrong = evolve(transfer, slots=(*slots[:-1], layout.num_slots))
    elif misfit is Misfit.NO_SUCH_BLOCK and blocks:
        wrong = evolve(transfer, blocks=(*blocks[:-1], layout.gpu[0].num_rows))
    else:
        return None
    return Submit(is_store, wrong, misfit=misfit)


def null_blocks_of(layout: CopyLayout, transfer: Transfer) -> dict[int, set[int]]:
    """Of each group the logical blocks of its chunks that the transfer does not have."""
    factor = layout.blocks_per_chunk
    found: dict[int, set[int]] = {}
    for group, (size, first) in enumerate(zip(transfer.sizes, transfer.firsts, strict=True)):
        own = set(range(first, first + size))
        chunks = {logical // factor for logical in own}
        missing = {chunk * factor + i for chunk in chunks for i in range(factor)} - own
        if missing:
            found[group] = missing
    return found


def draw_kernel(pick: Pick, layout: CopyLayout) -> Kernel:
    """One or two rows that are written, read, or of each."""

    def places() -> tuple[Place, ...]:
        found = {
            (tensor := pick(len(layout.gpu)), pick(layout.gpu[tensor].num_rows))
            for _ in range(1 + pick(2))
        }
        return tuple(Place(Side.GPU, tensor, row) for tensor, row in sorted(found))

    kind = pick(3)
    return Kernel(places() if kind else (), places() if kind != 1 else ())
