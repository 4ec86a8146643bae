"""DONE-1 to DONE-4, GEN-1 and GEN-2: completions, and what a reset leaves behind."""

from collections.abc import Callable
from random import Random

import attrs
import pytest

from kvoffload import (
    ChunkNotFoundError,
    CPUOffloadingManager,
    LookupResult,
    NotPinnedError,
    OffloadKey,
    ReqContext,
    UnknownTicketError,
)
from spec_tests.clauses.helpers import (
    LETTERS,
    TOKENS,
    A,
    B,
    C,
    D,
    E,
    believed,
    books,
    evict_order,
    in_flight,
    pin,
    prepare,
    put,
    put_each,
    ready,
    request,
    resident,
    slot_of,
    slots,
)
from spec_tests.clauses.policies import Call, recorded

BOTH = pytest.mark.parametrize("policy", ["lru", "arc"])
EITHER = pytest.mark.parametrize("success", [True, False])


# DONE-1 to DONE-3


@pytest.mark.clause("DONE-1")
def test_pending_keys_become_ready_when_their_store_succeeds() -> None:
    manager, context = CPUOffloadingManager(4), request()
    output = prepare(manager, [A, B, C], context)
    manager.complete_store([A, C], context, ticket=output.ticket)
    assert ready(manager, LETTERS) == [A, C]
    assert resident(manager, LETTERS) == [A, B, C]
    assert [slot_of(manager, each) for each in (A, C)] == [0, 2]


@pytest.mark.clause("DONE-1")
@pytest.mark.parametrize("ticketed", [True, False])
def test_one_stored_event_carries_just_these_in_the_given_order(ticketed: bool) -> None:
    manager, context = CPUOffloadingManager(6, enable_events=True), request()
    put(manager, [E])
    output = prepare(manager, [A, B, C, D], context)
    manager.take_events()
    ticket = output.ticket if ticketed else None
    manager.complete_store([C, E, A, D, A], context, ticket=ticket)
    [event] = manager.take_events()
    assert event.keys == [C, A, D]
    assert not event.removed


@pytest.mark.clause("DONE-1")
def test_the_policy_hears_of_idle_chunks_in_the_given_order() -> None:
    manager, policy = recorded(4)
    context = request()
    prepare(manager, [A, B, C], context)
    manager.complete_store([C, A, B], context)
    assert policy.marked_at == [(C, 0), (A, 0), (B, 0)]


@pytest.mark.clause("DONE-2")
def test_pending_keys_leave_when_their_store_fails() -> None:
    manager, policy = recorded(2)
    context = request()
    output = prepare(manager, [A, B], context)
    manager.complete_store([A, B], context, success=False, ticket=output.ticket)
    assert resident(manager, LETTERS) == []
    assert policy.keys_of("remove") == [(A,), (B,)]
    assert prepare(manager, [C, D]).evicted_keys == []


@pytest.mark.clause("DONE-2")
def test_a_failed_store_announces_nothing() -> None:
    manager, context = CPUOffloadingManager(2, enable_events=True), request()
    prepare(manager, [A, B], context)
    manager.complete_store([A, B], context, success=False)
    assert manager.take_events() == []


@pytest.mark.clause("DONE-2")
def test_the_keys_that_a_failure_does_not_name_stay_pending() -> None:
    manager, context = CPUOffloadingManager(2), request()
    prepare(manager, [A, B], context)
    manager.complete_store([A], context, success=False)
    assert manager.lookup(B, context) is LookupResult.HIT_PENDING
    manager.complete_store([B], context)
    assert ready(manager, LETTERS) == [B]


@pytest.mark.clause("DONE-3")
@EITHER
def test_keys_that_are_not_pending_are_ignored(success: bool) -> None:
    manager, context = CPUOffloadingManager(4, enable_events=True), request()
    put(manager, [A, B])
    pin(manager, [B])
    manager.take_events()
    before = books(manager)
    manager.complete_store([A, B, D], context, success)
    manager.complete_store([], context, success)
    assert books(manager) == before
    assert manager.take_events() == []


@pytest.mark.clause("DONE-3")
@EITHER
def test_a_second_completion_changes_nothing(success: bool) -> None:
    manager, context = CPUOffloadingManager(4, enable_events=True), request()
    prepare(manager, [A], context)
    manager.complete_store([A], context)
    manager.take_events()
    before = books(manager)
    manager.complete_store([A], context, success)
    assert books(manager) == before
    assert manager.take_events() == []


