from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_cases import tiny_case

from harness.errors import UserError
from harness.replay import load_cases

CASES = [tiny_case("one"), tiny_case("two", lengths_q=(3, 4))]


def write(folder: Path, facts: Any) -> None:
    (folder / "tiny.run.json").write_text(json.dumps(facts))


def test_cases_come_back_in_their_order(tmp_path: Path) -> None:
    write(tmp_path, {"cases": [case.to_json() for case in CASES]})
    assert [case.case_id for case in load_cases(tmp_path)] == [case.case_id for case in CASES]


@pytest.mark.parametrize(("facts", "message"), [
    ({"cases": []}, "cases: there are none"),
    ({"cases": [CASES[0].to_json(), CASES[0].to_json() | {"name": "again"}]}, "cases: one stands there twice"),
    ({"cases": [CASES[0].to_json() | {"head_dim": 32}]}, "it was altered"),
    ({"cases": 3}, "can't be read as the facts of a run"), ({"cases": ["x"]}, "can't be read as the facts of a run"),
    ([], "can't be read as the facts of a run"), ({}, "can't be read as the facts of a run")])
def test_what_holds_no_cases_is_one_line(tmp_path: Path, facts: Any, message: str) -> None:
    write(tmp_path, facts)
    with pytest.raises(UserError, match=message) as caught:
        load_cases(tmp_path)
    assert str(tmp_path / "tiny.run.json") in str(caught.value)


def test_one_run_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected one <config>.run.json.*found: none"):
        load_cases(tmp_path)
