"""TritonBench, both ways: our cases under its runner (`runner`), and its do_bench as a timing engine (`do_bench`).

Needs `tritonbench` as requirements/tritonbench.txt pins it; nothing of it is imported before it is asked for.
"""
