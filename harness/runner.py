"""The one loop: config -> cases -> backends -> correctness -> timing -> records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

from harness.backends import registry
from harness.cases import Case, expand
from harness.config import BackendConfig, BenchConfig
from harness.environment import describe_checkout
from harness.errors import UserError
from harness.fleet import Fleet, Member
from harness.flops import Ceilings
from harness.integrations.tritonbench import do_bench
from harness.lanes import Say, share_out
from harness.measurement import check_case, time_case
from harness.records import Record, Status
from harness.rows import RIVAL, Row, RunFacts, make_record, make_samples
from harness.run_files import Earlier, RunFiles, kept_from_others, open_earlier, open_new, write_facts
from harness.worker_client import WorkerError

RUNS = Path("results/runs")


@dataclass(frozen=True)
class RunOptions:
    """What of a config to run, where, and where to write.

    Attributes:
        out_dir: directory of the run's files; default ``results/runs/<config name>-<UTC stamp>``.
        case_ids: ids or names of the cases to run; default all.
        backends: config names of the backends to run; default all.
        resume: go on with the run in ``out_dir``: complete (case, backend) groups stay as they are.
        device: ``cuda``, ``cuda:1``, ``cpu``; default the GPU if there is one. Several, with commas between them, share
            the cases: each case runs on one of them, with all its backends.
        gpus: instead of ``device``, the GPUs that share the cases: ``all``, or indices with commas between them.
        cases: the exact cases to choose from, such as those of an earlier run; default what the config expands to.
    """

    out_dir: Path | None = None
    case_ids: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    resume: bool = False
    device: str | None = None
    gpus: str | None = None
    cases: tuple[Case, ...] | None = None


@dataclass(frozen=True)
class RunResult:
    """Files and rows of a run; ``records`` holds those of a resumed run's earlier part too."""

    run_id: str
    out_dir: Path
    csv_path: Path
    samples_path: Path
    run_json_path: Path
    records: tuple[Record, ...]
    interrupted: bool = False


class Listener:
    """Hears what a run does, in order; override what you care for. Called from the main thread only."""

    def started(self, run_id: str, out_dir: Path, cases: Sequence[Case], n_rows: int) -> None:
        """``cases`` and ``n_rows`` are what is left to do (less than the config's on a resume)."""

    def note(self, text: str) -> None:
        """One line worth showing: a worker restarted, a backend that isn't available."""

    def case_started(self, case: Case) -> None:
        """A case begins: its backends are about to compile and be checked."""

    def prepared(self, case: Case, backend: str, statuses: Mapping[tuple[str, str], Status]) -> None:
        """A backend was checked; by ``(direction, scope)``, `Status.OK` means that it will be timed."""

    def block_timed(self, case: Case, backend: str, direction: str, scope: str, n_samples: int) -> None:
        """A sample block ended; ``n_samples`` is the total of that row so far."""

    def case_finished(self, case: Case, records: Sequence[Record]) -> None:
        """The case's rows are on disk."""

    def finished(self, result: RunResult) -> None:
        """The run ended or was interrupted."""

    def aborted(self) -> None:
        """The run ended by an error, in place of `finished`."""


def run(config: BenchConfig, options: RunOptions, listener: Listener | None = None) -> RunResult:
    """Run a config and write ``<name>.csv``, ``<name>.samples.csv`` and ``<name>.run.json``.

    Every (case, backend) is checked against the oracle before it is timed; whatever fails becomes a row with a
    status. Ctrl-C ends the run early, keeps the cases that are complete and sets `RunResult.interrupted`.
    Raises `UserError` for what the user can mend: unknown case, backend or device, a directory of another config or
    one that can't be written.
    """
    listener = listener or Listener()
    if config.timing.engine == "tritonbench" and (problem := do_bench.missing()):
        raise config.error(("timing", "engine"), f"got 'tritonbench', but {problem}", "cuda_events")
    devices = choose_devices(options.device, options.gpus)
    all_cases = expand(config) if options.cases is None else list(options.cases)
    cases, backends = choose_cases(all_cases, options.case_ids), choose_backends(config, options.backends)
    try:
        with _opened(config, options) as (files, earlier):
            return _run(config, devices, all_cases, cases, backends, files, earlier, listener)
    except OSError as error:
        listener.aborted()
        raise UserError(f"{error.filename or 'the run'}: {error.strerror or error}; what is complete was kept, and "
                        "--resume goes on with it") from error
    except BaseException:
        listener.aborted()
        raise


