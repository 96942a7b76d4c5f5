"""Reading configs: what is accepted, what it becomes, and the one line that says what is wrong."""

import pickle

import numpy as np
import pandas as pd
import pytest

from harness.config import BackendConfig, BenchConfig, load_config
from harness.errors import ConfigError, UserError

TEXT = """\
name: example
backends: [jfa]
cases:
  - name: a
    mode: self
    batch: 4
    num_heads_q: 4
    head_dim: 64
    lengths: {kind: uniform, max: 16}
"""
DISTRIBUTION = "{kind: uniform, max: 16}"


@pytest.fixture
def load(tmp_path):
    def load(text=TEXT, **replacements):
        for old, new in replacements.items():
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "example.yaml"
        path.write_text(text)
        return load_config(path)
    return load


@pytest.fixture
def complaint(load):
    """The config error of the example text after a replacement, without the folder."""
    def complaint(old, new):
        with pytest.raises(ConfigError) as info:
            load(TEXT.replace(old, new))
        assert "\n" not in str(info.value)
        assert str(info.value).startswith(info.value.file)
        return str(info.value).removeprefix(info.value.file)
    return complaint


def test_defaults(load):
    config = load()
    assert (config.seed, config.directions, config.scopes) == (0, ("fwd", "bwd"), ("kernel", "operation"))
    assert config.timing.cold_l2
    assert config.timing.min_samples == 30
    block = config.cases[0]
    assert (block.dtype, block.causal, block.window, block.hazard) == (("bf16",), (False,), (None,), ("none",))
    assert config.source is not None
    assert config.source.name == "example.yaml"


def test_a_backend_is_a_key_or_a_mapping(load):
    config = load(TEXT.replace("[jfa]", "[jfa, {backend: jfa, name: jfa_sorted, options: {schedule: sorted}}]"))
    assert config.backends == (BackendConfig(backend="jfa", name="jfa"),
                               BackendConfig(backend="jfa", name="jfa_sorted", options={"schedule": "sorted"}))


def test_a_backend_of_ones_own_is_named_after_its_class():
    assert BackendConfig.model_validate("package.module:Mine").name == "Mine"
    assert BackendConfig.model_validate({"backend": "package.module:Mine", "name": "x"}).name == "x"


@pytest.mark.parametrize(("written", "windows"), [
    ("null", (None,)), ("[16, 0]", ((16, 0),)), ("[null, 5]", ((None, 5),)),
    ("[[16, 0], null, [null, 3]]", ((16, 0), None, (None, 3)))])
def test_a_window_is_a_pair_and_a_list_of_pairs_is_a_sweep(load, written, windows):
    assert load(TEXT.replace("batch: 4", f"batch: 4\n    window: {written}")).cases[0].window == windows


