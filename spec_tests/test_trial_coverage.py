"""Which lines of a target ran, and which hints it asked for."""

import copy
import json
import pickle
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import FrameType, ModuleType
from typing import cast

import msgspec
import pytest

from kvoffload.policies.arc import ARCCachePolicy
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.trial.coverage import MethodLines, OwnLines
from stateful_models.trial.hint_names import HintNames, RecordingHints
from stateful_models.trial.tracing import NoToolIDError

Load = Callable[..., ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Write modules and import the last of them."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    names: list[str] = []

    def load(**sources: str) -> ModuleType:
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(dedent(source))
            names.append(name)
        return import_module(names[-1])

    yield load
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def watched() -> Iterator[Callable[..., OwnLines]]:
    """Makes OwnLines that are closed in the end."""
    made: list[OwnLines] = []

    def watch(*targets: object) -> OwnLines:
        made.append(OwnLines(*targets))
        return made[-1]

    yield watch
    for lines in made:
        lines.close()


Watched = Callable[..., OwnLines]

EVERYTHING = '''
import contextlib


class Everything:
    """Runs all of its lines, whatever they are."""

    def branches(self, value):
        """Says
        nothing."""

        # Nor does this.
        if value:
            found = 1
        elif value is None:
            found = 2
        else:
            found = 3
        return found

    def loops(self, times):
        for i in range(times):
            if i == 1:
                continue
            if i == 2:
                break
        else:
            i = -1
        while True:
            i += 1
            if i > 4:
                break
        return i

    def raises(self, error):
        try:
            if error:
                raise error(
                    "of more than",
                    "one line",
                )
        except KeyError as caught:
            return caught
        except ValueError:
            pass
        else:
            return None
        finally:
            self.ended = True
        with contextlib.suppress(
            KeyError
        ):
            raise KeyError
        return 1

    def matches(self, value):
        match value:
            case [first, *_]:
                return first
            case {"a": a}:
                return a
            case _:
                pass

    def comprehends(self, *, start=0):
        def inner(
            x,
        ):
            """Nested."""
            return x + start

        squares = [
            inner(x) * x
            for x in range(3)
            if x
        ]
        return {
            **{str(x): x for x in squares},
            "sum": sum(
                x
                for x in squares
            ),
        }

    def one_line(self): return 1

    def generates(self):
        received = yield 1
        try:
            yield received
        finally:
            self.closed = True

    @property
    def ready(self):
        return (
            self.one_line()
            and True
        )

    @staticmethod
    def plain():
        assert EMPTY == [], (
            "said by nobody"
        )
        pass
        del EMPTY[:]
        global COUNT
        COUNT = 1

    key = lambda self, x: (
        x
    )


EMPTY = []
COUNT = 0


def run():
    it = Everything()
    for value in (1, None, 0):
        it.branches(value)
    it.loops(1)
    it.loops(3)
    for error in (None, KeyError, ValueError):
        it.raises(error)
    for value in ([1], {"a": 1}, 3):
        it.matches(value)
    it.comprehends()
    it.one_line()
    generator = it.generates()
    next(generator)
    generator.send(1)
    generator.close()
    it.ready
    it.plain()
    it.key(1)
'''


def by_name(lines: OwnLines) -> dict[str, MethodLines]:
    return {method.qualified_name: method for method in lines.report()}


def test_whatever_runs_is_known_to_have_run(load: Load, watched: Watched) -> None:
    """No line counts that cannot run, and each that ran is seen, whatever Python makes of it."""
    module = load(everything=EVERYTHING)
    lines = watched(module.Everything)
    assert all(method.ran == 0 < method.lines for method in lines.report())
    with lines:
        module.run()
    unseen = {name: method.never_ran for name, method in by_name(lines).items() if method.never_ran}
    # What an assertion would say is built only when it fails.
    line = EVERYTHING.splitlines().index('            "said by nobody"') + 1
    assert unseen == {"Everything.plain": (str(line),)}
    assert "run" not in by_name(lines)


POLICY = '''
import helper
from helper import Base, outside

LIMIT = 3


class Policy(Base):
    def evict(self, n):
        """Docstring."""
        if n > LIMIT:
            many = n

            # A comment.
            return assist(many)
        outside()
        return [_Node(i) for i in range(n)]

    @helper.logged
    def touch(self, hints):
        if hints:
            return hints["session_id"]
        return None


class _Node:
    __slots__ = ("i",)

    def __init__(self, i):
        self.i = i

    def unused(self):
        return self.i


class Stranger:
    def method(self):
        return None


def assist(n):
    return n


def stray():
    return Stranger()


def make(capacity):
    if capacity:
        return Policy()
    raise ValueError
'''
HELPER = """
from functools import wraps


def logged(function):
    @wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper


def outside():
    return 1


class Base:
    def clear(self):
        return None
"""


EXCLUDING = """
class Policy:
    def __init__(self, patient=True):
        self.patient = patient

    def evict(self, n):
        if self.patient:  # pragma: no cover
            n += 1
            n += 2
        else:
            n += 3
        for _ in range(0):
            n += 4  # pragma: no cover - never for this argument
            n = (
                n +  # pragma: no cover
                5
            )
        try:
            n += 6
        except KeyError:  # pragma: no cover
            n += 7
        except ValueError:
            n += 8
        else:
            n += 9
        return n

    def never(self):  # pragma: no cover
        def inner():
            return 1
        return inner()

    def not_called(self, n):
        if n:
            return "# pragma: no cover"
        else:  # PRAGMA: NO COVER
            return 2
"""


def test_what_its_author_excludes_need_not_run(load: Load, watched: Watched) -> None:
    module = load(excluding=EXCLUDING)
    policy, lines = module.Policy(patient=False), watched(module.Policy)
    with lines:
        assert policy.evict(0) == 18
    found = by_name(lines)
    # What `except ValueError` does; 'not_called' less its `else`; and of 'never' nothing.
    assert found["Policy.evict"].never_ran == ("22-23",)
    assert found["Policy.not_called"].never_ran == ("34-35",)
    assert found["Policy.never"].never_ran == ()


def test_lines_are_told_method_by_method(load: Load, watched: Watched) -> None:
    module = load(helper=HELPER, policy=POLICY)
    policy, lines = module.Policy(), watched(module.Policy)
    with lines:
        policy.evict(2)
        policy.touch({"session_id": 1})
        policy.clear()
    assert lines.report() == [
        MethodLines("Policy.evict", 9, ran=3, lines=5, never_ran=("12-15",)),
        MethodLines("Policy.touch", 19, ran=2, lines=3, never_ran=("23",)),
        MethodLines("_Node.__init__", 29, ran=1, lines=1, never_ran=()),
        MethodLines("_Node.unused", 32, ran=0, lines=1, never_ran=("33",)),
        MethodLines("assist", 41, ran=0, lines=1, never_ran=("42",)),
        # Of the file beside it that its base is from.
        MethodLines("logged.<locals>.wrapper", 6, ran=1, lines=1, never_ran=()),
        MethodLines("outside", 12, ran=1, lines=1, never_ran=()),
        MethodLines("Base.clear", 17, ran=1, lines=1, never_ran=()),
    ]
    assert [method.file for method in lines.report()] == [""] * 5 + ["helper.py"] * 3
    with lines:
        policy.evict(5)
    assert by_name(lines)["Policy.evict"].never_ran == ()
    assert by_name(lines)["assist"].never_ran == ()


def test_what_an_author_inherits_from_elsewhere_is_own(load: Load, watched: Watched) -> None:
    module = load(
        slru="""
        class SLRU:
            def evict(self, n):
                return [n]

            def touch(self, keys):
                if not keys:
                    return
                self.order(keys)

            def order(self, keys):
                return None
        """,
        broken="""
        from slru import SLRU


        class Broken(SLRU):
            def order(self, keys):
                return keys

            def evict(self, n):
                return super().evict(n)
        """,
    )
    lines = watched(module.Broken)
    with lines:
        module.Broken().evict(2)
        module.Broken().touch([1])
    found = by_name(lines)
    assert found["SLRU.evict"].never_ran == ()
    assert (found["SLRU.touch"].never_ran, found["SLRU.touch"].file) == (("8",), "slru.py")
    # Nothing can run it: another stands before it.
    assert "SLRU.order" not in found
    assert found["Broken.order"].ran == 1


def test_a_factory_is_a_target_with_what_it_makes(load: Load, watched: Watched) -> None:
    module = load(helper=HELPER, policy=POLICY)
    lines = watched(module.make)
    with lines:
        module.make(1)
    found = by_name(lines)
    # What raises does not count.
    assert (found["make"].ran, found["make"].never_ran) == (2, ())
    assert {"Policy.evict", "assist"} < found.keys()
    assert "stray" not in found


def test_what_runs_outside_of_the_block_does_not_count(load: Load, watched: Watched) -> None:
    module = load(helper=HELPER, policy=POLICY)
    lines = watched(module.Policy)
    module.Policy().evict(2)
    with lines:
        pass
    module.Policy().evict(2)
    assert by_name(lines)["Policy.evict"].ran == 0
    with lines:
        module.Policy().evict(2)
    assert by_name(lines)["Policy.evict"].ran == 3


def test_an_exception_leaves_nothing_watching(load: Load, watched: Watched) -> None:
    module = load(helper=HELPER, policy=POLICY)
    lines = watched(module.make)
    before = sys.gettrace()
    with pytest.raises(ValueError), lines:  # noqa: PT011 - it has no words
        module.make(0)
    assert sys.gettrace() is before
    assert by_name(lines)["make"].never_ran == ("51",)


INDIRECT = """
class Table:
    def look(self):
        return 1


table = Table()


def make_rule():
    def rule(self):
        return 2
    return rule


class Policy:
    rule = make_rule()

    def get(self):
        return table.look()

    def more(self):
        return make_rule()
"""


def test_what_is_used_through_an_object_or_a_closure_is_own(load: Load, watched: Watched) -> None:
    module = load(indirect=INDIRECT)
    lines = watched(module.Policy)
    with lines:
        module.Policy().rule()
        module.Policy().get()
    found = [(method.qualified_name, method.never_ran) for method in lines.report()]
    assert found == [
        ("Table.look", ()),
        ("make_rule", ("11", "13")),
        ("Policy.get", ()),
        ("Policy.more", ("23",)),
    ]


def test_a_target_without_python_code_has_no_lines(watched: Watched) -> None:
    assert watched(dict).report() == []
    assert watched(len, None, 3).report() == []


def test_a_class_of_no_file_is_told_from_its_code(watched: Watched) -> None:
    module = ModuleType("nowhere")
    exec(compile("class Policy:\n def get(self):\n  return 1", "nowhere.py", "exec"), vars(module))
    lines = watched(module.Policy)
    with lines:
        module.Policy().get()
    assert lines.report() == [MethodLines("Policy.get", 2, 1, 1, ())]


def test_our_own_policies_can_be_watched(watched: Watched) -> None:
    lines = watched(LRUCachePolicy, ARCCachePolicy)
    with lines:
        LRUCachePolicy(cache_capacity=2).clear()
    found = by_name(lines)
    assert found["LRUCachePolicy.clear"].never_ran == ()
    assert found["ARCCachePolicy.clear"].ran == 0


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="traces nothing from Python 3.12 on")
def test_another_tracer_is_put_back(load: Load, watched: Watched) -> None:
    module = load(helper=HELPER, policy=POLICY)
    before = sys.gettrace()

    def trace(frame: FrameType, event: str, argument: object) -> None:
        return None

    sys.settrace(trace)
    try:
        with watched(module.Policy):
            pass
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


