"""docs/xray.md says what the code and the CSVs say."""

import importlib.util
import re
from pathlib import Path

from harness.xray.check import MARGIN, SMEM_LIMIT, TMEM_LIMIT
from harness.xray.main_loops import ROLES

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "xray.md").read_text()


def test_tables_are_what_the_code_and_the_committed_csvs_say():
    spec = importlib.util.spec_from_file_location("fill_xray", DOCS / "fill_xray.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert {match[2] for match in script.PART.finditer(TEXT)} == {"columns", "kernels", "loops", "lines"}
    assert script.filled(TEXT) == TEXT, "run python docs/fill_xray.py"


def test_every_role_is_explained():
    assert set(re.findall(r"^\| `([a-z+]+)` \|", TEXT[:TEXT.index("## Columns")], flags=re.MULTILINE)) == set(ROLES)


def test_limits_and_margin_are_those_of_the_check():
    assert f"more than {SMEM_LIMIT:,} B" in TEXT
    assert f"more than {TMEM_LIMIT} columns" in TEXT
    assert f"by more than {MARGIN:.0%}".replace("%", " %") in TEXT
