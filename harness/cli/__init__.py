"""The `harness` command: one module for each group of subcommands, imported in the order in which `--help` lists them.

Each subcommand imports what it needs when it runs. Exit status: 0 done; 1 done, but without a single usable result, or
with a finding of `simulate` or `xray`; 2 something that the user can mend, in one line on stderr; 130 interrupted.
"""

# isort: off
from harness.cli.base import app, main
from harness.cli import run_commands
from harness.cli import plot_commands
from harness.cli import report_command
from harness.cli import gate_commands
from harness.cli import compare_command
from harness.cli import simulate_command
from harness.cli import model_command
from harness.cli import xray_command
from harness.cli import tritonbench_command
from harness.cli import profile_command
# isort: on

__all__ = [
    "app", "compare_command", "gate_commands", "main", "model_command", "plot_commands", "profile_command",
    "report_command", "run_commands", "simulate_command", "tritonbench_command", "xray_command",
]
