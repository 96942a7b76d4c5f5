"""Expansion of configs into cases: names, ids, lengths, replay, and sweeps that can't be."""

import dataclasses
import json

import numpy as np
import pytest

from harness.cases import HAZARDS, MODES, Case, expand, find_case
from harness.config import BenchConfig
from harness.errors import ConfigError, UserError
from kernels.mask import Mask

UNIFORM = {"kind": "uniform", "max": 512}


def block(**values):
    """A block of one self case; keys of value None are left out."""
    base = {"name": "x", "mode": "self", "batch": 4, "num_heads_q": 4, "head_dim": 64, "lengths": UNIFORM, **values}
    return {key: value for key, value in base.items() if value is not None}


def config(*blocks, **values):
    return BenchConfig.model_validate({"name": "c", "backends": ["jfa"], "cases": list(blocks), **values})


def names(*blocks):
    return [case.name for case in expand(config(*blocks))]


def test_one_case_has_the_name_of_its_block():
    case, = expand(config(block(num_heads_kv=2, dtype="fp16", causal=True, window=[16, None], hazard="stride0")))
    assert (case.name, case.mode, case.batch) == ("x", "self", 4)
    assert (case.num_heads_q, case.num_heads_kv, case.head_dim, case.dtype) == (4, 2, 64, "fp16")
    assert (case.mask, case.hazard, case.distribution) == (Mask(16, 0), "stride0", "U[1,512]")
    assert (case.lengths_q == case.lengths_k).all()


def test_key_and_value_heads_default_to_the_query_heads():
    assert [case.num_heads_kv for case in expand(config(block(num_heads_q=[4, 8])))] == [4, 8]


def test_what_varies_is_appended_to_the_name():
    lengths = [{"kind": "uniform", "max": 512}, {"kind": "constant", "value": 1024}]
    assert names(block(name="self", lengths=lengths, head_dim=[64, 128], causal=[False, True])) == [
        "self_u512_d64", "self_u512_d64_causal", "self_u512_d128", "self_u512_d128_causal",
        "self_1024_d64", "self_1024_d64_causal", "self_1024_d128", "self_1024_d128_causal"]
    assert names(block(batch=[2, 3], num_heads_kv=[1, 4], dtype=["bf16", "fp16"])) == [
        f"x_b{batch}_kvh{heads}_{dtype}" for batch in (2, 3) for heads in (1, 4) for dtype in ("bf16", "fp16")]
    assert names(block(window=[None, [16, 0], [None, 3]], hazard=["none", "guard"], seed=[0, 7])) == [
        f"x{window}{hazard}_seed{seed}" for window in ("", "_w16_0", "_winf_3") for hazard in ("", "_guard")
        for seed in (0, 7)]
    assert names(block(mode="cross", lengths=None, lengths_q=[UNIFORM, {"kind": "constant", "value": 3}],
                       lengths_k=UNIFORM)) == ["x_q_u512", "x_q_3"]
    assert names(block(mode="broadcast_q", lengths=None, len_q=[16, 32],
                       lengths_k=[UNIFORM, {"kind": "wide", "max": 9}])) == [
        "x_q16_kv_u512", "x_q16_kv_wide9", "x_q32_kv_u512", "x_q32_kv_wide9"]


def test_modes_of_one_block_sweep_only_the_lengths_that_they_use():
    sweep = block(mode=["self", "cross"], lengths=[UNIFORM, {"kind": "wide", "max": 9}], lengths_q=UNIFORM,
                  lengths_k=UNIFORM)
    assert names(sweep) == ["x_self_u512", "x_self_wide9", "x_cross"]


def test_cross_draws_queries_and_keys_apart():
    case, = expand(config(block(mode="cross", lengths=None, lengths_q=UNIFORM, lengths_k=UNIFORM, batch=100)))
    assert (case.lengths_q != case.lengths_k).any()
    assert case.distribution == "q U[1,512] / kv U[1,512]"


def test_broadcast_q_has_one_length_of_queries():
    case, = expand(config(block(mode="broadcast_q", lengths=None, len_q=32, lengths_k=UNIFORM)))
    assert case.lengths_q.tolist() == [32] * 4
    assert (case.total_q, case.max_seqlen_q, case.broadcast_q) == (128, 32, True)
    assert case.distribution == "Q=32 / kv U[1,512]"


