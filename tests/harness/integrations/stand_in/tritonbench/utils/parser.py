"""`get_parser`: the options that tests use, and those that the harness refuses."""

import argparse


def get_parser(args=None):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, default in (("--op", None), ("--metrics", None), ("--only", None), ("--baseline", None),
                          ("--output", None), ("--output-json", None), ("--output-dir", None), ("--device", "cuda"),
                          ("--mode", "fwd"), ("--precision", "bypass"), ("--only-match-mode", "exact"),
                          ("--input-loader", None), ("--side-a", None), ("--export", None), ("--tritonparse", None)):
        parser.add_argument(name, default=default)
    for name in ("--bwd", "--fwd-bwd", "--fwd-no-grad", "--csv", "--skip-print", "--keep-going", "--ci", "--isolate",
                 "--operator-loader", "--list-metrics", "--list-backends", "--plot"):
        parser.add_argument(name, action="store_true")
    parser.set_defaults(warmup=25, iter=100)
    return parser