@pytest.mark.clause("DONE-3")
def test_ignored_keys_do_not_keep_the_others_from_completing() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A])
    prepare(manager, [B], context)
    manager.complete_store([D, A, B], context)
    assert ready(manager, LETTERS) == [A, B]


# DONE-4


@pytest.mark.clause("DONE-4")
def test_no_ticket_is_given_out_twice() -> None:
    manager, context = CPUOffloadingManager(2), request()
    tickets: list[int | None] = []
    for _ in range(3):
        tickets.append(put(manager, [A, B], context).ticket)
        tickets.append(prepare(manager, [], context).ticket)
        tickets.append(pin(manager, [A], context).ticket)
        tickets.append(pin(manager, [], context).ticket)
        manager.reset_cache()
    assert None not in tickets
    assert len(set(tickets)) == len(tickets) == 12


@pytest.mark.clause("DONE-4")
@EITHER
def test_a_store_completed_twice_is_completed_once(success: bool) -> None:
    manager, context = CPUOffloadingManager(4, enable_events=True), request()
    output = prepare(manager, [A], context)
    manager.complete_store([A], context, success, ticket=output.ticket)
    manager.take_events()
    before = books(manager)
    manager.complete_store([A], context, success, ticket=output.ticket)
    manager.complete_store([A], context, not success, ticket=output.ticket)
    assert books(manager) == before
    assert manager.take_events() == []
    assert manager.stale_completions == 2


@pytest.mark.clause("DONE-4")
def test_a_load_completed_twice_leaves_the_pins_of_others() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A])
    first, second = pin(manager, [A], context), pin(manager, [A], context)
    manager.complete_load([A], context, ticket=first.ticket)
    manager.complete_load([A], context, ticket=first.ticket)
    assert in_flight(manager) == (0, 1)
    assert manager.stale_completions == 1
    manager.complete_load([A], context, ticket=second.ticket)
    assert in_flight(manager) == (0, 0)
    assert manager.stale_completions == 1


@pytest.mark.clause("DONE-4")
@EITHER
def test_a_completion_of_another_attempt_does_not_complete_this_one(success: bool) -> None:
    manager, context = CPUOffloadingManager(4, enable_events=True), request()
    first = prepare(manager, [A], context)
    manager.complete_store([A], context, success=False, ticket=first.ticket)
    second = prepare(manager, [A], context)
    manager.complete_store([A], context, success, ticket=first.ticket)
    assert manager.lookup(A, context) is LookupResult.HIT_PENDING
    assert manager.stale_completions == 1
    manager.complete_store([A], context, ticket=second.ticket)
    assert manager.lookup(A, context) is LookupResult.HIT
    assert manager.stale_completions == 1


@pytest.mark.clause("DONE-4")
@EITHER
def test_completions_of_an_earlier_generation_change_nothing(success: bool) -> None:
    manager, context = CPUOffloadingManager(4, enable_events=True), request()
    put(manager, [A])
    load, store = pin(manager, [A], context), prepare(manager, [B], context)
    manager.reset_cache()
    put(manager, [A])
    pin(manager, [A], context)
    prepare(manager, [B], context)
    manager.take_events()
    before = books(manager)
    manager.complete_load([A], context, ticket=load.ticket)
    manager.complete_store([B], context, success, ticket=store.ticket)
    assert books(manager) == before
    assert manager.take_events() == []
    assert manager.stale_completions == 2


@pytest.mark.clause("DONE-4")
def test_a_ticket_of_the_other_kind_completes_nothing() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A])
    load, store = pin(manager, [A], context), prepare(manager, [B], context)
    before = books(manager)
    manager.complete_store([A], context, success=False, ticket=load.ticket)
    manager.complete_load([B], context, ticket=store.ticket)
    assert books(manager) == before
    assert manager.stale_completions == 2


@pytest.mark.clause("DONE-4")
def test_a_load_may_be_completed_in_parts() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A, B])
    spec = pin(manager, [A, B, A], context)
    manager.complete_load([A], context, ticket=spec.ticket)
    assert in_flight(manager) == (0, 2)
    manager.complete_load([B, A], context, ticket=spec.ticket)
    assert in_flight(manager) == (0, 0)
    assert manager.stale_completions == 0
    manager.complete_load([A], context, ticket=spec.ticket)
    assert manager.stale_completions == 1


@pytest.mark.clause("DONE-4")
def test_a_store_may_be_completed_in_parts() -> None:
    manager, context = CPUOffloadingManager(4), request()
    output = prepare(manager, [A, B, C], context)
    manager.complete_store([B], context, ticket=output.ticket)
    manager.complete_store([A, C], context, success=False, ticket=output.ticket)
    assert resident(manager, LETTERS) == [B]
    assert manager.stale_completions == 0


