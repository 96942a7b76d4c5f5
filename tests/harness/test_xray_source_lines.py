"""How lines of kernel source are counted."""

from harness.xray.source_lines import count_lines, source_lines

TEXT = '''"""A docstring
of two lines."""

import torch  # code with a comment

# a comment


def double(x):
    """Another."""
    text = """a string
    of two lines that is no docstring"""
    return (x,
            text)
'''


def test_code_comments_and_blanks_add_up():
    lines = count_lines(TEXT)
    assert (lines.code, lines.comment, lines.blank) == (6, 4, 4)
    assert lines.code + lines.comment + lines.blank == len(TEXT.splitlines())


def test_kernel_files_are_found_through_their_imports():
    files = {each.name: each for each in source_lines("sm_90a", "jfa")}
    assert files["hopper/forward_consumer.py"].own
    assert not files["mask.py"].own
    assert not any("simulator" in name or "portable" in name for name in files)


def test_without_sources_there_are_no_lines():
    assert source_lines("sm_90a", "nobody") == []
