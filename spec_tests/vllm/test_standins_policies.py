"""LRU and ARC of the stand-ins, against models that share no code with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.versions import VERSIONS, VLLMVersion
from spec_tests.vllm.older_models import EarlyRefusalModel, WhenIdleModel, WhenTouchedModel
from spec_tests.vllm.reading import dynamic
from spec_tests.vllm.rounds import CAPACITY, Called, Modelled, Rounds
from stateful_models.models.arc import ARCModel
from stateful_models.models.lru import LRUModel
from stateful_models.models.policy import PolicyModel

SEEDS: Final = 40
MOVES: Final = 120

LRU: Final[Mapping[str, type[PolicyModel]]] = {
    "0.19": WhenTouchedModel,
    "0.20": WhenTouchedModel,
    "0.21": WhenTouchedModel,
    "0.23": WhenTouchedModel,
    "0.25": WhenIdleModel,
    "0.26": WhenIdleModel,
    "0.29": WhenIdleModel,
    "0.30": WhenIdleModel,
    "0.32": LRUModel,
    "0.33": LRUModel,
}
NAMES = [version.name for version in VERSIONS]


def played(
    version: VLLMVersion, policy: Callable[[StandIns], type], model: type[PolicyModel]
) -> Counter[str]:
    reach: Counter[str] = Counter()
    vllm = StandIns(version)
    for seed in range(SEEDS):
        sides = (Called(vllm, policy(vllm)), Modelled(vllm, model(CAPACITY)))
        rounds = Rounds(seed, sides, clears="clear" in version.abstract)
        rounds.play(MOVES)
        reach += rounds.reach
    return reach


def reached(reach: Counter[str], version: VLLMVersion) -> bool:
    wanted = ["victims: 1", "victims: 2", "refused", "loads", "failed stores"]
    if "clear" in version.abstract:
        wanted.append("resets")
    return all(reach[what] >= 10 for what in wanted)


@pytest.mark.parametrize("version", VERSIONS, ids=NAMES)
def test_lru_chooses_as_its_version_did(version: VLLMVersion) -> None:
    reach = played(version, lambda vllm: vllm.classes.lru, LRU[version.name])
    assert reached(reach, version), reach


@pytest.mark.parametrize("version", VERSIONS, ids=NAMES)
def test_arc_chooses_as_its_version_did(version: VLLMVersion) -> None:
    model = ARCModel if version.arc_always_finds else EarlyRefusalModel
    reach = played(version, lambda vllm: vllm.classes.arc, model)
    assert reached(reach, version), reach


@pytest.mark.parametrize("version", VERSIONS, ids=NAMES)
def test_arc_keeps_its_lists_as_its_version_did(version: VLLMVersion) -> None:
    vllm = StandIns(version)
    longest = 0
    for seed in range(SEEDS // 4):
        model = ARCModel(CAPACITY) if version.arc_always_finds else EarlyRefusalModel(CAPACITY)
        called = Called(vllm, vllm.classes.arc)
        rounds = Rounds(seed, (called, Modelled(vllm, model)), clears="clear" in version.abstract)
        for _ in range(MOVES):
            rounds.play(1)
            arc = dynamic(called.policy)
            assert [list(part) for part in (arc.t1, arc.t2, arc.b1, arc.b2)] == [
                model.t1,
                model.t2,
                model.b1,
                model.b2,
            ]
            assert arc.target_t1_size == model.target
            longest = max(longest, len(model.b1))
    assert longest == CAPACITY


def test_models_of_two_versions_differ() -> None:
    # Else the comparison would not tell one version's order from another's.
    for name, model in {
        "0.33": WhenTouchedModel,
        "0.30": LRUModel,
        "0.25": WhenTouchedModel,
        "0.23": WhenIdleModel,
    }.items():
        version = next(version for version in VERSIONS if version.name == name)
        with pytest.raises(AssertionError):
            played(version, lambda vllm: vllm.classes.lru, model)
    with pytest.raises(AssertionError):
        played(VERSIONS[0], lambda vllm: vllm.classes.arc, EarlyRefusalModel)
