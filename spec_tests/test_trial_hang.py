"""A limit on a program that does not return, however it holds on."""

import gc
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from time import process_time, sleep
from types import FrameType

import pytest

from kvoffload import InvalidValueError
from stateful_models import drivers
from stateful_models.trial import hang
from stateful_models.trial.hang import Alarm, DidNotReturn, time_limit

SOON = 0.02


def loop() -> None:
    while True:
        pass


def discard(error: type[BaseException], times: int) -> int:
    """Hang, and discard what is raised, so many times."""
    discarded = 0
    while discarded < times:
        try:
            loop()
        except error:
            discarded += 1
    return discarded


def test_what_does_not_return_is_interrupted_and_found() -> None:
    with pytest.raises(DidNotReturn) as hung, time_limit(SOON) as limit:
        loop()
    assert limit.fired == 1
    assert hung.value.seconds == SOON
    assert str(hung.value).startswith("did not return within 0.02 s; found at ")
    assert hung.value.place.endswith("in loop")
    assert __file__ in hung.value.place


def test_who_catches_exceptions_does_not_catch_it() -> None:
    caught: list[Exception] = []

    def catch() -> None:
        try:
            loop()
        except Exception as error:
            caught.append(error)

    with pytest.raises(DidNotReturn), time_limit(SOON):
        catch()
    assert caught == []


def test_it_strikes_again_when_it_was_discarded() -> None:
    def hang_on() -> None:
        discard(BaseException, 2)
        loop()

    with pytest.raises(DidNotReturn), time_limit(SOON) as limit:
        hang_on()
    assert limit.fired == 3


def test_to_discard_it_and_return_does_not_help() -> None:
    with pytest.raises(DidNotReturn) as hung, time_limit(SOON):
        assert discard(BaseException, 1) == 1
    assert hung.value.place.endswith("in loop")


def test_nor_does_raising_something_else_instead() -> None:
    def disguise() -> None:
        try:
            loop()
        except BaseException:
            raise ValueError("hidden") from None

    with pytest.raises(DidNotReturn) as hung, time_limit(SOON):
        disguise()
    assert isinstance(hung.value.__cause__, ValueError)


def test_what_returns_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGALRM)
    for _ in range(100):
        with time_limit(60) as limit:
            pass
        assert limit.fired == 0
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before
    with pytest.raises(KeyError), time_limit(60):
        raise KeyError
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_tiny_limit_is_never_left_behind() -> None:
    """Wherever it strikes, be it on the way in or out, afterwards nothing is set."""
    before = signal.getsignal(signal.SIGALRM)
    for i in range(300):
        try:
            with time_limit(1e-6 * (1 + i % 60)):
                sum(range(i % 20))
        except DidNotReturn:
            pass
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
        assert signal.getsignal(signal.SIGALRM) is before


def test_the_timer_of_somebody_else_goes_on() -> None:
    struck: list[int] = []

    def strike(number: int, frame: FrameType | None) -> None:
        struck.append(number)

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(DidNotReturn), time_limit(SOON):
            loop()
        while not struck:
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_limit_within_a_limit() -> None:
    def hang_twice() -> None:
        with pytest.raises(DidNotReturn), time_limit(SOON):
            loop()
        loop()

    with pytest.raises(DidNotReturn) as hung, time_limit(0.05):
        hang_twice()
    assert hung.value.seconds == 0.05


def in_thread(target: Callable[[], None]) -> None:
    thread = threading.Thread(target=target)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_in_another_thread_nothing_is_limited() -> None:
    works: list[bool] = []

    def enter() -> None:
        with time_limit(SOON) as limit:
            works.append(limit.works)

    in_thread(enter)
    assert works == [False]
    assert time_limit(SOON).works


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_limit_is_positive(seconds: float) -> None:
    with pytest.raises(InvalidValueError, match="seconds"):
        time_limit(seconds)


