"""Fork servers: they are used again, and no child finds anything that another has left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from stateful_models.trial.process import ChildEnd, Ending, run_child
from stateful_models.trial.servers import KEPT, SERVERS

CHILD = """
import os, random, sys

seen = []

def main(channel):
    exec(channel.request().decode(), globals() | {"channel": channel})
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module whose children do what they are asked; no server is left when a test is over."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "obedient.py").write_text(CHILD)
    yield "obedient"
    for server in SERVERS.idle[:]:
        if server.module == "obedient":
            SERVERS.idle.remove(server)
            server.close()


def run(
    code: str, env: dict[str, str] | None = None, timeout_s: float = 60.0
) -> tuple[ChildEnd, list[str]]:
    sent: list[bytes] = []
    end = run_child(
        "obedient",
        code.encode(),
        env=env or {},
        hash_seed=0,
        timeout_s=timeout_s,
        on_message=sent.append,
    )
    return end, [message.decode() for message in sent]


def test_one_server_forks_a_child_after_the_other() -> None:
    first, second = (run("channel.send(str(os.getppid()).encode())")[1] for _ in range(2))
    assert first == second


def test_no_child_finds_what_another_has_left(tmp_path: Path) -> None:
    code = """
channel.send(repr((seen, os.environ.get("LEFT"), os.getcwd(), "x" in sys.path)).encode())
channel.send(str(random.random()).encode())
seen.append(1)
os.environ["LEFT"] = "1"
os.chdir("/")
sys.path.append("x")
channel.finish()
"""
    (_, first), (_, second) = run(code), run(code)
    assert first[0] == second[0] == f"([], None, {os.getcwd()!r}, False)"
    assert first[1] != second[1]


def test_a_child_runs_where_its_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "channel.send(os.getcwd().encode())"
    run(code)
    monkeypatch.chdir(tmp_path)
    assert run(code)[1] == [str(tmp_path)]


def test_another_environment_takes_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "channel.send(f\"{os.environ.get('ASKED')} {os.getppid()}\".encode())"
    (plain,), (asked,) = (run(code, env)[1] for env in ({}, {"ASKED": "1"}))
    assert plain.split()[0] == "None"
    assert asked.split()[0] == "1"
    assert plain.split()[1] != asked.split()[1]
    monkeypatch.setenv("ASKED", "1")
    assert run(code)[1] == [asked]


def test_a_child_may_end_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    end, _ = run("import signal; os.kill(os.getppid(), 9); signal.pause()")
    assert (end.kind, end.signal) == (Ending.KILLED, signal.SIGKILL)
    assert run("channel.send(b'another'); channel.finish()")[1] == ["another"]


def test_a_server_that_was_ended_meanwhile_is_not_used() -> None:
    _, (server,) = run("channel.send(str(os.getppid()).encode())")
    os.kill(int(server), signal.SIGKILL)
    while SERVERS.idle[-1].has_ended() is None:
        sleep(0.001)
    _, (other,) = run("channel.send(str(os.getppid()).encode())")
    assert other != server


def test_no_more_servers_are_kept_than_there_may_be() -> None:
    for number in range(KEPT + 2):
        run("pass", {"NUMBER": str(number)})
        assert len(SERVERS.idle) <= KEPT
    kept = [server.environment.get("NUMBER") for server in SERVERS.idle]
    assert kept == [str(number) for number in range(2, KEPT + 2)]


@pytest.mark.parametrize("ends", [True, False])
def test_what_is_wrong_with_the_import_is_told(module: str, tmp_path: Path, ends: bool) -> None:
    (tmp_path / f"{module}.py").write_text(
        "raise OSError('not here')" if ends else "import time; time.sleep(600)"
    )
    before = len(SERVERS.idle)
    end, sent = run("pass", timeout_s=60.0 if ends else 1.0)
    assert sent == []
    if ends:
        assert (end.kind, end.status) == (Ending.EXITED, 1)
        assert "OSError: not here" in end.stderr
    else:
        assert (end.kind, end.status) == (Ending.DID_NOT_RETURN, None)
    assert len(SERVERS.idle) == before


def test_who_no_longer_waits_leaves_a_server_to_come(module: str, tmp_path: Path) -> None:
    """Nobody has to pay twice for the imports."""

    def give_up() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        run_child(
            module,
            b"",
            env={},
            hash_seed=0,
            timeout_s=60.0,
            on_message=print,
            poll=give_up,
        )
    begun = SERVERS.idle[-1]
    assert run("channel.finish()")[0].kind is Ending.WELL
    assert SERVERS.idle[-1] is begun


def test_servers_end_with_whoever_uses_them(tmp_path: Path) -> None:
    code = f'''
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
from stateful_models.trial.process import run_child
def die(message):
    print(message.decode(), flush=True)
    if {{dies}}:
        os.kill(os.getpid(), 9)
asked = b"""
import time
channel.send(f"{{{{os.getppid()}}}} {{{{os.getpid()}}}}".encode())
time.sleep({{rest}})
"""
run_child("obedient", asked, env={{{{}}}}, hash_seed=0, timeout_s=60, on_message=die)
'''
    for dies in (True, False):
        told = subprocess.run(
            [sys.executable, "-c", code.format(dies=dies, rest=600 if dies else 0)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        assert len(told.split()) == 2
        until = monotonic() + 60
        for process in told.split():
            while Path(f"/proc/{process}").exists() and not _is_over(process):
                assert monotonic() < until
                sleep(0.01)


def _is_over(process: str) -> bool:
    """Whether it is a zombie that nobody waits for: those of a container may stay."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