def test_totals_and_pairs():
    case, = expand(config(block(batch=None, causal=True, lengths={"kind": "list", "values": [3, 0, 2]})))
    assert (case.batch, case.total_q, case.total_k, case.max_seqlen_k) == (3, 5, 5, 3)
    assert case.visible_pairs == 6 + 3


def test_the_same_shape_and_seed_are_the_same_case_in_every_config():
    first, = expand(config(block(name="a")))
    _, second = expand(config(block(name="other", seed=3), block(name="b"), name="d"))
    assert first.case_id == second.case_id
    assert (first.lengths_q == second.lengths_q).all()


@pytest.mark.parametrize("change", [
    {"batch": 5}, {"num_heads_q": 8}, {"num_heads_kv": 2}, {"head_dim": 128}, {"dtype": "fp16"}, {"causal": True},
    {"window": [3, None]}, {"window": [None, 3]}, {"hazard": "guard"}, {"seed": 1},
    {"lengths": {"kind": "uniform", "max": 511}},
    {"mode": "cross", "lengths": None, "lengths_q": UNIFORM, "lengths_k": UNIFORM}])
def test_ids_differ_with_whatever_differs(change):
    first, second = (expand(config(each))[0] for each in (block(), block(**change)))
    assert first.case_id != second.case_id
    assert len(first.case_id) == 12


def test_seeds_add_and_can_be_replaced():
    seeds = block(seed=[0, 5])
    assert [case.seed for case in expand(config(seeds, seed=10))] == [10, 15]
    assert [case.seed for case in expand(config(seeds, seed=10), seed=20)] == [20, 25]
    by_config, by_block = expand(config(block(), seed=5)), expand(config(block(seed=5)))
    assert by_config[0].case_id == by_block[0].case_id


def test_json_brings_a_case_back():
    for case in expand(config(block(causal=True, window=[7, None], devices=["cuda"]), block(
            name="y", mode="broadcast_q", lengths=None, len_q=3, lengths_k=UNIFORM, hazard="stride0", seed=4))):
        again = Case.from_json(json.loads(json.dumps(case.to_json())))
        for field in dataclasses.fields(Case):
            assert np.array_equal(getattr(again, field.name), getattr(case, field.name)), field.name
        assert again.case_id == case.case_id


def test_lengths_of_all_cases_must_fit_into_memory(monkeypatch):
    monkeypatch.setattr("harness.cases.MAX_SEQUENCES", 11)
    assert len(expand(config(block(seed=[0, 1])))) == 2
    with pytest.raises(ConfigError, match=r"cases\[0\].batch: .* have 12 sequences; allowed: at most 11 in all"):
        expand(config(block(seed=[0, 1, 2])))


def test_altered_or_incomplete_json_is_an_error():
    data = expand(config(block()))[0].to_json()
    with pytest.raises(UserError, match=r"case 'x': its content has the id .*, not .*: it was altered"):
        Case.from_json(data | {"head_dim": 32})
    with pytest.raises(UserError, match="case 'x': not the JSON of a case: KeyError"):
        Case.from_json({key: value for key, value in data.items() if key != "window"})
    with pytest.raises(UserError, match="not the JSON of a case: TypeError"):
        Case.from_json(data | {"colour": 3})


@pytest.mark.parametrize("changes", [
    {"name": 3}, {"name": "a\nb"}, {"mode": "both"}, {"dtype": "fp8"}, {"hazard": "flood"}, {"devices": ["tpu"]},
    {"num_heads_q": 0}, {"num_heads_q": "4"}, {"num_heads_kv": 3}, {"head_dim": 60}, {"seed": -1}, {"window": [-1, 0]},
    {"window": ["a", 0]}, {"lengths_q": [1]}, {"lengths_q": [], "lengths_k": []}, {"lengths_q": [-1, 1, 1, 1]},
    {"lengths_q": [2**30] * 4}, {"lengths_q": [2**64, 1, 1, 1]}, {"lengths_q": [float("nan"), 1, 1, 1]},
    {"lengths_q": [[1], [1], [1], [1]]}, {"lengths_q": "many"},
    {"mode": "broadcast_q", "lengths_q": [1, 2, 1, 1]}], ids=str)
def test_json_of_a_case_that_no_config_makes_is_an_error(changes):
    data = expand(config(block()))[0].to_json() | changes
    try:  # whoever alters a case can give it the id that belongs to it
        Case.from_json(data)
    except UserError as error:
        if "has the id" in str(error):
            data["case_id"] = str(error).split("has the id ")[1][:12]
    with pytest.raises(UserError, match="not the JSON of a case"):
        Case.from_json(data)