def test_what_watches_a_target_is_not_where_it_hangs() -> None:
    file = Path(hang.__file__).with_name("watcher.py")
    kit: dict[str, Callable[[], None]] = {}
    exec(compile("def watch():\n while True: pass", file, "exec"), kit)
    watch = kit["watch"]

    def watched() -> None:
        watch()

    with pytest.raises(DidNotReturn) as hung, time_limit(SOON):
        watched()
    assert hung.value.place.endswith(".watched")


def busy(seconds: float) -> None:
    until = process_time() + seconds
    while process_time() < until:
        pass


def test_what_waits_while_others_work_has_not_used_its_time_up() -> None:
    with time_limit(0.2) as limit:
        sleep(0.5)
    assert limit.fired == 0
    with pytest.raises(DidNotReturn), time_limit(0.05):
        sleep(60)


def test_many_calls_may_take_longer_than_one() -> None:
    calls = iter(range(100))
    now: list[int] = [0]
    with time_limit(0.1, during=lambda: now[-1]):
        for number in calls:
            now.append(number)
            busy(0.005)
    with pytest.raises(DidNotReturn), time_limit(0.1, during=lambda: 7):
        busy(10)


def test_between_calls_nobody_is_too_slow() -> None:
    with time_limit(SOON, during=lambda: None):
        busy(0.2)


def test_the_kit_itself_is_not_what_does_not_return() -> None:
    file = Path(drivers.__file__).with_name("slow_kit.py")
    source = "def call(busy):\n end = clock() + 0.2\n while clock() < end: pass\n busy()"
    scope: dict[str, object] = {"clock": process_time}
    exec(compile(source, file, "exec"), scope)
    call = scope["call"]
    assert callable(call)
    with time_limit(SOON, during=lambda: 7) as limit:
        call(lambda: None)
    assert limit.fired == 0
    with pytest.raises(DidNotReturn) as hung, time_limit(SOON, during=lambda: 7):
        call(loop)
    assert hung.value.code is loop.__code__


def test_a_callback_of_the_collector_is_nobody_s_call() -> None:
    def slow(phase: str, info: dict[str, int]) -> None:
        busy(0.2)

    # Callbacks of what other tests have left behind are no part of the collection below.
    gc.collect()
    gc.callbacks.append(slow)
    try:
        with time_limit(SOON, during=lambda: 7) as limit:
            gc.collect()
    finally:
        gc.callbacks.remove(slow)
    assert limit.fired == 0


def test_an_alarm_that_is_set_serves_one_limit_after_another() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with Alarm() as alarm:
        timer = signal.getsignal(signal.SIGALRM)
        for _ in range(3):
            with time_limit(60, lambda: 7, alarm) as limit:
                assert signal.getsignal(signal.SIGALRM) is timer
            assert limit.fired == 0
            with pytest.raises(DidNotReturn) as hung, time_limit(SOON, lambda: 7, alarm) as limit:
                loop()
            assert limit.fired == 1
            assert hung.value.place.endswith("in loop")
        # Nothing is limited in between.
        end = process_time() + 3 * hang.AGAIN_S
        while process_time() < end:
            pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before
    with pytest.raises(DidNotReturn), time_limit(SOON, alarm=alarm):
        loop()


def test_limits_within_limits_of_one_alarm() -> None:
    def hang_three_times() -> None:
        with pytest.raises(DidNotReturn), time_limit(SOON, lambda: 7, alarm):
            loop()
        # One that asks the system for an alarm of its own.
        with pytest.raises(DidNotReturn), time_limit(SOON):
            loop()
        loop()

    with Alarm() as alarm:
        with pytest.raises(DidNotReturn) as hung, time_limit(0.06, alarm=alarm):
            hang_three_times()
        assert hung.value.seconds == 0.06
        with pytest.raises(DidNotReturn), time_limit(SOON, alarm=alarm):
            assert discard(BaseException, 1) == 1


def test_an_alarm_in_a_thread_is_never_set() -> None:
    set_there: list[bool] = []

    def enter() -> None:
        with Alarm() as alarm, time_limit(SOON, alarm=alarm) as limit:
            set_there.extend([alarm.is_set, limit.works])

    in_thread(enter)
    assert set_there == [False, False]
