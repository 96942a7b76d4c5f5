"""`WorkerClient`: starts a worker process, asks it things with a deadline, and says how it ended if it did."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.environment import ROOT
from harness.package_environments import PackageEnvironment
from harness.records import Status

WORKER = ["-m", "harness.worker"]
START_TIMEOUT_S = 300.0  # for importing torch and a backend's packages on a busy machine
POLL_S = 1.0  # how soon the end of a process is noticed that its pipe doesn't tell
EXIT_BROKEN_DEVICE = 70
MESSAGE_LENGTH = 400

OnEvent = Callable[[dict[str, Any]], None]


class WorkerError(Exception):
    """The worker answered that a command failed; it goes on."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class WorkerLost(WorkerError):
    """The worker hung and was killed, or died; `WorkerClient.start` makes a new one."""


class WorkerClient:
    """One worker process at a time for one backend; see `harness.worker` for the commands.

    ``timeout_s`` is the longest that a worker may stay silent: events start it anew. ``packages`` says with which
    interpreter and packages it runs. Not for use from several threads at once, but different clients may be.
    """

    def __init__(self, backend: str, options: Mapping[str, Any], device: str, environment: Mapping[str, str],
                 log_path: Path, timeout_s: float, packages: PackageEnvironment) -> None:
        self._packages = packages
        self._hello: dict[str, Any] = {"backend": backend, "options": dict(options), "device": device}
        self._environment = dict(environment)
        self._log_path = log_path
        self._timeout_s = timeout_s
        self._log_start = 0
        self._closed = False
        self._lock = threading.Lock()  # between `close` and a start in another thread
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()

    @property
    def running(self) -> bool:
        """Whether a process was started and hasn't been closed, killed or lost."""
        return self._process is not None

    def start(self) -> dict[str, Any]:
        """Start the process and greet it; returns the reply of ``hello``. Raises `WorkerError` or `WorkerLost`."""
        self.kill()
        with self._lock:
            if self._closed:
                raise WorkerLost(Status.CRASH, "its worker process was stopped")
            self._process = process = self._spawn()
        self._answers = queue.Queue()
        threading.Thread(target=_pump, args=(process, self._answers), daemon=True).start()
        try:
            return self.call("hello", timeout_s=START_TIMEOUT_S, **self._hello)
        except WorkerError:
            self.kill()
            raise

    def _spawn(self) -> subprocess.Popen[str]:
        paths = [str(ROOT), *self._packages.paths, *filter(None, [os.environ.get("PYTHONPATH", "")])]
        environment = {**os.environ, **self._environment, "PYTHONPATH": os.pathsep.join(paths)}
        with self._log_path.open("a", encoding="utf-8") as log:
            self._log_start = log.tell()
            return subprocess.Popen(
                [self._packages.python, *WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env=environment, text=True, encoding="utf-8", errors="replace",
                start_new_session=True)  # Ctrl-C is for the parent

    def call(self, command: str, on_event: OnEvent | None = None, timeout_s: float | None = None,
             **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its reply; events on the way go to ``on_event``, in this thread.

        Raises `WorkerError` when the command failed, `WorkerLost` when the process is gone (status `hang` or `crash`).
        """
        process = self._process
        if process is None or process.stdin is None:
            raise WorkerLost(Status.CRASH, "its worker process was stopped")
        limit = timeout_s or self._timeout_s
        doing = command
        try:
            process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            process.stdin.flush()
        except OSError:
            pass  # it died; the answer says so
        while True:
            try:
                line = self._next_line(process, limit)
            except queue.Empty:
                self.kill()
                raise WorkerLost(Status.HANG, f"no answer for {limit:g} s ({doing}); killed") from None
            if line is None:
                raise WorkerLost(Status.CRASH, self._ending(process, doing))
            answer = _parse(line)
            if answer is None:
                self.kill()
                text = f"its worker process wrote among its answers ({doing}): {one_line(line)}"
                raise WorkerLost(Status.CRASH, text)
            if "reply" in answer:
                return answer["reply"]
            if "error" in answer:
                raise WorkerError(Status(answer["error"]["status"]), one_line(answer["error"]["message"]))
            if answer["event"] == "stage":
                doing = " ".join(filter(None, (answer["doing"], answer["direction"], answer["scope"])))
            if on_event:
                on_event(answer)

    def _next_line(self, process: subprocess.Popen[str], limit_s: float) -> str | None:
        """The next line of the process; None once it ended. Raises `queue.Empty` after ``limit_s``."""
        end = time.monotonic() + limit_s
        ended = False
        while True:
            try:
                return self._answers.get(timeout=max(0.0, min(POLL_S, end - time.monotonic())))
            except queue.Empty:
                if ended:
                    return None  # a child that outlives it holds the pipe open, which so has no end
                ended = process.poll() is not None  # what it wrote last may still be on its way
                if not ended and time.monotonic() >= end:
                    raise

    def kill(self) -> None:
        """End the process and its children at once; nothing to do if there is none."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            with contextlib.suppress(OSError):  # an unsent command
                process.stdin.close()

    def close(self) -> None:
        """`kill` for good: no other process will be started."""
        with self._lock:
            self._closed = True
        self.kill()

    def _ending(self, process: subprocess.Popen[str], doing: str) -> str:
        """How the process ended, at what, with the last telling line that it printed."""
        try:
            code = process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"its worker process closed the pipe of its answers ({doing}); killed"
        self.kill()
        if code < 0:
            text = f"was killed by {signal.Signals(-code).name}"
        elif code == EXIT_BROKEN_DEVICE:
            text = "left a broken CUDA context"
        else:
            text = f"exited with code {code}"
        last = last_log_line(self._log_path, self._log_start)
        return f"its worker process {text} ({doing})" + (f"; its last words: {last}" if last else "")


def last_log_line(path: Path, start: int = 0) -> str:
    """The last line after byte ``start`` of a log that tells of an error, else its last one; empty without lines."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - 20_000))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line]
    return one_line((telling or lines or [""])[-1])


def one_line(text: str) -> str:
    """Text fit for a record: one line, not too long, without control characters and this machine's folders."""
    for folder in (str(ROOT), os.path.expanduser("~")):  # unlike Path.home, no error for a user without a home
        if len(folder) > 1:
            text = text.replace(folder, "~")
    text = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    return text if len(text) <= MESSAGE_LENGTH else text[: MESSAGE_LENGTH - 3] + "..."


def _parse(line: str) -> dict[str, Any] | None:
    """A worker's answer; None if the line is none."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and answer.keys() & {"event", "reply", "error"} else None


def _pump(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
    """Moves lines from the process to the queue; None at its end."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.endswith("\n"):  # else it died while it wrote
                answers.put(line)
    except ValueError:
        pass  # closed while reading
    finally:
        answers.put(None)
        process.stdout.close()
