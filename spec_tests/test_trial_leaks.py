"""State outside an object: whatever its class changes there is named, and nothing else."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.trial.leaks import OutsideState

LEAKY = """
import itertools
import os
import random
from array import array
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import leaky_beside
from kvoffload.policies.lru import LRUCachePolicy

registry = {}
order = OrderedDict(a=1, b=2)
recent = deque([1], maxlen=4)
names = {"a", "b"}
counts = Counter()
by_default = defaultdict(list)
buffer = bytearray(4)
table = np.zeros(3)
numbers = array("l", [1, 2])
nested = [{"a": [1, {2}]}, ()]
ids = itertools.count()
rng = random.Random(0)
total = 0
share = float("nan")
label = "a" * 100
text = "short"
big = 10**5000
loop = []
loop.append(loop)


class Node:
    made = 0

    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("value", "unset")

    def __init__(self, value):
        self.value = value


state = Node(Node([1]))
slotted = Slotted(1)
foreign = LRUCachePolicy(cache_capacity=1)


class Hostile:
    '''Raises whatever is asked of it.'''

    def __getattribute__(self, name):
        raise RuntimeError(name)

    __len__ = __iter__ = __eq__ = __hash__ = __repr__ = __bool__ = None


class HostileDict(dict):
    def items(self):
        raise RuntimeError

    __len__ = __iter__ = __eq__ = __repr__ = items


class HostileKey:
    def __hash__(self):
        if hostile_keys:
            raise RuntimeError
        return 1


hostile_keys = []
hostile = Hostile()
hostile_dict = HostileDict(a=1)
hostile_order = OrderedDict({HostileKey(): 1})
hostile_keys.append(1)


class Base:
    shared = []


class FIFO(Base):
    seen = set()
    limit = 3

    def __init__(self, history={}, *, queue=[], size=4):
        self.history, self.queue = history, queue

    def remember(self):
        return None

    remember.calls = []

    @classmethod
    def count(cls, table={}):
        table[len(table)] = 1


def make(log=[]):
    log.append(1)
    return FIFO()
