"""What of an invariant's own code has to run before its promise counts as kept."""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from stateful_models.invariants import Invariant, PolicyBooks
from stateful_models.operations import Evict, HostEvent, Reset
from stateful_models.programs import keys
from stateful_models.steps import Step, Victim, Victims
from stateful_models.trial.judgings import Judgings

HEAD = """\
from stateful_models.invariants import Finding, Invariant
from stateful_models.operations import Evict, HostEvent, Reset
from stateful_models.steps import Victims

class Mine(Invariant):
    clauses = ("OWN-1",)
    seen = ()

"""
"""What the methods of a class are written under: theirs begin in line 10."""

A, B = keys("a b")
EVICTED = Step(1, Evict(1, frozenset()), Victims((Victim(A, 0, own=True),)), None)
REFUSED = Step(2, Evict(1, frozenset()), None, None)
RESET = Step(3, Reset(), None, None)

Undecided = Callable[..., str]


@pytest.fixture
def undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Undecided]:
    """What is said of a class `Mine` with this body that has judged these steps."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def undecided(body: str, *steps: Step, module: str = "") -> str:
        source = HEAD + "".join(f"    {line}\n" for line in dedent(body).splitlines())
        (tmp_path / "mine.py").write_text(source + dedent(module))
        cls: type[Invariant[PolicyBooks]] = import_module("mine").Mine
        judgings = Judgings([cls])
        invariant, books = cls(), PolicyBooks()
        try:
            for step in steps:
                with judgings:
                    assert list(invariant.judge(step, books)) == []
            return judgings.undecided(cls)
        finally:
            judgings.close()

    yield undecided
    sys.modules.pop("mine", None)


LINES = """
def judge(self, step, books):
    if isinstance(step.operation, HostEvent):
        name = step.operation.name
        if name == "close":
            yield Finding("OWN-1", name)
"""
LAST_PART = """
def judge(self, step, books):
    if isinstance(step.operation, HostEvent) and (
        step.operation.values or step.operation.name == "close"
    ):
        yield Finding("OWN-1", "closed")
"""
EITHER = """
def judge(self, step, books):
    if not (isinstance(step.operation, Reset) or len(books.slots) > 9):
        yield Finding("OWN-1", "neither")
"""
GUARDS = """
def judge(self, step, books):
    match step.operation:
        case HostEvent("close") if step.error is not None:
            yield Finding("OWN-1", "it raised")
        case Evict(count) if isinstance(step.result, Victims):
            if len(step.result.keys) != count:
                text = ", ".join(map(str, step.result.keys))
                yield Finding("OWN-1", text)
        case _:
            pass
"""
HELPERS = """
def judge(self, step, books):
    if not isinstance(step.operation, Evict | HostEvent):
        return
    if isinstance(step.operation, HostEvent):
        yield from self.closed(step)
    elif self.bad(step):
        yield self.finding(step)

def closed(self, step):
    if step.error:
        yield self.finding(step)

def bad(self, step):
    return step.error is not None

def finding(self, step):
    told = str(step)
    return Finding("OWN-1", told)
"""
EARLY = """
def judge(self, step, books):
    if isinstance(step.operation, HostEvent):
        if step.operation.name == "open":
            return
        yield Finding("OWN-1", "closed")
"""
LISTS = """
def judge(self, step, books):
    found, ok = [], True
    for key in books.slots:
        if key == b"no key":
            ok = False
    if not ok:
        found.append(Finding("OWN-1", "lost"))
    return found + [Finding("OWN-1", "never") for key in books.slots if key is None]
"""
STATE = """
def judge(self, step, books):
    if isinstance(step.operation, Reset):
        self.seen = ()
    if isinstance(step.operation, HostEvent):
        self.seen = (*self.seen, step.operation.name)
    if len(self.seen) > 9:
        yield Finding("OWN-1", "too many")
"""
SAFE = """
def judge(self, step, books):
    try:
        found = len(books.slots)
    except KeyError:
        found = 0
        self.seen = ()
    while True:
        break
    raise_it = found is None
    if raise_it:
        self.seen = ()
        raise ValueError
    return iter(())
"""


@pytest.mark.parametrize(
    ("body", "steps", "told"),
    [
        (LINES, [EVICTED], "mine.py, lines 12-13 never ran"),
        (LINES, [Step(1, HostEvent("open"), None, None)], ""),
        (
            LAST_PART,
            [EVICTED],
            'mine.py, line 12: `step.operation.values or step.operation.name == "close"` was '
            "never evaluated (what stands before it was never true)",
        ),
        (LAST_PART, [Step(1, HostEvent("open"), None, None)], ""),
        (
            EITHER,
            [RESET],
            "mine.py, line 11: `len(books.slots) > 9` was never evaluated (what stands before it "
            "was always true)",
        ),
        (
            GUARDS,
            [REFUSED],
            "mine.py, line 15 never ran, line 12: `step.error is not None` was never evaluated "
            "(its case never matched)",
        ),
        (GUARDS, [EVICTED, Step(1, HostEvent("close"), None, None)], ""),
        (HELPERS, [RESET], "mine.py, lines 13-15 never ran"),
        (HELPERS, [EVICTED], "mine.py, line 14 never ran"),
        (HELPERS, [EVICTED, Step(1, HostEvent("close"), None, None)], ""),
        (EARLY, [EVICTED], "mine.py, line 12 never ran"),
        (EARLY, [Step(1, HostEvent("open"), None, None)], ""),
        (LISTS, [EVICTED], "mine.py, line 13 never ran"),
        (STATE, [RESET], "mine.py, line 14 never ran"),
        (SAFE, [RESET], ""),
        (LINES, [], ""),
    ],
)
def test_what_decides_has_to_run(
    undecided: Undecided, body: str, steps: Sequence[Step], told: str
) -> None:
    assert undecided(body, *steps) == told


def test_what_it_inherits_and_what_it_names_of_its_module_is_its_own(undecided: Undecided) -> None:
    body = """
    def judge(self, step, books):
        if helps(step):
            yield Finding("OWN-1", "helped")
    """
    helper = """
    class Policy:
        def asks(self, step):
            if isinstance(step.operation, HostEvent):
                return step.operation.name
            return None

    def helps(step):
        if Policy().asks(step):
            return step.operation.name == "close"
        return False

    def unnamed():
        return 1
    """
    assert undecided(body, RESET, module=helper) == "mine.py, line 22 never ran"


def test_of_code_without_a_source_nothing_is_said() -> None:
    names: dict[str, object] = {}
    exec(HEAD + STATE.replace("\n", "\n    "), names)
    cls = names["Mine"]
    assert isinstance(cls, type)
    judgings = Judgings([cls, int])
    with judgings:
        assert list(cls().judge(RESET, PolicyBooks())) == []
    assert judgings.undecided(cls) == judgings.undecided(int) == ""
    judgings.close()
