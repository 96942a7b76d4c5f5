"""Every column of every table that a command writes is documented (those of the records in test_docs.py)."""

import csv
import re
from pathlib import Path

import pytest
from sample_records import GEM_LIKE, gem_like

from harness import profiling
from harness.ablation import ablate
from harness.case_table import describe_cases
from harness.cases import expand
from harness.config import load_config
from harness.flops import Ceilings
from harness.integrations.tritonbench import agreement
from harness.records import COLUMNS, to_frame

ROOT = Path(__file__).resolve().parent.parent


def part(command):
    """Names in backticks of the paragraph and table about a command's CSV."""
    text = (ROOT / "results" / "README.md").read_text()
    body = text[text.index(f"`{command}`", text.index("## Tables that commands write")):]
    rows = re.match(r"[^|]*\n\n(\|.*\n)*", body)[0]
    return set(re.findall(r"`(\w+)`", rows))


def header(path):
    with (ROOT / path).open() as file:
        return next(csv.reader(file))


def test_columns_of_cases():
    frame = describe_cases(expand(load_config(ROOT / "configs" / "smoke.yaml")), Ceilings(1, 1))
    assert set(frame) - set(COLUMNS) <= part("harness cases --csv")


def test_columns_of_an_ablation():
    backends = {"jfa": 1.6, "jfa_less": 1.5}
    assert set(ablate(to_frame(gem_like(backends, GEM_LIKE[:1])))) <= part("harness ablation --format csv")


def test_columns_of_the_simulators_tables():
    assert set(header("results/simulated/hopper.csv")) <= part("harness simulate --csv")
    agreement = header("results/baselines/nvidia-h200/simulator_agreement.csv")
    assert set(agreement) <= part("python -m kernels.simulator agree --csv")


def test_columns_of_profiles_and_of_the_agreement_of_timers():
    assert set(profiling.COLUMNS) == part("harness profile")
    assert set(agreement.COLUMNS) == part("python -m harness.integrations.tritonbench.agreement")
    assert header("results/baselines/nvidia-h200/tritonbench.csv") == list(agreement.COLUMNS)


@pytest.mark.parametrize("folder", ["baselines", "reference", "simulated"])
def test_every_committed_csv_is_named_where_results_are_described(folder):
    described = [*(ROOT / "results").rglob("README.md"), *(ROOT / "docs").glob("*.md")]
    pages = "".join(page.read_text() for page in described)
    for path in (ROOT / "results" / folder).rglob("*.csv"):
        kind = re.sub(r"^(gem|gate|versions|ablation_\w+?)(?=\.|$)", "<config>", path.name.removesuffix(".csv"))
        known = (path.name, f"{kind}.csv", re.sub(r"xray_\w+", "xray_*", path.name))
        assert any(name in pages for name in known), path


def test_a_column_that_is_not_described_is_seen():
    assert "no_such_column" not in part("harness simulate --csv")
    assert part("harness simulate --csv") >= {"share_of_limit", "found"}
    assert "share_of_limit" not in part("harness cases --csv")
