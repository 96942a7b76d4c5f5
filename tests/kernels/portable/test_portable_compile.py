from pathlib import Path

from offline_script import lines_of


def test_compiles_for_three_generations_of_gpus_without_drowning_in_spills(tmp_path):
    """What the interpreter accepts need not compile. For Ampere, Hopper and Blackwell, with different switches."""
    compiled = lines_of(Path(__file__).with_name("compile_portable.py"), TRITON_CACHE_DIR=str(tmp_path))
    assert {(kernel["kernel"], kernel["arch"]) for kernel in compiled} == {
        (f"{name}_kernel", arch) for name in ("forward", "delta", "dkdv", "dq") for arch in (80, 90, 100)}
    assert len(compiled) == 12
    assert [kernel for kernel in compiled if kernel["stack"] > 600 or (kernel["tensor_memory"] or 0) > 512] == []