def _run(config: BenchConfig, devices: Sequence[str], all_cases: Sequence[Case], cases: Sequence[Case],
         backends: Sequence[BackendConfig], files: RunFiles, earlier: Earlier, listener: Listener) -> RunResult:
    run_id = earlier.run_id
    for case in cases:
        if earlier.case_ids and case.case_id not in earlier.case_ids:
            raise UserError(f"{files.json_path}: cases: the run has no {case.name!r} of these lengths, id "
                            f"{case.case_id}; resume with the same --from, or start anew in another --out")
    todo = [(case, left) for case in cases
            if (left := [backend for backend in backends if (case.case_id, backend.name) not in earlier.groups])]
    records = list(earlier.records)
    interrupted = False
    used = [backend for backend in backends if any(backend in left for _, left in todo)]
    with ExitStack() as stack:
        fleets = [stack.enter_context(Fleet(config, device, files.log_dir / ("" if index == 0 else f"device{index}"),
                                            used, 1 / devices.count(device))) for index, device in enumerate(devices)]
        listener.started(run_id, files.out_dir, [case for case, _ in todo],
                         sum(len(left) for _, left in todo) * len(config.directions) * len(config.scopes))
        try:
            facts = _start(fleets, config, files, run_id, all_cases, earlier, listener)

            def run_case(fleet: Fleet, work: tuple[Case, list[BackendConfig]], say: Say) -> None:
                case, left = work
                names = [backend.name for backend in left]
                rows = {member: [Row(direction, scope) for direction in config.directions for scope in config.scopes]
                        for member in fleet.members if member.label in names}
                _measure_case(fleet, case, rows, config, listener, say)
                say(lambda: records.extend(_record_case(fleet, case, rows, files, facts, earlier, listener)))

            share_out(fleets, todo, run_case, Fleet.stop)
        except KeyboardInterrupt:
            interrupted = True
    if len(devices) > 1:
        files.sort(records, [case.case_id for case in all_cases])
    result = RunResult(run_id, files.out_dir, files.csv_path, files.samples_path, files.json_path, tuple(records),
                       interrupted)
    listener.finished(result)
    return result


def _measure_case(fleet: Fleet, case: Case, rows: Mapping[Member, Sequence[Row]], config: BenchConfig,
                  listener: Listener, say: Say) -> None:
    """Correctness, then timing; in a lane's thread."""

    def checked(member: Member) -> None:
        statuses = {row.key: row.status or Status.CRASH for row in rows[member]}
        say(lambda: listener.prepared(case, member.label, statuses))

    def timed(member: Member, row: Row) -> None:
        count = len(row.latencies_ms)
        say(lambda: listener.block_timed(case, member.label, row.direction, row.scope, count))

    say(lambda: listener.case_started(case))
    check_case(fleet, case, rows, config, checked)
    time_case(fleet, case, rows, config.timing, timed)


def _record_case(fleet: Fleet, case: Case, rows: Mapping[Member, Sequence[Row]], files: RunFiles, facts: RunFacts,
                 earlier: Earlier, listener: Listener) -> list[Record]:
    """Records on disk."""
    rival_ms = {row.key: row.latencies_ms for member in rows if member.label == RIVAL for row in rows[member]}
    records = [
        make_record(facts, member.facts(fleet.environment), case, row,
                    rival_ms.get(row.key) or earlier.latencies_ms(case.case_id, RIVAL, *row.key))
        for member in rows for row in rows[member]]
    files.append(records, [sample for member in rows for row in rows[member]
                           for sample in make_samples(facts.run_id, member.label, case, row)])
    listener.case_finished(case, records)
    return records


def name_run(config: BenchConfig, options: RunOptions) -> tuple[str, RunFiles]:
    """The id of a new run and where its files go. Raises `UserError` to resume without a directory that is there."""
    if options.resume and options.out_dir is None:
        raise UserError("--resume: needs --out, the directory of the run to go on with")
    if options.resume and options.out_dir is not None and not options.out_dir.is_dir():
        raise UserError(f"{options.out_dir}: no such directory, so there is no run to resume")
    run_id = f"{config.name}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    return run_id, RunFiles(options.out_dir or RUNS / run_id, config.name)


@contextmanager
def _opened(config: BenchConfig, options: RunOptions) -> Iterator[tuple[RunFiles, Earlier]]:
    """The run's files, kept from other processes, and what they hold already."""
    run_id, files = name_run(config, options)
    with kept_from_others(files):
        if options.resume:
            yield files, open_earlier(files, config)
        else:
            open_new(files)
            yield files, Earlier(run_id)


