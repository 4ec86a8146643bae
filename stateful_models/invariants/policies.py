"""Policies: what a host may expect of `get` and `evict`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from kvoffload.keys import OffloadKey
from kvoffload.wording import counted
from stateful_models import operations as op
from stateful_models.capabilities import NONE, Capabilities
from stateful_models.contract import Kind
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.loading import at_its_place, words_of
from stateful_models.operations import key_text
from stateful_models.steps import BadAnswerError, Found, Step, Victims

NO_CALLS: Final = (op.SetPositions, op.SetRefCount, op.AdvanceClock)
"""What happens beside a policy and calls nothing of it."""
MARKS: Final = (op.MarkEvictable, op.MarkNonEvictable)
MARKED_AS: Final[Mapping[type[op.Operation], int]] = {op.MarkEvictable: 0, op.MarkNonEvictable: 1}
"""The ref_cnt with which a mark comes."""
REMEMBERED: Final = 64
"""Among so many calls the one is looked for that is to blame."""

_PROMISED_OF: Final[Mapping[type[op.Operation], str]] = {
    op.Get: "POL-1",
    op.Insert: "POL-1",
    op.Remove: "POL-1",
    op.Evict: "POL-2",
    op.Clear: "POL-6",
}
"""What a call has broken that changed what `get` finds and should not have; for hooks POL-7."""


class PolicyBooks:
    """What the host of a policy knows: the slot and the ref_cnt of every resident key."""

    def __init__(self) -> None:
        self.slots: dict[OffloadKey, int] = {}
        self.ref_cnt: dict[OffloadKey, int] = {}

    def read(self, step: Step) -> None:
        """Nothing of a policy's step needs preparing."""

    def apply(self, step: Step) -> None:
        """Write down what the host did, and which victims it was given."""
        operation = step.operation
        if isinstance(operation, op.Get):
            # The most frequent call by far, and it changes nothing.
            return
        if isinstance(operation, op.Insert):
            self.slots[operation.key], self.ref_cnt[operation.key] = operation.slot, -1
        elif isinstance(operation, op.Remove):
            self._drop(operation.key)
        elif isinstance(operation, op.MarkEvictable):
            self.ref_cnt[operation.key] = 0
        elif isinstance(operation, op.MarkNonEvictable):
            self.ref_cnt[operation.key] = 1
        elif isinstance(operation, op.SetRefCount):
            self.ref_cnt[operation.key] = operation.ref_cnt
        elif isinstance(operation, op.Clear):
            self.slots.clear()
            self.ref_cnt.clear()
        elif isinstance(step.result, Victims):
            for key in step.result.keys:
                self._drop(key)

    def _drop(self, key: OffloadKey) -> None:
        self.slots.pop(key, None)
        self.ref_cnt.pop(key, None)


