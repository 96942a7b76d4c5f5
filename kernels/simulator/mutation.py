"""Mutation campaigns: how many of a kernel's mutants the simulator catches, over several layouts, and which survive."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.simulator.cases import Call, Case, Outcome, Output, run_schedule
from kernels.simulator.frontend import Mutation
from kernels.simulator.launcher import Simulator
from kernels.simulator.mutants import Collector, Mutator, Site
from kernels.simulator.processes import in_order
from kernels.simulator.runtime import Runtime
from kernels.simulator.schedules import schedules

_PYTHON = "python"  # the mutant made Python code of the simulated kernel fail, such as a tensor of a wrong shape
_BY_CHANCE = frozenset({"commit in flight at exit"})  # says something about the schedule, not about the kernel
_COLUMNS = ("mutant", "line", "runs", "argument")


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant. ``verdict``: ``caught``, ``survived``, or ``same`` for one that changed nothing."""

    site: Site
    verdict: str
    found_by: str = ""
    layout: str = ""
    schedule: str = ""
    runs: int = 0


@dataclass(frozen=True)
class Campaign:
    """All mutants of a kernel. ``not_run``: sites in code that these layouts never reach."""

    kernel: str
    verdicts: Sequence[Verdict]
    not_run: int

    def count(self, verdict: str) -> int:
        """Mutants with that verdict."""
        return sum(each.verdict == verdict for each in self.verdicts)

    def survivors(self) -> list[Verdict]:
        """Mutants that no schedule caught."""
        return [each for each in self.verdicts if each.verdict == "survived"]

    def rate(self, arguments: Mapping[str, str]) -> float:
        """Share caught of those that are not argued to be equivalent."""
        unexplained = sum(argument_key(self.kernel, each.site) not in arguments for each in self.survivors())
        return self.count("caught") / max(self.count("caught") + unexplained, 1)

    def summary(self, arguments: Mapping[str, str]) -> str:
        """One line."""
        caught, survived = self.count("caught"), len(self.survivors())
        explained = sum(argument_key(self.kernel, each.site) in arguments for each in self.survivors())
        first = sum(each.runs == 1 for each in self.verdicts if each.verdict == "caught")
        by = Counter(each.found_by for each in self.verdicts if each.verdict == "caught")
        return (f"{self.kernel}: {caught} of {caught + survived} caught ({first} by the first schedule); {survived} "
                f"survive, {explained} of them with an argument; caught of the others: {self.rate(arguments):.1%}; "
                f"{self.count('same')} change nothing here, {self.not_run} not reached; by {dict(by.most_common())}")


def argument_key(kernel: str, site: Site) -> str:
    """Names a mutant across edits elsewhere in the file: kernel, function, kind, statement and which of those."""
    return f"{kernel} | {site.function} | {site.kind} | {site.statement} | {site.ordinal}"


_Written = Sequence[tuple[torch.Tensor, torch.Tensor]]  # (values, mask) of every storage that kernels wrote


def _attempt(case: Case, call: Call, schedule_index: int, mutation: Mutation) -> tuple[Outcome, Simulator]:
    return run_schedule(case, call, schedules(schedule_index + 1)[schedule_index], mutation=mutation)


def _differ(got: _Written, wanted: _Written) -> str | None:
    """Which written storage differs from the unchanged kernel's, outputs that the case does not compare included."""
    if len(got) != len(wanted):
        return f"{len(got)} storages written instead of {len(wanted)}"
    for index, ((values, mask), (right, right_mask)) in enumerate(zip(got, wanted, strict=True)):
        if values.shape != right.shape or not torch.equal(mask, right_mask):
            return f"other elements of storage {index} written"
        if not values.is_floating_point():  # counters, lists of tiles
            if not torch.equal(values[mask], right[mask]):
                return f"other integers in storage {index}"
            continue
        error = Output("", values[mask].float(), right[mask].float()).error()
        if not error <= 2e-2:
            return f"storage {index} differs by {error:.2g}"
    return None