if sys.version_info >= (3, 12):

    def test_a_watch_that_is_closed_leaves_its_id(load: Load) -> None:
        module = load(helper=HELPER, policy=POLICY)
        free = [tool for tool in range(6) if sys.monitoring.get_tool(tool) is None]
        made = [OwnLines(module.Policy) for _ in range(len(free) + 1)]
        try:
            for lines in made[:-1]:
                with lines:
                    module.Policy().evict(2)
            with pytest.raises(NoToolIDError), made[-1]:
                pass
        finally:
            for lines in made:
                lines.close()
        assert free == [tool for tool in range(6) if sys.monitoring.get_tool(tool) is None]
        assert by_name(made[0]) == by_name(made[-2])


def recorded(hints: dict[str, object]) -> tuple[HintNames, dict[str, object]]:
    names = HintNames()
    return names, names.record(hints)


def ask_for_x(hints: dict[str, object], how: str) -> None:
    match how:
        case "get":
            hints.get("x")
        case "in":
            assert "x" not in hints
        case "pop":
            hints.pop("x", None)
        case "setdefault":
            hints.setdefault("x", 1)
        case "index":
            with pytest.raises(KeyError, match="'x'"):
                hints["x"]
        case "match":
            match hints:
                case {"x": _}:
                    pytest.fail("it is not there")
                case _:
                    pass
        case _:
            hints.copy().get("x")


