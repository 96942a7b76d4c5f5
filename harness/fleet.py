"""`Fleet`: the worker processes of a run, one a backend, and how they share the device's memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import package_environments
from harness.backends import registry
from harness.cases import Case
from harness.config import BackendConfig, BenchConfig, CheckConfig
from harness.environment import DeviceEnvironment
from harness.flops import Ceilings
from harness.records import Status
from harness.rows import BackendFacts, Block, Row
from harness.telemetry import Telemetry
from harness.timing import BlockPlan
from harness.worker_client import WorkerClient, WorkerError, WorkerLost, one_line

MEMORY_SHARE = 0.85  # of the device's memory that workers may hold together; the rest is for CUDA contexts


class Member:
    """One backend of the config with its worker process, which is started again after it is lost.

    ``problem`` is why the backend can't run here at all, as a status and a message. ``bound`` is whether the worker
    holds the current case ready to be sampled.
    """

    def __init__(self, config: BackendConfig, device: str, log_dir: Path, timeout_s: float) -> None:
        self.label = config.name
        self.version = ""
        self.timed = True
        self.environment: DeviceEnvironment | None = None
        self.problem: tuple[Status, str] | None = None
        self.bound = False
        self.held_bytes = 0
        self.peak_bytes = 0
        self._pinned = package_environments.pinned_version(config.environment, config.backend)
        packages = package_environments.find(config.environment)
        if packages.problem:
            self.problem = (Status.IMPORT_ERROR, packages.problem)
        backend = registry.create(config.backend, config.options)
        self._client = WorkerClient(config.backend, config.options, device, backend.environment(device.split(":")[0]),
                                    log_dir / f"{self.label}.log", timeout_s, packages)

    def start(self) -> None:
        """Start the worker and ask what it can; sets `problem` if it can't run here."""
        if self.problem:
            return
        try:
            hello = self._client.start()
        except WorkerError as error:
            self.problem = (error.status, error.message)
            self.stop()
            return
        self.version, self.timed = hello["version"], hello["timed"]
        self.environment = DeviceEnvironment(**hello["environment"])
        if not hello["available"]:
            status = Status.IMPORT_ERROR if hello["import_failed"] else Status.UNSUPPORTED
            self.problem = (status, one_line(hello["reason"]))
            self.stop()
        elif self._pinned and self.version != self._pinned:
            text = f"its environment should hold version {self._pinned}, but holds {self.version or 'none'}"
            self.problem = (Status.IMPORT_ERROR, text)
            self.stop()

    def stop(self) -> None:
        """End the worker for good."""
        self._client.close()
        self._forget()

    def check(self, case: Case, rows: Sequence[Row], check: CheckConfig) -> None:
        """Check rows of a case; each gets a status. A lost worker costs the rows that it died of, no others."""
        by_key = {row.key: row for row in rows}
        stage = ("", "")

        def hear(event: dict[str, Any]) -> None:
            nonlocal stage
            if event["event"] == "stage":
                stage = (event["direction"], event["scope"])
            else:
                by_key[event["direction"], event["scope"]].update({**event, "message": one_line(event["message"])})

        while pending := [row for row in rows if row.status is None]:
            stage = ("", "")
            try:
                self._call("prepare", hear, case=case.to_json(), rows=[row.key for row in pending],
                           check=check.model_dump(mode="json"))
            except WorkerError as error:
                for row in blamed(pending, stage[0]):
                    row.fail(error.status, error.message)
                self._forget()
                continue
            for row in rows:
                if row.status is None:
                    row.fail(Status.CRASH, "its worker said nothing of this row")
            self.bound = len(pending) == len(rows)

    def bind(self, case: Case, rows: Sequence[Row]) -> None:
        """Make a checked case ready to be sampled again. Raises `WorkerError`."""
        self._call("bind", case=case.to_json(), rows=[row.key for row in rows])
        self.bound = True

    def sample(self, row: Row, plan: BlockPlan) -> Block:
        """One block of samples of a bound row. Raises `WorkerError`."""
        reply = self._call("sample", direction=row.direction, scope=row.scope, plan=asdict(plan))
        return Block(tuple(reply["latencies_ms"]), Telemetry(**reply["telemetry"]))

    def ceilings(self) -> Ceilings:
        """The device's ceilings. Raises `WorkerError`."""
        reply = self._call("ceilings")
        return Ceilings(reply["matmul_tflops"], reply["copy_tbps"])

    def release(self) -> None:
        """Let go of the case and its memory; a worker that can't is ended."""
        self.bound = False
        if self._client.running:
            try:
                self._call("release")
            except WorkerError:
                self._client.kill()
                self._forget()

    def facts(self, fallback: DeviceEnvironment) -> BackendFacts:
        """What its records say; ``fallback`` stands in where its worker never started."""
        return BackendFacts(self.label, self.version, self.environment or fallback)

    def _call(self, command: str, on_event: Callable[[dict[str, Any]], None] | None = None,
              **arguments: Any) -> dict[str, Any]:
        if not self._client.running:
            self._client.start()
        try:
            reply = self._client.call(command, on_event, **arguments)
        except WorkerLost:
            self._forget()
            raise
        self.held_bytes = reply.get("held_bytes", self.held_bytes)
        self.peak_bytes = reply.get("peak_bytes", self.peak_bytes)
        return reply

    def _forget(self) -> None:
        self.bound, self.held_bytes = False, 0


