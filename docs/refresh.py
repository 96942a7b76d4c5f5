"""Builds again what is made from the committed results and from the code: run it after either has changed.

    python docs/refresh.py [STEP ...]

Steps, all by default: ``plots`` beside the baseline, ``readme`` (its tables), ``tables`` (keys of configs; compiled
kernels), ``pictures`` of the documentation, ``notebooks`` (the executed examples, and the report as a page). Needs no
GPU and takes a minute or two. Tests compare what is committed with what this makes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import draw_distributions
import draw_gate
import draw_schedule
import draw_training
import fill_agreement
import fill_readme
import fill_tables
import fill_versions
import fill_xray

from harness.plots import draw_plots
from harness.records import read_records
from harness.report.build import NOTEBOOKS, ROOT, build, seen_from_notebooks

BASELINE = ROOT / "results" / "baselines" / "nvidia-h200" / "gem.csv"
EARLIER = BASELINE.parent / "earlier" / "gem.csv"


def plots() -> None:
    """The plots beside the baseline."""
    for plot in draw_plots(read_records(BASELINE), BASELINE.parent / "plots"):
        print(*(plot.paths or [f"no {plot.name}: {plot.skipped}"]), sep="\n")


def readme() -> None:
    """The README's two tables of results."""
    for filler in (fill_readme, fill_versions):
        _write(filler.README, filler.filled(filler.README.read_text(encoding="utf-8")))


def tables() -> None:
    """The tables of keys, those of compiled kernels, and that of timers."""
    for document in fill_tables.DOCUMENTS:
        _write(document, fill_tables.filled(document.read_text(encoding="utf-8")))
    for page in (fill_xray, fill_agreement):
        _write(page.PAGE, page.filled(page.PAGE.read_text(encoding="utf-8")))


def pictures() -> None:
    """The documentation's pictures."""
    for script in (draw_distributions, draw_gate, draw_schedule, draw_training):
        script.draw(script.PICTURE)
        print(script.PICTURE)


def notebooks() -> None:
    """The two example notebooks with their outputs, and the report as one HTML page."""
    for name, (parameters, outs) in examples().items():
        for path in build(name, parameters, outs):
            print(path)


def examples() -> dict[str, tuple[dict[str, str], list[Path]]]:
    """Parameters and files of each notebook that is committed with its outputs."""
    run, before = seen_from_notebooks(BASELINE), seen_from_notebooks(EARLIER)
    return {"report": ({"RUN": run}, [NOTEBOOKS / "report.ipynb", BASELINE.with_suffix(".html")]),
            "compare": ({"BEFORE": before, "AFTER": run}, [NOTEBOOKS / "compare.ipynb"])}


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(path)


STEPS = {step.__name__: step for step in (plots, readme, tables, pictures, notebooks)}

if __name__ == "__main__":
    wanted = sys.argv[1:] or list(STEPS)
    if unknown := [name for name in wanted if name not in STEPS]:
        sys.exit(f"error: no such step: {', '.join(unknown)}; there are {', '.join(STEPS)}")
    for name in wanted:
        STEPS[name]()
