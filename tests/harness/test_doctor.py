import io
import json
import sys

import pytest
from rich.console import Console

from harness import doctor


def fake_answers(monkeypatch, answers):
    monkeypatch.setattr(doctor, "ask", lambda question, timeout_s: answers[question])


MACHINE = {"machine": {"torch": "2.99.0", "GPU": "none"}, "problems": [], "backends": ["jfa", "fa4", "padded"]}
ANSWERS = {
    "machine": MACHINE,
    "jfa": {"available": True, "version": "0.1.0", "timed": False, "reason": ""},
    "fa4": {"error": "killed by signal 11: Segmentation fault"},
    "padded": {"available": True, "version": "2.99.0", "timed": True, "reason": ""},
}


def test_report_says_what_runs_and_why_the_rest_does_not(monkeypatch):
    fake_answers(monkeypatch, ANSWERS)
    report = doctor.examine()
    assert report.usable
    assert [(each.name, each.available, each.timed) for each in report.backends] == [
        ("jfa", True, False), ("fa4", False, False), ("padded", True, True)]
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["backends"][1]["reason"] == "killed by signal 11: Segmentation fault"
    console = Console(file=io.StringIO(), width=60)
    doctor.print_report(console, report)
    text = console.file.getvalue()
    assert "checked only" in text
    assert "killed by signal 11: Segmentation fault" in text
    assert f"note: {doctor.WHAT_A_GPU_ADDS}" in text


def test_on_a_gpu_nothing_is_said_of_what_one_would_add(monkeypatch):
    fake_answers(monkeypatch, ANSWERS | {"machine": MACHINE | {"machine": {"GPU": "Example GPU"}}})
    assert doctor.examine().notes == ()


def test_broken_torch_is_a_problem_and_no_crash(monkeypatch):
    fake_answers(monkeypatch, {"machine": {"error": "exit status 1: ImportError: libtorch.so"}})
    report = doctor.examine()
    assert not report.usable
    assert report.problems == ("torch: exit status 1: ImportError: libtorch.so",)


@pytest.mark.parametrize(("code", "error"), [
    ("import os; os.abort()", "killed by signal 6"),
    ("import sys; sys.exit('ImportError: broken')", "exit status 1: ImportError: broken"),
    ("import time; time.sleep(60)", "no answer within 1 s"),
    ("print('chatter')", "exit status 0"),
])
def test_whatever_happens_to_the_process_is_its_answer(code, error):
    assert doctor.ask("anything", 1.0 if "sleep" in code else 30.0, ("-c", code)) == {"error": error}


def test_answer_is_found_among_chatter():
    code = f"print('hello'); print('{doctor.ANSWER}' + '{{}}'); print('bye')"
    assert doctor.ask("anything", 30.0, ("-c", code)) == {}


def test_a_real_backend_answers_from_a_process_of_its_own():
    answer = doctor.ask("sdpa_loop", 120.0)
    assert answer["available"] is True
    assert answer["version"]


def test_imported_kernels_package_is_ours():
    where, problem = doctor.describe_kernels_package()
    assert where == f"{doctor.ROOT / 'kernels'} (ours)"
    assert "import name" in problem or not problem


def test_foreign_kernels_package_is_a_problem(monkeypatch, tmp_path):
    foreign = type(sys)("kernels")
    foreign.__file__ = str(tmp_path / "kernels" / "__init__.py")
    monkeypatch.setitem(sys.modules, "kernels", foreign)
    where, problem = doctor.describe_kernels_package()
    assert where.endswith("(not ours)")
    assert "pip uninstall kernels" in problem