@pytest.mark.clause("DONE-4")
def test_of_a_partly_stale_completion_the_rest_counts() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A, B])
    other = pin(manager, [B], request("other"))
    spec = pin(manager, [A], context)
    manager.complete_load([B, A, A], context, ticket=spec.ticket)
    assert in_flight(manager) == (0, 1)
    assert manager.stale_completions == 1
    manager.complete_load([B], request("other"), ticket=other.ticket)
    assert in_flight(manager) == (0, 0)


@pytest.mark.clause("DONE-4")
def test_a_store_ticket_does_not_complete_the_pending_keys_of_others() -> None:
    manager, context = CPUOffloadingManager(4), request()
    mine = prepare(manager, [A], context)
    prepare(manager, [B], request("other"))
    manager.complete_store([A, B], context, ticket=mine.ticket)
    assert ready(manager, LETTERS) == [A]
    assert resident(manager, LETTERS) == [A, B]
    assert manager.stale_completions == 1


@pytest.mark.clause("DONE-4")
@pytest.mark.parametrize("ticket", [99, -1])
def test_a_ticket_that_was_never_given_out_is_refused(ticket: int) -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A])
    pin(manager, [A], context)
    prepare(manager, [B], context)
    before = books(manager)
    with pytest.raises(UnknownTicketError, match=str(ticket)) as caught:
        manager.complete_load([A], context, ticket=ticket)
    assert caught.value.ticket == ticket
    with pytest.raises(UnknownTicketError):
        manager.complete_store([B], context, ticket=ticket)
    assert books(manager) == before
    assert manager.stale_completions == 0


@pytest.mark.clause("DONE-4")
def test_the_context_of_a_ticketed_completion_does_not_matter() -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A])
    spec = pin(manager, [A], request("loader"))
    manager.complete_load([A], request("worker"), ticket=spec.ticket)
    assert in_flight(manager) == (0, 0)
    assert manager.outstanding("loader") == ()


@pytest.mark.clause("DONE-4")
def test_without_a_ticket_a_completion_is_of_the_present() -> None:
    manager, context = CPUOffloadingManager(4), request()
    prepare(manager, [A], context)
    manager.complete_store([A], context, success=False)
    prepare(manager, [A], context)
    # Meant for the first attempt, perhaps; nothing says so.
    manager.complete_store([A], context)
    assert manager.lookup(A, context) is LookupResult.HIT
    assert manager.stale_completions == 0


@pytest.mark.clause("DONE-4")
def test_without_a_ticket_the_requests_own_transfers_are_completed_first() -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A])
    theirs = pin(manager, [A], request("theirs"))
    older = pin(manager, [A], request("mine"))
    newer = pin(manager, [A], request("mine"))
    manager.complete_load([A], request("mine"))
    assert [t.ticket for t in manager.outstanding("mine")] == [newer.ticket]
    assert [t.ticket for t in manager.outstanding("theirs")] == [theirs.ticket]
    # The older one is over, so its completion comes too late.
    manager.complete_load([A], request("mine"), ticket=older.ticket)
    assert manager.stale_completions == 1
    assert manager.outstanding("mine") != ()
    manager.complete_load([A], request("mine"))
    assert manager.outstanding("mine") == ()
    assert in_flight(manager) == (0, 1)


@pytest.mark.clause("DONE-4")
def test_without_a_ticket_part_of_the_requests_own_transfer_goes_first_too() -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A, B])
    theirs = pin(manager, [A], request("theirs"))
    mine = pin(manager, [A, B], request("mine"))
    manager.complete_load([A], request("mine"))
    assert [(t.ticket, t.keys) for t in manager.outstanding("mine")] == [(mine.ticket, (B,))]
    assert [t.ticket for t in manager.outstanding("theirs")] == [theirs.ticket]


@pytest.mark.clause("DONE-4")
def test_without_a_ticket_somebody_elses_transfer_is_completed_in_the_end() -> None:
    manager = CPUOffloadingManager(4)
    put(manager, [A])
    theirs = pin(manager, [A], request("theirs"))
    prepare(manager, [B], request("theirs"))
    manager.complete_load([A], request("mine"))
    manager.complete_store([B], request("mine"))
    assert manager.outstanding("theirs") == ()
    manager.complete_load([A], request("theirs"), ticket=theirs.ticket)
    assert manager.stale_completions == 1
    manager.check()