def run_campaign(kernel: str, layouts: Sequence[Case], max_schedules: int = 20,
                 skip: Collection[str] = (),
                 progress: Callable[[str], None] | None = None, every: int = 1, jobs: int = 1) -> Campaign:
    """Mutate the kernel that the layouts share, one site at a time, until a schedule of some layout finds it.

    Each of at most ``max_schedules`` schedules is tried on every layout before the next.
    ``skip`` leaves out helper kernels by function name; ``jobs`` processes share the mutants. A mutant counts as
    caught if any check fires, an output is wrong, or an allowed finding appears that the unchanged kernel does not
    give. Raises `RuntimeError` if the unchanged kernel does not pass all schedules, as its failure would count as a
    find of every mutant.
    """
    collector = Collector(skip)
    calls = [(case, case.prepare()) for case in layouts]
    written: list[_Written] = []
    usual: set[str] = set(_BY_CHANCE)
    covered: set[tuple[str, int]] = set()
    for position, (case, call) in enumerate(calls):
        for index in range(max_schedules):
            watch = Collector() if position or index else collector
            outcome, simulator = _attempt(case, call, index, watch)
            if not outcome.ok:
                raise RuntimeError(f"{case.name}: the unchanged kernel fails: {outcome}")
            usual |= set(outcome.counts)
            covered |= simulator.covered
            if index == 0:
                written.append(simulator.ledger.written())
    # A campaign's first layout must reach every function; later ones only add to the lines that count as run.
    sites = list(dict.fromkeys(collector.sites))[::every]
    reached = [site for site in sites if ((site.file, site.line) in covered or site.kind == "count + 1")
               and (not site.helper_line or (site.file, site.helper_line) in covered)]

    def judge(site: Site) -> Verdict:
        return _judge(site, calls, written, max_schedules, usual)

    verdicts = []
    for number, (site, verdict) in enumerate(zip(reached, in_order(judge, reached, jobs), strict=True)):
        verdicts.append(verdict)
        if progress:
            progress(f"{number + 1}/{len(reached)} {verdicts[-1].verdict}: {site.kind} at {site.function}:{site.line}")
    return Campaign(kernel, verdicts, len(sites) - len(reached))


def _find(case: Case, call: Call, index: int, site: Site, written: _Written, usual: set[str]) -> str | None:
    """What gives the mutant away in this schedule."""
    try:
        outcome, simulator = _attempt(case, call, index, Mutator(site))
    except (OSError, RecursionError):  # the kernel's source was edited meanwhile: nothing was tried
        raise
    except Exception as error:  # a mutant may break anything; that it is noticed is what counts
        return f"{_PYTHON}: {type(error).__name__}"
    if outcome.check:
        return outcome.check
    new = sorted(set(outcome.counts) - usual)
    if new:
        return f"new finding: {new[0]}"
    return "wrong" if _differ(simulator.ledger.written(), written) else None


def _judge(site: Site, calls: Sequence[tuple[Case, Call]], written: Sequence[_Written], max_schedules: int,
           usual: set[str]) -> Verdict:
    Runtime.changed.clear()
    runs = 0
    for index in range(max_schedules):
        for (case, call), right in zip(calls, written, strict=True):
            runs += 1
            found = _find(case, call, index, site, right, usual)
            if found:
                return Verdict(site, "caught", found, case.name, str(schedules(index + 1)[index]), runs)
    if site.kind in ("barrier 0", "buffer 0") and not Runtime.changed:
        return Verdict(site, "same", runs=runs)
    return Verdict(site, "survived", runs=runs)


def write_survivors(path: Path, campaigns: Sequence[Campaign], arguments: Mapping[str, str]) -> None:
    """One row a survivor, with the argument for its being the same kernel where there is one."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for campaign in campaigns:
            for each in campaign.survivors():
                key = argument_key(campaign.kernel, each.site)
                writer.writerow([key, each.site.line, each.runs, arguments.get(key, "")])
