from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from harness import worker_client
from harness.environment import ROOT
from harness.package_environments import PackageEnvironment
from harness.records import Status
from harness.worker_client import WorkerClient, WorkerError, WorkerLost, one_line

# A worker without torch: it obeys the protocol and misbehaves on command.
STUB = """
    import json, os, signal, subprocess, sys, time
    def say(**message):
        print(json.dumps(message), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        command = request["command"]
        if command == "hello":
            say(reply={"environment": os.environ.get("STUB", ""), "child": os.getpid()})
        elif command == "slow":
            for index in range(4):
                time.sleep(0.2)
                say(event="stage", doing="compiling", direction="fwd", scope="kernel")
            say(reply={"done": True})
        elif command == "hang":
            say(event="stage", doing="first call", direction="bwd", scope="kernel")
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            say(event="child", pid=child.pid)
            time.sleep(1000)
        elif command == "fail":
            say(error={"status": "oom", "message": "out of memory\\nreally"})
        elif command == "exit":
            print("RuntimeError: the last words", file=sys.stderr)
            print("a trailing line", file=sys.stderr, flush=True)
            os._exit(3)
        elif command == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif command == "cut":
            sys.stdout.write('{"event": "row", "dire')
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        elif command == "leave":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            os._exit(4)
        elif command == "close":
            os.close(1)
            time.sleep(1000)
        elif command == "chatter":
            print(request["text"], flush=True)
            time.sleep(1000)
        elif command == "broken":
            os._exit(70)
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    script = tmp_path / "stub.py"
    script.write_text(textwrap.dedent(STUB))
    monkeypatch.setattr(worker_client, "WORKER", [str(script)])
    monkeypatch.setattr(worker_client, "POLL_S", 0.2)
    client = WorkerClient("fake", {}, "cpu", {"STUB": "set"}, tmp_path / "stub.log", timeout_s=0.5,
                          packages=PackageEnvironment())
    yield client
    client.close()


def alive(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().split(") ")[1][0] != "Z"


def test_start_greets_in_the_backends_environment(client: WorkerClient) -> None:
    assert client.start()["environment"] == "set"
    assert client.running
    client.close()
    assert not client.running
    with pytest.raises(WorkerLost, match="was stopped"):
        client.start()


def test_events_are_heard_and_start_the_deadline_anew(client: WorkerClient) -> None:
    client.start()
    heard: list[dict[str, Any]] = []
    assert client.call("slow", heard.append) == {"done": True}  # 0.8 s in all, with a deadline of 0.5 s
    assert len(heard) == 4


def test_a_hang_is_killed_with_its_children_and_says_where(client: WorkerClient) -> None:
    client.start()
    heard: list[dict[str, Any]] = []
    with pytest.raises(WorkerLost) as caught:
        client.call("hang", heard.append)
    assert caught.value.status is Status.HANG
    assert caught.value.message == "no answer for 0.5 s (first call bwd kernel); killed"
    assert not client.running
    child = heard[-1]["pid"]
    end = time.monotonic() + 5
    while alive(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(child)
    assert client.start()["environment"] == "set"  # the next case has a new worker


@pytest.mark.parametrize(("command", "message"), [
    ("exit", "exited with code 3 (exit); its last words: RuntimeError: the last words"),
    ("segfault", "was killed by SIGSEGV (segfault)"),
    ("cut", "was killed by SIGKILL (cut)"),
    ("leave", "exited with code 4 (leave)"),
    ("close", "closed the pipe of its answers (close); killed"),
    ("broken", "left a broken CUDA context (broken)")])
def test_a_death_says_how_and_with_which_last_words(client: WorkerClient, command: str, message: str) -> None:
    client.start()
    with pytest.raises(WorkerLost) as caught:
        client.call(command)
    assert caught.value.status is Status.CRASH
    assert caught.value.message == f"its worker process {message}"
    with pytest.raises(WorkerLost):
        client.call("slow")


def test_last_words_are_those_of_the_process_that_died(client: WorkerClient) -> None:
    for command, words in (("exit", True), ("segfault", False)):
        client.start()
        with pytest.raises(WorkerLost) as caught:
            client.call(command)
        assert ("last words" in caught.value.message) is words


def test_a_failed_command_leaves_the_worker_alive(client: WorkerClient) -> None:
    client.start()
    with pytest.raises(WorkerError) as caught:
        client.call("fail")
    assert not isinstance(caught.value, WorkerLost)
    assert (caught.value.status, caught.value.message) == (Status.OOM, "out of memory really")
    assert client.call("slow") == {"done": True}


@pytest.mark.parametrize("text", ["hello", "[1]", "3", '{"else": 1}', "{"])
def test_what_is_no_answer_is_a_crash(client: WorkerClient, text: str) -> None:
    client.start()
    with pytest.raises(WorkerLost) as caught:
        client.call("chatter", text=text)
    assert caught.value.status is Status.CRASH
    assert caught.value.message == f"its worker process wrote among its answers (chatter): {text}"
    assert not client.running


def test_messages_can_be_written_and_shown() -> None:
    assert one_line("größe \ud800 \x1b[31m\0") == "größe ? ?[31m?"


def test_messages_need_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    assert one_line("a message") == "a message"


def test_messages_are_short_and_without_this_machines_folders() -> None:
    text = one_line(f"Error in {ROOT}/kernels/api.py,\n  {Path.home()}/x " + "y" * 1000)
    assert str(ROOT) not in text
    assert "\n" not in text
    assert len(text) == worker_client.MESSAGE_LENGTH


def test_the_real_worker_ends_when_its_parent_is_gone() -> None:
    process = subprocess.run([sys.executable, "-m", "harness.worker"], cwd=ROOT, stdin=subprocess.DEVNULL,
                             capture_output=True, timeout=120, check=False)
    assert (process.returncode, process.stdout) == (0, b"")