@pytest.mark.clause("DONE-4")
def test_a_completion_without_a_ticket_may_span_transfers() -> None:
    manager, context = CPUOffloadingManager(4), request()
    put(manager, [A, B, C])
    first = pin(manager, [A, B], context)
    second = pin(manager, [B, C], context)
    manager.complete_load([B, C, B], context)
    assert [(t.ticket, t.keys) for t in manager.outstanding("r")] == [(first.ticket, (A,))]
    manager.complete_load([C], context, ticket=second.ticket)
    assert manager.stale_completions == 1
    manager.check()


# GEN-1


@pytest.mark.clause("GEN-1")
@BOTH
def test_a_reset_removes_everything_whatever_its_pins(policy: str) -> None:
    manager = CPUOffloadingManager(4, policy)
    put(manager, [A, B])
    pin(manager, [A])
    prepare(manager, [C])
    manager.reset_cache()
    assert resident(manager, LETTERS) == []
    assert in_flight(manager) == (0, 0)
    manager.check()


@pytest.mark.clause("GEN-1")
@BOTH
def test_a_reset_frees_every_slot(policy: str) -> None:
    manager = CPUOffloadingManager(4, policy)
    put(manager, [A, B])
    pin(manager, [A])
    prepare(manager, [C, D])
    manager.reset_cache()
    output = prepare(manager, [E, A, B, C])
    assert output.evicted_keys == []
    assert slots(output.store_spec) == [0, 1, 2, 3]


@pytest.mark.clause("GEN-1")
def test_a_reset_counts() -> None:
    manager = CPUOffloadingManager(1)
    assert manager.generation == 0
    manager.reset_cache()
    manager.reset_cache()
    assert manager.generation == 2


@pytest.mark.clause("GEN-1")
def test_the_reuse_tracker_starts_anew() -> None:
    manager = CPUOffloadingManager(4, store_threshold=2)
    manager.prepare_store([A], request())
    manager.reset_cache()
    assert prepare(manager, [A]).keys_to_store == []
    assert prepare(manager, [A]).keys_to_store == [A]


@pytest.mark.clause("GEN-1")
def test_the_policy_is_cleared_once() -> None:
    manager, policy = recorded(2)
    put(manager, [A])
    told = len(policy.calls)
    manager.reset_cache()
    assert policy.calls[told:] == [Call("clear")]


class Life:
    """A random program; what a call answers is kept for comparison."""

    def __init__(
        self, manager: CPUOffloadingManager, contexts: Callable[[str], ReqContext]
    ) -> None:
        self.manager = manager
        self.contexts: dict[str, ReqContext] = {}
        self.new_context = contexts
        self.open: list[tuple[bool, ReqContext, list[OffloadKey], int | None]] = []
        self.finished: set[str] = set()
        self.answers: list[object] = []
        self.evicted = 0

    def run(self, seed: int, steps: int) -> None:
        rng = Random(seed)
        for step in range(steps):
            self.step(rng, f"r{rng.randint(step // 10, step // 10 + 2)}")
        self.manager.check()

    def step(self, rng: Random, req_id: str) -> None:
        manager = self.manager
        context = self.contexts.setdefault(req_id, self.new_context(req_id))
        keys = rng.sample(LETTERS, rng.randint(1, 3))
        draw = rng.random()
        self.answers.append([manager.lookup(key, context) for key in LETTERS])
        if draw < 0.4 and req_id not in self.finished:
            output = manager.prepare_store(keys, context)
            if output is None:
                self.answers.append(None)
            else:
                stored, evicted = output.keys_to_store, output.evicted_keys
                self.answers.append((stored, slots(output.store_spec), evicted))
                self.open.append((False, context, stored, output.ticket))
                self.evicted += len(evicted)
        elif draw < 0.6 and req_id not in self.finished:
            keys = [k for k in keys if manager.lookup(k, context) is LookupResult.HIT]
            spec = manager.prepare_load(keys, context)
            self.answers.append(slots(spec))
            self.open.append((True, context, keys, spec.ticket))
        elif draw < 0.85 and self.open:
            load, owner, keys, ticket = self.open.pop(rng.randrange(len(self.open)))
            if load:
                manager.complete_load(keys, owner, ticket=ticket)
            else:
                manager.complete_store(keys, owner, rng.random() < 0.8, ticket=ticket)
        elif draw < 0.9:
            manager.touch(keys, context)
        elif draw < 0.95:
            manager.on_request_finished(context)
            self.finished.add(req_id)
        else:
            self.answers.append([attrs.astuple(event) for event in manager.take_events()])
            self.answers.append(manager.get_stats().reduce())


