"""What the stand-ins of a version are: its classes, contexts, keys and helpers."""

from __future__ import annotations

import inspect
import logging
import sys
from types import ModuleType

import pytest

from kvoffload import OffloadKey, make_offload_key
from kvoffload.vllm.standins import StandIns
from kvoffload.vllm.versions import NEWEST, VLLMVersion, find_version
from spec_tests.vllm.reading import a_class, dynamic, every_version, module

KEY = make_offload_key(b"hash", 1)
OTHER = make_offload_key(b"hash", 0)


def parameters(function: object) -> tuple[str, ...]:
    assert callable(function)
    return tuple(inspect.signature(function).parameters)[1:]


@every_version
def test_the_base_class_is_that_of_the_version(version: VLLMVersion) -> None:
    with StandIns(version) as vllm:
        base = a_class(version.policy_module, "CachePolicy")
        assert base is vllm.base_policy
    methods = {
        name for name, _ in inspect.getmembers(base, inspect.isfunction) if not name.startswith("_")
    }
    assert methods == {method.name for method in version.methods}
    for method in version.methods:
        assert parameters(getattr(base, method.name)) == method.parameters
    abstract = set(version.abstract) | (set() if version.keeps_capacity else {"__init__"})
    assert inspect.isabstract(base)
    assert dynamic(base).__abstractmethods__ == abstract
    assert (base.__module__, base.__qualname__) == (version.policy_module, "CachePolicy")


@every_version
def test_lru_and_arc_have_the_attributes_of_the_version(version: VLLMVersion) -> None:
    vllm = StandIns(version)
    kept = ("cache_capacity",) if version.keeps_capacity else ()
    for policy, internals in (
        (vllm.classes.lru, version.lru_internals),
        (vllm.classes.arc, version.arc_internals),
    ):
        assert issubclass(policy, vllm.base_policy)
        made = dynamic(policy)(cache_capacity=4)
        assert set(dynamic(vars)(made)) == {*kept, *internals}
        for method in version.methods:
            assert parameters(getattr(policy, method.name)) == method.parameters


@every_version
def test_status_objects_are_those_of_the_version(version: VLLMVersion) -> None:
    with StandIns(version) as vllm:
        assert a_class(version.policy_module, version.status) is vllm.chunk_status
    status = vllm.chunk_status(**{version.slot: 7})
    assert status
    assert (status.ref_cnt, getattr(status, version.slot)) == (-1, 7)
    assert not status.is_ready
    status.ref_cnt = 0
    assert status.is_ready
    other = {"block_id": "chunk_id", "chunk_id": "block_id"}[version.slot]
    assert not hasattr(status, other)
    with pytest.raises(TypeError):
        vllm.chunk_status()


@every_version
def test_contexts_carry_what_those_of_the_version_did(version: VLLMVersion) -> None:
    vllm = StandIns(version)
    hints = vllm.make_hints({"pin": {"seconds": 3}})
    context = vllm.make_context("r", {"session": "s"}, {KEY: 16}, hints)
    if not version.context:
        assert context is None
        return
    assert tuple(inspect.signature(type(context)).parameters) == version.context
    with vllm:
        assert type(context) is a_class(version.base_module, "ReqContext")
    carried = {"req_id": "r", "kv_transfer_params": {"session": "s"}, "kv_hints": hints}
    for name, given in carried.items():
        assert hasattr(context, name) == (name in version.context)
        assert getattr(context, name, given) is given or name != "kv_hints"
    assert (hints is not None) == ("kv_hints" in version.context)
    assert hasattr(context, "get_offload_key_position") == version.positions
    if version.positions:
        vllm.set_position(context, OTHER, 32)
        position = dynamic(context).get_offload_key_position
        assert [position(KEY), position(OTHER), position(OffloadKey(b"third"))] == [16, 32, None]


def test_contexts_keep_state_by_type() -> None:
    vllm = StandIns(find_version("0.30"))
    made = vllm.make_context("r")
    assert type(made) is vllm.classes.context
    context = dynamic(made)
    context.set_state(3)
    context.set_state("word")
    context.set_state(4)
    assert (context.get_state(int), context.get_state(str), context.get_state(bytes)) == (
        4,
        "word",
        None,
    )


def test_hints_are_envelopes() -> None:
    with StandIns(NEWEST) as vllm:
        hints = vllm.make_hints({"pin": {"seconds": 3}, "drop": {}})
        assert isinstance(hints, a_class("vllm.v1.kv_hints", "KvHintsEnvelope"))
        actions: list[object] = dynamic(hints).actions
        assert all(
            isinstance(each, a_class("vllm.v1.kv_hints.protocol", "KvHintAction"))
            for each in actions
        )
        assert [dynamic(each).action_type for each in actions] == ["pin", "drop"]