def test_yaml_anchors_share_a_list(load):
    config = load(TEXT.replace("batch: 4", "batch: &b [2, 3]\n    seed: *b"))
    assert config.cases[0].seed == (2, 3)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("backends:", "backend:", ":2: backend: unknown key; allowed: name, description, seed, backends, directions, "
     "scopes, timing, check, timeout_s, cases (did you mean 'backends'?)"),
    ("batch: 4", "bach: 4", ":6: cases[0].bach: unknown key; allowed: name, mode, batch, num_heads_q, num_heads_kv, "
     "head_dim, dtype, causal, window, lengths, lengths_q, lengths_k, len_q, hazard, seed, devices "
     "(did you mean 'batch'?)"),
    ("max: 16", "max: 16, dnsity: 0.7", ":9: cases[0].lengths.dnsity: unknown key; allowed: kind, max, min, density "
     "(did you mean 'density'?)"),
    ("[jfa]", "[{backend: jfa, nme: x}]", ":2: backends[0].nme: unknown key; allowed: backend, name, environment, "
     "options (did you mean 'name'?)"),
    ("mode: self", "mode: [self, slef]", ":5: cases[0].mode[1]: got 'slef'; allowed: self, cross, short_kv, "
     "broadcast_q (did you mean 'self'?)"),
    ("uniform", "unifrom", ":9: cases[0].lengths.kind: got 'unifrom'; allowed: constant, uniform, power, wide, "
     "lognormal, zipf, bimodal, skew, mixture, empty_fraction, list, trace (did you mean 'uniform'?)"),
    ("kind: uniform, ", "", ":9: cases[0].lengths: got {'max': 16}; allowed: a distribution such as "
     "{kind: constant, value: 512}"),
    ("batch: 4", "batch: four", ":6: cases[0].batch: got 'four'; allowed: an integer"),
    ("batch: 4", "batch: 4.5", ":6: cases[0].batch: got 4.5; allowed: an integer"),
    ("batch: 4", "batch: true", ":6: cases[0].batch: got True; allowed: an integer"),
    ("batch: 4", "batch: 0", ":6: cases[0].batch: got 0; allowed: greater than or equal to 1"),
    ("batch: 4", "batch: []", ":6: cases[0].batch: got []; allowed: at least one value"),
    ("batch: 4", "causal: yes", ":6: cases[0].causal: got 'yes'; allowed: true or false"),
    ("head_dim: 64", "head_dim: 63", ":8: cases[0].head_dim: got 63; allowed: a multiple of 8"),
    ("batch: 4", "window: 3", ":6: cases[0].window: got 3; allowed: a list"),
    ("batch: 4", "window: [-1, 0]", ":6: cases[0].window[0]: got -1; allowed: greater than or equal to 0"),
    (", max: 16", "", ":9: cases[0].lengths.max: missing"),
    ("    mode: self\n", "", ":4: cases[0].mode: missing"),
    ("max: 16", "max: 16, min: 17", ":9: cases[0].lengths.min: got 17; allowed: at most max, 16"),
    ("max: 16", "max: 16, min: 1, density: 0.5",
     ":9: cases[0].lengths.min: given beside density; allowed: one of both"),
    ("max: 16", "max: 16, density: 0.2", ":9: cases[0].lengths.density: got 0.2; allowed: 0.5 to 1, as no uniform "
     "distribution that reaches max is below; use kind: power"),
    (DISTRIBUTION, "16", ":9: cases[0].lengths: got 16; allowed: a mapping of keys to values"),
    (DISTRIBUTION, "{kind: skew, order: up, base: {kind: uniform, max: 3}}", ":9: cases[0].lengths.order: got 'up'; "
     "allowed: ascending, descending, shuffled"),
    (DISTRIBUTION, "{kind: skew, order: ascending, base: {kind: uniform, max: -3}}",
     ":9: cases[0].lengths.base.max: got -3; allowed: greater than or equal to 1"),
    (DISTRIBUTION, "{kind: mixture, parts: [{weight: 1, lengths: {kind: list, values: [1]}}]}",
     ":9: cases[0].lengths.parts[0].lengths: is of kind 'list'; allowed: a distribution without an end of its own"),
    ("mode: self", "mode: cross",
     ":9: cases[0].lengths: not used by mode cross; allowed: only lengths_q and lengths_k"),
    ("lengths: ", "lengths_k: ", ":4: cases[0].lengths: missing; mode self needs lengths"),
    ("[jfa]", "[jfa, jfa]", ":2: backends[1]: 'jfa' stands there twice; allowed: different names (give each a `name`)"),
    ("[jfa]", "[]", ":2: backends: got []; allowed: at least one value"),
    ("[jfa]", "[jfa]\ntiming: {min_samples: 29}",
     ":3: timing.min_samples: got 29; allowed: greater than or equal to 30"),
    ("[jfa]", "[jfa]\ntiming: {min_samples: 201}",
     ":3: timing.max_samples: got 200; allowed: at least min_samples, 201"),
    ("[jfa]", "[jfa]\ntiming: {engine: stopwatch}",
     ":3: timing.engine: got 'stopwatch'; allowed: cuda_events, cuda_events_sustained, "
     "tritonbench"),
    ("[jfa]", "[jfa]\ntimeout_s: .inf", ":3: timeout_s: got inf; allowed: a finite number"),
    ("[jfa]", "[jfa]\ndirections: [fwd, fwd]", ":3: directions[1]: 'fwd' stands there twice; allowed: each once"),
    ("name: example", "name: two words",
     ":1: name: got 'two words'; allowed: up to 100 letters, digits and _ . + -, of which the first is a letter or "
     "digit"),
    ("name: example", f"name: {'n' * 101}", f":1: name: got '{'n' * 56}...; allowed: up to 100 letters, digits and "
     "_ . + -, of which the first is a letter or digit"),
    ("[jfa]", "[jfa]\ntimeout_s: 1.0e+300", ":3: timeout_s: got 1e+300; allowed: less than or equal to 1000000"),
    ("[jfa]", "[jfa]\n? [a, b]\n: 1", ": ('a', 'b'): unknown key; allowed: name, description, seed, backends, "
     "directions, scopes, timing, check, timeout_s, cases"),
    ("[jfa]", "&all [jfa, *all]", ": nested too deeply, or an alias (*name) stands within what it names"),
    ("[jfa]", "[" * 2000, ": nested too deeply, or an alias (*name) stands within what it names"),
    ("[jfa]", "[{backend: jfa, options: {a: &a [1, 1], b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]"
     + "".join(f", {n}: &{n} [" + ", ".join([f"*{last}"] * 10) + "]" for last, n in zip("bcdef", "cdefg", strict=True))
     + "}}]", ": aliases (*name) expand to too many values; allowed: 1,000,000 in all"),
    ("batch: 4", "batch: 4\n    batch: 5", ":7: not valid YAML: found duplicate key \"batch\" with value \"5\" "
     "(original value: \"4\")"),
    ("[jfa]", "[jfa", ":3: not valid YAML: expected ',' or ']', but got ':'"),
    (TEXT, "", ": holds nothing; allowed: a mapping with the keys name, description, seed, backends, directions, "
     "scopes, timing, check, timeout_s, cases"),
    (TEXT, "cases: []", ": name: missing (2 more after this one)"),
])
def test_what_is_wrong_is_said_in_one_line(complaint, old, new, message):
    assert complaint(old, new) == message


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml: can't read the config: No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="can't read the config: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"binary\.yaml: can't read the config"):
        load_config(tmp_path / "binary.yaml")


