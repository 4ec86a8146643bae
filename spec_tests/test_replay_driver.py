"""The driver: what it asks of a manager, in which order, and what it counts."""

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from kvoffload import (
    CPUOffloadingManager,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadKey,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from kvoffload.errors import InvalidValueError
from kvoffload.replay import CostModel, Counts, KeyTable, Replay, TraceRequest
from kvoffload.replay.driver import MAX_LOOKUPS, MAX_OFFERS
from kvoffload.replay.model import PREFILL_BATCH

# A chunk moves in 1 s, a token is computed in 1 s, and a block has 4 tokens: times can be read
# off a request by eye.
SLOW = CostModel(prefill_rate=1, transfer_rate=1, chunk_bytes=1)
BLOCK = 4
KEYS = KeyTable()


class Call(NamedTuple):
    """One line of a diary."""

    name: str
    request: str = ""
    blocks: tuple[int, ...] = ()
    detail: object = None


class Spec(LoadStoreSpec):
    """A spec that says nothing but its ticket."""

    def __init__(self, ticket: int | None) -> None:
        self.ticket = ticket


class Diary(OffloadingManager):
    """Keeps everything, without bound, and writes down what it is asked."""

    def __init__(self, *, tickets: bool = True) -> None:
        self.calls: list[Call] = []
        self.ready: dict[OffloadKey, bool] = {}
        self.refusals = 0
        self.policy = OffloadPolicy.BLOCK_LEVEL
        self._tickets = tickets
        self._issued = 0

    def note(
        self,
        name: str,
        context: ReqContext | None = None,
        keys: Collection[OffloadKey] = (),
        detail: object = None,
    ) -> None:
        blocks = tuple(int.from_bytes(key[:8], "big") for key in keys)
        request = "" if context is None else context.req_id.removeprefix("request-")
        self.calls.append(Call(name, request, blocks, detail))

    def ticket(self) -> int | None:
        self._issued += 1
        return self._issued if self._tickets else None

    @override
    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self.note("new", req_context)
        return RequestOffloadingContext(self.policy)

    @override
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        self.note("lookup", req_context, [key])
        if key not in self.ready:
            return LookupResult.MISS
        return LookupResult.HIT if self.ready[key] else LookupResult.HIT_PENDING

    @override
    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Spec:
        ticket = self.ticket()
        self.note("load", req_context, keys, ticket)
        return Spec(ticket)

    @override
    def complete_load(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        *,
        ticket: int | None = None,
    ) -> None:
        self.note("loaded", req_context, keys, ticket)

    @override
    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput | None:
        if self.refusals:
            self.refusals -= 1
            self.note("refuse", req_context, keys)
            return None
        ticket = self.ticket()
        new = [key for key in dict.fromkeys(keys) if key not in self.ready]
        self.note("store", req_context, keys, ticket)
        self.ready.update(dict.fromkeys(new, False))
        return PrepareStoreOutput(new, Spec(ticket), [], ticket)

    @override
    def complete_store(
        self,
        keys: Collection[OffloadKey],
        req_context: ReqContext,
        success: bool = True,
        *,
        ticket: int | None = None,
    ) -> None:
        self.note("stored" if success else "failed", req_context, keys, ticket)
        for key in keys:
            if success:
                self.ready[key] = True
            else:
                self.ready.pop(key, None)

    @override
    def on_request_finished(self, req_context: ReqContext) -> None:
        self.note("finish", req_context)

    @override
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self.note("end", detail=[name.removeprefix("request-") for name in context.new_req_ids])

    @override
    def reset_cache(self) -> None:
        self.note("reset")
        self.ready.clear()

    @override
    def on_reset_flushed(self) -> None:
        self.note("flushed")

    def told(self, *names: str) -> list[Call]:
        """The calls of these names."""
        return [call for call in self.calls if call.name in names]


def ask(arrival: float, *blocks: int) -> TraceRequest:
    return TraceRequest(arrival, blocks, BLOCK, BLOCK * len(blocks), 1)


def run(
    diary: OffloadingManager,
    *requests: TraceRequest,
    resets: Sequence[float] = (),
    fail_rate: float = 0.0,
    seed: int = 0,
) -> Counts:
    replay = Replay(diary, SLOW, resets=resets, fail_rate=fail_rate, seed=seed)
    return replay.run(requests)


class TestOneRequest:
    def test_store_is_offered_before_and_completed_after_the_prefill(self) -> None:
        diary = Diary()
        counts = run(diary, ask(0, 1, 2))
        assert diary.calls == [
            Call("new", "0"),
            Call("lookup", "0", (1,)),
            Call("store", "0", (1, 2), 1),
            Call("end", detail=["0"]),
            Call("finish", "0"),
            Call("end", detail=[]),
            Call("stored", "0", (1, 2), 1),
            Call("end", detail=[]),
        ]
        assert (counts.steps, counts.blocks, counts.block_hits, counts.stored) == (3, 2, 0, 2)

    def test_positions_are_known_before_the_first_look_up(self) -> None:
        seen: list[int | None] = []

        class Curious(Diary):
            @override
            def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
                seen.extend(req_context.get_offload_key_position(KEYS[b]) for b in (7, 8))
                return LookupResult.MISS

        run(Curious(), TraceRequest(0.0, (7, 8), BLOCK, 6, 1))
        assert seen == [4, 6]

    def test_no_blocks_no_transfers(self) -> None:
        diary = Diary()
        counts = run(diary, ask(0))
        assert [call.name for call in diary.calls] == ["new", "end", "finish", "end"]
        assert (counts.requests, counts.blocks) == (1, 0)

    def test_request_level_offers_prefix_hits_too(self) -> None:
        for policy, offered in (
            (OffloadPolicy.BLOCK_LEVEL, (3,)),
            (OffloadPolicy.REQUEST_LEVEL, (1, 2, 3)),
        ):
            diary = Diary()
            diary.policy = policy
            run(diary, ask(0, 1, 2), ask(100, 1, 2, 3))
            assert diary.told("store")[1].blocks == offered


class TestPrefix:
    def test_look_ups_end_at_the_first_miss(self) -> None:
        diary = Diary()
        run(diary, ask(0, 1, 2), ask(0, 5), ask(100, 1, 2, 4, 5))
        assert [c.blocks for c in diary.told("lookup") if c.request == "2"] == [(1,), (2,), (4,)]
        assert [c.blocks for c in diary.told("load")] == [(1, 2)]

    def test_tokens_of_a_partial_block_count_as_they_are(self) -> None:
        counts = run(
            Diary(),
            TraceRequest(0.0, (1, 2), BLOCK, 6, 1),
            TraceRequest(100.0, (1, 2), BLOCK, 6, 1),
            TraceRequest(200.0, (1, 3), BLOCK, 5, 1),
        )
        assert (counts.tokens, counts.token_hits) == (17, 6 + 4)
        assert (counts.blocks, counts.block_hits) == (6, 3)


class TestLoads:
    def test_pins_last_as_long_as_the_transfer(self) -> None:
        """Two chunks take two seconds: a request arriving meanwhile finds them pinned."""
        diary = Diary()
        counts = run(diary, ask(0, 1, 2), ask(100, 1, 2), ask(101, 9), ask(103, 9))
        order = [(c.name, c.request) for c in diary.told("load", "new", "loaded")]
        assert order[1:5] == [("new", "1"), ("load", "1"), ("new", "2"), ("loaded", "1")]
        assert counts.peak_pinned == 2

    def test_loads_follow_each_other_in_their_lane(self) -> None:
        diary = Diary()
        counts = run(diary, ask(0, 1, 2, 3), ask(100, 1, 2, 3), ask(100, 1))
        assert [c.request for c in diary.told("loaded")] == ["1", "2"]
        assert counts.peak_pinned == 3

    def test_the_ticket_of_the_spec_comes_back(self) -> None:
        diary = Diary()
        run(diary, ask(0, 1), ask(100, 1))
        assert diary.told("loaded")[0].detail == diary.told("load")[0].detail == 2

    def test_prefill_begins_after_the_load(self) -> None:
        """1 s to load and 4 s to compute: the request ends at 105."""
        diary = Diary()
        run(diary, ask(0, 1), ask(100, 1, 2), ask(104.9, 8), ask(105.1, 9))
        order = [c.request for c in diary.told("new", "finish") if c.request in "123"]
        assert order == ["1", "2", "1", "3", "2", "3"]


class TestPending:
    def test_a_request_waits_for_a_pending_chunk_and_counts_it_as_a_hit(self) -> None:
        diary = Diary()
        counts = run(diary, ask(0, 1, 2), ask(1, 1, 2, 3))
        assert (counts.block_hits, counts.waits) == (2, 1)
        story = [(c.name, c.request) for c in diary.told("stored", "load", "store")]
        assert story == [
            ("store", "0"),
            ("stored", "0"),
            ("load", "1"),
            ("store", "1"),
            ("stored", "1"),
        ]

    def test_the_whole_prefix_is_walked_before_waiting(self) -> None:
        diary = Diary()
        run(diary, ask(0, 1, 2), ask(1, 1, 2, 3))
        walked = [c.blocks for c in diary.told("lookup") if c.request == "1"]
        assert walked == [(1,), (2,), (3,)] * 2

    def test_if_that_store_fails_it_is_a_miss(self) -> None:
        diary = Diary()
        counts = run(diary, ask(0, 1, 2), ask(1, 1, 2, 3), fail_rate=1)
        assert (counts.block_hits, counts.waits) == (0, 1)
        assert [c.name for c in diary.told("failed", "stored")] == ["failed", "failed"]
        assert diary.told("store")[1].blocks == (1, 2, 3)

    def test_those_who_wait_go_on_in_order_of_arrival(self) -> None:
        diary = Diary()
        counts = run(diary, ask(0, 1), ask(1, 1, 2), ask(2, 1, 2, 3), ask(3, 1, 2, 3, 4))
        assert [c.request for c in diary.told("store")] == ["0", "1", "2", "3"]
        assert counts.block_hits == 1 + 2 + 3

    def test_those_who_waited_go_before_those_who_arrive(self) -> None:
        """The store ends at 5, when request 2 arrives; it has to find what request 1 offers."""
        diary = Diary()
        counts = run(diary, ask(0, 1), ask(1, 1, 2), ask(5, 1, 2, 3))
        assert [c.request for c in diary.told("store")] == ["0", "1", "2"]
        assert counts.block_hits == 1 + 2

    def test_a_pending_chunk_that_nobody_stores_is_given_up_some_day(self) -> None:
        diary = Diary()
        diary.ready[KEYS[1]] = False
        counts = run(diary, ask(0, 1))
        assert len(diary.told("lookup")) == MAX_LOOKUPS + 1
        assert counts.block_hits == 0
        assert diary.told("finish")

    def test_retry_is_asked_again(self) -> None:
        answers = [LookupResult.RETRY, LookupResult.RETRY, LookupResult.HIT]

        class Slow(Diary):
            @override
            def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
                return answers.pop(0)

        assert run(Slow(), ask(0, 1)).block_hits == 1


class TestRefused:
    def test_offered_again_in_the_next_step(self) -> None:
        diary = Diary()
        diary.refusals = 2
        counts = run(diary, ask(0, 1, 2))
        names = [call.name for call in diary.calls]
        assert names[2:9] == ["refuse", "end", "refuse", "end", "store", "end", "finish"]
        assert (counts.refused, counts.given_up, counts.stored) == (2, 0, 2)

    def test_so_often_and_no_more(self) -> None:
        diary = Diary()
        diary.refusals = 1000
        counts = run(diary, ask(0, 1, 2))
        assert counts.refused == MAX_OFFERS == len(diary.told("refuse"))
        assert (counts.given_up, counts.stored) == (1, 0)

    def test_never_after_its_end(self) -> None:
        """The prefill takes 8 ms, less than the 20 ms to the next step."""
        diary = Diary()
        diary.refusals = 1000
        model = CostModel(prefill_rate=1000, transfer_rate=1, chunk_bytes=1)
        counts = Replay(diary, model).run([ask(0, 1, 2), ask(50, 3)])
        assert [c.name for c in diary.told("refuse", "finish")] == ["refuse", "finish"] * 2
        assert counts.given_up == 2


# A block is half a prefill batch and takes a second to compute.
HALF = PREFILL_BATCH // 2
BATCHED = CostModel(prefill_rate=HALF, transfer_rate=2, chunk_bytes=1)


def batched(arrival: float, *blocks: int) -> TraceRequest:
    return TraceRequest(arrival, blocks, HALF, HALF * len(blocks), 1)


class TestRanges:
    def test_a_long_prompt_is_offered_at_once_and_stored_as_it_is_computed(self) -> None:
        """Computed at 2, 4 and 5, copied at 3, 5 and 5.5; in a step transfers come first."""
        diary = Diary()
        Replay(diary, BATCHED).run([batched(0, 1, 2, 3, 4, 5), batched(3.5, 9), batched(4.9, 9)])
        story = [c for c in diary.told("store", "stored", "new", "finish") if c.request == "0"]
        assert [(c.name, c.blocks) for c in story] == [
            ("new", ()),
            ("store", (1, 2)),
            ("store", (3, 4)),
            ("store", (5,)),
            ("stored", (1, 2)),
            ("stored", (3, 4)),
            ("finish", ()),
            ("stored", (5,)),
        ]
        order = [(c.name, c.request) for c in diary.told("new", "stored")]
        assert order[1:4] == [("stored", "0"), ("new", "1"), ("new", "2")]

    def test_a_refused_range_holds_back_those_behind_it(self) -> None:
        diary = Diary()
        diary.refusals = 2
        Replay(diary, BATCHED).run([batched(0, 1, 2, 3)])
        offers = [(c.name, c.blocks) for c in diary.told("store", "refuse", "end")][:6]
        assert offers == [
            ("refuse", (1, 2)),
            ("end", ()),
            ("refuse", (1, 2)),
            ("end", ()),
            ("store", (1, 2)),
            ("store", (3,)),
        ]

    def test_each_range_has_its_own_number_of_offers(self) -> None:
        class Slow(Diary):
            @override
            def prepare_store(
                self, keys: Collection[OffloadKey], req_context: ReqContext
            ) -> PrepareStoreOutput | None:
                output = super().prepare_store(keys, req_context)
                if output is not None:
                    self.refusals = MAX_OFFERS - 1
                return output

        counts = Replay(Slow(), BATCHED).run([batched(0, 1, 2, 3, 4, 5)])
        assert (counts.refused, counts.given_up) == (2 * (MAX_OFFERS - 1), 0)

    def test_what_is_taken_late_is_copied_at_once(self) -> None:
        """A block takes 50 ms. The first range is computed at 100 ms and refused until 140 ms."""
        diary = Diary()
        diary.refusals = 7
        Replay(diary, CostModel(HALF * 20, 1000, 1)).run([batched(0, 1, 2, 3)])
        story = [(c.name, c.blocks) for c in diary.told("store", "stored", "finish")]
        assert story == [
            ("store", (1, 2)),
            ("store", (3,)),
            ("stored", (1, 2)),
            ("finish", ()),
            ("stored", (3,)),
        ]

    def test_a_failed_range_leaves_a_hole_in_front_of_resident_ones(self) -> None:
        """The next request hits up to the hole and offers the rest, what is there included."""

        class Holey(Diary):
            @override
            def complete_store(
                self,
                keys: Collection[OffloadKey],
                req_context: ReqContext,
                success: bool = True,
                *,
                ticket: int | None = None,
            ) -> None:
                super().complete_store(keys, req_context, KEYS[3] not in keys, ticket=ticket)

        diary = Holey()
        counts = Replay(diary, BATCHED).run([batched(0, 1, 2, 3, 4, 5), batched(90, 1, 2, 3, 4, 5)])
        assert counts.block_hits == 2
        assert [c.blocks for c in diary.told("store") if c.request == "1"] == [(3, 4), (5,)]
        assert [c.blocks for c in diary.told("stored", "failed")][-1] == (3, 4)


class TestFailures:
    def test_none_and_all(self) -> None:
        requests = [ask(100 * n, n) for n in range(20)]
        for rate, name in ((0.0, "stored"), (1.0, "failed")):
            diary = Diary()
            run(diary, *requests, fail_rate=rate)
            assert {c.name for c in diary.told("stored", "failed")} == {name}

    def test_chosen_by_the_seed(self) -> None:
        def outcome(seed: int) -> list[str]:
            diary = Diary()
            counts = run(diary, *(ask(100 * n, n) for n in range(60)), fail_rate=0.5, seed=seed)
            names = [c.name for c in diary.told("stored", "failed")]
            assert counts.failed_stores == names.count("failed") > 0
            return names

        assert outcome(1) == outcome(1) != outcome(2)

    @pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
    def test_rates_are_shares(self, rate: float) -> None:
        with pytest.raises(InvalidValueError, match="fail_rate"):
            Replay(Diary(), SLOW, fail_rate=rate)


class TestReset:
    # Request 0 is loaded at 1 and its copy runs from 4 to 5; request 1 computes until 7.
    overlapping = (ask(0, 1), ask(3, 2))

    def test_transfers_in_flight_come_back_stale_before_the_flush(self) -> None:
        diary = Diary()
        counts = run(diary, *self.overlapping, resets=[4.5])
        story = [(c.name, c.request, c.detail) for c in diary.told("reset", "stored", "flushed")]
        assert story == [("reset", "", None), ("stored", "0", 1), ("flushed", "", None)]
        assert (counts.resets, counts.stored) == (1, 0)

    def test_a_store_not_begun_before_the_reset_never_begins(self) -> None:
        """Its slots may belong to somebody else by now."""
        diary = Diary()
        run(diary, *self.overlapping, resets=[4.5])
        assert [(c.request, c.detail) for c in diary.told("failed")] == [("1", 2)]

    def test_without_tickets_nothing_of_the_old_generation_is_reported(self) -> None:
        diary = Diary(tickets=False)
        run(diary, *self.overlapping, ask(50, 1), resets=[4.5])
        assert [(c.name, c.request) for c in diary.told("stored", "failed", "flushed")] == [
            ("flushed", ""),
            ("stored", "2"),
        ]

    def test_signatures_without_ticket_are_respected(self) -> None:
        class Old(Diary):
            # An older interface, kept by some: no ticket although the specs carry one.
            @override
            def complete_load(  # type: ignore[override]  # what the test is about
                self, keys: Collection[OffloadKey], req_context: ReqContext
            ) -> None:
                self.note("loaded", req_context, keys)

        diary = Old()
        run(diary, ask(0, 1), ask(100, 1))
        assert [c.name for c in diary.told("loaded", "stored")] == ["stored", "loaded"]
        assert diary.told("stored")[0].detail is None

    def test_nothing_in_flight_is_flushed_at_once(self) -> None:
        diary = Diary()
        run(diary, ask(0, 1), resets=[50])
        assert [c.name for c in diary.calls[-3:]] == ["reset", "flushed", "end"]

    def test_those_who_wait_are_woken(self) -> None:
        diary = Diary()
        counts = run(diary, ask(0, 1, 2), ask(1, 1, 2, 3), resets=[2])
        assert (counts.block_hits, counts.waits) == (0, 1)
        assert diary.told("store")[1].blocks == (1, 2, 3)

    def test_a_load_in_flight_without_a_ticket_is_not_reported(self) -> None:
        diary = Diary(tickets=False)
        run(diary, ask(0, 1), ask(100, 1), resets=[100.5])
        assert [c.name for c in diary.told("load", "loaded", "flushed")] == ["load", "flushed"]

    def test_the_flush_waits_for_every_transfer(self) -> None:
        """At 104.8 a load runs until 106 and a store until 105.5."""
        diary = Diary()
        run(
            diary,
            ask(0, 1, 2, 3, 4, 5, 6),
            ask(100, 1, 2, 3, 4, 5, 6),
            ask(100.5, 9),
            resets=[104.8],
        )
        story = [c.name for c in diary.told("reset", "loaded", "stored", "flushed")]
        assert story == ["stored", "reset", "stored", "loaded", "flushed"]

    def test_one_lane_waits_for_the_other(self) -> None:
        """A load of the old generation runs until 106. A store of the new one is computed at
        104.6; its slots may be those that are being read, so it ends at 107."""
        diary = Diary()
        run(
            diary,
            ask(0, 1, 2, 3, 4, 5, 6),
            ask(100, 1, 2, 3, 4, 5, 6),
            ask(100.6, 9),
            resets=[100.5],
        )
        story = [(c.name, c.request) for c in diary.told("loaded", "flushed", "stored")]
        assert story[1:] == [("loaded", "1"), ("flushed", ""), ("stored", "2")]

    def test_pins_end_with_their_generation(self) -> None:
        requests = (ask(0, 1), ask(100, 1), ask(200, 2), ask(300, 2))
        assert run(Diary(), *requests, resets=[100.5]).peak_pinned == 1

    def test_new_transfers_begin_after_the_old_ones(self) -> None:
        """Five chunks are on their way until 25 when the reset comes at 21; the store of the
        request that arrives then is computed at 25.5 and copied after."""
        diary = Diary()
        run(diary, ask(0, 1, 2, 3, 4, 5), ask(21.5, 6), resets=[21])
        story = [(c.name, c.request) for c in diary.told("stored", "flushed")]
        assert story == [("stored", "0"), ("flushed", ""), ("stored", "1")]

    def test_twice_while_the_first_is_flushed(self) -> None:
        diary = Diary()
        run(diary, ask(0, 1, 2, 3, 4, 5), resets=[21, 22])
        assert [c.name for c in diary.told("reset", "flushed")] == ["reset", "reset", "flushed"]

    @pytest.mark.parametrize("time", [-1.0, float("inf"), float("nan")])
    def test_times_are_times(self, time: float) -> None:
        with pytest.raises(InvalidValueError, match="resets"):
            Replay(Diary(), SLOW, resets=[time])


class TestClock:
    def test_arrivals_out_of_order_arrive_late(self) -> None:
        diary = Diary()
        counts = run(diary, ask(5, 1), ask(3, 2), ask(5, 3))
        assert [c.request for c in diary.told("new")] == ["0", "1", "2"]
        assert diary.told("end")[0].detail == ["0", "1", "2"]
        assert counts.late_arrivals == 1

    def test_accesses_without_tokens_take_no_time_to_compute(self) -> None:
        diary = Diary()
        counts = run(diary, TraceRequest(0, (1,)), TraceRequest(0, (1,)), TraceRequest(9, (1,)))
        assert (counts.blocks, counts.block_hits, counts.tokens) == (3, 2, 0)
        assert diary.told("finish")[0].request == "0"

    def test_the_run_can_be_ended(self) -> None:
        diary = Diary()
        replay = Replay(diary, SLOW, proceed=lambda counts: counts.steps < 2)
        assert replay.run([ask(0, 1), ask(1, 2), ask(2, 3)]).steps == 2

    def test_what_the_manager_raises_comes_out(self) -> None:
        class Broken(Diary):
            @override
            def on_request_finished(self, req_context: ReqContext) -> None:
                raise ZeroDivisionError(req_context.req_id)

        with pytest.raises(ZeroDivisionError, match="request-0"):
            run(Broken(), ask(0, 1))


# Prefix-closed prompts: a path in a small tree, each node a block of its own.
steps = st.lists(st.integers(0, 1), max_size=4)
gaps = st.sampled_from([0.0, 0.0, 0.5, 3.0, 40.0])
arrivals = st.lists(st.tuples(gaps, steps), min_size=1, max_size=12)
Arrivals = list[tuple[float, list[int]]]


def as_trace(arrivals: Arrivals) -> list[TraceRequest]:
    times = accumulate(gap for gap, _ in arrivals)
    return [
        ask(time, *accumulate(path, lambda node, way: 2 * node + way, initial=1))
        for time, (_, path) in zip(times, arrivals, strict=True)
    ]


MAKERS: dict[str, Callable[[int], OffloadingManager]] = {
    "lru": lambda chunks: CPUOffloadingManager(chunks, "lru"),
    "arc": lambda chunks: CPUOffloadingManager(chunks, "arc"),
}


@given(arrivals)
@example([(0.0, [0, 1]), (0.0, [0, 1, 1]), (0.5, [0, 1, 1, 0]), (0.0, [0])])
def test_with_room_for_everything_every_repeated_block_hits(arrivals: Arrivals) -> None:
    """However requests overlap: the driver loses no hit that an infinite cache has."""
    requests = as_trace(arrivals)
    seen: set[int] = set()
    repeated = 0
    for request in requests:
        repeated += len(seen.intersection(request.blocks))
        seen.update(request.blocks)
    for make in MAKERS.values():
        counts = run(make(len(seen)), *requests)
        assert counts.block_hits == repeated
        assert (counts.evicted, counts.refused) == (0, 0)


@given(arrivals, st.integers(0, 8), st.sampled_from([0.0, 0.3]), st.lists(gaps, max_size=2))
def test_every_run_ends_with_nothing_held(
    arrivals: Arrivals, capacity: int, fail_rate: float, resets: list[float]
) -> None:
    """Pressure, failures and resets: each request finishes, each transfer completes (PIN-1)."""
    requests = as_trace(arrivals)
    for policy in ("lru", "arc"):
        manager = CPUOffloadingManager(capacity, policy, enable_events=True)
        counts = run(manager, *requests, fail_rate=fail_rate, resets=resets)
        assert counts.requests == len(requests)
        assert counts.block_hits <= counts.blocks
        stats = manager.get_stats().reduce()
        assert stats["vllm:kv_offload_cpu_cache_usage_perc"] == 0
        manager.check()


@given(arrivals, st.integers(0, 8))
def test_the_same_trace_gives_the_same_run(arrivals: Arrivals, capacity: int) -> None:
    requests = as_trace(arrivals)
    for make in MAKERS.values():
        first, second = (
            run(make(capacity), *requests, fail_rate=0.3, seed=5, resets=[3]) for _ in range(2)
        )
        assert first == second
