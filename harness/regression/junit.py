"""The gate's verdicts as JUnit XML, which CI services show as tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from harness.errors import UserError
from harness.regression.gate import GateResult
from harness.regression.gate_output import Report
from harness.regression.static import StaticResult
from harness.regression.verdicts import Verdict

RESULTS = {Verdict.SLOW: Failure, Verdict.MISSING: Error, Verdict.BROKEN: Error, Verdict.UNDECIDED: Skipped}


def write_junit(path: Path, report: Report) -> None:
    """A test a row and a test a baseline of compiled kernels.

    SLOW and findings of compiled kernels are failures, MISSING and BROKEN are errors, UNDECIDED is skipped, or a
    failure where it fails the gate. Raises `UserError` if the file can't be written.
    """
    xml = JUnitXml("harness gate")
    if report.result:
        xml.add_testsuite(_gate_suite(report.result))
    if report.static:
        xml.add_testsuite(_static_suite(report.static))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        xml.write(str(path), pretty=True)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from error


def _gate_suite(result: GateResult) -> TestSuite:
    suite = TestSuite("gate")
    suite.add_property("gpu", result.baseline.gpu)
    suite.add_property("baseline", result.baseline.run_id)
    suite.add_property("run", " ".join(run.run_id for run in result.runs))
    for row in result.rows:
        case = TestCase(row.label, classname=f"gate.{row.record.backend}.{row.record.scope}")
        kind = RESULTS.get(row.verdict)
        if kind is Skipped and result.fails(row):
            kind = Failure
        if kind:
            case.result = [kind(f"{row.verdict.value}: {row.reason}", row.verdict.value)]
        else:
            case.system_out = f"{row.verdict.value}: {row.reason}"
        suite.add_testcase(case)
    return suite


def _static_suite(results: Sequence[StaticResult]) -> TestSuite:
    suite = TestSuite("static gate")
    for result in results:
        case = TestCase(result.baseline.stem, classname="gate.static")
        case.result = [Failure(finding, "STATIC") for finding in result.findings]
        suite.add_testcase(case)
    return suite