@every_version
def test_keys_are_made_as_vllm_makes_them(version: VLLMVersion) -> None:
    with StandIns(version):
        if version.variant == 1:
            assert module("vllm.v1.core.kv_cache_utils").BlockHash
            return
        base = module(version.base_module)
        assert base.make_offload_key(b"hash", 1) == KEY
        assert (base.get_offload_block_hash(KEY), base.get_offload_group_idx(KEY)) == (
            b"hash",
            1,
        )


def test_the_factory_finds_policies_as_vllm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIns(find_version("0.27")) as vllm:
        factory = dynamic(vllm.classes.factory)
        find = factory.get_cache_policy_cls
        assert find("lru") is vllm.classes.lru
        assert find("arc", "ignored") is vllm.classes.arc
        home = dynamic(ModuleType("home_of_policies"))
        monkeypatch.setitem(sys.modules, "home_of_policies", home)
        home.Mine = type("Mine", (vllm.base_policy,), {})
        home.Other = object
        home.made = 3
        assert find("Mine", "home_of_policies") is home.Mine
        with pytest.raises(AssertionError, match=r"home_of_policies\.Other is no subclass"):
            find("Other", "home_of_policies")
        with pytest.raises(TypeError):
            find("made", "home_of_policies")
        with pytest.raises(AttributeError):
            find("Lost", "home_of_policies")
        with pytest.raises(ValueError, match="no cache policy 'Mine', there are lru, arc"):
            find("Mine")
        factory.register_cache_policy("mine", "home_of_policies", "Mine")
        assert find("mine") is home.Mine
        with pytest.raises(ValueError, match="'mine' belongs to another"):
            factory.register_cache_policy("mine", "home_of_policies", "Other")
    assert StandIns(find_version("0.26")).classes.factory is None


def test_loggers_log_once_what_is_to_be_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with StandIns(NEWEST), caplog.at_level(logging.INFO, "a.policy"):
        logger = module("vllm.logger").init_logger("a.policy")
        assert isinstance(dynamic(logger), logging.Logger)
        for _ in range(2):
            logger.info_once("held %d", 3)
            logger.warning_once("held %d", 3, scope="global")
            logger.error_once("lost")
            logger.info("plain")
            logger.debug_once("too low")
    assert caplog.messages == ["held 3", "held 3", "lost", "plain", "plain"]
    assert caplog.records[0].filename == "test_standins.py"
    with StandIns(find_version("0.29")):
        older: object = module("vllm.logger").init_logger("an.older.policy")
        assert hasattr(older, "info_once")
        assert not hasattr(older, "error_once")


def test_settings_that_are_not_known_are_no_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIns(NEWEST) as vllm:
        envs = module("vllm.envs")
        assert envs.VLLM_LOGGING_LEVEL == "INFO"
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", "debug")
        assert envs.VLLM_LOGGING_LEVEL == "DEBUG"
        monkeypatch.setenv("VLLM_MY_POLICY", "1")
        with pytest.raises(AttributeError, match=r"'vllm\.envs' has no attribute 'VLLM_MY_POLICY'"):
            _ = envs.VLLM_MY_POLICY
        assert getattr(envs, "VLLM_MY_POLICY", "default") == "default"
        assert vllm.unanswered == ("vllm.envs.VLLM_MY_POLICY",)
        envs.environment_variables["VLLM_MY_POLICY"] = lambda: 5
        assert envs.VLLM_MY_POLICY == 5


def test_arithmetic_of_vllm_utils() -> None:
    with StandIns(NEWEST):
        utils = module("vllm.utils.math_utils")
        pairs = [(a, b) for a in range(-9, 10) for b in (1, 2, 3, 5)]
        assert all(utils.cdiv(a, b) == -(-a // b) for a, b in pairs)
        assert all(utils.round_up(a, b) == -(-a // b) * b for a, b in pairs)
        assert all(utils.round_down(a, b) == a // b * b for a, b in pairs)
        assert [utils.next_power_of_2(n) for n in (-1, 0, 1, 2, 3, 8, 9)] == [1, 1, 1, 2, 4, 8, 16]


def test_the_vocabulary_is_that_of_the_version() -> None:
    names = {}
    for name in ("0.23", "0.29", "0.30"):
        with StandIns(find_version(name)):
            names[name] = [level.name for level in module("vllm.v1.kv_offload.base").OffloadPolicy]
    assert names == {
        "0.23": ["BLOCK_LEVEL", "REQUEST_LEVEL"],
        "0.29": ["BLOCK_LEVEL", "REQUEST_LEVEL"],
        "0.30": ["CHUNK_LEVEL", "REQUEST_LEVEL"],
    }


def test_the_version_says_which_it_is() -> None:
    with StandIns(find_version("0.28")):
        assert module("vllm").__version__ == "0.29.0"
