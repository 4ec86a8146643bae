"""The stand-ins of vLLM 0.33 beside the real one: the same classes, signatures and victims."""

from __future__ import annotations

import ctypes
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from kvoffload.vllm.control_plane import ControlPlane
from kvoffload.vllm.standins import InstalledVLLM, StandIns, VLLMProvider, installed
from kvoffload.vllm.standins.classes import Classes
from kvoffload.vllm.versions import VLLMVersion, find_version
from spec_tests.vllm.reading import dynamic
from spec_tests.vllm.rounds import Called, Rounds

SEEDS: Final = 200
MOVES: Final = 150


@pytest.fixture
def real(control_plane: ControlPlane) -> InstalledVLLM:
    """Loaded as it is, it passes for installed."""
    found = installed()
    assert found.base_policy is control_plane.policy_base
    return found


@pytest.fixture
def ours(real: InstalledVLLM) -> StandIns:
    return StandIns(real.version)


def policies(classes: Classes) -> tuple[type, type, type]:
    return classes.policy, classes.lru, classes.arc


def signatures(cls: type) -> dict[str, list[tuple[str, object, object]]]:
    """Parameters by method, kinds and defaults too; all that are vLLM's, private ones included."""
    return {
        name: [
            (each.name, each.kind, each.default)
            for each in inspect.signature(method).parameters.values()
        ]
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith(("__", "_standin_"))
    }


def test_the_loaded_vllm_is_known_by_its_interface(real: InstalledVLLM) -> None:
    assert real.version is find_version("0.33")
    with real:
        assert (real.asked, real.absent, real.unanswered, real.patched) == ((), (), (), ())


def test_classes_are_alike(real: InstalledVLLM, ours: StandIns) -> None:
    for theirs, mine in zip(policies(real.classes), policies(ours.classes), strict=True):
        assert signatures(mine) == signatures(theirs)
        assert dynamic(mine).__abstractmethods__ == dynamic(theirs).__abstractmethods__
        assert (mine.__module__, mine.__qualname__) == (theirs.__module__, theirs.__qualname__)
    built = [list(inspect.signature(vllm.base_policy).parameters) for vllm in (real, ours)]
    assert built == [["cache_capacity"]] * 2


def test_what_is_said_of_the_version_is_so(real: InstalledVLLM) -> None:
    base = dynamic(real.base_policy)
    assert base.__abstractmethods__ == set(real.version.abstract)
    for method in real.version.methods:
        found = tuple(inspect.signature(getattr(base, method.name)).parameters)
        assert found[1:] == method.parameters
    context = real.classes.context
    assert context is not None
    assert tuple(inspect.signature(context).parameters) == real.version.context


def test_status_objects_are_alike(real: InstalledVLLM, ours: StandIns) -> None:
    theirs, mine = (dynamic(vllm.chunk_status)(7) for vllm in (real, ours))
    assert ctypes.sizeof(mine) == ctypes.sizeof(theirs)
    slot = real.version.slot
    assert (mine.ref_cnt, getattr(mine, slot)) == (theirs.ref_cnt, getattr(theirs, slot))
    for count in (-1, 0, 3):
        mine.ref_cnt = theirs.ref_cnt = count
        assert (mine.is_ready, bool(mine)) == (theirs.is_ready, bool(theirs))


def test_contexts_are_alike(real: InstalledVLLM, ours: StandIns) -> None:
    hints = {"pin": {"seconds": 3}}
    theirs, mine = (
        dynamic(vllm.make_context("r", {"a": 1}, {}, vllm.make_hints(hints)))
        for vllm in (real, ours)
    )
    assert attributes(mine) == attributes(theirs)
    fields = ("protocol_version", "message_id")
    assert [getattr(mine.kv_hints, name) for name in fields] == [
        getattr(theirs.kv_hints, name) for name in fields
    ]
    (my_action,), (their_action,) = mine.kv_hints.actions, theirs.kv_hints.actions
    assert my_action.__struct_fields__ == their_action.__struct_fields__
    assert my_action.payload == their_action.payload


def attributes(value: object) -> list[str]:
    return list(value.__dict__)


def by_slot(version: VLLMVersion, table: Mapping[object, object]) -> list[tuple[object, object]]:
    """The entries of a table, status objects as their slots."""
    return [(key, getattr(each, version.slot, each)) for key, each in table.items()]


def shown(version: VLLMVersion, policy: object, internals: tuple[str, ...]) -> dict[str, object]:
    """The attributes of a policy; what has an order that counts, with it."""
    found: dict[str, object] = {}
    for name in internals:
        value = getattr(dynamic(policy), name)
        if name in {"chunks", "_ranks"}:
            found[name] = dict(by_slot(version, value))
        elif name in {"t1", "t2", "b1", "b2"}:
            found[name] = by_slot(version, value)
        else:
            found[name] = sorted(value) if name == "_heap" else value
    return found


CHOICES: Mapping[str, Callable[[VLLMProvider], type]] = {
    "lru": lambda vllm: vllm.classes.lru,
    "arc": lambda vllm: vllm.classes.arc,
}


@pytest.mark.parametrize("name", CHOICES)
def test_victims_and_attributes_are_the_same(
    real: InstalledVLLM, ours: StandIns, name: str
) -> None:
    version = real.version
    internals = {"lru": version.lru_internals, "arc": version.arc_internals}[name]
    reach: Counter[str] = Counter()
    for seed in range(SEEDS):
        sides = [Called(vllm, CHOICES[name](vllm)) for vllm in (real, ours)]
        for side in sides:
            assert set(attributes(side.policy)) == {*internals, "cache_capacity"}
        rounds = Rounds(seed, sides, clears=True)
        for _ in range(MOVES):
            rounds.play(1)
            theirs, mine = (shown(version, side.policy, internals) for side in sides)
            assert mine == theirs
        reach += rounds.reach
    wanted = ("victims: 1", "victims: 2", "refused", "loads", "failed stores", "resets")
    assert all(reach[what] >= 50 for what in wanted), reach