@pytest.mark.parametrize("how", ["get", "in", "pop", "setdefault", "index", "match", "copy"])
def test_names_that_are_asked_for_are_told(how: str) -> None:
    names, hints = recorded({"session_id": 1, "ttl": 2})
    assert hints.get("session_id") == 1
    ask_for_x(hints, how)
    assert names.asked["session_id"] == 1
    assert names.never_given == ("x",)
    assert not names.asked_for_all


def test_a_name_that_some_hints_had_was_given() -> None:
    names = HintNames()
    for hints in ({"a": 1}, {"b": 1}, {}):
        told = names.record(cast("dict[str, object]", hints))
        assert [told.get(name) for name in "abc"].count(1) == len(hints)
    assert names.asked == {"a": 3, "b": 3, "c": 3}
    assert names.never_given == ("c",)


def test_names_within_a_name_are_told_with_it() -> None:
    names, hints = recorded({"routing": {"session": {"id": 1}}})
    match hints:
        case {"routing": {"session": {"id": 1}}}:
            pass
        case _:
            pytest.fail("not as it was")
    inner = hints["routing"]
    assert isinstance(inner, dict)
    assert cast("dict[str, object]", inner).get("tier") is None
    assert names.never_given == ("routing.tier",)
    assert {"routing", "routing.session", "routing.session.id"} < names.asked.keys()


