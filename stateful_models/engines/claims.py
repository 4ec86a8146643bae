"""Laws of names and of capacities, for those who claim them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from random import Random
from typing import ClassVar, TypeVar

from attrs import evolve
from typing_extensions import override

from kvoffload import (
    CachePolicy,
    OffloadKey,
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.capabilities import Capabilities
from stateful_models.contract import Kind
from stateful_models.engines.base import Breach, PolicyTrial
from stateful_models.engines.comparing import (
    Choice,
    ClaimedLaw,
    Comparison,
    choices_of,
    play_all,
)
from stateful_models.engines.drawing import UNIVERSE
from stateful_models.engines.runs import ComparedRun, PolicyRun
from stateful_models.operations import key_text, keys_text
from stateful_models.programs import HostOperation, Program

P = TypeVar("P", bound=CachePolicy)


class Renaming(ClaimedLaw):
    """Renaming keys in the order of their bytes changes no choice but for the names.

    No clause of the contract says so: POL-5 speaks of the same calls, and LRU-1 of ties alone. It
    is what `key_blind` promises, and is told under that name.
    """

    name: ClassVar[str] = "law of renaming"
    clauses: ClassVar[tuple[str, ...]] = ("key blind",)
    clause: ClassVar[str] = "key blind"
    kind: ClassVar[Kind | None] = None
    situation: ClassVar[str] = "eviction of renamed keys"
    promise: ClassVar[str] = "Renaming keys in the order of their bytes changes no choice."
    claim: ClassVar[str] = "key_blind"
    part: ClassVar[str] = "key blind"

    @override
    def claimed(self, capabilities: Capabilities) -> bool:
        return capabilities.key_blind

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        names = _other_names(program.universe)
        if names is None:
            return
        expected = choices_of(play_all(trial.begin(program.capacity), program.operations))
        renamed = program.renamed(names)
        answers = choices_of(play_all(trial.begin(program.capacity), renamed.operations))
        back = {new: old for old, new in names.items()}
        seen = evolve(
            answers,
            made={place: _renamed(choice, back) for place, choice in answers.made.items()},
        )
        if any(seen.made.values()):
            trial.reach.note(self.situation)
            yield Comparison(
                expected,
                seen,
                "under these names",
                "under other names in the same order",
                names={key_text(new): key_text(old) for new, old in back.items()},
            )


def _renamed(choice: Choice, names: dict[OffloadKey, OffloadKey]) -> Choice:
    return None if choice is None else frozenset(names.get(key, key) for key in choice)


def _other_names(universe: Sequence[OffloadKey]) -> dict[OffloadKey, OffloadKey] | None:
    """Names as long as real ones, in the same order and the same groups.

    Hashes that are the same in two groups stay so. None where no such names are to be had.
    """
    hashes = sorted({get_offload_block_hash(key) for key in universe})
    others = {
        block_hash: number.to_bytes(2, "big") + sha256(block_hash).digest()[:30]
        for number, block_hash in enumerate(hashes)
    }
    names = {
        key: make_offload_key(others[get_offload_block_hash(key)], get_offload_group_idx(key))
        for key in sorted(universe)
    }
    renamed = list(names.values())
    return names if renamed == sorted(renamed) else None


class CapacityInclusion(ClaimedLaw):
    """What a cache of least recent use holds, one with a chunk more holds as well (LRU-1).

    After R. Mattson and others, "Evaluation Techniques for Storage Hierarchies", 1970. It holds
    for requests that store a single key without a position and end at once: else what a request
    saw counts as used when it ends, which differs with what was resident.
    """

    name: ClassVar[str] = "law of inclusion"
    clauses: ClassVar[tuple[str, ...]] = ("LRU-1",)
    clause: ClassVar[str] = "LRU-1"
    kind: ClassVar[Kind | None] = Kind.CLAIM
    situation: ClassVar[str] = "eviction beside a larger cache"
    claim: ClassVar[str] = "lru"
    part: ClassVar[str] = "LRU-1"

    @override
    def claimed(self, capabilities: Capabilities) -> bool:
        return capabilities.lru

    @override
    def programs(self, trial: PolicyTrial[P]) -> list[Program]:
        drawn: list[Program] = []
        for number in range(trial.level.laws):
            chance = Random(f"{trial.seed} {self.name} {number}")
            capacity = chance.randint(1, 6)
            universe = UNIVERSE[: capacity + chance.choice((2, 3, 5))]
            length = chance.randint(capacity, trial.level.length)
            drawn.append(_single_uses(capacity, chance.choices(universe, k=length)))
        return drawn

    @override
    def comparisons(self, trial: PolicyTrial[P], program: Program) -> Iterator[Comparison]:
        return iter(())

    @override
    def broken_by(self, trial: PolicyTrial[P], program: Program, times: int = 2) -> Breach | None:
        offers = [one.keys for one in program.operations if isinstance(one, op.PrepareStore)]
        # Any part of such a program is made one again.
        program = _single_uses(program.capacity, [keys[0] for keys in offers if len(keys) == 1])
        breach = self._broken_by(trial, program)
        again = (self._broken_by(trial, program) for _ in range(1, times))
        return breach if breach is not None and all(one == breach for one in again) else None

    def _broken_by(self, trial: PolicyTrial[P], program: Program) -> Breach | None:
        small, one = _held(trial, program)
        large, other = _held(trial, evolve(program, capacity=program.capacity + 1))
        if any(one.victims):
            trial.reach.note(self.situation)
        for place, (fewer, more) in enumerate(zip(small, large, strict=False)):
            if not fewer <= more:
                alone = keys_text(sorted(fewer - more))
                return Breach(
                    self.clause,
                    self.kind,
                    f"after operation {place + 1} a cache of {counted(program.capacity, 'chunk')} "
                    f"holds {alone}, and one of {program.capacity + 1} does not",
                    self.name,
                    program.cut(place + 1),
                    expected=f"{keys_text(sorted(fewer))} among what the larger cache holds",
                    seen=f"the larger cache holds {keys_text(sorted(more))}",
                    runs=(
                        ComparedRun("the smaller cache", one.played[: place + 1]),
                        ComparedRun("the larger cache", other.played[: place + 1]),
                    ),
                )
        return None


def _single_uses(capacity: int, used: Sequence[OffloadKey]) -> Program:
    """A request for each use, which stores the key and ends."""
    operations: list[HostOperation] = []
    for number, key in enumerate(used, 1):
        request = f"r{number}"
        operations += [
            op.PrepareStore(request, (key,)),
            op.CompleteStore(request, (key,)),
            op.FinishRequest(request),
        ]
    return Program(capacity, operations)


def _held(
    trial: PolicyTrial[P], program: Program
) -> tuple[list[frozenset[OffloadKey]], PolicyRun[P]]:
    """What is resident after each operation that went well, and the run."""
    run = trial.begin(program.capacity)
    held: list[frozenset[OffloadKey]] = []
    for operation in program.operations:
        if not run.play(operation):
            break
        held.append(frozenset(run.host.ref_cnt))
    return held, run
