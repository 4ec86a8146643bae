"""What hosts of another make hand to a policy, and what becomes of one of theirs."""

from collections.abc import Iterable

import pytest
from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext, TierFilter
from stateful_models import operations as op
from stateful_models.drivers import Driver
from stateful_models.engines.churn import Held, Passed
from stateful_models.gallery.broken_policies.base import Plain
from stateful_models.host_types import HostTypes
from stateful_models.hosts import VLLM_021, VLLM_030, VLLM_032, VLLM_033, HostProtocol
from stateful_models.policy_subject import PolicySubject
from stateful_models.programs import Program, keys
from stateful_models.steps import Found
from stateful_models.trial.consequences import consequence

A, B = keys("a b")
STORES = Program(
    1,
    (
        op.NewRequest("r1", {"gap": 1}),
        op.PrepareStore("r1", (A,)),
        op.CompleteStore("r1", (A,)),
        op.PrepareLoad("r1", (A,)),
        op.CompleteLoad("r1", (A,)),
        op.FinishRequest("r1"),
        op.Reset(),
        op.PrepareStore("r2", (B,)),
    ),
)


class Block(ChunkStatus):
    def __init__(self, block_id: int) -> None:
        super().__init__(-1)
        self.block_id = block_id


class Context(ReqContext):
    ends: int = 0


class Theirs(HostTypes):
    chunk = Block
    slot = "block_id"
    context = Context
    insert_takes_context = False
    touch_takes_context = False

    @override
    def announce(
        self, context: ReqContext, hints: dict[str, object] | None, tiers: TierFilter
    ) -> None:
        context.kv_transfer_params = {"sent": hints}

    @override
    def set_position(self, context: ReqContext, key: OffloadKey, end: int) -> None:
        if isinstance(context, Context):
            context.ends += end


class Noting(Plain):
    """Notes what it is called by, and raises in what is forbidden."""

    forbidden: frozenset[str] = frozenset()

    def __init__(self, cache_capacity: int) -> None:
        super().__init__(cache_capacity)
        self.given: list[object] = []

    def note(self, name: str, *given: object) -> None:
        self.given += given
        if name in self.forbidden:
            raise LookupError(name)

    @override
    def insert(
        self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext | None = None
    ) -> None:
        self.note("insert", *filter(None, [req_context]))
        self.chunks[key] = chunk

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        self.note("touch", *filter(None, [req_context]))

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.note("on_store_miss", req_context)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        self.note("on_request_access", req_context)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self.note("mark_evictable")

    @override
    def clear(self) -> None:
        self.note("clear")
        super().clear()


def driver_of(forbidden: str, host: HostProtocol) -> Driver[CachePolicy]:
    policy = type("Forbidden", (Noting,), {"forbidden": frozenset({forbidden})})
    driver: Driver[CachePolicy] = Driver(policy)
    driver.host = host
    return driver


def test_what_is_handed_is_of_the_types_of_the_driver() -> None:
    driver: Driver[Noting] = Driver(Noting)
    driver.types = Theirs()
    subject = PolicySubject(driver.build(1), driver)
    for operation in (
        op.NewRequest("r1", {"gap": 1}),
        op.SetPositions("r1", ((A, 16), (B, 32))),
        op.StoreMiss("r1", (A,)),
        op.TouchKeys("r1", (A,)),
        op.Insert(A, 7, "r1"),
    ):
        assert subject.perform(operation).error is None
    # Neither `touch` nor `insert` is given one, though both would take it.
    (context,) = subject.policy.given
    assert isinstance(context, Context)
    assert (context.kv_transfer_params, context.ends) == ({"sent": {"gap": 1}}, 48)
    chunk = subject.chunks[A]
    assert isinstance(chunk, Block)
    assert subject.perform(op.Get(A)).result == Found(7, own=True)
    chunk.ref_cnt = 0
    result = subject.perform(op.Evict(1, frozenset())).result
    assert str(result) == "evicted [a/0]"


def test_growth_knows_chunks_and_contexts_of_any_host() -> None:
    passed = Passed(Theirs())
    request = passed.request("r1")
    assert passed.held_by([Context(request), Block(1)]) == Held(0, 1, 1, 0, 3)
    # Those of another host are objects as any.
    assert passed.held_by([ChunkStatus(1)]).chunks == 0


@pytest.mark.parametrize(
    ("hook", "host", "called"),
    [
        ("on_store_miss", VLLM_033, True),
        ("on_store_miss", VLLM_032, True),
        ("on_store_miss", VLLM_030, False),
        ("on_request_access", VLLM_033, True),
        ("on_request_access", VLLM_032, False),
        ("touch", VLLM_033, False),
        ("touch", VLLM_030, True),
        ("mark_evictable", VLLM_030, True),
        ("mark_evictable", VLLM_021, False),
        ("clear", VLLM_030, True),
        ("clear", VLLM_021, False),
    ],
)
def test_what_becomes_of_an_engine_is_by_the_calls_of_its_host(
    hook: str, host: HostProtocol, called: bool
) -> None:
    told = consequence(driver_of(hook, host), STORES)
    assert (f"LookupError comes out of {hook}" in told) is called
