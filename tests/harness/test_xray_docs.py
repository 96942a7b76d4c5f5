"""docs/xray.md names every column and check."""

import re
from pathlib import Path

from harness.xray.check import MARGIN, SMEM_LIMIT, TMEM_LIMIT
from harness.xray.main_loops import ROLES
from harness.xray.rows import XrayRow

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "xray.md").read_text()


def test_every_column_is_documented_as_the_code_does():
    table = TEXT[TEXT.index("<!-- columns -->"):TEXT.index("<!-- end -->")]
    documented = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, flags=re.MULTILINE))
    assert documented == {name: field.description for name, field in XrayRow.model_fields.items()}


def test_every_role_is_explained():
    assert set(re.findall(r"^\| `([a-z+]+)` \|", TEXT[:TEXT.index("## Columns")], flags=re.MULTILINE)) == set(ROLES)


def test_limits_and_margin_are_those_of_the_check():
    assert f"more than {SMEM_LIMIT:,} B" in TEXT
    assert f"more than {TMEM_LIMIT} columns" in TEXT
    assert f"by more than {MARGIN:.0%}".replace("%", " %") in TEXT
