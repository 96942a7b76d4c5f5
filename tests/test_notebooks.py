"""The notebooks run from beginning to end on the committed results, and what is committed of them is what they show."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from sample_records import smoke_like

from harness.cli import app
from harness.errors import UserError
from harness.records import append_records
from harness.report import build as building
from harness.report.build import NOTEBOOKS, build, execute, seen_from_notebooks
from harness.report.page import page

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("report", "compare")
SECTIONS = ("Environment and method", "Headline", "Throughput of each case",
            "Speed-up against length, density and batch", "Roofline", "Where the time goes",
            "Tile efficiency and padding waste", "Load balance", "Ablations",
            "Published figures for the B200: not measured here", "What did not run, and why")


@pytest.fixture(scope="module")
def executed():
    """Both notebooks, run as `python docs/refresh.py` runs them."""
    sys.path.append(str(ROOT / "docs"))
    examples = importlib.import_module("refresh").examples()
    return {name: execute(name, parameters) for name, (parameters, _) in examples.items()}


def words(node):
    """Sources and outputs of all cells, but for the pixels of pictures: those differ between versions of libraries."""
    for cell in node.cells:
        yield cell.source
        for output in cell.get("outputs", ()):
            yield {kind: text for kind, text in output.get("data", {}).items() if kind != "image/png"}


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_notebook_is_what_running_it_shows(executed, name):
    committed = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert list(words(committed)) == list(words(executed[name])), "run python docs/refresh.py"


def test_the_committed_page_is_that_of_the_report(executed):
    committed = (ROOT / "results" / "baselines" / "nvidia-h200" / "gem.html").read_text()
    here, again = (re.sub(r'data:image/png;base64,[^"]+', "", text) for text in (committed, page(executed["report"])))
    assert here == again, "run python docs/refresh.py"


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_is_small_and_has_its_pictures(name):
    path = NOTEBOOKS / f"{name}.ipynb"
    assert path.stat().st_size < 2 * 2**20
    pictures = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", ())
                if "image/png" in output.get("data", {})]
    assert len(pictures) >= {"report": 10, "compare": 1}[name]
    assert all(output.metadata["image/png"]["alt"] for output in pictures)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_needs_no_other_file(executed, name):
    text = page(executed[name])
    assert "<script" not in text
    assert "<link" not in text
    assert set(re.findall(r'(?:src|href)="([^"]{1,12})', text)) <= {"data:image/p", *(
        f"#section-{number}" for number in range(20))}
    anchors = re.findall(r'<li><a href="#(section-\d+)">', text)
    assert len(anchors) >= 4
    assert all(f'id="{anchor}"' in text for anchor in anchors)
    assert "No description has been provided" not in text
    assert "Traceback" not in text


def test_the_report_has_every_section_and_says_what_is_measured_modelled_or_published(executed):
    text = page(executed["report"])
    assert re.findall(r'<h2 id="section-\d+">(.*?)</h2>', text) == list(SECTIONS)
    assert "Measured on NVIDIA H200" in text
    published = text[text.index("Published figures for the B200: not measured here</h2>"):]
    assert "published, not measured here" in published
    assert "Not drawn" not in text


def test_a_cpu_run_without_facts_or_rival_is_reported_with_reasons(tmp_path):
    csv = tmp_path / "smoke.csv"
    append_records(csv, smoke_like())
    done = subprocess.run([sys.executable, "-m", "harness", "report", str(csv), "--out", str(tmp_path / "page.html")],
                          cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"report: {tmp_path / 'page.html'}\n"
    text = (tmp_path / "page.html").read_text()
    assert "Not drawn: the lengths aren't known: smoke.run.json isn't beside the CSV." in text.replace("&#39;", "'")
    assert "there is no speed-up to report" in text
    assert "Triton's interpreter: checked, its time means nothing" in text.replace("&#39;", "'")


def test_what_can_not_be_built_is_an_error_in_words(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"expected a name that ends in \.html or \.ipynb"):
        build("report", {}, [tmp_path / "report.pdf"])
    with pytest.raises(UserError, match=r"^[^:]*none\.csv"):
        build("report", {"RUN": str(tmp_path / "none.csv")}, [tmp_path / "report.html"])
    monkeypatch.setattr(building, "NOTEBOOKS", tmp_path)
    with pytest.raises(UserError, match="no such notebook; reports are built from a checkout"):
        build("report", {}, [tmp_path / "report.html"])


def test_paths_are_written_as_a_notebook_sees_them(tmp_path):
    assert seen_from_notebooks(ROOT / "results" / "x.csv") == "../results/x.csv"
    assert seen_from_notebooks(tmp_path / "x.csv") == str(tmp_path / "x.csv")


def test_commands_that_the_notebooks_name_exist():
    commands = {command.name for command in app.registered_commands}
    for name in NAMES:
        assert set(re.findall(r"`harness (\w+)", (NOTEBOOKS / f"{name}.py").read_text())) <= commands