def _start(fleets: Sequence[Fleet], config: BenchConfig, files: RunFiles, run_id: str, cases: Sequence[Case],
           earlier: Earlier, listener: Listener) -> RunFacts:
    """Start the workers, measure the ceilings (of the first device), and write down what the run runs on."""
    share_out(fleets, fleets, lambda _, fleet, say: fleet.start(), Fleet.stop)
    fleet = fleets[0]
    for text in earlier.dropped:
        listener.note(text)
    for member in fleet.members:
        if member.problem:
            listener.note(f"{member.label}: {member.problem[0].value}: {member.problem[1]}")
    device = fleet.environment
    if len(models := sorted({other.environment.gpu for other in fleets} - {""})) > 1:
        raise UserError(f"--gpus, --device: a run's figures are of one GPU model, these are {' and '.join(models)}; "
                        "run each apart, with --device")
    if earlier.gpu and device.gpu and device.gpu != earlier.gpu:
        raise UserError(f"{files.json_path}: device: the run is of {earlier.gpu}, this machine has {device.gpu}; "
                        "start anew in another --out")
    ceilings = earlier.ceilings or _measure_ceilings(fleet, listener)
    checkout = describe_checkout()
    if earlier.gpu is None:
        backends = [{"name": member.label, "version": member.version,
                     "problem": f"{member.problem[0].value}: {member.problem[1]}" if member.problem else ""}
                    for member in fleet.members]
        write_facts(files, run_id, config, device, checkout, ceilings, backends, cases)
    cache = "cold" if config.timing.cold_l2 else "warm"
    return RunFacts(run_id, config.config_hash, cache, checkout, ceilings)


def _measure_ceilings(fleet: Fleet, listener: Listener) -> Ceilings | None:
    for member in fleet.able[:1]:
        try:
            return member.ceilings()
        except WorkerError as error:
            listener.note(f"ceilings: not measured, so there are no floors: {error.message}")
    return None


def choose_devices(names: str | None, gpus: str | None = None) -> tuple[str, ...]:
    """Devices by name, commas between them; by default the GPU if there is one. ``all``: each GPU.

    With ``gpus`` by index instead. One that is named twice takes two cases at a time, which suits checks, not times.
    Raises `UserError` for one that isn't there.
    """
    count = torch.cuda.device_count()
    if gpus is not None:
        return _choose_gpus(gpus, count)
    if names is None:
        return ("cuda",) if count else ("cpu",)
    each = tuple(f"cuda:{index}" for index in range(count))
    allowed = ["cpu", *(["cuda", *each, "all"] if count else [])]
    chosen = tuple(name.strip() for name in names.split(","))
    for name in chosen:
        if name not in allowed:
            raise UserError(f"device: there is no {name!r} here; allowed: {', '.join(allowed)}, or several with commas")
    return tuple(device for name in chosen for device in (each if name == "all" else (name,)))


def _choose_gpus(gpus: str, count: int) -> tuple[str, ...]:
    if not count:
        raise UserError(f"--gpus: got {gpus!r}, but there is no GPU here; allowed: --device cpu")
    there = [str(index) for index in range(count)]
    chosen = there if gpus == "all" else [index.strip() for index in gpus.split(",")]
    for index in chosen:
        if index not in there:
            raise UserError(f"--gpus: there is no GPU {index!r} here; allowed: all, or indices with commas between "
                            f"them, of {', '.join(there)}")
    return tuple(f"cuda:{index}" for index in chosen)


def choose_cases(cases: Sequence[Case], wanted: Sequence[str] | None) -> list[Case]:
    """Cases by id or name, in the config's order. Raises `UserError` for an unknown one."""
    if wanted is None:
        return list(cases)
    names = [name for case in cases for name in (case.case_id, case.name)]
    for name in wanted:
        if name not in names:
            raise UserError(f"case: no such case {name!r}; allowed: "
                            f"{', '.join(f'{case.name} ({case.case_id})' for case in cases)}")
    return [case for case in cases if case.case_id in wanted or case.name in wanted]


def choose_backends(config: BenchConfig, wanted: Sequence[str] | None) -> list[BackendConfig]:
    """Backends by their names in the config, in its order.

    Raises `UserError` for an unknown name, for a key or option that the registry doesn't know, and for a backend under
    the name of another: rows are known by their names, and speed-ups are over the one that is called `RIVAL`.
    """
    names = [backend.name for backend in config.backends]
    for name in wanted or ():
        if name not in names:
            raise UserError(f"backend: the config has no backend {name!r}; allowed: {', '.join(names)}")
    chosen = [backend for backend in config.backends if wanted is None or backend.name in wanted]
    for backend in chosen:
        where = ("backends", config.backends.index(backend))
        try:
            made = registry.create(backend.backend, backend.options)
        except UserError as error:
            raise config.error(where, str(error).removeprefix("backend: ")) from None
        if backend.name in registry.BACKENDS and made.name != backend.name:
            raise config.error((*where, "name"), f"got {backend.name!r}, which is another backend than "
                               f"{backend.backend!r}", "a name that is no backend's")
    return chosen
