"""Keys and options: what is wrong and what is allowed, without any rival's package."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from harness.backends import registry
from harness.backends.base import Backend
from harness.errors import UserError


def test_an_unknown_key_lists_those_that_there_are():
    with pytest.raises(UserError, match="'fa5'; allowed: jfa, jfa_triton, fa4, cudnn, fa2, flex, padded, sdpa_loop"):
        registry.create("fa5")


@pytest.mark.parametrize(("key", "message"), [
    ("no_such_module:Class", "can't be imported: No module named"), ("os:nothing", "can't be imported: module 'os'"),
    (":", "can't be imported"), ("..:x", "can't be imported"),
    ("os:system", "no subclass of harness.backends.base.Backend"), ("os:path", "no subclass"),
])
def test_a_backend_from_elsewhere_must_be_one(key, message):
    with pytest.raises(UserError, match=message):
        registry.create(key)


@pytest.mark.parametrize(("key", "options", "message"), [
    ("padded", {"encoding": "x"}, "backend padded: options.encoding: no such option; allowed: none"),
    ("fa4", {"encodings": "x"}, "options.encodings: no such option; allowed: encoding, scheduler_metadata"),
    ("fa4", {"encoding": "x"}, "options.encoding: Input should be 'varlen' or 'dense_q', got 'x'"),
    ("jfa", {"impl": "ampere"}, "options.impl: expected one of auto, .*portable, got 'ampere'"),
    ("jfa", {"fwd": {"BLOCK_M": 64}}, "switches belong to one implementation; set impl to one of .*portable"),
    ("jfa", {"impl": "portable", "fwd": {"BLOCK": 64}}, "options: fwd: BLOCK: no such option; allowed: BLOCK_M"),
    ("jfa_triton", {"bwd": {"dq": {"BLOCK_M": 65}}}, "options: bwd: dq.BLOCK_M: expected one of .* got 65"),
    ("jfa_triton", {"impl": "portable"}, "options.impl: no such option; allowed: schedule, fwd, bwd"),
    ("jfa_triton", {"fwd": 3}, "options.fwd: .* got 3"),
])
def test_a_bad_option_is_named_with_what_is_allowed(key, options, message):
    with pytest.raises(UserError, match=message):
        registry.create(key, options)


def test_good_options_are_kept():
    backend = registry.create("jfa", {"impl": "portable", "schedule": "none", "fwd": {"BLOCK_M": 64}})
    assert backend.options.fwd == {"BLOCK_M": 64}
    assert backend.options.plan("fwd").options.BLOCK_M == 64
    assert backend.options.plan("bwd").options is None


@pytest.mark.parametrize("key", registry.BACKENDS)
def test_every_backend_says_who_it_is(key):
    backend = registry.create(key)
    assert isinstance(backend, Backend)
    assert backend.name == key
    assert set(backend.timed_on) <= {"cpu", "cuda"}
    assert "cuda" in backend.timed_on


def test_creating_all_imports_no_rival():
    code = ("import sys\nfrom harness.backends import registry\nfor key in registry.BACKENDS: registry.create(key)\n"
            "print(sorted({'flash_attn', 'cutlass', 'cudnn', 'triton'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("key", ["fa4", "cudnn", "fa2", "flex"])
def test_rivals_need_a_gpu(key):
    availability = registry.create(key).availability(torch.device("cpu"))
    assert not availability.available
    assert not availability.import_failed
    assert availability.reason == "needs an NVIDIA GPU"


def test_only_our_own_kernels_need_the_interpreter_on_a_cpu():
    for key in registry.BACKENDS:
        wanted = {"TRITON_INTERPRET": "1"} if key.startswith("jfa") else {}
        assert registry.backend_class(key).environment("cpu") == wanted
        assert registry.backend_class(key).environment("cuda") == {}
