"""The policy as the manager deals with it: each call is one with which it may break its contract.

Whatever a policy does, what leaves this module is a sound answer or a `PolicyContractError`, and
the manager's books are not changed before that is known (STORE-10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from operator import is_
from typing import NoReturn

from kvoffload.errors import PolicyContractError
from kvoffload.keys import OffloadKey, are_bytes
from kvoffload.policies.base import CachePolicy, ChunkStatus
from kvoffload.policies.hooks import PolicyHooks
from kvoffload.requests import ReqContext
from kvoffload.wording import counted


class PolicyGuard:
    """One policy, made from `policy_cls`, and made anew by `reset` once it is broken.

    `find` answers which chunk is resident under a key, by the manager's own books. A call that
    ends in anything but a sound answer leaves the policy broken: it is not called any more.
    `KeyboardInterrupt` and its like pass through as they are, and do the same: nobody knows how
    far the policy had come.
    """

    def __init__(
        self,
        policy_cls: type[CachePolicy],
        capacity: int,
        find: Callable[[OffloadKey], ChunkStatus | None],
    ) -> None:
        self._policy_cls = policy_cls
        self._capacity = capacity
        self._find = find
        self._hooks = self._make()
        self._broken: PolicyContractError | None = None
        self._reentry: PolicyContractError | None = None
        # The hook that is running. It must not call the manager back: the books are in between.
        self.running: str | None = None
        self.closed: bool = False
        """Whether calls that need the policy have to be refused: it is broken, or running."""

    @property
    def policy(self) -> CachePolicy:
        """The policy itself, for those who want to look at it."""
        return self._hooks.policy

    @property
    def observes_access(self) -> bool:
        """Whether the policy has a use for what a request sees for the first time."""
        return self._hooks.on_request_access is not None

    def refuse(self, call: str) -> NoReturn:
        """Refuse `call` of the manager, because of what made the policy `closed`."""
        broken = self._broken
        if self.running is not None or broken is None:
            what = f"it called {call} of its own manager"
            self._reentry = PolicyContractError(self._hooks.name, str(self.running), "POL-7", what)
            raise self._reentry
        what = f"{broken.what}; {call} is refused until reset_cache"
        raise PolicyContractError(broken.policy, broken.call, broken.clause, what) from broken

    def touch(self, keys: list[OffloadKey], req_context: ReqContext) -> None:
        """The keys were used."""
        self.running, self.closed = "touch", True
        try:
            self._hooks.touch(keys, req_context)
        except BaseException as error:
            self._fail(error)
        self.running, self.closed = None, False

    def observe_misses(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        """The keys will be stored if there is room."""
        self.running, self.closed = "on_store_miss", True
        try:
            self._hooks.on_store_miss(list(keys), req_context)
        except BaseException as error:
            self._fail(error)
        self.running, self.closed = None, False

    def observe_access(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The request sees the keys for the first time."""
        hook = self._hooks.on_request_access
        if hook is None:
            return
        self.running, self.closed = "on_request_access", True
        try:
            hook(list(keys), req_context)
        except BaseException as error:
            self._fail(error)
        self.running, self.closed = None, False

    def observe_finish(
        self,
        key_groups: Sequence[Sequence[OffloadKey]],
        insertion_only_keys: Set[OffloadKey],
        reused_keys: Set[OffloadKey],
        req_context: ReqContext,
    ) -> None:
        """The request has ended."""
        self.running, self.closed = "on_request_finished", True
        try:
            self._hooks.on_request_finished(
                key_groups, insertion_only_keys, reused_keys, req_context
            )
        except BaseException as error:
            self._fail(error)
        self.running, self.closed = None, False

    def insert(
        self, keys: list[OffloadKey], chunks: list[ChunkStatus], req_context: ReqContext
    ) -> None:
        """The keys become resident, their stores pending."""
        self.running, self.closed = "insert", True
        try:
            # Lists of its own, here and below: what it does to them must not reach the books.
            self._hooks.insert_all(list(keys), list(chunks), req_context)
        except BaseException as error:
            self._fail(error)
        self.running, self.closed = None, False

    def became_idle(self, keys: list[OffloadKey]) -> None:
        """The chunks are idle now. A broken policy is not told."""
        self._tell("mark_evictable", self._hooks.mark_all_evictable, keys)

    def leave_idle(self, keys: Sequence[OffloadKey], chunks: Sequence[ChunkStatus]) -> None:
        """Those of the chunks that are idle are about to be pinned."""
        hook = self._hooks.mark_all_non_evictable
        if hook is not None:
            idle = {
                key: None for key, chunk in zip(keys, chunks, strict=True) if chunk.ref_cnt == 0
            }
            self._tell("mark_non_evictable", hook, list(idle))

    def removed(self, keys: list[OffloadKey]) -> None:
        """The stores of the keys failed. A broken policy is not told."""
        self._tell("remove", self._hooks.remove_all, keys)

    def evict(
        self, needed: int, offer: set[OffloadKey]
    ) -> tuple[list[OffloadKey], list[ChunkStatus]] | None:
        """Ask for victims, and believe nothing that is answered.

        None when the policy refuses, which it must have declared; there are enough idle chunks.
        """
        self.running, self.closed = "evict", True
        try:
            # A set of its own: what the policy does to it must not decide what is protected.
            answer = self._hooks.evict(needed, set(offer))
        except BaseException as error:
            self._fail(error)
        if answer is None:
            if not self._hooks.may_refuse:
                self._break("POL-3", f"refused {needed} although as many idle chunks exist")
            self.running, self.closed = None, False
            return None
        try:
            victims = list(answer)
            keys = [key for key, _ in victims]
            chunks = [chunk for _, chunk in victims]
            # Each test is a loop in C; what exactly is wrong is found out only if something is.
            sound = (
                self.are_right(len(keys), needed)
                and are_bytes(keys)
                and all(map(is_, map(self._find, keys), chunks))
                and not [chunk for chunk in chunks if chunk.ref_cnt]
                and len(distinct := set(keys)) == len(keys)
                and offer.isdisjoint(distinct)
            )
        except Exception as error:
            what = f"its answer is no list of keys and chunks: {_described(error)}"
            self._break("POL-2", what, error)
        except BaseException as error:
            self._fail(error)
        if not sound:
            self._break("POL-2", self._bad_victims(needed, offer, victims))
        self.running, self.closed = None, False
        return keys, chunks

    def reset(self) -> None:
        """Forget everything (POL-6): a broken policy gives way to a new one.

        One that cannot be made anew stays broken, and nothing is reset.
        """
        if self._broken is None:
            self.running, self.closed = "clear", True
            try:
                self._hooks.clear()
            except BaseException as error:
                self._fail(error)
        else:
            self.running, self.closed = "__init__", True
            try:
                self._hooks = self._make()
            except BaseException as error:
                self._fail(error)
            self._broken = None
        self.running, self.closed = None, False

    def check(self) -> None:
        """Have the policy check itself, if it can and is not broken."""
        check_policy = getattr(self.policy, "check", None)
        if check_policy is not None and self._broken is None:
            check_policy()

    def _make(self) -> PolicyHooks:
        return PolicyHooks(self._policy_cls(cache_capacity=self._capacity))

    def _tell(
        self,
        call: str,
        hook: Callable[[list[OffloadKey]], None] | None,
        keys: list[OffloadKey],
    ) -> None:
        if hook is None or self._broken is not None:
            return
        self.running, self.closed = call, True
        try:
            hook(list(keys))
        except BaseException as error:
            self._fail(error)
        self.running, self.closed = None, False

    def are_right(self, victims: int, needed: int) -> bool:
        """Whether it is so many victims that were asked for."""
        return victims == needed

    def _bad_victims(
        self, needed: int, offer: set[OffloadKey], victims: list[tuple[OffloadKey, ChunkStatus]]
    ) -> str:
        for key, chunk in victims:
            if type(key) is not bytes:
                return f"{key!r} is no key"
            if self._find(key) is not chunk:
                return f"{key!r} is not resident with that chunk"
            if chunk.ref_cnt != 0:
                return f"{key!r} is {'pending' if chunk.ref_cnt < 0 else 'pinned'}"
            if key in offer:
                return f"{key!r} is protected"
        if not self.are_right(len(victims), needed):
            return f"{counted(len(victims), 'victim')} instead of {needed}"
        return "a victim is named twice"

    def _fail(self, error: BaseException) -> NoReturn:
        """The hook that is running raised `error`."""
        if error is self._reentry:
            self._broken = self._reentry
        elif isinstance(error, Exception):
            self._break("POL-7", f"it raised {_described(error)}", error)
        else:
            what = f"it was interrupted by {type(error).__name__}"
            self._broken = PolicyContractError(self._hooks.name, str(self.running), "POL-7", what)
        self.running = None
        raise error

    def _break(self, clause: str, what: str, cause: Exception | None = None) -> NoReturn:
        """The hook that is running broke `clause`."""
        self._broken = PolicyContractError(self._hooks.name, str(self.running), clause, what)
        self.running = None
        raise self._broken from cause


def _described(error: Exception) -> str:
    """The exception by name and text; by name alone where its own text cannot be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