"""
BESIDE = "shelf = []\n"

CHANGES = [
    (
        "registry.update(dict.fromkeys(range(12)))",
        "module attribute `registry` grew from 0 to 12 entries",
    ),
    ("order.update(a=3)", "module attribute `order` changed"),
    ('order.move_to_end("a")', "module attribute `order` changed"),
    ("recent.clear()", "module attribute `recent` shrank from 1 to 0 entries"),
    ("recent.append(0)", "module attribute `recent` grew from 1 to 2 entries"),
    ('names.remove("a"), names.add("c")', "module attribute `names` changed"),
    ('counts.update("a")', "module attribute `counts` grew from 0 to 1 entry"),
    ("by_default[1]", "module attribute `by_default` grew from 0 to 1 entry"),
    ("buffer[0] = 1", "module attribute `buffer` changed"),
    ("table[0] = 1", "module attribute `table` changed"),
    ("numbers.append(1)", "module attribute `numbers` changed"),
    ('nested[0]["a"][1].add(3)', "module attribute `nested` changed"),
    ("next(ids)", "module attribute `ids` changed"),
    ("rng.random()", "module attribute `rng` changed"),
    ("total = 12", "module attribute `total` changed from 0 to 12"),
    ("total = False", "module attribute `total` changed from 0 to False"),
    ('label = "b" * 100', "module attribute `label` changed"),
    ('text = "other"', "module attribute `text` changed from 'short' to 'other'"),
    ("big = 1", "module attribute `big` changed"),
    ("loop.append(1)", "module attribute `loop` grew from 1 to 2 entries"),
    ("state.value.value.append(2)", "module attribute `state` changed"),
    ("slotted.value = 2", "module attribute `slotted` changed"),
    ("foreign = LRUCachePolicy(cache_capacity=1)", "module attribute `foreign` changed"),
    ('object.__setattr__(hostile, "a", 1)', "module attribute `hostile` changed"),
    ("dict.update(hostile_dict, b=1)", "module attribute `hostile_dict` grew from 1 to 2 entries"),
    ("fresh = 1", "module attribute `fresh` appeared"),
    ("del total", "module attribute `total` is gone"),
    (
        "leaky_beside.shelf.append(1)",
        "module attribute `shelf` of leaky_beside grew from 0 to 1 entry",
    ),
    ("FIFO.seen.add(1)", "class attribute FIFO.seen grew from 0 to 1 entry"),
    ("FIFO.limit = 4", "class attribute FIFO.limit changed from 3 to 4"),
    ("Base.shared.append(1)", "class attribute Base.shared grew from 0 to 1 entry"),
    ("Node.made = 1", "class attribute Node.made changed from 0 to 1"),
    ("FIFO.remember = len", "class attribute FIFO.remember changed"),
    ("FIFO.remember.calls.append(1)", "class attribute FIFO.remember changed"),
    (
        'FIFO().history["a"] = 1',
        "default argument `history` of FIFO.__init__ grew from 0 to 1 entry",
    ),
    ("FIFO().queue.append(1)", "default argument `queue` of FIFO.__init__ grew from 0 to 1 entry"),
    ("FIFO.count()", "default argument `table` of FIFO.count grew from 0 to 1 entry"),
    ("make()", "default argument `log` of make grew from 0 to 1 entry"),
    ('os.environ["LEAKED"] = "1"', "environment variable LEAKED appeared"),
    ('os.environ["SECRET"] = "2"', "environment variable SECRET changed"),
    ('del os.environ["SECRET"]', "environment variable SECRET is gone"),
    ("random.random()", "the state of the module random changed"),
]


@pytest.fixture
def leaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.delenv("LEAKED", raising=False)
    (tmp_path / "leaky.py").write_text(dedent(LEAKY))
    (tmp_path / "leaky_beside.py").write_text(BESIDE)
    yield import_module("leaky")
    for name in ("leaky", "leaky_beside"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[change for change, _ in CHANGES])
def test_each_change_is_named_and_no_other(leaky: ModuleType, change: str, words: str) -> None:
    before = OutsideState(leaky.FIFO)
    exec(change, vars(leaky))
    assert before.changed_since() == [words]
    # Once more: it is told against the beginning.
    assert before.changed_since() == [words]
    assert OutsideState(leaky.FIFO).changed_since() == []


def test_a_factory_is_watched_with_its_module(leaky: ModuleType) -> None:
    before = OutsideState(leaky.make)
    leaky.make()
    leaky.registry["a"] = 1
    assert before.changed_since() == [
        "default argument `log` of make grew from 0 to 1 entry",
        "module attribute `registry` grew from 0 to 1 entry",
    ]


def test_what_is_rebound_to_its_like_has_not_changed(leaky: ModuleType) -> None:
    before = OutsideState(leaky.FIFO)
    exec("registry, state, share = {}, Node(Node([1])), float('nan')", vars(leaky))
    assert before.changed_since() == []


def test_an_object_is_not_mistaken_for_one_in_its_place(leaky: ModuleType) -> None:
    """The address of what is gone is given to the next object of its size."""
    leaky.registry["a"] = object()
    before = OutsideState(leaky.FIFO)
    for _ in range(3):
        leaky.registry["a"] = object()
        assert before.changed_since() == ["module attribute `registry` changed"]


def test_large_state_is_bounded(leaky: ModuleType) -> None:
    leaky.registry.update((number, [number]) for number in range(100_000))
    before = OutsideState(leaky.FIFO)
    leaky.registry[0].append(1)
    assert before.changed_since() == ["module attribute `registry` changed"]
    leaky.registry[0].pop()
    leaky.registry[99_999].append(1)
    assert before.changed_since() == []
    leaky.registry[-1] = 1
    assert before.changed_since() == [
        "module attribute `registry` grew from 100000 to 100001 entries"
    ]


@pytest.mark.parametrize("target", [LRUCachePolicy, ARCCachePolicy])
def test_our_own_policies_leave_nothing_behind(target: type[LRUCachePolicy]) -> None:
    before = OutsideState(target)
    target(cache_capacity=2).clear()
    assert before.changed_since() == []


@pytest.mark.parametrize("target", [dict, len, None, 3])
def test_a_target_that_is_nowhere_has_the_environment(target: object) -> None:
    assert OutsideState(target).changed_since() == []
