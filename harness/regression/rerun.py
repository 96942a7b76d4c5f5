"""Runs that the gate and the noise floor need: A/A runs of a config, and some cases of a run once more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from harness import runner
from harness.config import BenchConfig
from harness.environment import describe_checkout
from harness.regression.runs import Refused, Run, facts_path, load_facts, load_run
from harness.replay import read_cases


def run_again(run: Run, case_ids: Sequence[str], device: str | None, listener: runner.Listener | None = None) -> Run:
    """Measure some cases of a run again, with its config and exact lengths; its files go to ``again-<number>`` beside.

    Raises `UserError` if the run's facts are missing, `Refused` if the run can't be repeated here: on another kind of
    device, or from another commit, it would be another measurement.
    """
    _demand_alike(run, device)
    try:
        config = BenchConfig.model_validate(load_facts(run.csv)["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"{facts_path(run.csv)}: config: can't be read by this version: {' '.join(str(error).split())}"
                      ) from None
    out = next(path for number in count(1) if not (path := run.csv.parent / f"again-{number}").exists())
    result = runner.run(config, runner.RunOptions(
        out_dir=out, case_ids=tuple(case_ids), device=device, cases=tuple(read_cases(facts_path(run.csv)))), listener)
    if result.interrupted:
        raise KeyboardInterrupt
    return load_run(result.csv_path)


def _demand_alike(run: Run, device: str | None) -> None:
    kinds = list(dict.fromkeys(name.split(":")[0] for name in runner.choose_devices(device)))
    if kinds != run.values("device_type"):
        raise Refused(f"{run.csv}: device_type is {', '.join(run.values('device_type'))}, and here it would be "
                      f"measured again on {', '.join(kinds)}; --rerun where the run was made, or leave it out")
    here, commits, was_dirty = describe_checkout(), run.values("commit"), "True" in run.values("dirty")
    if here.commit and commits and (commits != [here.commit] or (here.dirty and not was_dirty)):
        changed = ", with changes that aren't committed" if here.dirty else ""
        raise Refused(f"{run.csv}: commit is {', '.join(commits)}, and here {here.commit}{changed} would be measured "
                      "again; --rerun at the run's commit, or leave it out")


def repeat(config: BenchConfig, times: int, out: Path, device: str | None,
           make_listener: Callable[[], runner.Listener] = runner.Listener) -> list[Run]:
    """``times`` whole runs of a config, each with fresh worker processes, into ``out``/run-1, run-2, ...

    Runs that are complete there already are taken as they are, one that was interrupted is gone on with. Raises
    `UserError` as `harness.runner.run` does.
    """
    runs = []
    for number in range(1, times + 1):
        directory = out / f"run-{number}"
        result = runner.run(config, runner.RunOptions(
            out_dir=directory, resume=(directory / f"{config.name}.run.json").exists(), device=device), make_listener())
        if result.interrupted:
            raise KeyboardInterrupt
        runs.append(load_run(result.csv_path))
    return runs