def test_errors_survive_a_trip_between_processes():
    error = ConfigError("a.yaml", "cases[0]", "got 3", "4", 7)
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a.yaml:7: cases[0]: got 3; allowed: 4"


def test_configs_are_frozen(load):
    config = load()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3
    with pytest.raises(ValueError, match="frozen"):
        config.cases[0].batch = (3,)


def test_hash_is_of_the_content_and_not_of_its_form(load):
    base = load().config_hash
    assert len(base) == 12
    assert load("description: words\n" + TEXT).config_hash == base
    assert load(TEXT + "# comment\nseed: 0\ntiming: {cold_l2: true}\n").config_hash == base
    assert load(TEXT.replace("batch: 4", "batch: [4]")).config_hash == base
    assert load(TEXT.replace(DISTRIBUTION, "\n      kind: uniform\n      max: 16")).config_hash == base
    assert BenchConfig.model_validate(load().model_dump()).config_hash == base
    others = [load(TEXT + "seed: 1\n"), load(TEXT + "timing: {cold_l2: false}\n"),
              load(TEXT.replace("max: 16", "max: 17")),
              load(TEXT.replace("[jfa]", "[{backend: jfa, options: {schedule: none}}]"))]
    assert len({base, *(other.config_hash for other in others)}) == 5


