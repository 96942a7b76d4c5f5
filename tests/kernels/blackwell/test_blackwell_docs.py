"""The tables of the Blackwell kernels' optimisations name switches, files and figures that there are."""

import csv
import re
from dataclasses import fields
from pathlib import Path

import pytest

from kernels.blackwell.backward_options import BlackwellBackwardOptions
from kernels.blackwell.options import SCHEDULES, BlackwellForwardOptions

ROOT = Path(__file__).resolve().parents[3]
PAGES = {page: (ROOT / page).read_text() for page in ("README.md", "docs/blackwell.md")}
SWITCHES = {"fwd": {field.name for field in fields(BlackwellForwardOptions)},
            "bwd": {field.name for field in fields(BlackwellBackwardOptions)} | {"schedule"}}
FOLDERS = (ROOT, ROOT / "kernels/blackwell")
#: As the article lists them, each by words of its row.
ARTICLE = ("load balancing", "Cluster Launch Control", "warp-specialised", "persistent CTAs", "pipeline depth",
           "tensor memory by hand", "producer and consumer barriers", "dQ", "early", "loop peeling", "2-CTA MMA",
           "broadcast-Q", "rescaling skipped", "exp2")


def table(page):
    """Rows of the table of optimisations, each a list of cells."""
    _, _, *rows = PAGES[page][PAGES[page].index("| optimisation | switch |"):].split("\n\n")[0].splitlines()
    assert len(rows) >= len(ARTICLE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def named(cell):
    """``(direction, switch, value)`` of each switch in a cell such as ``fwd `a`, `b: c`; bwd `d```."""
    found = []
    for part in cell.split(";"):
        direction, _, rest = part.strip().partition(" ")
        for name in re.findall(r"`([^`]+)`", rest):
            switch, _, value = name.partition(": ")
            found.append((direction, switch, value))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_switch_and_file_exists(page):
    for row in table(page):
        switches = named(row[1])
        assert switches or "always" in row[1], row
        for direction, switch, value in switches:
            assert switch in SWITCHES[direction], row
            assert not value or value in SCHEDULES, row
        files = re.findall(r"`([^`]+)`", row[2])
        assert files, row
        assert [name for name in files if not any((folder / name).is_file() for folder in FOLDERS)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_optimisation_of_the_article_has_a_row(page):
    first = [row[0] for row in table(page)]
    assert [words for words in ARTICLE if not any(words in each for each in first)] == []


def test_every_switch_has_a_row():
    listed = {(direction, switch) for row in table("docs/blackwell.md") for direction, switch, _ in named(row[1])}
    assert listed == {(direction, switch) for direction, names in SWITCHES.items() for switch in names}


def test_figures_of_the_ablation_are_those_of_the_committed_records():
    with (ROOT / "results/baselines/nvidia-h200/earlier/ablation_bwd.csv").open() as file:
        records = {(row["backend"], row["case"]): row for row in csv.DictReader(file)}
    assert {row["gpu"] for row in records.values()} == {"NVIDIA H200"}
    text = PAGES["docs/blackwell.md"].split("<!-- ablation_bwd -->")[1].split("<!-- end -->")[0]
    header, _, *rows = (re.findall(r"[^|` ]+", line) for line in text.strip().splitlines())
    assert len(rows) > 5
    for backend, *figures in rows:
        assert figures == [f"{float(records[backend, case]['tflops']):.0f}" for case in header[1:]], backend
