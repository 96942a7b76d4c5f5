"""The guides do what they say: their examples are taken from the page and run."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from harness.backends.registry import BACKENDS
from harness.cases import expand
from harness.cli import app
from harness.config import load_config
from harness.records import read_records
from kernels import dispatch
from kernels.hopper.options import SCHEDULES
from kernels.tile_schedule import RECORD_FIELDS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def blocks(page, language):
    """Code blocks of a language on a page."""
    return [part.split("\n```")[0] + "\n" for part in (DOCS / page).read_text().split(f"```{language}\n")[1:]]


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_backend_is_short_right_and_declines_what_it_says(tmp_path):
    (code,), (config,) = blocks("adding_a_backend.md", "python"), blocks("adding_a_backend.md", "yaml")
    assert sum(bool(line.strip()) for line in code.splitlines()) < 40
    (tmp_path / "textbook.py").write_text(code)
    (tmp_path / "textbook.yaml").write_text(config)
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "harness", "run", "textbook.yaml", "--out", "out", "--device", "cpu", "--no-plots"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    rows = read_records(tmp_path / "out" / "textbook.csv")
    ours = rows[rows["backend"] == "Textbook"]
    plain, causal = ours[~ours["causal"]], ours[ours["causal"]]
    assert list(plain["status"]) == ["ok"] * 4
    assert set(plain["direction"]) == {"fwd", "bwd"}
    assert set(plain["scope"]) == {"kernel", "operation"}
    assert list(causal["status"]) == ["unsupported"] * 4
    assert causal["message"].str.contains("only self-attention without a mask").all()


def test_the_example_config_expands_as_described(tmp_path):
    (trace,) = blocks("writing_a_config.md", "csv")
    config, variants = blocks("writing_a_config.md", "yaml")
    (tmp_path / "lengths.csv").write_text(trace)
    (tmp_path / "mine.yaml").write_text(config)
    cases = expand(load_config(tmp_path / "mine.yaml"))
    assert [case.name for case in cases] == ["history", "history_causal", "pooled"]
    assert cases[0].lengths_k.tolist() == [51, 3, 77, 0, 129, 40]
    (tmp_path / "mine.yaml").write_text(re.sub(r"^backends: .*\n", variants, config, flags=re.MULTILINE))
    assert [each.name for each in load_config(tmp_path / "mine.yaml").backends] == [
        "jfa", "jfa_unsorted", "what_padding_costs"]


def test_the_guide_says_what_a_batch_larger_than_its_trace_is(tmp_path):
    config, _ = blocks("writing_a_config.md", "yaml")
    (tmp_path / "lengths.csv").write_text(blocks("writing_a_config.md", "csv")[0])
    (tmp_path / "mine.yaml").write_text(config.replace("mode: self\n", "mode: self\n    batch: 1152\n"))
    with pytest.raises(Exception, match="batch"):
        expand(load_config(tmp_path / "mine.yaml"))


def test_the_schedules_picture_is_what_its_script_draws(tmp_path):
    drawing = script("draw_schedule")
    drawing.draw(tmp_path / "again.png")
    here, again = (matplotlib.image.imread(path) for path in (drawing.PICTURE, tmp_path / "again.png"))
    assert here.shape == again.shape
    assert np.abs(here - again).mean() < 0.01, "run python docs/draw_schedule.py"


def test_every_schedule_and_field_of_a_tile_is_explained():
    text = (DOCS / "tile_schedule.md").read_text()
    assert all(f"\n| `{name}` |" in text for name in SCHEDULES)
    assert set(RECORD_FIELDS) <= set(re.findall(r"`(\w+)`", text[text.index("## A record"):]))


def test_the_index_leads_to_every_page():
    linked = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == linked


def test_the_glossary_is_in_order_and_says_each_word_once():
    words = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(), flags=re.MULTILINE)[1:]
    words = [word.replace("`", "").lower() for word in words if not word.startswith("-")]
    assert len(words) > 40
    assert words == sorted(words, key=lambda word: re.sub(r"[^a-z0-9 ]", "", word.split(",")[0]))
    assert len(set(words)) == len(words)


def test_the_guides_name_things_that_exist():
    text = (DOCS / "adding_a_kernel.md").read_text() + (DOCS / "adding_a_backend.md").read_text()
    commands = {command.name for command in app.registered_commands}
    assert set(re.findall(r"`harness (\w+)", text)) <= commands
    assert "`IMPLEMENTATIONS`" in text
    assert hasattr(dispatch, "IMPLEMENTATIONS")
    assert {"padded", "sdpa_loop"} <= set(BACKENDS)