def test_a_trace_counts_by_its_lengths_and_not_by_its_place(tmp_path, load):
    text = TEXT.replace(DISTRIBUTION, "{kind: trace, path: lengths.npy}")
    hashes = []
    for lengths in ([1, 2, 3, 4], [1, 2, 3, 5]):
        np.save(tmp_path / "lengths.npy", np.array(lengths))
        hashes.append(load(text).config_hash)
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(("distribution", "message"), [
    ("{kind: trace, path: none.csv}", "cases[0].lengths.path: no such file: {folder}/none.csv; allowed: a file, "
     "relative to the folder of the config"),
    ("{kind: trace, path: notes.txt}", "cases[0].lengths.path: got '{folder}/notes.txt'; allowed: a file that ends in "
     ".csv, .npy or .parquet"),
    ("{kind: trace, path: two.csv}", "cases[0].lengths.column: missing; {folder}/two.csv has 2 columns; allowed: "
     "user, length"),
    ("{kind: trace, path: two.csv, column: lenght}",
     "cases[0].lengths.column: {folder}/two.csv has no column 'lenght'; "
     "allowed: user, length (did you mean 'length'?)"),
    ("{kind: trace, path: two.csv, column: user}", "cases[0].lengths.path: {folder}/two.csv: row 1 below the header: "
     "got 'x'; allowed: a whole number"),
    ("{kind: trace, path: gap.csv, column: length}", "cases[0].lengths.path: {folder}/gap.csv: row 2 below the header: "
     "got nothing; allowed: a whole number"),
    ("{kind: trace, path: negative.npy}", "cases[0].lengths.path: {folder}/negative.npy holds lengths from -1 to 3; "
     "allowed: 0 to 2^31 - 1"),
    ("{kind: trace, path: empty.npy}",
     "cases[0].lengths.path: {folder}/empty.npy holds no lengths; allowed: at least one"),
    ("{kind: trace, path: square.npy}", "cases[0].lengths.path: {folder}/square.npy holds 2-dimensional int64 data; "
     "allowed: a column or 1-D array of integers"),
    ("{kind: trace, path: scalar.npy}", "cases[0].lengths.path: {folder}/scalar.npy holds 0-dimensional int64 data; "
     "allowed: a column or 1-D array of integers"),
    ("{kind: trace, path: bare.csv}", "cases[0].lengths.path: {folder}/bare.csv begins with numbers; allowed: a "
     "comma-separated file with a header"),
    ("{kind: trace, path: empty.npy, column: x}",
     "cases[0].lengths.column: got 'x'; allowed: no column, as an NPY file has none"),
])
def test_bad_traces(tmp_path, complaint, distribution, message):
    (tmp_path / "two.csv").write_text("user,length\nx,3\ny,4\n")
    (tmp_path / "gap.csv").write_text("user,length\nx,3\ny,\n")
    np.save(tmp_path / "negative.npy", np.array([3, -1]))
    np.save(tmp_path / "empty.npy", np.array([], dtype=np.int64))
    np.save(tmp_path / "square.npy", np.ones((2, 2), dtype=np.int64))
    np.save(tmp_path / "scalar.npy", np.int64(3))
    (tmp_path / "bare.csv").write_text("5\n6\n7\n")
    (tmp_path / "notes.txt").write_text("3")
    assert complaint(DISTRIBUTION, distribution) == f":9: {message.format(folder=tmp_path)}"


def test_corrupt_traces(tmp_path, complaint):
    for name in ("bad.npy", "bad.parquet", "bad.csv"):
        (tmp_path / name).write_bytes(b'a"\x00\xff')
        assert f"cases[0].lengths.path: can't read {tmp_path / name}" in complaint(
            DISTRIBUTION, f"{{kind: trace, path: {name}}}")


def test_traces_that_claim_more_than_they_hold(tmp_path, complaint):
    (tmp_path / "wide.csv").write_text("length\n1,20\n2,30\n")
    with (tmp_path / "claim.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (10**12,)})
    np.savez(tmp_path / "several", first=np.arange(3), second=np.arange(3))
    (tmp_path / "several.npz").rename(tmp_path / "several.npy")
    for name in ("wide.csv", "claim.npy", "several.npy", f"{'n' * 300}.csv"):
        said = complaint(DISTRIBUTION, f"{{kind: trace, path: {name}}}")
        assert f"can't read {tmp_path / name}" in said or f"no such file: {tmp_path / name}" in said


@pytest.mark.parametrize("name", ["lengths.csv", "lengths.parquet", "lengths.npy"])
def test_traces_are_read_relative_to_the_config(tmp_path, load, name):
    table = pd.DataFrame({"length": [5, 0, 7, 2]})
    path = tmp_path / name
    {".csv": lambda: table.to_csv(path, index=False), ".parquet": lambda: table.to_parquet(path),
     ".npy": lambda: np.save(path, table["length"].to_numpy())}[path.suffix]()
    config = load(TEXT.replace(DISTRIBUTION, f"{{kind: trace, path: {name}}}"))
    assert config.cases[0].lengths[0].lengths == (5, 0, 7, 2)