class Fleet:
    """All members of a run on one device, of whose memory they take ``share``.

    Use as a context manager: every process is ended at its end.
    """

    def __init__(self, config: BenchConfig, device: str, log_dir: Path, backends: Sequence[BackendConfig],
                 share: float = 1.0) -> None:
        log_dir.mkdir(parents=True, exist_ok=True)
        self.device_type = device.split(":")[0]
        self.memory_share = MEMORY_SHARE * share
        self.members = [Member(backend, device, log_dir, config.timeout_s) for backend in backends]

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all workers."""
        self.each(self.members, Member.start)

    def stop(self) -> None:
        """End all workers."""
        for member in self.members:
            member.stop()

    @property
    def able(self) -> list[Member]:
        """Members that can run here."""
        return [member for member in self.members if member.problem is None]

    @property
    def environment(self) -> DeviceEnvironment:
        """Of the first member whose worker started; without one, nothing but the device's type."""
        for member in self.members:
            if member.environment is not None:
                return member.environment
        return DeviceEnvironment(self.device_type, "", "", "", "", "", "", "", 0, 0, 0)

    def each(self, members: Sequence[Member], work: Callable[[Member], None],
             done: Callable[[Member], None] | None = None) -> None:
        """``work`` on members side by side, as many as there are cores; ``done`` in this thread as each ends."""
        with ThreadPoolExecutor(max(1, min(len(members), os.cpu_count() or 1))) as pool:
            try:
                futures = {pool.submit(work, member): member for member in members}
                for future in as_completed(futures):
                    future.result()
                    if done:
                        done(futures[future])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self.stop()  # or the threads would wait for their workers
                raise

    def fits(self, total_bytes: int) -> bool:
        """Whether workers may hold that much together."""
        memory = self.environment.memory_bytes
        return not memory or total_bytes <= self.memory_share * memory

    def width(self, need_bytes: int) -> int:
        """How many workers may hold ``need_bytes`` each at once; at least one."""
        memory = self.environment.memory_bytes
        if not memory or not need_bytes:
            return len(self.members)
        return max(1, min(len(self.members), int(self.memory_share * memory) // need_bytes))

    def make_room(self, members: Sequence[Member], need_bytes: int) -> None:
        """Has the other members let go of their memory if ``members`` couldn't have ``need_bytes`` beside them."""
        if not self.fits(need_bytes + self.held_by_others(members)):
            self.release_others(members)

    def held_by_others(self, members: Sequence[Member]) -> int:
        """Bytes of the device that all but ``members`` hold."""
        return sum(other.held_bytes for other in self.members if other not in members)

    def release_others(self, members: Sequence[Member]) -> None:
        """Leaves the device's memory to ``members``."""
        for other in self.members:
            if other not in members:
                other.release()


def blamed(pending: Sequence[Row], direction: str) -> list[Row]:
    """Rows without a status that a worker lost in ``direction`` takes along: both scopes of it.

    A forward takes its backward along; before any direction began (empty), it is all of them.
    """
    unfinished = [row for row in pending if row.status is None]
    rows = [row for row in unfinished if direction in ("", "fwd", row.direction)]
    return rows or unfinished
