"""The static gate's rules, and the CSV that it reads."""

import pytest

from harness.errors import UserError
from harness.records import Status
from harness.xray.check import MARGIN, check
from harness.xray.counting import COUNTS
from harness.xray.rows import COLUMNS, XrayRow, merge, read_csv, to_csv

WHERE = {"arch": "sm_100a", "backend": "jfa", "shape": "fwd-d128-full", "config": "full", "kernel": "k"}
KERNEL = XrayRow(**WHERE, threads=512, setmaxnreg="dec24 x2, inc168", registers="128", stack_bytes=0, local_bytes=0,
                 smem_bytes=230_000, tmem_columns=512, code_bytes=60_000)
LOOP = XrayRow(**WHERE, role="mma", registers="24", loops=1, local_bytes=0,
               **{**dict.fromkeys(COUNTS, 0), "instructions": 200, "mma": 32, "mbar_wait": 4})
BASELINE = [KERNEL, LOOP]


def changed(row, **values):
    return row.model_copy(update=values)


def found(*rows, **given):
    return [(finding.row.role, finding.check) for finding in check(rows, BASELINE, **given)]


def test_the_same_passes():
    assert found(*BASELINE) == []


@pytest.mark.parametrize("values", [
    {"stack_bytes": 8}, {"local_bytes": 4}], ids=["stack", "local memory"])
def test_a_new_spill(values):
    assert found(changed(KERNEL, **values), LOOP) == [("kernel", "spill")]


def test_a_spill_that_was_there_may_stay_or_shrink():
    spilling = [changed(KERNEL, stack_bytes=16, local_bytes=32), LOOP]
    for row in (spilling[0], KERNEL):
        assert check([row, LOOP], spilling) == []
    assert [each.check for each in check([changed(spilling[0], stack_bytes=24), LOOP], spilling)] == ["spill"]


def test_memory_beyond_the_gpu_even_where_the_baseline_has_it():
    assert found(changed(KERNEL, smem_bytes=232_449), LOOP) == [("kernel", "smem")]
    assert found(changed(KERNEL, tmem_columns=513), LOOP) == [("kernel", "tmem")]
    beyond = [changed(KERNEL, tmem_columns=576), LOOP]
    assert [each.check for each in check(beyond, beyond)] == ["tmem"]


@pytest.mark.parametrize("requests", ["", "inc168", "dec24, inc168", "dec24 x2, inc160"])
def test_a_lost_setmaxnreg(requests):
    assert found(changed(KERNEL, setmaxnreg=requests), LOOP) == [("kernel", "setmaxnreg")]


def test_another_setmaxnreg_beside_the_old_ones_passes():
    assert found(changed(KERNEL, setmaxnreg="dec24 x3, inc168, inc232"), LOOP) == []


def test_a_main_loop_may_grow_by_the_margin_and_no_more():
    most = int(200 * (1 + MARGIN))
    assert found(KERNEL, changed(LOOP, instructions=most)) == []
    assert found(KERNEL, changed(LOOP, instructions=most + 1)) == [("mma", "loop")]


@pytest.mark.parametrize("count", ["mbar_wait", "local_load"])
def test_a_small_count_may_not_grow_at_all(count):
    assert found(KERNEL, changed(LOOP, **{count: getattr(LOOP, count) + 1})) == [("mma", "loop")]


def test_a_smaller_loop_passes():
    assert found(KERNEL, changed(LOOP, instructions=100, mma=16)) == []


def test_more_packed_instructions_among_as_many_pass():
    assert found(KERNEL, changed(LOOP, packed=64)) == []


def test_a_lost_barrier():
    assert found(KERNEL, changed(LOOP, mbar_wait=3)) == [("mma", "barrier")]


def test_what_is_no_longer_there_or_new():
    assert found(KERNEL) == [("mma", "missing")]
    assert found(*BASELINE, changed(LOOP, role="load")) == [("load", "new")]


def test_a_configuration_left_out_is_missing_only_where_it_is_no_longer_offered():
    other = changed(KERNEL, config="other")
    assert check(BASELINE, [*BASELINE, other]) == []
    assert check(BASELINE, [*BASELINE, other], {KERNEL.key[:4], other.key[:4]}) == []
    assert [each.check for each in check(BASELINE, [*BASELINE, other], {KERNEL.key[:4]})] == ["missing"]


def test_a_kernel_that_does_not_compile_fails():
    broken = XrayRow(**WHERE, status=Status.CRASH, message="CompilationError: no")
    findings = check([broken], BASELINE)
    assert [each.check for each in findings] == ["failed"]
    assert "CompilationError: no" in str(findings[0])


def test_csv_keeps_every_row(tmp_path):
    rows = [*BASELINE, XrayRow(**WHERE, role="load", status=Status.UNSUPPORTED, message='says "no", twice')]
    path = tmp_path / "rows.csv"
    path.write_text(to_csv(rows))
    assert path.read_text().splitlines()[0].split(",") == list(COLUMNS)
    assert read_csv(path) == rows


@pytest.mark.parametrize(("edit", "said"), [
    (lambda text: text.replace("230000", "many"), "smem_bytes: got 'many'"),
    (lambda text: text.replace("tmem_columns", "tmem"), "not the columns"),
    (lambda text: text.splitlines()[0], "holds no rows")])
def test_a_csv_that_is_wrong_names_line_and_column(tmp_path, edit, said):
    path = tmp_path / "rows.csv"
    path.write_text(edit(to_csv(BASELINE)))
    with pytest.raises(UserError, match=said):
        read_csv(path)


def test_what_was_compiled_takes_the_place_of_its_old_rows_alone():
    rival = changed(KERNEL, backend="fa4")
    other, gone = changed(KERNEL, config="other"), changed(KERNEL, config="gone")
    missing = XrayRow(**{**WHERE, "backend": "fa4"}, status=Status.UNSUPPORTED, message="not installed")
    faster = changed(KERNEL, code_bytes=50_000)
    offered = [row.key[:4] for row in (KERNEL, other, rival)]
    assert merge([rival, gone, other, *BASELINE], [faster, missing], offered) == [faster, other, rival]