def test_a_case_is_found_by_name_id_or_beginning_of_the_id():
    cases = expand(config(block(head_dim=[32, 64, 96, 128])))
    wanted = cases[2]
    prefix = next(wanted.case_id[:n] for n in range(1, 13)
                  if sum(case.case_id.startswith(wanted.case_id[:n]) for case in cases) == 1)
    assert all(find_case(cases, text) is wanted for text in ("x_d96", wanted.case_id, prefix))
    with pytest.raises(UserError, match="no case 'x_d69'; close: "):
        find_case(cases, "x_d69")
    with pytest.raises(UserError, match="no case ''; `harness cases CONFIG` lists all 4"):
        find_case(cases, "")


def test_an_ambiguous_beginning_names_the_candidates():
    cases = expand(config(block(head_dim=[32, 64, 96, 128], batch=list(range(1, 9)))))
    first = next(a for a in cases for b in cases if a is not b and a.case_id[0] == b.case_id[0])
    with pytest.raises(UserError, match=rf"case '{first.case_id[0]}' is ambiguous: .*{first.case_id} \({first.name}\)"):
        find_case(cases, first.case_id[0])


def test_devices():
    case, = expand(config(block(devices=["cuda"])))
    assert case.declines("cuda") is None
    assert case.declines("cpu") == "the case is for cuda only"
    assert expand(config(block()))[0].declines("cpu") is None


@pytest.mark.parametrize(("blocks", "message"), [
    ([block(num_heads_kv=3)], "cases[0].num_heads_kv: got 3; allowed: a divisor of num_heads_q, 4"),
    ([block(), block(name="y", num_heads_q=[8, 6], num_heads_kv=[2, 4])],
     "cases[1].num_heads_kv: got 4; allowed: a divisor of num_heads_q, 6"),
    ([block(causal=[False, True], window=[4, 4])],
     "cases[0].window: got [4, 4] beside causal: true, which sees no later key; allowed: [4, 0], or causal: false"),
    ([block(batch=None)], "cases[0].batch: missing; only lengths of kind list or trace bring their own number"),
    ([block(batch=3, lengths={"kind": "list", "values": [1, 2]})],
     "cases[0].batch: got 3, but lengths holds 2 lengths; allowed: at most 2"),
    ([block(batch=None, mode="cross", lengths=None, lengths_q={"kind": "list", "values": [1, 2]},
            lengths_k={"kind": "list", "values": [1, 2, 3]})],
     "cases[0].batch: missing; lengths_q 2 and lengths_k 3 lengths; allowed: a number up to 2"),
    ([block(batch=2**21, lengths={"kind": "constant", "value": 1024})],
     "cases[0].lengths: 'x' has 2,147,483,648 rows; allowed: fewer than 2^31 rows in all"),
    ([block(mode="broadcast_q", lengths=None, batch=2**21, len_q=1024, lengths_k={"kind": "constant", "value": 1})],
     "cases[0].len_q: 'x' has 2,147,483,648 rows; allowed: fewer than 2^31 rows in all"),
    ([block(mode="short_kv", lengths=None, lengths_q={"kind": "constant", "value": 8}, lengths_k=UNIFORM)],
     "cases[0].lengths_k: 'x' has up to 490 keys, and up to 8 queries; allowed: keys that are no longer than queries; "
     "or mode: cross"),
    ([block(), block(head_dim=128)], "cases[1].name: two cases are named 'x'; allowed: names that differ"),
    ([block(batch=[4, 4])], "cases[0].name: two cases are named 'x_b4'; allowed: names that differ"),
    ([block(), block(name="y")],
     "cases[1]: 'y' is the same case as 'x'; allowed: cases that differ; another seed draws other lengths"),
    ([block(), block(name="y", seed=list(range(200)), batch=list(range(1, 101)))],
     "cases[1]: the config sweeps 20,001 cases, this block 20,000; allowed: at most 10,000 in all")])
def test_impossible_sweeps(blocks, message):
    with pytest.raises(ConfigError) as info:
        expand(config(*blocks))
    assert str(info.value) == f"config: {message}"


def test_modes_and_hazards_are_those_of_the_config():
    assert MODES == ("self", "cross", "short_kv", "broadcast_q")
    assert HAZARDS == ("none", "stride0", "noncontiguous", "nonfinite_neighbours", "low_lse", "guard")
