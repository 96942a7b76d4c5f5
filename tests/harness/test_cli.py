import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from sample_records import gem_like, smoke_like
from typer.testing import CliRunner

from harness import cli, cluster, doctor, runner
from harness.cli import base
from harness.records import COLUMNS, append_records, read_records

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """\
name: tiny
seed: 3
backends: [sdpa_loop]
cases:
  - name: self
    mode: self
    batch: 4
    num_heads_q: 2
    head_dim: 32
    lengths: {kind: uniform, max: 32}
"""


def harness(*arguments, code=0):
    """Standard output of a command in this process; on a failure, its one line on standard error."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments], prog_name="harness")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def script(*arguments, **options):
    """The same in a process of its own, as a shell sees it."""
    return subprocess.run([sys.executable, "-m", "harness", *map(str, arguments)], capture_output=True, text=True,
                          cwd=ROOT, timeout=120, check=False, **options)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def test_a_closed_standard_output_is_no_error(config):
    done = subprocess.run(["sh", "-c", 'exec "$0" -m harness cases "$1" >&-', sys.executable, str(config)], cwd=ROOT,
                          stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_tables_show_names_as_they_are():
    console = base.make_console()
    console.file = io.StringIO()
    console.print("[red]x[/blue]")
    assert console.file.getvalue() == "[red]x[/blue]\n"


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "run" / "gem.csv"
    path.parent.mkdir()
    append_records(path, [record for record in gem_like() if record.case in ("self_u256", "broadcast_q32_u1024")])
    return path


def fake_run(monkeypatch, records, interrupted=False):
    """Replaces the runner by one that returns ``records``; gives the list of the options it is called with."""
    calls = []

    def run(config, options, listener):
        calls.append(options)
        out = options.out_dir or Path("results/runs/tiny")
        files = [out / f"{config.name}.{kind}" for kind in ("csv", "samples.csv", "run.json")]
        result = runner.RunResult("tiny-20260102T030405Z", out, *files, tuple(records), interrupted)
        listener.started(result.run_id, out, [], len(records))
        listener.finished(result)
        return result

    monkeypatch.setattr(runner, "run", run)
    return calls


# --- bad input: one line, exit status 2 -------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new", "line", "wanted"), [
    ("head_dim:", "heads_dim:", 9, ["heads_dim", "unknown key", "head_dim"]),
    ("batch: 4", "batch: four", 7, ["batch", "'four'", "integer"]),
    ("batch: 4", "batch: 0", 7, ["batch", "0"]),
    ("num_heads_q: 2", "num_heads_q: 2\n    num_heads_kv: 3", 9, ["num_heads_kv", "3", "divisor"]),
    ("mode: self", "mode: selv", 6, ["mode", "selv", "self, cross, short_kv, broadcast_q"]),
    ("{kind: uniform, max: 32}", "{kind: trace, path: nowhere.npy}", 10, ["nowhere.npy"]),
    ("[sdpa_loop]", "", 3, ["backends"]),
    ("[sdpa_loop]", "[sdpaloop]", 3, ["backends[0]", "'sdpaloop'", "allowed", "sdpa_loop"]),
])
@pytest.mark.parametrize("command", ["run", "cases"])
def test_bad_config_is_one_line_with_file_line_key_and_what_is_allowed(config, old, new, line, wanted, command):
    config.write_text(CONFIG.replace(old, new))
    error = harness(command, config, code=2)
    assert error.count("\n") == 1
    assert error.startswith(f"error: {config}:{line}: ")
    assert all(word in error for word in wanted), error


@pytest.mark.parametrize(("text", "wanted"), [
    (None, "no such records CSV"), ("", "empty"), (",".join(COLUMNS) + "\n", "no rows"),
    ("schema_version,case\n7,self\n", "schema 7"), ("a,b\n1,2\n", "is not the records CSV"), ("\x00\xff", "")])
@pytest.mark.parametrize("command", ["plot", "ablation"])
def test_bad_csv_is_one_line_and_nothing_is_written(tmp_path, text, wanted, command):
    path = tmp_path / "rows.csv"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    error = harness(command, path, code=2)
    assert error.count("\n") == 1
    assert error.startswith(f"error: {path}: ")
    assert wanted in error
    assert list(tmp_path.iterdir()) == ([] if text is None else [path])


def test_value_of_a_wrong_type_in_a_csv_names_line_and_column(csv):
    lines = csv.read_text().splitlines()
    broken = [*lines[:2], lines[2].replace(",1152,", ",many,", 1)]
    csv.write_text("\n".join(broken) + "\n")
    error = harness("plot", csv, code=2)
    assert "line 3: batch" in error
    assert "'many'" in error


@pytest.mark.parametrize("arguments", [["run"], ["run", "x.yaml", "--no-such"], ["plott"],
                                       ["plot", "x.csv", "--scope", "all"], ["cases", "x.yaml", "--tbps", "0"]])
def test_bad_usage(arguments):
    assert "rror" in harness(*arguments, code=2)


@pytest.mark.parametrize(("arguments", "wanted"), [
    (["--backend", "fa5"], "no backend 'fa5'; allowed: sdpa_loop"),
    (["--case", "selfish"], "no such case 'selfish'; allowed: self ("),
    (["--device", "tpu"], "no 'tpu' here; allowed: cpu"),
    (["--resume"], "--resume: needs --out"),
    (["--from", "."], "expected one <config>.run.json"),
])
def test_bad_choice_is_one_line_that_says_what_is_allowed(config, tmp_path, monkeypatch, arguments, wanted):
    monkeypatch.chdir(tmp_path)
    error = harness("run", config, *arguments, code=2)
    assert error.count("\n") == 1
    assert error.startswith("error: ")
    assert wanted in error
    assert list(tmp_path.iterdir()) == [config]


def test_unknown_backend_in_a_config(config, tmp_path):
    config.write_text(CONFIG.replace("sdpa_loop", "flash_attention_9"))
    error = harness("run", config, "--out", tmp_path / "out", code=2)
    assert error.count("\n") == 1
    assert "flash_attention_9" in error
    assert "jfa_triton, fa4" in error


def test_directory_that_holds_a_run_is_left_alone(config, tmp_path):
    (tmp_path / "tiny.csv").write_text("precious\n")
    assert "--resume" in harness("run", config, "--out", tmp_path, code=2)
    assert (tmp_path / "tiny.csv").read_text() == "precious\n"


def test_plots_that_cannot_be_written(csv, tmp_path):
    (tmp_path / "file").write_text("")
    error = harness("plot", csv, "--out", tmp_path / "file" / "plots", code=2)
    assert error.startswith(f"error: {tmp_path / 'file' / 'plots'}: can't write the plots")


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_passes_its_options_on(config, tmp_path, monkeypatch):
    calls = fake_run(monkeypatch, smoke_like())
    harness("run", config)
    harness("run", config, "--out", tmp_path / "out", "--case", "a", "--case", "b", "--backend", "padded", "--resume",
            "--device", "cpu", "--no-plots")
    assert calls[0] == runner.RunOptions()
    assert calls[1] == runner.RunOptions(tmp_path / "out", ("a", "b"), ("padded",), True, "cpu")


def test_run_prints_the_summary_writes_plots_and_says_what_a_gpu_adds(config, tmp_path, monkeypatch):
    fake_run(monkeypatch, smoke_like())
    text = harness("run", config, "--out", tmp_path / "out")
    assert "48 rows: 32 ok, 16 untimed" in text
    assert f"records: {tmp_path / 'out' / 'tiny.csv'}" in text
    assert "plot: no speedup: " in text
    assert doctor.WHAT_A_GPU_ADDS in text
    assert "\x1b" not in text, "no colours in a log"
    names = {path.name for path in (tmp_path / "out" / "plots").iterdir()}
    assert names == {f"{name}.{kind}" for name in ("tflops", "floor_share", "padding_waste") for kind in ("png", "svg")}


def test_run_on_a_gpu_without_plots(config, tmp_path, monkeypatch):
    fake_run(monkeypatch, gem_like())
    text = harness("run", config, "--out", tmp_path / "out", "--no-plots")
    assert doctor.WHAT_A_GPU_ADDS not in text
    assert not (tmp_path / "out").exists()


def test_run_without_a_usable_row_exits_1(config, tmp_path, monkeypatch):
    fake_run(monkeypatch, [record for record in gem_like() if record.status.value not in ("ok", "untimed")])
    assert "no row came out ok" in harness("run", config, "--out", tmp_path, "--no-plots", code=1)


def test_interrupted_run_says_how_to_go_on(config, tmp_path, monkeypatch):
    out = tmp_path / "a run"
    fake_run(monkeypatch, smoke_like(), interrupted=True)
    arguments = ["run", config, "--case", "self", "--backend", "padded", "--no-plots", "--out", out]
    assert "nothing to go on with" in harness(*arguments, code=130)
    out.mkdir()
    (out / "tiny.run.json").write_text("{}")
    error = harness(*arguments, code=130)
    assert error == (f"interrupted; what is complete was kept. To go on: harness run {config} --out '{out}' --resume "
                     "--case self --backend padded --no-plots\n")


def test_interrupted_cluster_run_says_how_to_go_on_with_all_its_options(config, tmp_path, monkeypatch):
    def run(path, options, cluster, listener):
        (tmp_path / "tiny.run.json").write_text("{}")
        assert (cluster.jobs, cluster.parameters) == (4, {"timeout_min": 240, "slurm_partition": "gpu"})
        return runner.RunResult("r", tmp_path, tmp_path / "tiny.csv", tmp_path / "tiny.samples.csv",
                                tmp_path / "tiny.run.json", tuple(smoke_like()), True)

    monkeypatch.setattr(cluster, "run_on_cluster", run)
    error = harness("run", config, "--launcher", "slurm", "--parameter", "timeout_min=240", "--parameter",
                    "slurm_partition=gpu", "--no-plots", "--out", tmp_path, code=130)
    assert error.endswith("--resume --no-plots --launcher slurm --jobs 4 --parameter timeout_min=240 --parameter "
                          "slurm_partition=gpu\n")


@pytest.mark.parametrize(("arguments", "wanted"), [
    (["--jobs", "3"], "error: --jobs: is for --launcher, which isn't given"),
    (["--parameter", "a=b"], "error: --parameter: is for --launcher, which isn't given"),
    (["--launcher", "local", "--parameter", "timeout_min=²"], "error: --parameter: "),
    (["--launcher", "local", "--parameter", "timeout_min=soon"], 'error: --parameter: Parameter "timeout_min"'),
    (["--launcher", "local", "--parameter", "nonsense=1"], "error: --parameter: Parameter 'nonsense'"),
    (["--launcher", "slurm"], "error: --launcher: slurm can't be used here: "),
    (["--launcher", "local", "--device", "cuda:77"], "error: device: there is no 'cuda:77' here"),
    (["--launcher", "local", "--gpus", "77"], "error: --gpus: "),
])
def test_launcher_options_that_cannot_be_begin_no_job(config, tmp_path, monkeypatch, arguments, wanted):
    monkeypatch.setenv("PATH", str(tmp_path))  # no srun
    error = harness("run", config, "--out", tmp_path / "out", *arguments, code=2)
    assert error.startswith(wanted)
    assert error.count("\n") == 1
    assert not (tmp_path / "out" / "jobs").exists()


def test_ctrl_c_elsewhere_exits_130(config, monkeypatch):
    def run(config, options, listener):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", run)
    assert harness("run", config, code=130) == "interrupted\n"


def test_run_for_real_then_replay_resume_and_plot(config, tmp_path):
    """One tiny case in a worker process on the CPU; then the same lengths under another seed."""
    first, second = tmp_path / "first", tmp_path / "second"
    done = script("run", config, "--device", "cpu", "--out", first, "--no-plots")
    assert done.returncode == 0, done.stderr
    assert "4 rows: 4 ok" in done.stdout
    rows = read_records(first / "tiny.csv")
    assert set(rows["status"]) == {"ok"}
    case_id = rows["case_id"].iloc[0]
    config.write_text(CONFIG.replace("seed: 3", "seed: 4"))
    assert case_id not in harness("cases", config)
    text = harness("run", config, "--device", "cpu", "--out", second, "--from", first, "--case", case_id)
    assert f"[1/1] self {case_id}: 4 ok" in text
    assert set(read_records(second / "tiny.csv")["case_id"]) == {case_id}
    assert (second / "plots" / "tflops.svg").exists()
    before = (second / "tiny.csv").read_bytes()
    text = harness("run", config, "--device", "cpu", "--out", second, "--from", first, "--resume", "--no-plots")
    assert "0 cases, 0 rows" in text
    assert (second / "tiny.csv").read_bytes() == before


# --- the other commands -----------------------------------------------------------------------------------------------


def test_plot_writes_beside_the_csv_or_where_told(csv, tmp_path):
    text = harness("plot", csv)
    assert text.splitlines()[0] == f"plot: {csv.parent / 'plots' / 'tflops.png'}"
    assert len(list((csv.parent / "plots").iterdir())) == 8
    harness("plot", csv, "--out", tmp_path / "elsewhere", "--scope", "operation")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 8


def test_cases_lists_ids_that_are_never_cut(config):
    config.write_text(CONFIG.replace("name: self", "name: " + "a_long_name_of_a_case" * 4))
    text = harness("cases", config)
    (line,) = [line for line in text.splitlines() if "a_long_name" in line]
    assert "a_long_name_of_a_case" * 4 in line
    assert re.search(r"\b[0-9a-f]{12}\b", line)


def test_cases_shows_the_lengths_of_a_chosen_case(config):
    case_id = re.search(r"\b[0-9a-f]{12}\b", harness("cases", config))[0]
    text = harness("cases", config, "--case", case_id)
    assert "tiny: 1 cases" in text
    assert "self: lengths of queries and keys; 4 sequences" in text
    assert "no case 'none'; `harness cases CONFIG` lists" in harness("cases", config, "--case", "none", code=2)


def test_cases_csv_agrees_with_the_formulas(config):
    from harness import flops
    from harness.cases import expand
    from harness.config import load_config

    config.write_text(CONFIG.replace("num_heads_q: 2", "num_heads_q: 2\n    causal: [false, true]\n    seed: [0, 1]"))
    table = pd.read_csv(io.StringIO(harness("cases", config, "--csv", "--tflops", "1", "--tbps", "0.5")))
    cases = expand(load_config(config))
    assert list(table["case_id"]) == [case.case_id for case in cases]
    assert list(table["causal"]) == [False, False, True, True]
    for row, case in zip(table.to_dict("records"), cases, strict=True):
        for name in ("fwd", "bwd"):
            work, moved = flops.attention_flops(case, name), flops.attention_bytes(case, name)
            assert (row[f"flops_{name}"], row[f"bytes_{name}"]) == (work, moved)
            assert row[f"floor_ms_{name}"] == pytest.approx(1e3 * max(work / 1e12, moved / 0.5e12))


@pytest.mark.parametrize("name", ["smoke", "gate", "gem", "hstu", "longtail"])
def test_cases_of_every_shipped_config(name):
    assert f"{name}: " in harness("cases", ROOT / "configs" / f"{name}.yaml")


def test_ablation_formats(tmp_path):
    path = tmp_path / "rows.csv"
    append_records(path, gem_like({"jfa": 1.6, "jfa-no-zigzag": 1.5, "fa4": 1.0, "jfa_triton": 0.8}))
    table, markdown = harness("ablation", path), harness("ablation", path, "--format", "markdown")
    assert "jfa-no-zigzag" in table
    assert "jfa_triton" not in table
    assert markdown.count("| jfa-no-zigzag |") == 2
    rows = pd.read_csv(io.StringIO(harness("ablation", path, "--format", "csv", "--scope", "operation")))
    assert len(rows) == 2 * 16
    assert set(rows["scope"]) == {"operation"}
    assert "error: " + str(path) in harness("ablation", path, "--full", "jfb", code=2)


def test_doctor_as_json_and_its_exit_status(monkeypatch):
    usable = doctor.BackendReport("padded", True, "1", True)
    monkeypatch.setattr(doctor, "examine", lambda timeout_s: doctor.Report({"GPU": "none"}, (usable,)))
    assert json.loads(harness("doctor", "--json"))["backends"][0]["name"] == "padded"
    monkeypatch.setattr(doctor, "examine", lambda timeout_s: doctor.Report({}, (), ("torch: broken",)))
    harness("doctor", code=1)


# --- as a shell sees it -----------------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_neither_torch_nor_pandas():
    code = "import sys, harness.cli; print({'torch', 'pandas', 'matplotlib', 'triton'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "set()"
    done = script("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("run", "plot", "cases", "doctor", "ablation", "simulate"))


def test_error_as_a_shell_sees_it(tmp_path):
    done = script("plot", tmp_path / "none.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*none\.csv: .*\n", done.stderr)
