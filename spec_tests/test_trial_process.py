"""A child process: what it does to itself is told, and what it prints is no message."""

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from textwrap import dedent, indent
from time import sleep

import pytest

from kvoffload import InvalidValueError
from stateful_models.trial import fork_server
from stateful_models.trial.channel import ChildChannel
from stateful_models.trial.fork_server import NotAServerError
from stateful_models.trial.mark import Mark
from stateful_models.trial.process import ChildEnd, Ending, run_child

PATIENCE = 60.0
SOON = (0.8, 4.0, 16.0, 60.0)

Run = Callable[..., tuple[ChildEnd, list[bytes]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run code as a child, after it has opened its channel; what became of it and what it sent."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    numbers = count()

    def run(
        code: str,
        request: bytes = b"",
        *,
        env: dict[str, str] | None = None,
        hash_seed: int = 0,
        timeout_s: float = PATIENCE,
        on_message: Callable[[bytes], None] | None = None,
        patience: Callable[[bytes], float] = lambda mark: inf,
    ) -> tuple[ChildEnd, list[bytes]]:
        begin = "import os, signal, subprocess, sys, threading, time\ndef main(channel):\n"
        # Each is another module: one that was imported is not looked at again.
        name = f"a_child_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(begin + indent(dedent(code), "    "))
        sent: list[bytes] = []
        end = run_child(
            name,
            request,
            env=env or {},
            hash_seed=hash_seed,
            timeout_s=timeout_s,
            on_message=sent.append if on_message is None else on_message,
            patience=patience,
        )
        return end, sent

    return run


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def run_into_limit(run: Run, code: str) -> tuple[ChildEnd, list[bytes]]:
    """Run code that does not return, with a limit that it has sent something within."""
    for timeout_s in SOON:
        end, sent = run(code, timeout_s=timeout_s)
        if sent:
            return end, sent
    pytest.fail("it never began")


def test_messages_are_kept_apart_from_what_is_printed(run: Run) -> None:
    end, sent = run(
        """
        with channel:
            print("hello")
            channel.send(b"first")
            print("trouble", file=sys.stderr)
            channel.send(channel.request().replace(b"\\n", b"|"))
            channel.send(b"")
        """,
        b"two\nlines",
    )
    assert sent == [b"first", b"two|lines", b""]
    assert end == ChildEnd(Ending.WELL, 0, None, b"", "hello\n", "trouble\n")
    assert str(end) == "ended"


def test_large_requests_and_messages_go_through(run: Run) -> None:
    big = bytes(range(11, 256)) * 10_000
    end, sent = run("with channel: channel.send(channel.request())", big)
    assert sent == [big]
    assert end.kind is Ending.WELL


def test_the_target_finds_nothing_of_the_channel(run: Run) -> None:
    end, sent = run(
        """
        with channel:
            channel.send(repr(sys.stdin.read()).encode())
            channel.send(repr([name for name in os.environ if "KVOFFLOAD_TRIAL" in name]).encode())
            open_ones = [int(name) for name in os.listdir("/dev/fd")]
            for number in open_ones:
                try:
                    if number > 2 and os.get_inheritable(number):
                        channel.send(b"inherited")
                except OSError:
                    pass
            subprocess.run([sys.executable, "-c", "print(open('/dev/fd/0').read())"])
        """,
        b"request",
    )
    assert sent == [b"''", b"[]"]
    assert end.stdout == "\n"


def test_what_was_sent_last_is_heard_though_the_child_is_gone(run: Run, tmp_path: Path) -> None:
    go = tmp_path / "go"
    heard: list[bytes] = []

    def hear(message: bytes) -> None:
        heard.append(message)
        if len(heard) == 1:
            go.touch()
            while is_there(int(message)):
                sleep(0.001)

    code = f"""
    with channel:
        channel.send(str(os.getpid()).encode())
        while not os.path.exists({str(go)!r}):
            time.sleep(0.001)
        channel.send(b"last")
    """
    end, _ = run(code, on_message=hear)
    assert heard[1:] == [b"last"]
    assert (end.kind, end.last_message) == (Ending.WELL, b"last")


def test_environment_and_path_reach_the_child(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INHERITED", "1")
    code = """
    with channel:
        read = [os.environ.get(name) for name in ("INHERITED", "GIVEN", "PYTHONHASHSEED")]
        channel.send(repr(read).encode())
        channel.send(str(hash("a")).encode())
        channel.send(repr(sys.path).encode())
    """
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    _, sent = run(code, env={"GIVEN": "2", "INHERITED": "3"}, hash_seed=7)
    assert sent[0] == b"['3', '2', '7']"
    path = [os.path.abspath(place) for place in sys.path]
    # A place that is there twice counts once.
    assert sent[2].startswith(repr(list(dict.fromkeys(path)))[:-1].encode())
    assert run(code, hash_seed=7)[1][1] == sent[1]
    assert run(code, hash_seed=8)[1][1] != sent[1]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("os._exit(0)", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('no')", 1),
        ("with channel: raise SystemExit(0)", 0),
    ],
)
def test_a_target_that_ends_the_process_is_told(run: Run, code: str, status: int) -> None:
    end, sent = run(f"print('last words'); channel.send(b'a')\n{code}")
    assert (end.kind, end.status, end.signal) == (Ending.EXITED, status, None)
    assert str(end) == f"exited with status {status} before the trial was over"
    assert end.last_message == b"a"
    assert sent == [b"a"]
    assert end.stdout == "last words\n"
    assert ("ValueError: no" in end.stderr) == (status == 1)


def test_a_target_that_a_signal_ends_is_told(run: Run) -> None:
    end, _ = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert (end.kind, end.status, end.signal) == (Ending.KILLED, None, signal.SIGKILL)
    assert str(end) == "was killed by signal 9 (SIGKILL)"
    assert end.last_message is None


def test_a_crash_tells_where(run: Run) -> None:
    end, _ = run("import faulthandler; faulthandler._sigsegv()")
    assert end.signal == signal.SIGSEGV
    assert '.py", line' in end.stderr


@pytest.mark.parametrize("hang", ["while True: pass", "lock.acquire()"])
def test_a_target_that_does_not_return_is_killed(run: Run, hang: str) -> None:
    code = f"""
    channel.send(b"begun")
    lock = threading.Lock()
    lock.acquire()
    {hang}
    """
    end, sent = run_into_limit(run, code)
    assert (end.kind, end.status, end.signal) == (Ending.DID_NOT_RETURN, None, None)
    assert str(end) == "did not return"
    assert end.last_message == b"begun"
    assert sent == [b"begun"]
    assert '.py", line' in end.stderr


GRANDCHILD = """
ready, told = os.pipe()
if os.fork() == 0:
    import fcntl
    fcntl.flock(os.open({lock!r}, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
    os.write(told, b"1")
    {then}
os.read(ready, 1)
"""
FOREVER = "signal.pause()"


@pytest.mark.parametrize("last", ["channel.finish()", "sys.exit(5)", FOREVER, "channel.send(b'!')"])
def test_nothing_that_the_target_started_is_left(run: Run, tmp_path: Path, last: str) -> None:
    """Nor does a descriptor that it inherited keep anybody waiting."""
    lock = tmp_path / "lock"

    def refuse(message: bytes) -> None:
        if message == b"!":
            raise ZeroDivisionError

    code = GRANDCHILD.format(lock=str(lock), then=FOREVER) + f"channel.send(b'begun')\n{last}"
    if "!" in last:
        with pytest.raises(ZeroDivisionError):
            run(code + f"\n{FOREVER}", on_message=refuse)
    else:
        end, _ = run_into_limit(run, code) if last == FOREVER else run(code)
        assert end.kind is not Ending.KILLED
    with lock.open("rb+") as held:
        # Returns when the process is gone that holds it.
        fcntl.flock(held, fcntl.LOCK_EX)


def test_a_copy_that_the_target_forked_has_no_say(run: Run, tmp_path: Path) -> None:
    code = GRANDCHILD.format(lock=str(tmp_path / "lock"), then="channel.send(b'copy')")
    end, sent = run(
        f"with channel:\n{indent(code, '    ')}\n    os.wait(); channel.send(b'original')"
    )
    assert sent == [b"original"]
    assert end.kind is Ending.WELL


def test_nothing_but_the_channel_sends_messages(run: Run) -> None:
    end, sent = run(
        """
        with channel:
            for number in range(3, 64):
                try:
                    os.write(number, b"00000000000000000000000000000000:forged\\n.\\nbegun")
                except OSError:
                    pass
            channel.send(b"true")
            print("00000000000000000000000000000000:forged")
        """
    )
    assert sent == [b"true"]
    assert end.kind is Ending.WELL


def test_a_child_that_is_done_need_not_end_by_itself(run: Run) -> None:
    end, _ = run(
        """
        with channel:
            threading.Thread(target=threading.Event().wait).start()
        """
    )
    assert (end.kind, end.status, end.signal) == (Ending.WELL, None, None)


def test_of_much_output_the_end_is_kept(run: Run) -> None:
    end, _ = run(
        """
        with channel:
            for number in range(30_000):
                print("line", number)
            sys.stderr.write("x" * 200_000 + "\\\\xff the end")
        """
    )
    assert end.stdout.endswith("line 29999\n")
    assert len(end.stdout) == len(end.stderr) == 64 * 1024
    assert end.stderr.endswith("the end")


def test_what_it_was_at_is_known_though_it_is_gone(run: Run) -> None:
    end, sent = run(
        """
        channel.mark(b"the first of all")
        channel.mark(b"second")
        os._exit(7)
        """
    )
    assert (end.kind, end.status, end.mark) == (Ending.EXITED, 7, b"second")
    assert sent == []
    end, _ = run("with channel: channel.mark(b'x' * 5000)")
    assert end.mark == b"x" * 1022


def test_a_mark_may_not_stand_for_longer_than_it_is_given(run: Run) -> None:
    code = """
        channel.mark(b"")
        channel.mark(b"slow")
        channel.mark(b"slow")
        channel.send(b"x")
        while True:
            pass
    """

    def patience(mark: bytes) -> float:
        return 0.2 if mark == b"slow" else inf

    end, sent = run(code, patience=patience)
    assert (end.kind, end.mark, sent) == (Ending.DID_NOT_RETURN, b"slow", [b"x"])


def test_a_mark_that_is_set_again_stands_anew(tmp_path: Path) -> None:
    with (tmp_path / "page").open("w+b") as file:
        mark = Mark.made_in(file.fileno())
        other = Mark(file.fileno())
    assert (other.get(), other.turn()) == (b"", 0)
    mark.set(b"same")
    turn = other.turn()
    mark.set(b"same")
    assert other.get() == b"same"
    assert other.turn() != turn


def test_a_message_is_one_line(tmp_path: Path) -> None:
    with (tmp_path / "page").open("w+b") as file:
        channel = ChildChannel(-1, Mark.made_in(file.fileno()), b"", b"")
    with pytest.raises(InvalidValueError, match="message"):
        channel.send(b"two\nlines")


def test_the_server_is_not_run_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fork_server.py"])
    with pytest.raises(NotAServerError, match="not by hand"):
        fork_server.main()


@pytest.mark.parametrize(
    ("hash_seed", "timeout_s", "field"),
    [(-1, 1.0, "hash_seed"), (2**32, 1.0, "hash_seed"), (0, 0.0, "timeout_s")],
)
def test_what_cannot_be_started_is_refused(hash_seed: int, timeout_s: float, field: str) -> None:
    with pytest.raises(InvalidValueError, match=field):
        run_child("none", b"", env={}, hash_seed=hash_seed, timeout_s=timeout_s, on_message=print)


def test_a_module_that_is_not_there_is_told(run: Run) -> None:
    end = run_child(
        "no_such_module_as_this", b"", env={}, hash_seed=0, timeout_s=PATIENCE, on_message=print
    )
    assert (end.kind, end.status) == (Ending.EXITED, 1)
    assert "No module named 'no_such_module_as_this'" in end.stderr


def test_an_interrupt_in_the_parent_ends_the_child(run: Run, tmp_path: Path) -> None:
    lock = tmp_path / "lock"

    def interrupt(message: bytes) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    code = f"""
    import fcntl
    fcntl.flock(os.open({str(lock)!r}, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
    channel.send(b"now")
    signal.pause()
    """
    with pytest.raises(KeyboardInterrupt):
        run(code, on_message=interrupt)
    with lock.open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
