import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from sample_records import GEM_LIKE, gem_like

from harness.progress import BarListener, LineListener, count_statuses, make_listener
from harness.records import Status


@pytest.fixture(scope="module")
def by_case():
    records = gem_like(cases=[case for case in GEM_LIKE if case[0] in ("self_u256", "lognormal_8192")])
    cases = {record.case_id: SimpleNamespace(name=record.case, case_id=record.case_id) for record in records}
    return [(case, [record for record in records if record.case_id == case_id]) for case_id, case in cases.items()]


def play(listener, by_case):
    """What a runner tells a listener."""
    listener.started("gem-20260102T030405Z", Path("out"), [case for case, _ in by_case],
                     sum(len(records) for _, records in by_case))
    listener.note("fa2: import_error: torch [old]")
    for case, records in by_case:
        listener.case_started(case)
        for backend in dict.fromkeys(record.backend for record in records):
            listener.prepared(case, backend, {("fwd", "kernel"): Status.OK, ("bwd", "kernel"): Status.OOM})
            listener.block_timed(case, backend, "fwd", "kernel", 15)
        listener.case_finished(case, records)
    listener.finished(SimpleNamespace(interrupted=False))


def test_log_gets_one_line_per_case(by_case):
    console = Console(file=io.StringIO(), width=40)
    listener = make_listener(console)
    assert isinstance(listener, LineListener)
    play(listener, by_case)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "gem-20260102T030405Z: 2 cases, 56 rows, into out"
    assert lines[1] == "fa2: import_error: torch [old]"
    assert lines[2].startswith(f"[1/2] self_u256 {by_case[0][0].case_id}: 28 ok (")
    assert lines[3].startswith(f"[2/2] lognormal_8192 {by_case[1][0].case_id}: 20 ok, 4 hang, 4 oom (")
    assert lines[3].endswith("about 0 s left)")


def test_terminal_gets_a_bar_that_ends_full_and_the_failures(by_case):
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    listener = make_listener(console)
    assert isinstance(listener, BarListener)
    play(listener, by_case)
    text = console.file.getvalue()
    assert "100 %" in text
    assert text.count("lognormal_8192: padded: oom: CUDA out of memory") == 1
    assert "fa2: import_error: torch [old]" in text


def test_counts(by_case):
    assert count_statuses(by_case[1][1]) == "20 ok, 4 hang, 4 oom"
