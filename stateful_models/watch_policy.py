"""A policy under watch: every call goes through, and is judged by the contract of policies.

It works on a live policy of anybody, under any host. What it knows comes from the calls, their
answers and the chunks that `insert` gave; it never changes any of them.

Who is idle is known from the marks. Before an eviction the `ref_cnt` of those that are not idle is
looked at all the same, for a host may have forgotten a mark; of all chunks, where no mark was ever
made. What a policy does to `ref_cnt` while it evicts does not count.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import override

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from kvoffload.policies.hooks import PolicyHooks
from kvoffload.requests import PerRequest
from stateful_models.capabilities import Capabilities, stated_by
from stateful_models.invariants import Invariant, PolicyBooks, policy_invariants
from stateful_models.judge import Violation
from stateful_models.monitor import Monitor, Observer, Setup, Tally, reread
from stateful_models.operations import (
    Clear,
    Evict,
    Get,
    HostEvent,
    Insert,
    MarkEvictable,
    MarkNonEvictable,
    NewRequest,
    Operation,
    Remove,
    RequestAccess,
    RequestFinished,
    RequestId,
    SetPositions,
    SetRefCount,
    StoreMiss,
    TouchKeys,
)
from stateful_models.steps import BadAnswerError, Found, Victim, Victims

Chosen: TypeAlias = list[tuple[OffloadKey, ChunkStatus]]

# A host dies of an exit as it does of an exception; an interrupt is nobody's breach.
RAISED = (Exception, SystemExit)


class WatchedPolicy(CachePolicy):
    """Passes every call on to `policy`, which must be new, and judges what comes of it.

    Better made by `watch`, which gives it the bulk forms where the policy has them. Without
    `capabilities` those that the policy states hold. `invariants` judge beside the usual ones; one
    that raises becomes a violation under its own name and is not asked again. `observers` are
    told of every step.

    Policies to older interfaces are called as `CPUOffloadingManager` calls them. Attributes that
    are no hook are those of the policy inside; calls of extra hooks go through unjudged. A request
    is told (`NewRequest`, with its hints) when its context is first seen, the positions of its
    keys with its access to them; each key of a bulk form is a step. Not `judged`: observers are
    told, and no invariant is asked but those given.
    """

    def __init__(
        self,
        policy: CachePolicy,
        *,
        capabilities: Capabilities | None = None,
        invariants: Sequence[Invariant[PolicyBooks]] = (),
        keep_last: int = 12,
        observers: Sequence[Observer] = (),
        tally: Tally | None = None,
        judged: bool = True,
    ) -> None:
        # The constructor of the base class would give it a capacity of its own.
        self.policy = policy
        if capabilities is None:
            capabilities = stated_by(policy)
        # What the host reads of the class, as the policy inside has it.
        vars(self)["may_refuse"] = getattr(policy, "may_refuse", None)
        capacity: object = getattr(policy, "cache_capacity", None)
        setup = Setup(
            kind="policy",
            num_chunks=capacity if isinstance(capacity, int) else None,
            capabilities=capabilities,
        )
        usual = policy_invariants(capabilities, setup.num_chunks or 0) if judged else ()
        self._monitor = Monitor(
            setup,
            [*usual, *invariants],
            PolicyBooks(),
            keep_last=keep_last,
            observers=observers,
            tally=tally,
        )
        self._tell = self._monitor.tell
        self._may_refuse = capabilities.may_refuse is not None
        self._hooks = PolicyHooks(policy)
        self._evict: Callable[..., Chosen | None] = policy.evict
        self._mark_idle: Callable[[OffloadKey], object] = getattr(policy, "mark_evictable", ignore)
        self._mark_busy: Callable[[OffloadKey], object] = getattr(
            policy, "mark_non_evictable", ignore
        )
        self._chunks: dict[OffloadKey, ChunkStatus] = {}
        # Those that are not idle, by the marks; all of them until one is made.
        self._busy: dict[OffloadKey, ChunkStatus] = {}
        self._marked = False
        self._known: PerRequest[bool] = PerRequest()

    if not TYPE_CHECKING:
        # For the host only: nobody who is checked may rely on attributes that may not be there.
        def __getattr__(self, name):
            if "policy" not in vars(self):
                raise AttributeError(name)
            return getattr(self.policy, name)

    @property
    def violations(self) -> list[Violation]:
        """What was found, the first hundred of every clause."""
        return self._monitor.tally.violations

    @property
    def num_violations(self) -> int:
        """How many violations there were in all."""
        return self._monitor.tally.num_violations

    @property
    def steps(self) -> int:
        """How many steps were judged: calls, requests seen, and counts of pins noticed."""
        return self._monitor.tally.steps

    @property
    def checks(self) -> int:
        """How many judgements were made."""
        return self._monitor.judge.checks

    @override
    def get(self, key: OffloadKey) -> ChunkStatus | None:
        operation = Get(key)
        try:
            answer = self.policy.get(key)
        except RAISED as error:
            self._tell(operation, None, error)
            raise
        found = None if answer is None else Found(slot_of(answer), answer is self._chunks.get(key))
        self._tell(operation, found)
        return answer

    @override
    def insert(
        self, key: OffloadKey, chunk: ChunkStatus, req_context: ReqContext | None = None
    ) -> None:
        operation = Insert(key, slot_of(chunk), self._request(req_context))
        self._chunks[key] = self._busy[key] = chunk
        if req_context is None:
            # A host of the older interface; what the policy makes of it is between the two.
            bare: Callable[..., None] = self.policy.insert
            self._pass_on(operation, bare, key, chunk)
        else:
            self._pass_on(operation, self._hooks.insert, key, chunk, req_context)

    @override
    def remove(self, key: OffloadKey) -> None:
        self._chunks.pop(key, None)
        self._busy.pop(key, None)
        self._pass_on(Remove(key), self.policy.remove, key)

    @override
    def touch(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        listed = reread(keys)
        operation = TouchKeys(self._request(req_context), tuple(listed))
        if req_context is None:
            bare: Callable[..., None] = self.policy.touch
            self._pass_on(operation, bare, listed)
        else:
            self._pass_on(operation, self._hooks.touch, listed, req_context)

    @override
    def evict(
        self, n: int, protected: Set[OffloadKey], *more: object
    ) -> list[tuple[OffloadKey, ChunkStatus]] | None:
        """`more` is what a host of its own gives to a policy of its own."""
        operation = Evict(n, frozenset(protected))
        if self._marked:
            for key in [key for key, chunk in self._busy.items() if not chunk.ref_cnt]:
                del self._busy[key]
                self._tell(SetRefCount(key, 0))
        else:
            self._look_at_all()
        try:
            answer = _kept(self._evict(n, protected, *more))
        except RAISED as error:
            self._tell(operation, None, error)
            raise
        if answer is None:
            if not self._may_refuse:
                self._look_at_all()
            self._tell(operation)
        else:
            self._evicted(operation, answer)
        return answer

    @override
    def clear(self) -> None:
        self._chunks.clear()
        self._busy.clear()
        self._pass_on(Clear(), self.policy.clear)

    @override
    def on_store_miss(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        listed = reread(keys)
        operation = StoreMiss(self._request(req_context), tuple(listed))
        self._pass_on(operation, self._hooks.on_store_miss, listed, req_context)

    @override
    def on_request_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        listed = reread(keys)
        request = self._request(req_context)
        places = _positions_of(listed, req_context)
        if places:
            self._tell(SetPositions(request, places))
        operation = RequestAccess(request, tuple(listed))
        hook = self._hooks.on_request_access
        if hook is None:
            self._tell(operation)
        else:
            self._pass_on(operation, hook, listed, req_context)

    @override
    def on_request_finished(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        operation = RequestFinished(
            self._request(req_context),
            tuple(map(tuple, key_groups)),
            frozenset(insertion_only_keys),
            frozenset(reused_keys),
        )
        hook = self._hooks.on_request_finished
        self._pass_on(operation, hook, key_groups, insertion_only_keys, reused_keys, req_context)

    @override
    def mark_evictable(self, key: OffloadKey) -> None:
        self._marked = True
        self._busy.pop(key, None)
        self._pass_on(MarkEvictable(key), self._mark_idle, key)

    @override
    def mark_non_evictable(self, key: OffloadKey) -> None:
        self._marked = True
        if (chunk := self._chunks.get(key)) is not None:
            self._busy[key] = chunk
        self._pass_on(MarkNonEvictable(key), self._mark_busy, key)

    def note_event(
        self, name: str, values: Sequence[object] = (), error: BaseException | None = None
    ) -> None:
        """The host called an extra hook of the policy, which is not done here, or read a name."""
        self._tell(HostEvent(name, tuple(values)), None, error)

    def _pass_on(
        self, operation: Operation, hook: Callable[..., object], *arguments: object
    ) -> None:
        try:
            hook(*arguments)
        except RAISED as error:
            self._tell(operation, None, error)
            raise
        self._tell(operation)

    def _pass_all_on(
        self, operations: Sequence[Operation], hook: Callable[..., object], *arguments: object
    ) -> None:
        """One call that stands for several; what it raises counts as raised by the last."""
        try:
            hook(*arguments)
        except RAISED as error:
            for operation in operations[:-1]:
                self._tell(operation)
            for operation in operations[-1:]:
                self._tell(operation, None, error)
            raise
        for operation in operations:
            self._tell(operation)

    def _evicted(self, operation: Evict, answer: Chosen) -> None:
        chunks = self._chunks
        try:
            victims = Victims(
                tuple(
                    Victim(key, slot_of(chunk), chunk is chunks.get(key)) for key, chunk in answer
                )
            )
        except (TypeError, ValueError) as error:
            bad = BadAnswerError(f"{reprlib.repr(answer)}: {error}")
            self._tell(operation, None, bad)
            return
        for key in victims.keys:
            chunk = chunks.pop(key, None)
            # One that nobody marked as pinned, and that is.
            if chunk is not None and chunk.ref_cnt > 0 and key not in self._busy:
                self._tell(SetRefCount(key, chunk.ref_cnt))
            self._busy.pop(key, None)
        self._tell(operation, victims)

    def _look_at_all(self) -> None:
        """Tell what the host did to any count of pins without a mark."""
        told = self._monitor.books.ref_cnt
        for key, count in [(key, chunk.ref_cnt) for key, chunk in self._chunks.items()]:
            # Between 1 and more there are no marks, and nothing depends on it.
            if (known := told.get(key, count)) != count and (known <= 0 or count <= 0):
                self._tell(SetRefCount(key, count))

    def _request(self, req_context: ReqContext | None) -> RequestId:
        """The id of a request, which is told when its context is first seen."""
        if req_context is None:
            return ""
        request = str(getattr(req_context, "req_id", ""))
        if self._known.get(req_context) is None:
            try:
                self._known.set(req_context, True)
            except TypeError:
                # One of a host's own kind, that no reference can follow: it is not known again.
                return request
            self._tell(NewRequest(request, _hints_of(req_context)))
        return request


def slot_of(chunk: object) -> int:
    """The slot of a chunk, under whichever name its host gives it; -1 of what has none."""
    slot: object = getattr(chunk, "chunk_id", getattr(chunk, "block_id", None))
    return slot if isinstance(slot, int) else -1


def _hints_of(req_context: ReqContext) -> Mapping[str, object] | None:
    """What the client sent, as it is now; vLLM's envelope of hints under the name it has there."""
    sent: Mapping[str, object] | None = getattr(req_context, "kv_transfer_params", None)
    hints = dict(sent) if isinstance(sent, Mapping) else None
    envelope: object = getattr(req_context, "kv_hints", None)
    return hints if envelope is None else {**(hints or {}), "kv_hints": envelope}


def _positions_of(
    keys: Collection[OffloadKey], req_context: ReqContext
) -> tuple[tuple[OffloadKey, int], ...]:
    """The keys of which the request knows where they end."""
    position_of: Callable[[OffloadKey], int | None] | None
    position_of = getattr(req_context, "get_offload_key_position", None)
    if position_of is None:
        return ()
    ends = [(key, position_of(key)) for key in keys]
    return tuple((key, end) for key, end in ends if end is not None)


def _kept(answer: Chosen | None) -> Chosen | None:
    """The answer; as a list if it could be read only once."""
    # Policies are anybody's, whatever they say that they answer.
    given: object = answer
    if isinstance(given, Iterable) and not isinstance(given, Collection):
        return list(given)
    return answer


def ignore(_: object) -> None:
    """Of a policy that has no such hook."""
