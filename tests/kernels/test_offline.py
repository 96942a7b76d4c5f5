from pathlib import Path

from offline_script import lines_of


def test_a_kernel_is_compiled_and_read_without_a_gpu():
    (line,) = lines_of(Path(__file__).with_name("compile_one.py"))
    assert line["target"] == ["cuda", 90, 32]
    assert line["usage"]["stack"] == 0
    assert 8 <= line["usage"]["registers"] <= 255
    assert "EXIT" in line["sass"]
