"""docs/configs.md and docs/distributions.md say what the code says; the picture is what its script draws."""

import importlib.util
from pathlib import Path
from typing import get_args

import matplotlib.image
import numpy as np
import pytest
from ruamel.yaml import YAML

from harness.cases import HAZARDS, MODES, expand
from harness.config import BackendConfig, BenchConfig, CheckConfig, SweepBlock, TimingConfig
from harness.distributions import Distribution, MixturePart

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
KINDS = get_args(get_args(Distribution)[0])


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def examples(document):
    return [YAML(typ="safe", pure=True).load(part.split("```")[0])
            for part in (DOCS / document).read_text().split("```yaml\n")[1:]]


@pytest.mark.parametrize("document", ["configs.md", "distributions.md"])
def test_tables_are_filled_from_the_models(document):
    text = (DOCS / document).read_text()
    assert script("fill_tables").filled(text) == text, "run python docs/fill_tables.py"


def test_every_model_has_a_table_with_each_of_its_keys():
    text = "".join((DOCS / name).read_text() for name in ("configs.md", "distributions.md"))
    for model in (BenchConfig, BackendConfig, TimingConfig, CheckConfig, SweepBlock, MixturePart, *KINDS):
        table = text.split(f"<!-- keys of {model.__name__} -->")[1].split("<!-- end -->")[0]
        for key, info in model.model_fields.items():
            assert key == "kind" or (info.description and f"| `{key}` |" in table), f"{model.__name__}.{key}"


def test_modes_hazards_kinds_and_shipped_configs_are_documented():
    configs, distributions = ((DOCS / name).read_text() for name in ("configs.md", "distributions.md"))
    assert all(f"\n| `{name}` |" in configs for name in (*MODES, *HAZARDS))
    assert all(f"\n## {get_args(kind.model_fields['kind'].annotation)[0]}\n" in distributions for kind in KINDS)
    shipped = ("smoke", "gem", "gate", "hstu", "longtail", "poison")
    assert all(f"(../configs/{name}.yaml)" in configs for name in shipped)


def test_the_example_config_expands_as_described():
    names = [case.name for case in expand(BenchConfig.model_validate(examples("configs.md")[0]))]
    assert len(names) == 8
    assert (names[0], names[-1]) == ("self_u512_d64", "self_u1024_d128_causal")


def test_the_example_backends_are_valid():
    BenchConfig.model_validate(examples("configs.md")[0] | examples("configs.md")[1])


def test_every_kind_has_an_example():
    kinds = {example["lengths"]["kind"] for example in examples("distributions.md")}
    assert kinds == {get_args(kind.model_fields["kind"].annotation)[0] for kind in KINDS}


def test_the_picture_is_what_its_script_draws(tmp_path):
    drawing = script("draw_distributions")
    drawing.draw(tmp_path / "again.png")
    here, again = (matplotlib.image.imread(path) for path in (drawing.PICTURE, tmp_path / "again.png"))
    assert here.shape == again.shape
    assert np.abs(here - again).mean() < 0.01, "run python docs/draw_distributions.py"