ALL: list[Callable[[dict[str, object]], object]] = [
    list,
    dict,
    lambda hints: {**hints},
    lambda hints: hints.items(),
    lambda hints: hints.keys(),
    lambda hints: hints.values(),
    lambda hints: list(reversed(hints)),
    lambda hints: hints.popitem(),
    json.dumps,
    msgspec.json.encode,
]


@pytest.mark.parametrize("ask", ALL)
def test_who_takes_all_names_is_told_to_take_all(
    ask: Callable[[dict[str, object]], object],
) -> None:
    plain: dict[str, object] = {"a": 1, "b": [2]}
    names, hints = recorded(dict(plain))
    found = ask(hints)
    assert list(cast("list[object]", found)) == list(cast("list[object]", ask(plain)))
    # A C library need not ask a dict anything.
    assert names.asked_for_all or ask is msgspec.json.encode


def test_hints_are_the_dict_that_they_were() -> None:
    plain: dict[str, object] = {"a": 1, "b": {"c": [1, {"d": 2}]}}
    names, hints = recorded(plain)
    assert hints == plain
    assert plain == hints
    assert repr(hints) == repr(plain)
    assert isinstance(hints, dict)
    assert len(hints) == 2
    assert bool(recorded({})[1]) is False
    assert json.dumps(hints) == json.dumps(plain)
    restored: object = pickle.loads(pickle.dumps(hints))
    assert type(restored) is dict
    assert restored == plain
    assert hints | {"e": 1} == plain | {"e": 1}
    for copied in (copy.copy(hints), copy.deepcopy(hints), hints.copy()):
        assert copied == plain
        copied["z"] = copied.get("asked of a copy")
        assert "z" not in plain
        assert "z" not in dict(hints)
    assert copy.deepcopy(hints)["b"] is not hints["b"]
    assert copy.copy(hints)["b"] is hints["b"]
    assert "asked of a copy" in names.asked
    hints["b"] = 2
    del hints["a"]
    assert plain["a"] == 1
    assert hints.setdefault("a", 5) == 5
    assert hints.pop("a") == 5
    with pytest.raises(KeyError):
        hints.pop("a")
    assert RecordingHints({"a": 1}).get("a") == 1


def test_errors_are_those_of_a_dict() -> None:
    _, hints = recorded({"a": 1})
    odd = cast("str", [])
    asks: list[Callable[[str], object]] = [
        lambda key: hints.get(key),
        lambda key: hints.pop(key),
        lambda key: hints.setdefault(key, 1),
        lambda key: key in hints,
        lambda key: hints[key],
    ]
    for ask in asks:
        with pytest.raises(TypeError, match="unhashable"):
            ask(odd)


@pytest.mark.parametrize("hints", [None, [1], "text", 3.0, ("a", 1)])
def test_what_is_no_dict_stays_what_it_is(hints: object) -> None:
    assert HintNames().record(hints) is hints


def test_names_that_are_no_text_are_left_alone() -> None:
    odd = cast("dict[str, object]", {1: {"a": 2}})
    names, hints = recorded(odd)
    assert hints == odd
    assert hints.get(cast("str", 1)) == {"a": 2}
    assert names.never_given == ()


def test_lines_that_raise_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "strict.py"
    file.write_text(
        "def strict(number):\n"
        "    if number < 0:\n"
        "        raise ValueError(\n"
        "            number\n"
        "        )\n"
        "    return number\n"
    )
    names: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    strict = names["strict"]
    assert callable(strict)
    lines = OwnLines(strict)
    with lines:
        strict(1)
    (method,) = lines.report()
    assert (method.ran, method.lines, method.never_ran) == (2, 2, ())
