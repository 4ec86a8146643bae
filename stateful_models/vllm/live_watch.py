"""The watch over one policy inside an engine, which must never suffer from it.

Whatever goes wrong in watching, a full disk or a mistake of ours, is warned of and ends it; the
call during which it happened gives what the policy gave. What the policy itself raises passes
through as the object that it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final, TypeVar, cast
from weakref import WeakSet

from kvoffload import CachePolicy
from kvoffload.errors import PolicyContractError
from stateful_models.capabilities import stated_by
from stateful_models.contract import Profile
from stateful_models.judge import Violation
from stateful_models.loading import describe
from stateful_models.logs import CallLog
from stateful_models.logs.trial import convicts
from stateful_models.monitor import Tally
from stateful_models.operations import NewRequest
from stateful_models.vllm.passage import Passage
from stateful_models.vllm.settings import Judging, Settings, place
from stateful_models.watch_policy import WatchedPolicy

T = TypeVar("T")

LOGGER: Final = logging.getLogger("kvoffload.watch")
MAX_LOGS: Final = 10_000
"""Names that are tried for a log, where other processes of this number left theirs."""


class LiveWatch:
    """Judges and records the calls of `policy` as `settings` say, by `clock` in seconds.

    `watch` is what calls go through, and None once the watching is over; then they go to the policy
    alone. The log is closed when this object goes, or the process ends.
    """

    def __init__(
        self,
        policy: CachePolicy,
        cache_capacity: int,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        self.watch: WatchedPolicy | None = None
        self.log: CallLog | None = None
        self.log_path: Path | None = None
        self.tally: Tally = Tally()
        self._name = type(policy).__name__
        self._passage = Passage(policy, cache_capacity)
        self._judging = settings.judging
        self._seen = 0
        self._told = 0
        self._reported: set[str] = set()
        self._read: set[str] = set()
        if not settings.watches:
            return
        try:
            self._begin(policy, settings, clock)
        except Exception as error:
            self.end(error)
        _LIVE.add(self)
        judges = self._judging is not Judging.OFF
        # Not that of `weakref`: an engine may be a forked process, which ends without asking it.
        self._finish = Finalize(
            self, _finish, (self._name, self.log, self.tally if judges else None), exitpriority=1
        )

    def _begin(self, policy: CachePolicy, settings: Settings, clock: Callable[[], float]) -> None:
        if settings.log is not None:
            try:
                self.log, self.log_path = _new_log(settings.log, settings, clock)
            except Exception as error:
                self._warn(f"nothing is recorded: {describe(error)}")
        if self.log is not None or self._judging is not Judging.OFF:
            self.watch = WatchedPolicy(
                self._passage,
                capabilities=stated_by(policy),
                observers=() if self.log is None else (self.log,),
                tally=self.tally,
                judged=self._judging is not Judging.OFF,
            )
            self._look()

    def call(self, watched: Callable[..., T], hook: Callable[..., T], *arguments: object) -> T:
        """What `hook` of the policy gives, called by way of `watched`, the same hook of the watch.

        Raises what the policy raises, and PolicyContractError where breaches are to be raised.
        """
        passage = self._passage
        passage.begin()
        try:
            answer = watched(*arguments)
        except BaseException as error:
            if error is passage.error:
                self._look()
                raise
            if not isinstance(error, Exception):
                # An interrupt, which is nobody's mistake.
                raise
            self.end(error)
        else:
            if self.tally.num_violations != self._seen:
                self._raise(self._look())
            return answer
        if passage.error is not None:
            raise passage.error
        # It is the answer of this very hook.
        return cast("T", passage.answer) if passage.called else hook(*arguments)

    def note_event(
        self, name: str, values: Sequence[object] = (), error: BaseException | None = None
    ) -> None:
        """The host has called an extra hook, which may have raised."""
        if self.watch is not None:
            try:
                self.watch.note_event(name, values, error)
            except Exception as failure:
                self.end(failure)
            else:
                breach = self._look()
                if error is None:
                    self._raise(breach)

    def note_reading(self, name: str) -> None:
        """The host has read an attribute of the policy; told once."""
        if name not in self._read:
            self._read.add(name)
            self.note_event(name)

    def end(self, error: Exception) -> None:
        """The watching is over, because of `error`."""
        self.watch = None
        self._warn(f"the watching has ended: {describe(error)}")
        self.close()

    def close(self) -> None:
        """End the log; the watching goes on only if something is judged."""
        if self.log is not None:
            with suppress(Exception):
                self.log.close()
        if self._judging is Judging.OFF:
            self.watch = None

    def abandon(self) -> None:
        """In a forked process: leave the log to the other."""
        self.watch = None
        self._finish.cancel()
        if self.log is not None:
            with suppress(Exception):
                self.log.abandon()

    def _look(self) -> Violation | None:
        """Tell of what was found since the last time; gives a breach that is to be raised."""
        found = self.tally.violations[self._told :]
        self._seen, self._told = self.tally.num_violations, len(self.tally.violations)
        breaches: list[Violation] = []
        for violation in found:
            if violation.raised:
                self._warn(violation.message)
                if violation.invariant == CallLog.__name__:
                    self.close()
            else:
                if violation.clause not in self._reported:
                    self._reported.add(violation.clause)
                    self._warn(_in_words(violation))
                if convicts(violation, Profile.VLLM):
                    breaches.append(violation)
        return breaches[0] if breaches and self._judging is Judging.RAISE else None

    def _raise(self, breach: Violation | None) -> None:
        if breach is not None:
            call = breach.calls[-1].strip() if breach.calls else "a call"
            raise PolicyContractError(self._name, call, breach.clause, breach.message)

    def _warn(self, text: str) -> None:
        # Whoever configured logging may have made it raise.
        with suppress(Exception):
            LOGGER.warning("watched policy %s: %s", self._name, text)


_LIVE: Final[WeakSet[LiveWatch]] = WeakSet()


def close_logs() -> None:
    """Close the logs of all policies that are being watched in this process."""
    for live in tuple(_LIVE):
        live.close()


def _abandon_all() -> None:
    for live in tuple(_LIVE):
        live.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def _finish(name: str, log: CallLog | None, tally: Tally | None) -> None:
    """The policy is gone, or the process ends."""
    with suppress(Exception):
        if log is not None:
            log.close()
    with suppress(Exception):
        if tally is not None:
            clauses = sorted({found.clause for found in tally.violations if not found.raised})
            failures = sum(found.raised for found in tally.violations)
            LOGGER.log(
                logging.WARNING if clauses else logging.INFO,
                "watched policy %s: %d steps judged, %d violations (clauses: %s)",
                name,
                tally.steps,
                tally.num_violations - failures,
                ", ".join(clauses) or "none",
            )


def _new_log(path: Path, settings: Settings, clock: Callable[[], float]) -> tuple[CallLog, Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = count()
    while True:
        number = next(numbers)
        own = place(path, number)
        try:
            log = CallLog.to(
                own,
                salt=settings.salt,
                host=_host(),
                hints=settings.hints,
                clock=clock,
                limit=settings.limit,
            )
        except FileExistsError:
            # Of an earlier policy of this process, or an earlier process of this number.
            if number >= MAX_LOGS:
                raise
        else:
            return log, own


def _host() -> str:
    try:
        return f"vLLM {version('vllm')}"
    except PackageNotFoundError:
        return "vLLM"


def _in_words(violation: Violation) -> str:
    """The violation, without the calls that show what clients sent."""
    calls = [call for call in violation.calls if f" {NewRequest.verb}(" not in call]
    return "\n  ".join((f"{violation.clause}: {violation.message}", violation.promise, *calls))
