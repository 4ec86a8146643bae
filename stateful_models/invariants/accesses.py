"""Accesses: what a manager tells its policy of the keys that each request saw.

A request sees the keys that it loads, and of its offers those that are ready or admitted. The
policy hears of each once, of each miss once, and of the whole when the request has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

from attrs import define, field

from kvoffload.keys import OffloadKey
from stateful_models.account import Account
from stateful_models.invariants.base import Finding, Invariant
from stateful_models.operations import (
    FinishRequest,
    NewRequest,
    Operation,
    PolicyOperation,
    PrepareLoad,
    PrepareStore,
    RequestAccess,
    RequestFinished,
    RequestId,
    Reset,
    SetPositions,
    StoreMiss,
    keys_text,
)
from stateful_models.steps import Loaded, Step, Stored

_Who: TypeAlias = tuple[RequestId, int | None]

KEPT = 1024
"""How many finished requests are remembered."""


@define
class _Record:
    """What one request did in this generation."""

    seen: dict[OffloadKey, None] = field(factory=dict)
    missed: set[OffloadKey] = field(factory=set)
    inserted: set[OffloadKey] = field(factory=set)
    reused: set[OffloadKey] = field(factory=set)


class Accesses(Invariant[Account]):
    """LOAD-5 and FIN-1, and of STORE-2, STORE-8 and GEN-2 what speaks of accesses.

    Judged where a tap tells what the policy was told. Which keys of a refused offer a threshold
    admitted is not told to the host: there the policy is believed. A request that is announced
    again after its end may be another: of such a one nothing is judged.
    """

    clauses: ClassVar[tuple[str, ...]] = ("LOAD-5", "FIN-1", "STORE-2", "STORE-8", "GEN-2")
    concerns: ClassVar[tuple[type[Operation], ...]] = (
        NewRequest,
        SetPositions,
        PrepareLoad,
        PrepareStore,
        FinishRequest,
        Reset,
    )

    def __init__(self, store_threshold: int = 1) -> None:
        self._threshold = store_threshold
        self._live: dict[_Who, _Record] = {}
        # None: the request has been announced once more.
        self._finished: dict[_Who, _Record | None] = {}
        self._ends: dict[_Who, dict[OffloadKey, int]] = {}
        # What the requests of the last generation had seen.
        self._former: dict[_Who, _Record] = {}

    def judge(self, step: Step, books: Account) -> Iterable[Finding]:
        operation, told = step.operation, step.told
        if isinstance(operation, SetPositions):
            who = (operation.request, operation.context)
            self._ends.setdefault(who, {}).update(operation.positions)
        elif told is None or step.error is not None:
            return ()
        elif isinstance(operation, PrepareStore):
            return self._offered(operation, step, told, books)
        elif isinstance(operation, PrepareLoad):
            return self._loaded(operation, step, told)
        elif isinstance(operation, FinishRequest):
            return self._ended(operation, told)
        elif isinstance(operation, NewRequest):
            who = (operation.request, operation.context)
            if who in self._finished:
                self._finished[who] = None
        elif isinstance(operation, Reset):
            self._former, self._live = self._live, {}
            self._finished.clear()
        return ()

    def _record_of(self, who: _Who) -> _Record | None:
        if who in self._finished:
            return self._finished[who]
        return self._live.setdefault(who, _Record())

    def _offered(
        self, offer: PrepareStore, step: Step, told: Sequence[PolicyOperation], books: Account
    ) -> Iterator[Finding]:
        record = self._record_of((offer.request, offer.context))
        if record is None:
            return
        misses, accesses = _missed(told), _accessed(told)
        offered = dict.fromkeys(offer.keys)
        resident = books.resident
        absent = [key for key in offered if key not in resident]
        if isinstance(step.result, Stored):
            stored = set(step.result.keys)
            admitted = {key for key in absent if key in stored}
        elif self._threshold < 2:
            admitted = set(absent)
        else:
            admitted = set(absent).intersection((*misses, *accesses))
        ready = {key for key in offered if books.ready(key)}

        expected = [key for key in absent if key in admitted and key not in record.missed]
        if misses != expected:
            yield Finding(
                "STORE-8",
                f"the policy was told of misses {keys_text(misses)}, and new ones are "
                f"{keys_text(expected)}",
            )
        first = [
            key for key in offered if (key in admitted or key in ready) and key not in record.seen
        ]
        if accesses != first:
            pending = [key for key in accesses if key in resident and key not in ready]
            unseen = ready.intersection(first).difference(accesses)
            if pending:
                yield Finding("STORE-2", f"{keys_text(pending)} was called seen while pending")
            elif unseen:
                yield Finding(
                    "LOAD-5",
                    f"{keys_text(sorted(unseen))} was ready and offered, and the policy was told "
                    "of no access",
                )
            else:
                yield _wrong_accesses("STORE-8", accesses, first)
        record.missed.update(expected)
        record.seen.update(dict.fromkeys(first))
        record.reused.update(ready - record.inserted)
        if isinstance(step.result, Stored):
            record.inserted.update(admitted)

    def _loaded(
        self, load: PrepareLoad, step: Step, told: Sequence[PolicyOperation]
    ) -> Iterator[Finding]:
        if not isinstance(step.result, Loaded):
            return
        accesses = _accessed(told)
        if load.internal:
            if accesses:
                yield Finding(
                    "LOAD-5", f"an internal load was told as an access to {keys_text(accesses)}"
                )
            return
        record = self._record_of((load.request, load.context))
        if record is None:
            return
        first = [key for key in dict.fromkeys(load.keys) if key not in record.seen]
        if accesses != first:
            yield _wrong_accesses("LOAD-5", accesses, first)
        record.seen.update(dict.fromkeys(first))
        record.reused.update(key for key in load.keys if key not in record.inserted)

    def _ended(self, finish: FinishRequest, told: Sequence[PolicyOperation]) -> Iterator[Finding]:
        who = (finish.request, finish.context)
        reports = [call for call in told if isinstance(call, RequestFinished)]
        former = self._former.pop(who, None)
        if who in self._finished:
            if reports and self._finished[who] is not None:
                yield Finding("FIN-1", f"the policy was told twice that {who[0]} had finished")
            return
        record = self._live.pop(who, None)
        ends = self._ends.pop(who, {})
        if record is None:
            record = _Record()
        else:
            self._finished[who] = record
            while len(self._finished) > KEPT:
                del self._finished[next(iter(self._finished))]
        if len(reports) > 1:
            yield Finding("FIN-1", f"the policy was told {len(reports)} times of one end")
        elif reports:
            yield from _differences(reports[0], record, ends, former)
        elif record.seen:
            yield Finding(
                "FIN-1", f"{who[0]} saw {keys_text(record.seen)}, and its end was not told"
            )


def _differences(
    report: RequestFinished,
    record: _Record,
    ends: dict[OffloadKey, int],
    former: _Record | None,
) -> Iterator[Finding]:
    groups = [list(group) for group in report.key_groups if group]
    told = [key for group in groups for key in group]
    foreign = [key for key in told if key not in record.seen]
    if foreign:
        stale = former is not None and set(foreign) <= former.seen.keys()
        when = " since the reset" if stale else ""
        yield Finding(
            "GEN-2" if stale else "FIN-1",
            f"{report.request} did not see {keys_text(foreign)}{when}, and its end tells of them",
        )
        return
    if groups != (expected := _by_group(record.seen, ends)):
        yield Finding(
            "FIN-1",
            f"the end of {report.request} was told as {' '.join(map(keys_text, groups))}, and it "
            f"saw {' '.join(map(keys_text, expected))}",
        )
    inserted = frozenset(record.inserted - record.reused)
    if report.reused != frozenset(record.reused):
        yield Finding(
            "LOAD-5",
            f"{report.request} reused {keys_text(sorted(record.reused))}, and "
            f"{keys_text(sorted(report.reused))} was told",
        )
    elif report.insertion_only != inserted:
        yield Finding(
            "FIN-1",
            f"{report.request} inserted {keys_text(sorted(inserted))} and did not reuse it, and "
            f"{keys_text(sorted(report.insertion_only))} was told",
        )


def _by_group(
    seen: Iterable[OffloadKey], ends: dict[OffloadKey, int]
) -> Sequence[list[OffloadKey]]:
    groups: dict[bytes, list[OffloadKey]] = {}
    for key in seen:
        groups.setdefault(key[-4:], []).append(key)
    for group in groups.values():
        if all(key in ends for key in group):
            group.sort(key=lambda key: ends[key])
    return [groups[index] for index in sorted(groups)]


def _wrong_accesses(
    clause: str, accesses: Iterable[OffloadKey], first: Iterable[OffloadKey]
) -> Finding:
    return Finding(
        clause,
        f"the policy was told of first accesses to {keys_text(accesses)}, and these are "
        f"{keys_text(first)}",
    )


def _missed(told: Sequence[PolicyOperation]) -> list[OffloadKey]:
    return [key for call in told if isinstance(call, StoreMiss) for key in call.keys]


def _accessed(told: Sequence[PolicyOperation]) -> list[OffloadKey]:
    return [key for call in told if isinstance(call, RequestAccess) for key in call.keys]
