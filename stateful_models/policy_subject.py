"""The policy subject: performs the calls of a manager on a cache policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from kvoffload import CachePolicy, ChunkStatus, OffloadKey, ReqContext
from stateful_models import operations as op
from stateful_models.steps import Found, Result, Step, Victim, Victims
from stateful_models.subjects import Contexts
from stateful_models.subjects import call_if_there as call


class PolicySubject:
    """A policy, called as a manager calls it; the subject keeps the chunks and sets ref_cnt.

    Optional hooks may be missing, `insert` may take two arguments and `touch` one: the policy is
    then called as a host serves such a one.
    """

    def __init__(
        self, policy: CachePolicy, *, advance_clock: Callable[[float], object] | None = None
    ) -> None:
        self.policy = policy
        self.contexts: Contexts = Contexts()
        self.chunks: dict[OffloadKey, ChunkStatus] = {}
        self._insert_takes_context = _takes(policy.insert, 3)
        self._touch_takes_context = _takes(policy.touch, 2)
        self._advance_clock = advance_clock
        self._steps = 0

    def perform(self, operation: op.Operation) -> Step:
        """Make the call, and tell what came of it."""
        self._steps += 1
        result: Result = None
        error: Exception | None = None
        try:
            result = self._call(operation)
        except Exception as raised:
            error = raised
        return Step(self._steps, operation, result, error)

    def _call(self, operation: op.Operation) -> Result:
        policy, of = self.policy, self.contexts.of
        match operation:
            case op.Get(key):
                found = policy.get(key)
                if found is not None:
                    return Found(found.chunk_id, found is self.chunks.get(key))
            case op.Insert(key, slot, request):
                chunk = self.chunks[key] = ChunkStatus(slot)
                arguments = (key, chunk, of(request))
                call(policy, "insert", arguments[: 3 if self._insert_takes_context else 2])
            case op.Remove(key):
                del self.chunks[key]
                policy.remove(key)
            case op.TouchKeys(request, keys):
                self._touch(keys, of(request))
            case op.Evict(count, protected):
                return self._evict(count, protected)
            case op.StoreMiss(request, keys):
                if self._overrides("on_store_miss"):
                    policy.on_store_miss(keys, of(request))
                else:
                    self._touch(keys, of(request))
            case op.RequestAccess(request, keys):
                call(policy, "on_request_access", (keys, of(request)))
            case op.RequestFinished(request, groups, inserted, reused):
                if self._overrides("on_request_finished"):
                    policy.on_request_finished(groups, set(inserted), set(reused), of(request))
                else:
                    for group in groups:
                        self._touch(group, of(request))
            case op.MarkEvictable(key):
                self.chunks[key].ref_cnt = 0
                call(policy, "mark_evictable", (key,))
            case op.MarkNonEvictable(key):
                self.chunks[key].ref_cnt = 1
                call(policy, "mark_non_evictable", (key,))
            case op.SetRefCount(key, ref_cnt):
                self.chunks[key].ref_cnt = ref_cnt
            case op.Clear():
                self.chunks.clear()
                policy.clear()
            case _:
                self._call_host(operation)
        return None

    def _touch(self, keys: tuple[OffloadKey, ...], context: ReqContext) -> None:
        arguments = (keys, context)
        call(self.policy, "touch", arguments[: 2 if self._touch_takes_context else 1])

    def _overrides(self, hook: str) -> bool:
        # The inherited defaults pass touch its two arguments, which it may not take.
        own = getattr(type(self.policy), hook, None)
        return own is not None and own is not getattr(CachePolicy, hook)

    def _call_host(self, operation: op.Operation) -> None:
        match operation:
            case op.SetPositions(request, positions):
                for key, end in positions:
                    self.contexts.of(request).set_offload_key_position(key, end)
            case op.NewRequest():
                self.contexts.announce(operation)
            case op.AdvanceClock(seconds):
                if self._advance_clock is not None:
                    self._advance_clock(seconds)
            case op.HostEvent(name, values):
                call(self.policy, name, values)
            case _:
                raise TypeError(f"{operation} is no call to a policy")

    def _evict(self, count: int, protected: frozenset[OffloadKey]) -> Victims | None:
        answer = self.policy.evict(count, set(protected))
        if answer is None:
            return None
        victims = tuple(
            Victim(key, chunk.chunk_id, chunk is self.chunks.get(key)) for key, chunk in answer
        )
        for victim in victims:
            self.chunks.pop(victim.key, None)
        return Victims(victims)


def _takes(method: Callable[..., object], arguments: int) -> bool:
    try:
        inspect.signature(method).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:
        # No signature to be had; then it is taken to be of the native form.
        return True
    return True
