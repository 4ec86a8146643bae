"""What the tests of the command line share: classes to name, and how results are read."""

import msgspec
import pytest

QUICK = ["--limit", "150"]

Output = pytest.CaptureFixture[str]

TARGETS = '''
"""Policies and managers of somebody else's."""

import os
import signal

from kvoffload import CPUOffloadingManager, LookupResult
from kvoffload.errors import TraceError
from kvoffload.policies.lru import LRUCachePolicy
from stateful_models.capabilities import Capabilities
from stateful_models.gallery.legal_policies.group_evictor import GroupEvictor
from stateful_models.invariants import Finding, Invariant, PolicyBooks
from stateful_models.operations import Evict, NewRequest, PrepareStore
from stateful_models.steps import Stored


class Fine(LRUCachePolicy):
    pass


class Raises(LRUCachePolicy):
    def evict(self, n, protected):
        raise RuntimeError("out of\\nideas")


class Leaves(LRUCachePolicy):
    """Ends the program, and says that all is well."""

    def evict(self, n, protected):
        raise SystemExit(0)


class LeavesEarly(LRUCachePolicy):
    def insert(self, key, chunk, req_context):
        raise SystemExit(0)


class Closes(LRUCachePolicy):
    def evict(self, n, protected):
        raise GeneratorExit


class Base(LRUCachePolicy):
    def evict(self, n, protected):
        raise BaseException("of no kind")


class NeverBuilt(LRUCachePolicy):
    def __init__(self, cache_capacity):
        raise SystemExit(0)


class NeverBuiltManager(CPUOffloadingManager):
    def __init__(self, *args, **kwargs):
        raise SystemExit(0)


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Speechless(CPUOffloadingManager):
    def on_new_request(self, req_context):
        raise Silent


class NoTrace(LRUCachePolicy):
    """Raises what only the trace should."""

    def evict(self, n, protected):
        raise TraceError("of my own")


class Touchy(type(LRUCachePolicy)):
    def __getattr__(cls, name):
        raise RuntimeError(f"no {name}")


class Guarded(LRUCachePolicy, metaclass=Touchy):
    pass


class Talkative(LRUCachePolicy):
    def __init__(self, cache_capacity):
        print("built")
        super().__init__(cache_capacity)

    def evict(self, n, protected):
        print("evicting")
        return super().evict(n, protected)


class Hiding(CPUOffloadingManager):
    """Shows nothing of itself, not even how to complete."""

    @property
    def complete_load(self):
        raise SystemExit(0)


class Moody(LRUCachePolicy):
    """Refuses every other time, and says so."""

    may_refuse = "it is in two minds"
    asked = 0

    def evict(self, n, protected):
        self.asked += 1
        return super().evict(n, protected) if self.asked % 2 else None


class Discreet(GroupEvictor):
    """Gives more victims than it is asked for, and does not say so."""

    capabilities = Capabilities()


class Sullen(Moody):
    """Does the same, and does not say so."""

    may_refuse = None


class Empty(Moody):
    may_refuse = ""


class False_(Moody):
    may_refuse = False


class NoPolicy:
    pass


class Eager(CPUOffloadingManager):
    """Answers pending chunks as ready."""

    def lookup(self, key, req_context):
        found = super().lookup(key, req_context)
        return LookupResult.HIT if found is LookupResult.HIT_PENDING else found


class Hushed(CPUOffloadingManager):
    """Announces no removal."""

    def take_events(self):
        return [event for event in super().take_events() if not event.removed]


class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


class Interrupted(CPUOffloadingManager):
    """Where Python would discard the exception of a Ctrl-C."""

    def on_new_request(self, req_context):
        if req_context.req_id == "request-3":
            Finalised()
        return super().on_new_request(req_context)


class Endless(CPUOffloadingManager):
    """Never comes back; the second Ctrl-C has to be enough."""

    def on_new_request(self, req_context):
        while True:
            os.kill(os.getpid(), signal.SIGINT)


class Exact(CPUOffloadingManager):
    """Changes nothing."""


class Unready(LRUCachePolicy):
    def __init__(self, cache_capacity):
        raise ValueError(f"no {cache_capacity} chunks")


class Unready300(LRUCachePolicy):
    def __init__(self, cache_capacity):
        if cache_capacity == 300:
            raise ValueError("too many")
        super().__init__(cache_capacity)


class Interrupting(LRUCachePolicy):
    def evict(self, n, protected):
        os.kill(os.getpid(), signal.SIGINT)
        return super().evict(n, protected)


class Leaky(LRUCachePolicy):
    def evict(self, n, protected):
        raise RuntimeError(f"{type(self)!r} of {type(self).__module__}")


class ANameThatIsLongerThanWhatATableOfEightyColumnsHasRoomFor(LRUCachePolicy):
    pass


class Unbuildable(CPUOffloadingManager):
    def __init__(self):
        super().__init__(1)


class Emptying(CPUOffloadingManager):
    """Forgets everything before each load."""

    def prepare_load(self, keys, req_context):
        self.reset_cache()
        return super().prepare_load(keys, req_context)


class SmallBatches(Invariant):
    """No offer evicts more than three chunks."""

    clauses = ("OWN-1",)
    concerns = (PrepareStore,)

    def judge(self, step, books):
        if isinstance(step.result, Stored) and len(step.result.evicted) > 3:
            yield Finding("OWN-1", f"{len(step.result.evicted)} at once")


class Unlisted(SmallBatches):
    """Names another clause than it lists."""

    def judge(self, step, books):
        for finding in super().judge(step, books):
            yield Finding("OWN-2", finding.message)


class Fails(SmallBatches):
    def judge(self, step, books):
        return {}[step.operation.keys[0]]


class LeavesJudge(SmallBatches):
    def __init__(self):
        raise SystemExit(0)


class Unruly(SmallBatches):
    def __init__(self):
        raise RuntimeError("no rules")


class NeverAsked(SmallBatches):
    concerns = (Evict,)


class OfPolicies(Invariant[PolicyBooks]):
    """Of its calls a manager gets one too."""

    clauses = ("OWN-1",)
    concerns = (NewRequest, Evict)

    def judge(self, step, books):
        return ()


class OfPoliciesToo(OfPolicies):
    pass


HOLLOW = 3
'''


class Reported(msgspec.Struct):
    """What these tests read of a report."""

    policy: str
    capacity: int
    requests: int | None
    blocks: int
    block_hit_ratio: float
    token_hit_ratio: float | None
    max_block_hit_ratio: float
    evicted: int
    steps: int
    checks: int
    violations: int
    failed_stores: int
    resets: int
    skipped_lines: int
    violated_clauses: list[str]
    error: str | None


def reports(text: str) -> list[Reported]:
    return msgspec.json.decode(text, type=list[Reported])
