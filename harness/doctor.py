"""What can run on this machine and why the rest can't. Every question is asked in a process of its own.

``python -m harness.doctor machine`` and ``python -m harness.doctor KEY`` answer one question as a line of JSON; a
broken import, a crash or a hang there becomes that question's answer here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
ANSWER = "harness-doctor-answer: "
WHAT_A_GPU_ADDS = (
    "No NVIDIA GPU was used. On one (sm_80 or newer) the same commands time jfa and jfa_triton, which a CPU can only "
    "check, against fa4, cudnn, fa2 and flex, and `make bench` runs configs/gem.yaml. The TLX kernels need sm_90 "
    "(Hopper) or sm_100 (Blackwell, not run so far).")


@dataclass(frozen=True)
class BackendReport:
    """Whether one backend can run here; ``timed`` is whether its times would mean something."""

    name: str
    available: bool
    version: str = ""
    timed: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Report:
    """All answers. ``machine`` maps what was asked to text; ``problems`` need mending, ``notes`` don't."""

    machine: dict[str, str]
    backends: tuple[BackendReport, ...]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def usable(self) -> bool:
        """At least one backend can run."""
        return any(backend.available for backend in self.backends)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def examine(names: tuple[str, ...] | None = None, timeout_s: float = 120.0) -> Report:
    """Ask about this machine and every backend of the registry, two processes at a time."""
    with ThreadPoolExecutor(2) as pool:
        asked_machine = pool.submit(ask, "machine", timeout_s)
        answer = asked_machine.result()
        machine = {str(key): str(value) for key, value in answer.get("machine", {}).items()}
        problems = list(answer.get("problems", [])) + ([f"torch: {answer['error']}"] if "error" in answer else [])
        names = tuple(answer.get("backends", ())) if names is None else names
        reports = tuple(pool.map(lambda name: _backend(name, timeout_s), names))
    notes = () if machine.get("GPU", "none") != "none" else (WHAT_A_GPU_ADDS,)
    return Report(machine, reports, tuple(problems), notes)


def _backend(name: str, timeout_s: float) -> BackendReport:
    answer = ask(name, timeout_s)
    if "error" in answer:
        return BackendReport(name, False, reason=str(answer["error"]))
    return BackendReport(name, **answer)


def ask(question: str, timeout_s: float, command: tuple[str, ...] = ("-m", "harness.doctor")) -> dict[str, Any]:
    """The answer of a process that is asked ``question``; ``{"error": why}`` if it gives none. Never raises."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH", "")]))
    try:
        done = subprocess.run([sys.executable, *command, question], capture_output=True, text=True, timeout=timeout_s,
                              env=environment, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s"}
    except OSError as error:
        return {"error": f"can't start Python: {error}"}
    answers = [line for line in done.stdout.splitlines() if line.startswith(ANSWER)]
    if answers:
        return json.loads(answers[-1].removeprefix(ANSWER))
    last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return {"error": ": ".join([how, *last])}


def print_report(console: Console, report: Report) -> None:
    """Print the report for people."""
    from harness.summary import new_table, print_table

    for label, value in report.machine.items():
        console.print(Text(f"{label + ':':<16}{value}"), soft_wrap=True)
    table = new_table("Backends", backend="left", here="left", version="left", why="left")
    for backend in report.backends:
        here = ("timed" if backend.timed else "checked only") if backend.available else "no"
        style = "green" if backend.available and backend.timed else "yellow" if backend.available else "dim"
        table.add_row(Text(backend.name), Text(here, style=style), Text(backend.version),
                      Text(" ".join(backend.reason.split())))
    console.print()
    print_table(console, table)
    for label, lines in (("problem", report.problems), ("note", report.notes)):
        for line in lines:
            console.print(Text(f"{label}: {line}"), soft_wrap=True)


# --- the answering side -----------------------------------------------------------------------------------------------


def describe_machine() -> dict[str, Any]:
    """Versions, GPU, whether triton has TLX, whether ``kernels`` is ours, and the registry's backends."""
    import torch

    from harness.backends.registry import BACKENDS
    from harness.environment import cpu_name, describe_checkout, triton_version
    from harness.telemetry import Monitor

    machine = {"Python": f"{platform.python_version()} on {platform.platform()}", "CPU": cpu_name(),
               "torch": f"{torch.__version__} (CUDA {torch.version.cuda or 'none'})",
               "triton": triton_version() or "none", "TLX": _describe_tlx()}
    problems = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            memory_gib = properties.total_memory / 2**30
            machine["GPU" if index == 0 else f"GPU {index}"] = (
                f"{properties.name}, sm_{properties.major}{properties.minor}, {memory_gib:.0f} GiB")
        monitor = Monitor(torch.device("cuda", 0))
        machine["driver"] = monitor.driver() or "unknown"
        problems += [f"no clock or power readings: {monitor.problem}"] if monitor.problem else []
    else:
        machine["GPU"] = "none"
    checkout = describe_checkout()
    machine["commit"] = (checkout.commit or "unknown") + (" with changes" if checkout.dirty else "")
    machine["kernels"], foreign = describe_kernels_package()
    return {"machine": machine, "problems": problems + ([foreign] if foreign else []), "backends": list(BACKENDS)}


def describe_kernels_package() -> tuple[str, str]:
    """``(where the imported kernels package is, problem)``: PyPI has another package of that name."""
    import kernels

    found = Path(kernels.__file__ or "").resolve().parent
    if found == ROOT / "kernels":
        try:
            version = importlib.metadata.version("kernels")
        except importlib.metadata.PackageNotFoundError:
            return f"{found} (ours)", ""
        return (f"{found} (ours)", f"the distribution `kernels` {version} is installed as well and has the same import "
                                   "name; elsewhere it may be imported in place of ours: pip uninstall kernels")
    return f"{found} (not ours)", f"`import kernels` gives {found}, not {ROOT / 'kernels'}: pip uninstall kernels"


def _describe_tlx() -> str:
    """Whether the installed triton brings TLX."""
    try:
        return "yes" if importlib.util.find_spec("triton.language.extra.tlx") else "no: needs fbtriton"
    except ImportError as error:
        return f"no: {error}"


def describe_backend(name: str) -> dict[str, Any]:
    """Availability of one backend on the device that a run would take by default."""
    import torch

    from harness.backends.registry import backend_class, create

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    os.environ.update(backend_class(name).environment(device.type))
    backend = create(name)
    found = backend.availability(device)
    timed = found.available and device.type in backend.timed_on
    return {"available": found.available, "version": found.version, "timed": timed, "reason": found.reason}


def _answer(question: str) -> None:
    try:
        answer = describe_machine() if question == "machine" else describe_backend(question)
    except Exception as error:  # the answer to "can it run here?" is then what went wrong
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    print(ANSWER + json.dumps(answer), flush=True)


if __name__ == "__main__":
    _answer(sys.argv[1])