class PolicyContract(Invariant[PolicyBooks]):
    """POL-1, POL-2, POL-3, POL-6 and POL-7, as far as single answers show them.

    Where `get` answers wrongly, the calls since it was last as it should be are to blame. If there
    was one only, that decides the clause: hooks never change membership (POL-7), an eviction
    removes what it gives (POL-2). Where several calls could each have broken another clause, the
    promise of `get` itself is all that is known to be broken (POL-1), and the finding says which
    key strayed. So it is after a mark that came with another ref_cnt, for `get` may look at that
    itself. A hook that the policy does not define is never to blame.
    """

    clauses: ClassVar[tuple[str, ...]] = ("POL-1", "POL-2", "POL-3", "POL-6", "POL-7")

    def __init__(self, capabilities: Capabilities = NONE) -> None:
        self._capabilities = capabilities
        self._made = 0
        # After how many calls the ref_cnt of a key changed and nothing of the policy was called.
        self._recounted: dict[OffloadKey, int] = {}
        # After how many calls a mark came that changed no ref_cnt.
        self._only_marked = 0
        self._latest: deque[op.Operation] = deque(maxlen=REMEMBERED)
        # How many calls had been made when `get` last was known to be right about a key.
        self._right: dict[OffloadKey, int] = {}
        self._right_about_others = 0

    def judge(self, step: Step, books: PolicyBooks) -> Iterator[Finding]:
        operation = step.operation
        if isinstance(step.error, BadAnswerError):
            yield Finding("POL-2", f"{operation.verb} answered {step.error}", Kind.SAFETY)
        elif step.error is not None:
            yield Finding(
                "POL-7",
                f"{operation.verb} raised {type(step.error).__name__}: {words_of(step.error)}"
                f"{at_its_place(step.error)}",
            )
        elif isinstance(operation, op.Get):
            yield from self._got(operation.key, step.result, books)
        elif isinstance(operation, op.Evict):
            if isinstance(step.result, Victims):
                yield from self._evicted(operation, step.result, books)
            else:
                yield from self._refused(operation, books)
        if isinstance(operation, op.SetRefCount):
            self._recounted[operation.key] = self._made
        elif step.silent:
            if isinstance(operation, MARKS):
                self._recounted[operation.key] = self._made
        elif not isinstance(operation, NO_CALLS):
            self._write_down(step)
            if isinstance(operation, MARKS) and (
                books.ref_cnt.get(operation.key) == MARKED_AS[type(operation)]
            ):
                self._only_marked = self._made

    def _write_down(self, step: Step) -> None:
        operation, before = step.operation, self._made
        again = bool(self._latest) and self._latest[-1] == operation
        self._made += 1
        self._latest.append(operation)
        match operation:
            case op.Get(key):
                # Who is found twice in a row has not left because it was looked for.
                self._right[key] = self._made if again else before
            case op.Insert(key) | op.Remove(key):
                self._right[key] = before
            case op.Evict() if isinstance(step.result, Victims):
                self._right.update(dict.fromkeys(step.result.keys, before))
            case op.Clear():
                self._right.clear()
                self._right_about_others = before
            case _:
                pass

    def _got(self, key: OffloadKey, result: object, books: PolicyBooks) -> Iterator[Finding]:
        slot = books.slots.get(key)
        found = isinstance(result, Found)
        if slot is None and not found:
            return
        if slot is not None and isinstance(result, Found):
            if not result.own or result.slot != slot:
                yield Finding(
                    "POL-1",
                    f"{key_text(key)} was inserted with slot {slot}, and get found {result}",
                )
            return
        if slot is None:
            what = f"{key_text(key)} is not resident, and get found {result}"
        else:
            what = f"{key_text(key)} is resident, and get found nothing"
        right = self._right.get(key, self._right_about_others)
        number = self._made - right
        suspects = list(self._latest)[max(0, len(self._latest) - number) :]
        only_sought = all(isinstance(call, op.Get) and call.key == key for call in suspects)
        if slot is not None and self._recounted.get(key) == self._made and only_sought:
            state = "pinned" if books.ref_cnt[key] > 0 else "idle"
            yield Finding("POL-1", f"{what} once it was {state}")
            return
        if number == 0:
            yield Finding("POL-1", f"{what}, and nothing but get was called meanwhile")
            return
        if number == 1:
            call = suspects[0]
            recounted = slot is not None and self._recounted.get(key, -1) >= right
            doubtful = recounted or (isinstance(call, MARKS) and self._only_marked != self._made)
            yield Finding(
                "POL-1" if doubtful else _clause_of(call),
                f"{what} after {_named(call, key, slot)}",
                strayed=key if doubtful else None,
            )
            return
        clauses = {"POL-1" if isinstance(call, MARKS) else _clause_of(call) for call in suspects}
        clause = clauses.pop() if len(clauses) == 1 and number == len(suspects) else "POL-1"
        names = ", ".join(dict.fromkeys(_hook_of(call) for call in suspects))
        yield Finding(clause, f"{what} after one of the calls {names}", strayed=key)

    def _evicted(self, evict: op.Evict, given: Victims, books: PolicyBooks) -> Iterator[Finding]:
        if len(set(given.keys)) < len(given.keys):
            yield Finding("POL-2", "a victim was given twice")
        for victim in given.victims:
            name = key_text(victim.key)
            if victim.key in evict.protected:
                yield Finding("POL-2", f"the victim {name} is protected")
            if victim.key not in books.slots:
                yield Finding("POL-2", f"the victim {name} is not resident")
            elif books.ref_cnt[victim.key] != 0:
                pins = books.ref_cnt[victim.key]
                state = "pending" if pins < 0 else "pinned"
                times = f", {pins} times" if pins > 1 else ""
                yield Finding("POL-2", f"the victim {name} is {state}{times}")
            elif not victim.own:
                yield Finding("POL-2", f"the victim {name} came with another chunk")
        asked, number = evict.count, len(given.victims)
        if number < asked or (number > asked and self._capabilities.may_evict_more is None):
            yield Finding("POL-2", f"{asked} were asked for, {number} given", Kind.HOST)

    def _refused(self, evict: op.Evict, books: PolicyBooks) -> Iterator[Finding]:
        idle = sum(
            count == 0 and key not in evict.protected for key, count in books.ref_cnt.items()
        )
        if idle >= evict.count and self._capabilities.may_refuse is None:
            yield Finding(
                "POL-3", f"evicting {evict.count} was refused, with {counted(idle, 'candidate')}"
            )


def _clause_of(call: op.Operation) -> str:
    return _PROMISED_OF.get(type(call), "POL-7")


def _named(call: op.Operation, key: OffloadKey, slot: int | None) -> str:
    """The call after which `get` is wrong about the key, in words."""
    match call:
        case op.Insert(inserted):
            return "it was inserted" if inserted == key else f"{key_text(inserted)} was inserted"
        case op.Remove(removed):
            return "it was removed" if removed == key else f"{key_text(removed)} was removed"
        case op.Evict():
            return "it was evicted" if slot is None else "an eviction that did not give it"
        case op.Clear():
            return "a clear"
        case op.Get(sought):
            return "it was found" if sought == key else f"{key_text(sought)} was looked up"
        case _:
            return f"a call of {_hook_of(call)}"


def _hook_of(call: op.Operation) -> str:
    return call.name if isinstance(call, op.HostEvent) else call.verb