@pytest.mark.clause("GEN-1")
@pytest.mark.clause("GEN-2")
@BOTH
@pytest.mark.parametrize("threshold", [1, 2])
@pytest.mark.parametrize("seed", range(8))
def test_a_manager_that_was_reset_equals_a_new_one(policy: str, threshold: int, seed: int) -> None:
    def fresh() -> CPUOffloadingManager:
        return CPUOffloadingManager(
            4, policy, enable_events=True, store_threshold=threshold, max_tracker_size=5
        )

    def prompt(req_id: str) -> ReqContext:
        # Half of the requests know where their keys end.
        context = ReqContext(req_id)
        if int(req_id[1:]) % 2:
            for index, each in enumerate(LETTERS):
                context.set_offload_key_position(each, TOKENS * (index + 1))
        return context

    past = Life(fresh(), prompt)
    past.run(seed, 150)
    past.manager.reset_cache()
    # EVT-5's event, and samples not yet collected, may differ.
    past.manager.take_events()
    past.manager.get_stats()

    # The same requests live on, their contexts full of the past.
    again = Life(past.manager, prompt)
    again.contexts = past.contexts
    again.run(seed + 100, 250)
    new = Life(fresh(), prompt)
    new.run(seed + 100, 250)
    assert again.answers == new.answers
    assert new.evicted > 5


@pytest.mark.clause("GEN-1")
def test_samples_not_yet_collected_are_kept() -> None:
    manager = CPUOffloadingManager(4)
    prepare(manager, [A, B])
    manager.reset_cache()
    figures = manager.get_stats().reduce()
    assert figures["vllm:kv_offload_cpu_allocation_size_count"] == 1
    assert figures["vllm:kv_offload_cpu_allocation_size_sum"] == 2


# GEN-2


@pytest.mark.clause("GEN-2")
def test_what_a_request_saw_before_a_reset_is_not_told_at_its_finish() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A, B], context)
    manager.reset_cache()
    put(manager, [C], context)
    manager.on_request_finished(context)
    assert policy.finishes == [([(C,)], {C}, set(), "r")]


@pytest.mark.clause("GEN-2")
def test_a_request_that_did_nothing_since_the_reset_is_not_told_of() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A], context)
    manager.reset_cache()
    manager.on_request_finished(context)
    assert policy.finishes == []


@pytest.mark.clause("GEN-2")
def test_a_request_that_had_finished_may_begin_anew() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A], context)
    manager.on_request_finished(context)
    manager.reset_cache()
    put(manager, [B], context)
    manager.on_request_finished(context)
    assert [finish.groups for finish in policy.finishes] == [[(A,)], [(B,)]]


@pytest.mark.clause("GEN-2")
def test_having_inserted_a_key_before_a_reset_does_not_hide_its_reuse() -> None:
    manager, policy = recorded(4)
    context = request()
    put(manager, [A], context)
    manager.reset_cache()
    put(manager, [A], request("other"))
    pin(manager, [A], context)
    manager.on_request_finished(context)
    assert policy.finishes[-1] == ([(A,)], set(), {A}, "r")


@pytest.mark.clause("GEN-2")
def test_a_request_takes_a_new_place_in_the_order_of_use() -> None:
    manager = CPUOffloadingManager(3)
    runner = request("runner", [A, B])
    put(manager, [A], runner)
    manager.reset_cache()
    put_each(manager, [C])
    put(manager, [B], runner)
    put_each(manager, [D])
    assert evict_order(manager, 3) == [C, B, D]


@pytest.mark.clause("GEN-2")
def test_a_completion_without_a_ticket_of_what_is_gone_is_refused_or_ignored() -> None:
    manager, context = CPUOffloadingManager(4, enable_events=True), request()
    put(manager, [A])
    pin(manager, [A], context)
    prepare(manager, [B], context)
    manager.reset_cache()
    manager.take_events()
    before = books(manager)
    with pytest.raises(ChunkNotFoundError):
        manager.complete_load([A], context)
    manager.complete_store([B], context)
    put(manager, [A])
    with pytest.raises(NotPinnedError):
        manager.complete_load([A], context)
    manager.reset_cache()
    assert attrs.evolve(books(manager), generation=1) == before
    assert believed(manager.take_events()) == set()


@pytest.mark.clause("GEN-2")
def test_contexts_of_two_managers_do_not_mix() -> None:
    first, first_policy = recorded(4)
    second, second_policy = recorded(4)
    context = request()
    put(first, [A], context)
    put(second, [B], context)
    first.reset_cache()
    for manager in (first, second):
        manager.on_request_finished(context)
    assert first_policy.finishes == []
    assert second_policy.finishes == [([(B,)], {B}, set(), "r")]
