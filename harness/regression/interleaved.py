"""Measures two sides in turns, for a comparison in which drift meets both: two configs in one run, or two commits.

Two configs become one run: the backends of both, each under a name of its own, take turns block by block on the cases
that both have. Two commits can't share a run, as each brings its own harness: whole runs take turns, A B B A, each in a
git worktree of its commit, with this Python and its packages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness import runner
from harness.cases import expand
from harness.config import BackendConfig, BenchConfig
from harness.environment import ROOT
from harness.errors import UserError
from harness.records import Record
from harness.regression.runs import Blocks, Refused, RowKey, Run, load_run

SIDES = ("a", "b")
MUST_AGREE = ("timing", "check", "seed")


def run_two_configs(configs: tuple[BenchConfig, BenchConfig], out: Path, device: str | None,
                    listener: runner.Listener | None = None, force: bool = False) -> tuple[Run, Run]:
    """Run both configs as one, and take the run apart again.

    Raises `Refused` if they time differently (``force`` takes the first's way) or have no case, direction or scope in
    common, and `UserError` as `harness.runner.run` does.
    """
    for config in configs:
        runner.choose_backends(config, None)  # under their own names
    merged, cases = merge(configs, force)
    result = runner.run(merged, runner.RunOptions(out_dir=out, cases=tuple(cases), device=device), listener)
    if result.interrupted:
        raise KeyboardInterrupt
    whole = load_run(result.csv_path)
    return side(whole, "a"), side(whole, "b")


def merge(configs: tuple[BenchConfig, BenchConfig], force: bool = False) -> tuple[BenchConfig, list]:
    """One config with both sides' backends, named ``a.<name>`` and ``b.<name>``, and the cases that both have."""
    first, second = configs
    for key in MUST_AGREE:
        if getattr(first, key) != getattr(second, key) and not force:
            raise Refused(f"compare: {key} differs between the configs; give both the same, or --force takes the "
                          "first's")
    ids = {case.case_id for case in expand(second)}
    cases = [case for case in expand(first) if case.case_id in ids]
    shared = {key: tuple(value for value in getattr(first, key) if value in getattr(second, key))
              for key in ("directions", "scopes")}
    if not cases or not all(shared.values()):
        raise Refused("compare: the configs have no case, direction or scope in common (cases are matched by id, so by "
                      "their exact lengths)")
    backends = tuple(backend.model_copy(update={"name": f"{name}.{backend.name}"})
                     for name, config in zip(SIDES, configs, strict=True) for backend in _backends(config, configs))
    return first.model_copy(update={"backends": backends, **shared, "name": f"{first.name}-{second.name}"}), cases


def _backends(config: BenchConfig, configs: tuple[BenchConfig, BenchConfig]) -> Iterator[BackendConfig]:
    """Those of a config that the other has by name too."""
    names = [{backend.name for backend in each.backends} for each in configs]
    yield from (backend for backend in config.backends if backend.name in names[0] & names[1])


def side(whole: Run, name: str) -> Run:
    """The rows of one side of a merged run, under the backends' own names."""
    prefix = f"{name}."
    records = [record.model_copy(update={"backend": record.backend.removeprefix(prefix)})
               for record in whole.records if record.backend.startswith(prefix)]
    blocks = {(key[0], key[1].removeprefix(prefix), *key[2:]): found for key, found in whole.blocks.items()
              if key[1].startswith(prefix)}
    return Run(whole.csv, tuple(records), blocks)


def run_two_commits(commits: tuple[str, str], config: Path, out: Path, arguments: Sequence[str], rounds: int,
                    say: Callable[[str], None]) -> tuple[Run, Run]:
    """Run a config at two commits, ``rounds`` times each, in turns; rows' blocks of all rounds are joined.

    ``arguments`` go to each ``harness run``. Raises `UserError` for a commit that isn't there or a run that fails.
    """
    found: tuple[list[Run], list[Run]] = ([], [])
    with worktrees(commits) as trees:
        for number in range(rounds):
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                directory = out / f"{SIDES[index]}-{number + 1}"
                say(f"{commits[index]}, run {number + 1} of {rounds}, into {directory}")
                found[index].append(_run_in(trees[index], config, directory, arguments))
    return joined(found[0]), joined(found[1])


@contextmanager
def worktrees(commits: Sequence[str], root: Path = ROOT) -> Iterator[list[Path]]:
    """A checkout of each commit in a temporary place. Raises `UserError` for one that isn't there."""
    with tempfile.TemporaryDirectory(prefix="harness-compare-") as place:
        trees: list[Path] = []
        try:
            for number, commit in enumerate(commits):
                tree = Path(place) / f"{number}"
                _git(root, "worktree", "add", "--detach", str(tree), commit)
                trees.append(tree)
            yield trees
        finally:
            for tree in trees:
                _git(root, "worktree", "remove", "--force", str(tree))


def is_commit(name: str, root: Path = ROOT) -> bool:
    """Whether git knows a commit of that name."""
    return _run_git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").returncode == 0


def joined(runs: Sequence[Run]) -> Run:
    """Several runs of one commit as one: its first records, and the blocks of all that have the row."""
    blocks: dict[RowKey, Blocks] = {}
    for run in runs:
        for key, found in run.blocks.items():
            blocks[key] = (*blocks.get(key, ()), *found)
    everywhere = [record for record in runs[0].records if all(record.key in run.by_key for run in runs)]
    return Run(runs[0].csv, tuple(map(_worst(runs), everywhere)), blocks)


def _worst(runs: Sequence[Run]) -> Callable[[Record], Record]:
    """A row that failed in one of the runs has failed."""
    def of(record: Record) -> Record:
        found = [run.by_key[record.key] for run in runs]
        return next((each for each in found if each.status.value != "ok"), record)
    return of


def _run_in(tree: Path, config: Path, out: Path, arguments: Sequence[str]) -> Run:
    command = [sys.executable, "-m", "harness", "run", str(config.resolve()), "--out", str(out.resolve()), "--no-plots",
               *arguments]
    done = subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    csvs = [path for path in out.glob("*.csv") if not path.name.endswith(".samples.csv")]
    if done.returncode or len(csvs) != 1:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{' '.join(command[1:])}: failed with status {done.returncode} in a checkout of the commit: "
                        f"{last}")
    return load_run(csvs[0])


def _git(root: Path, *arguments: str) -> None:
    done = _run_git(root, *arguments)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["failed"]
        raise UserError(f"git {' '.join(arguments)}: {said[-1]}")


def _run_git(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(f"git: can't be run: {error.strerror or error}") from error


