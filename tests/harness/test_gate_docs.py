"""What the documentation says of the gate's files and picture is what there is."""

import importlib.util
from pathlib import Path

import numpy as np
from matplotlib.pyplot import imread

from harness.regression.history import HISTORY_COLUMNS
from harness.regression.noise import NOISE_COLUMNS
from harness.regression.verdicts import ALPHA, Verdict

ROOT = Path(__file__).resolve().parents[2]


def test_every_column_of_noise_and_history_is_documented():
    text = (ROOT / "results" / "README.md").read_text()
    noise, history = text[text.index("`harness noise` ("):].split("`results/history/<gpu>/<config>.csv`, a line")
    assert [name for name in NOISE_COLUMNS if f"`{name}`" not in noise] == []
    assert [name for name in HISTORY_COLUMNS if f"`{name}`" not in history] == []


def test_every_verdict_is_explained_and_the_defaults_are_said():
    text = (ROOT / "docs" / "gate.md").read_text()
    assert all(f"| {verdict.value} |" in text for verdict in Verdict)
    assert f"at most {ALPHA}" in text


def test_the_drawing_is_drawn(tmp_path):
    spec = importlib.util.spec_from_file_location("draw_gate", ROOT / "docs" / "draw_gate.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.draw(tmp_path / "gate.png")
    here, again = (imread(path) for path in (ROOT / "docs" / "images" / "gate.png", tmp_path / "gate.png"))
    assert here.shape == again.shape
    assert np.abs(here - again).mean() < 0.01, "run python docs/draw_gate.py"
