"""Length distributions: what they promise about their lengths, and that a seed means the same lengths for ever."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from scipy.stats import chisquare

from harness.distributions import Distribution, make_lengths

ADAPTER = TypeAdapter(Distribution)
EXAMPLES = {
    "constant": {"kind": "constant", "value": 7},
    "uniform": {"kind": "uniform", "max": 512},
    "uniform_min": {"kind": "uniform", "min": 0, "max": 2},
    "uniform_density": {"kind": "uniform", "max": 4096, "density": 0.95},
    "power": {"kind": "power", "max": 1024, "density": 0.2},
    "wide": {"kind": "wide", "min": 10, "max": 10000},
    "lognormal": {"kind": "lognormal", "mu": 4.0, "sigma": 1.2, "max": 8192},
    "zipf": {"kind": "zipf", "exponent": 1.5, "max": 4096},
    "bimodal": {"kind": "bimodal", "short": 50, "long": 2000, "long_fraction": 0.2},
    "skew": {"kind": "skew", "order": "ascending", "base": {"kind": "uniform", "max": 512}},
    "mixture": {"kind": "mixture", "parts": [{"weight": 3, "lengths": {"kind": "constant", "value": 5}},
                                             {"weight": 1, "lengths": {"kind": "uniform", "min": 100, "max": 200}}]},
    "empty_fraction": {"kind": "empty_fraction", "fraction": 0.25, "base": {"kind": "uniform", "max": 512}},
}
# The case ids of committed results hang on these.
FIRST_FIVE = {
    "constant": [7, 7, 7, 7, 7],
    "uniform": [327, 139, 21, 9, 417],
    "uniform_min": [1, 0, 0, 0, 2],
    "uniform_density": [3947, 3796, 3702, 3692, 4020],
    "power": [18, 292, 867, 958, 2],
    "wide": [814, 64, 13, 11, 2753],
    "lognormal": [83, 26, 7, 4, 159],
    "zipf": [4, 1, 1, 1, 15],
    "bimodal": [54, 51, 2092, 2017, 54],
    "skew": [9, 21, 139, 327, 417],
    "mixture": [5, 5, 5, 5, 194],
    "empty_fraction": [327, 139, 21, 0, 417],
}


def draw(values, batch=100_000, seed=0, role="q"):
    return make_lengths(ADAPTER.validate_python(values), batch, seed, role)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_seed_means_these_lengths(name):
    lengths = draw(EXAMPLES[name], 5)
    assert lengths.dtype == np.int64
    assert lengths.tolist() == FIRST_FIVE[name]


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "constant"])
def test_seeds_and_roles_draw_apart(name):
    first = draw(EXAMPLES[name], 300)
    assert (first == draw(EXAMPLES[name], 300)).all()
    assert (first != draw(EXAMPLES[name], 300, seed=1)).any()
    assert (first != draw(EXAMPLES[name], 300, role="k")).any()


def test_queries_and_keys_are_independent():
    q, k = (draw(EXAMPLES["uniform"], role=role) for role in ("q", "k"))
    assert abs(np.corrcoef(q, k)[0, 1]) < 0.01


@pytest.mark.parametrize(("values", "low", "high"), [
    (EXAMPLES["uniform"], 1, 512), (EXAMPLES["uniform_min"], 0, 2), (EXAMPLES["uniform_density"], 3686, 4096),
    ({"kind": "uniform", "max": 8, "density": 0.5}, 1, 8), ({"kind": "uniform", "max": 8, "density": 1.0}, 8, 8),
    ({"kind": "uniform", "max": 8, "density": 0.75}, 4, 8)])
def test_uniform_is_flat_between_its_bounds(values, low, high):
    counts = np.bincount(draw(values), minlength=high + 1)
    assert counts[:low].sum() == 0
    assert len(counts) == high + 1
    assert high == low or chisquare(counts[low:]).pvalue > 1e-3


@pytest.mark.parametrize("density", [0.5, 0.6, 0.75, 0.9, 1.0])
def test_uniform_density_is_the_mean_over_the_maximum(density):
    lengths = draw({"kind": "uniform", "max": 1000, "density": density})
    assert lengths.max() == 1000
    assert lengths.mean() / 1000 == pytest.approx(density, abs=0.004)


@pytest.mark.parametrize("density", [0.05, 0.1, 0.25, 0.5, 0.75, 0.95])
def test_power_density_is_the_mean_over_the_maximum(density):
    lengths = draw({"kind": "power", "max": 10_000, "density": density})
    assert lengths.min() >= 1
    assert 9990 <= lengths.max() <= 10_000
    assert lengths.mean() / 10_000 == pytest.approx(density, abs=0.004)


def test_power_of_density_one_half_is_uniform():
    counts = np.bincount(draw({"kind": "power", "max": 64, "density": 0.5}), minlength=65)
    assert counts[0] == 0
    assert chisquare(counts[1:]).pvalue > 1e-3


def test_wide_has_equal_shares_of_each_decade():
    lengths = draw({"kind": "wide", "max": 9999})
    shares = np.histogram(lengths, bins=[1, 10, 100, 1000, 10_000])[0] / len(lengths)
    assert shares == pytest.approx([0.25] * 4, abs=0.01)


def test_lognormal_has_its_median_and_spread_and_is_clipped():
    lengths = draw(EXAMPLES["lognormal"])
    assert np.median(lengths) == pytest.approx(np.exp(4), rel=0.02)
    logs = np.log(draw({"kind": "lognormal", "mu": 8.0, "sigma": 0.5, "max": 10**8}))
    assert (logs.mean(), logs.std()) == (pytest.approx(8, abs=0.01), pytest.approx(0.5, abs=0.01))
    clipped = draw({"kind": "lognormal", "mu": 4.0, "sigma": 10.0, "max": 100, "min": 2})
    assert (clipped.min(), clipped.max()) == (2, 100)
    assert (draw({"kind": "lognormal", "mu": 4.0, "sigma": 0.0, "max": 100}) == 55).all()


def test_zipf_falls_with_its_exponent():
    lengths = draw(EXAMPLES["zipf"])
    counts = np.bincount(lengths)
    assert counts[1] / counts[2] == pytest.approx(2**1.5, rel=0.05)
    assert counts[1] / counts[4] == pytest.approx(4**1.5, rel=0.05)
    assert lengths.max() <= 4096


def test_bimodal_has_two_modes():
    lengths = draw(EXAMPLES["bimodal"])
    short = (lengths >= 45) & (lengths <= 55)
    long = (lengths >= 1800) & (lengths <= 2200)
    assert (short | long).all()
    assert long.mean() == pytest.approx(0.2, abs=0.005)


def test_skew_orders_the_lengths_of_its_base():
    base = draw(EXAMPLES["lognormal"], 1000)
    for order in ("ascending", "descending", "shuffled"):
        lengths = draw({"kind": "skew", "order": order, "base": EXAMPLES["lognormal"]}, 1000)
        assert (np.sort(lengths) == np.sort(base)).all()
        steps = np.diff(lengths)
        assert {"ascending": (steps >= 0).all(), "descending": (steps <= 0).all(),
                "shuffled": (lengths != base).any() and (steps < 0).any() and (steps > 0).any()}[order]


def test_mixture_draws_by_weight():
    lengths = draw(EXAMPLES["mixture"])
    assert (lengths == 5).mean() == pytest.approx(0.75, abs=0.01)
    rest = lengths[lengths != 5]
    assert (rest.min(), rest.max()) == (100, 200)


def test_nested_names_take_no_longer_than_their_depth():
    values = EXAMPLES["constant"]
    for _ in range(30):
        values = {"kind": "skew", "order": "ascending", "base": {"kind": "empty_fraction", "fraction": 0.5, "base": {
            "kind": "mixture", "parts": [{"weight": 1, "lengths": values}]}}}
    assert ADAPTER.validate_python(values).label.count("ascending") == 30


def test_a_trace_is_named_without_what_its_file_may_hold(tmp_path):
    path = tmp_path / "a [b]\n$c$ größe.csv"
    path.write_text("length\n1\n")
    trace = ADAPTER.validate_python({"kind": "trace", "path": str(path)})
    assert (trace.label, trace.slug) == ("trace a [b] $c$ größe.csv", "trace_a_b_c_gr_e")


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 1.0])
def test_empty_fraction_is_exact_and_leaves_the_others_alone(fraction):
    base = draw(EXAMPLES["uniform"], 1000)
    lengths = draw({"kind": "empty_fraction", "fraction": fraction, "base": EXAMPLES["uniform"]}, 1000)
    assert (lengths == 0).sum() == round(fraction * 1000)
    assert (lengths == base)[lengths > 0].all()


def test_lists_keep_their_order_and_their_bounds():
    values = {"kind": "list", "values": [5, 0, 9]}
    assert draw(values, 3).tolist() == [5, 0, 9]
    assert draw(values, 2).tolist() == [5, 0]
    assert draw({"kind": "skew", "order": "descending", "base": values}, 3).tolist() == [9, 5, 0]
    with pytest.raises(ValueError, match=r"batch: got 4, but \[5,0,9\] holds 3 lengths"):
        draw(values, 4)


@pytest.mark.parametrize(("values", "label", "slug"), [
    (EXAMPLES["constant"], "7", "7"), (EXAMPLES["uniform"], "U[1,512]", "u512"),
    ({"kind": "uniform", "min": 3686, "max": 4096}, "U[3686,4096]", "u3686to4096"),
    (EXAMPLES["uniform_density"], "U[3686,4096]", "u4096density0.95"),
    (EXAMPLES["power"], "power(0.2)<=1024", "power1024density0.2"),
    (EXAMPLES["wide"], "log-uniform[10,10000]", "wide10to10000"),
    (EXAMPLES["lognormal"], "lognormal(4,1.2)<=8192", "lognormal4s1.2"),
    (EXAMPLES["zipf"], "zipf(1.5)[1,4096]", "zipf4096exponent1.5"),
    (EXAMPLES["bimodal"], "bimodal(50,2000,0.2)", "bimodal50and2000"),
    (EXAMPLES["skew"], "U[1,512] ascending", "u512_ascending"),
    (EXAMPLES["mixture"], "mixture(3 5, 1 U[100,200])", "mix_5_u100to200"),
    (EXAMPLES["empty_fraction"], "U[1,512], 25% empty", "u512_empty0.25"),
    ({"kind": "list", "values": list(range(9))}, "[0,1,2,3,4,5,6,7,...]", "list9")])
def test_names(values, label, slug):
    distribution = ADAPTER.validate_python(values)
    assert (distribution.label, distribution.slug) == (label, slug)


PLAIN = st.one_of(
    st.fixed_dictionaries({"kind": st.just("constant"), "value": st.integers(0, 10**6)}),
    st.fixed_dictionaries({"kind": st.just("uniform"), "max": st.integers(1, 10**6)}),
    st.fixed_dictionaries({"kind": st.just("uniform"), "max": st.integers(1, 10**6), "density": st.floats(0.5, 1)}),
    st.fixed_dictionaries({"kind": st.just("power"), "max": st.integers(1, 10**6),
                           "density": st.floats(0.001, 0.999)}),
    st.fixed_dictionaries({"kind": st.just("wide"), "max": st.integers(1, 10**6)}),
    st.fixed_dictionaries({"kind": st.just("lognormal"), "mu": st.floats(0, 20), "sigma": st.floats(0, 10),
                           "max": st.integers(1, 10**6)}),
    st.fixed_dictionaries({"kind": st.just("zipf"), "exponent": st.floats(0.1, 10), "max": st.integers(1, 10**4)}))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(values=PLAIN, batch=st.integers(1, 200), seed=st.integers(0, 2**31 - 1))
def test_lengths_stay_within_zero_and_the_maximum(values, batch, seed):
    lengths = draw(values, batch, seed)
    assert lengths.shape == (batch,)
    assert lengths.min() >= (0 if values["kind"] == "constant" else 1)
    assert lengths.max() <= values.get("max", values.get("value"))
