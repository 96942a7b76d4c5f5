"""Which kernels are mutated, on which layouts, and why the mutants that survive are equivalent."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources

from kernels.mask import Mask
from kernels.simulator.cases import Case
from kernels.simulator.jagged import (
    Layout,
    blackwell_backward_cases,
    blackwell_cases,
    hopper_backward_cases,
    hopper_cases,
)
from kernels.simulator.tutorials import attention_case, backward_case

#: Name: (layouts, functions that are left alone because they do not synchronise).
CAMPAIGNS: dict[str, tuple[Callable[[], Sequence[Case]], frozenset[str]]] = {}
_PREPARATION = frozenset({"_attn_bwd_preprocess", "_attn_bwd_dq_postprocess"})


def _tutorial(name: str, *shapes: tuple[int, ...]) -> None:
    CAMPAIGNS[name] = (lambda: [attention_case(name, shape) for shape in shapes], frozenset())


_tutorial("hopper_fa_ws", (1, 1, 640, 128), (1, 2, 256, 128))
_tutorial("hopper_fa_ws_pipelined_pingpong_persistent", (1, 3, 640, 128), (1, 2, 384, 128), (1, 4, 256, 128),
          (1, 6, 128, 128))
_tutorial("blackwell_fa_ws", (1, 1, 1024, 128), (1, 2, 512, 128))
_tutorial("blackwell_fa_ws_pipelined_persistent", (1, 2, 768, 128), (1, 5, 512, 128))
CAMPAIGNS["backward/1-cta"] = (lambda: [backward_case("1x1x512x128", (1, 1, 512, 128), False, 1),
                                        backward_case("1x5x256x128", (1, 5, 256, 128), False, 1)], _PREPARATION)

# One SM, so that a worker has many items; idle groups; every second layout of the forward deals dynamically.
_HOPPER_LAYOUTS: dict[str, Layout] = {
    "self": Layout((330, 64, 0, 200, 65), heads_q=1, heads_kv=1, head_dim=64),
    "many": Layout((64, 1, 130, 64, 70, 64, 3, 200, 64, 64), heads_q=1, heads_kv=1, head_dim=64),
    "short-kv": Layout((100, 128, 64), (300, 70, 260), heads_q=1, heads_kv=1, head_dim=64),
    "no-queries": Layout((64, 100, 64, 64, 130, 64), (64, 60, 0, 64, 0, 0), heads_q=1, heads_kv=1, head_dim=64),
    "window": Layout((330, 65), heads_q=1, heads_kv=1, head_dim=64, mask=Mask.make(window_size=(100, 30))),
}


# A window that leaves a sequence's first keys to no query: tiles without steps before those with one.
_LATE_WINDOW = {
    "late-window": Layout((520, 390, 64), (64, 60, 64), heads_q=1, heads_kv=1, head_dim=64,
                          mask=Mask.make(window_size=(100, 30))),
}


# Tiles with one group of rows and with two, with and without keys, of one KV block and of several.
_BLACKWELL_LAYOUTS: dict[str, Layout] = {
    "cross": Layout((300, 0, 130, 64, 300), (300, 200, 64, 130, 40), heads_q=1, heads_kv=1, head_dim=64),
    "many": Layout((64, 130, 0, 200, 64, 300, 70), (130, 64, 130, 300, 200, 40, 140), heads_q=1, heads_kv=1,
                   head_dim=64),
    "no-keys": Layout((0, 64, 0, 0, 130, 0), (130, 130, 300, 64, 40, 200), heads_q=1, heads_kv=1, head_dim=64),
    "window": Layout((400, 130, 300), heads_q=1, heads_kv=1, head_dim=64, mask=Mask.make(window_size=(100, 30))),
    "long": Layout((900, 700), (130, 300), heads_q=1, heads_kv=1, head_dim=64),
}


# Several tiles a CTA, of several steps and of none, owned sequences, groups of heads, a shared Q.
_BLACKWELL_BACKWARD_LAYOUTS: dict[str, Layout] = {
    "self": Layout((330, 64, 0, 200, 65), heads_q=1, heads_kv=1, head_dim=64),
    "many": Layout((64, 1, 130, 64, 300, 70), (64, 70, 0, 64, 65, 200), heads_q=2, heads_kv=1, head_dim=64,
                   mask=Mask.make(window_size=(100, 30))),
    "shared": Layout((130, 64, 300, 70), heads_q=1, heads_kv=1, head_dim=64, broadcast_q=150),
}


# Owned sequences of two KV blocks and of three, one of them by one block of Q, which each tile takes over and leaves;
# tiles without steps between them; by the diagonal, tiles that begin where the one before did not end.
_HELD_LAYOUTS: dict[str, Layout] = {
    "self": Layout((280, 64, 0, 200, 65, 150, 200), heads_q=1, heads_kv=1),
    "cross": Layout((300, 130, 200, 390, 64), (130, 64, 190, 10, 100), heads_q=1, heads_kv=1),
    "no-queries": Layout((64, 280, 200, 64, 300, 130), (64, 70, 0, 64, 130, 0), heads_q=1, heads_kv=1),
    "unseen-first": Layout((400, 64, 64, 64, 64, 50, 40), (0, 64, 40, 64, 64, 50, 40), heads_q=1, heads_kv=1),
    "causal": Layout((200, 280, 64, 150), (200, 100, 64, 60), heads_q=1, heads_kv=1, mask=Mask.make(causal=True)),
}


# Two CTAs. Sequences of many steps or more than four KV blocks take turns, the others are owned and hold blocks.
_TURN_LAYOUTS: dict[str, Layout] = {
    "self": Layout((330, 64, 0, 200, 390, 150), heads_q=1, heads_kv=1),
    "cross": Layout((520, 300, 130, 600, 64, 390), (60, 130, 64, 70, 100, 40), heads_q=1, heads_kv=1),
    "no-queries": Layout((64, 300, 400, 64, 280), (64, 70, 0, 64, 0), heads_q=1, heads_kv=1),
    "unseen-first": Layout((400, 400, 64, 64, 64, 64, 50, 40), (0, 0, 64, 40, 64, 64, 50, 40), heads_q=1, heads_kv=1),
    "causal": Layout((330, 64, 280, 150), (330, 64, 100, 60), heads_q=1, heads_kv=1, mask=Mask.make(causal=True)),
}


# Two CTAs, a pair. Rounds of one step, two, three and four, and singles of odd numbers of steps and even ones.
_PAIR_LAYOUTS: dict[str, Layout] = {
    "self": Layout((192, 64, 0, 250, 130, 100)),
    "cross": Layout((130, 300, 200, 390, 64, 256, 450), (60, 130, 192, 64, 130, 70, 120)),
    "no-queries": Layout((64, 200, 130, 300, 200), (64, 0, 60, 0, 60)),
    "unseen-first": Layout((400, 64, 64, 64, 50, 40), (0, 64, 40, 64, 64, 50)),
}


# A Q of several blocks for all sequences, and of one: `keep_dq`.
_SUMMED_LAYOUTS: dict[str, Layout] = {
    "self": Layout((330, 64, 0, 200, 65), heads_q=1, heads_kv=1, broadcast_q=150),
    "groups": Layout((64, 1, 130, 64), heads_q=2, heads_kv=1, broadcast_q=70),
    "one-block": Layout((130, 64, 300, 70), heads_q=1, heads_kv=1, broadcast_q=40),
}
_KEPT_LAYOUTS: dict[str, Layout] = {
    "self": Layout((330, 64, 0, 200, 65), heads_q=1, heads_kv=1, broadcast_q=40),
    "many": Layout((64, 1, 130, 64, 70, 64, 3, 200), heads_q=1, heads_kv=1, broadcast_q=64),
}


def _hopper(variant: str) -> None:
    def layouts() -> list[Case]:
        return list(hopper_cases(variant, _HOPPER_LAYOUTS, sms=1).values())

    CAMPAIGNS[f"hopper/{variant}"] = (layouts, frozenset())


def _hopper_backward(variant: str, head_dim: int, lengths: Mapping[str, Layout] = _HOPPER_LAYOUTS | _LATE_WINDOW,
                     sms: int = 1) -> None:
    chosen = {name: replace(layout, head_dim=head_dim) for name, layout in lengths.items()}

    def layouts() -> list[Case]:
        return list(hopper_backward_cases(variant, chosen, sms).values())

    CAMPAIGNS[f"hopper-bwd/{variant}/d{head_dim}"] = (layouts, frozenset())


def _blackwell_backward(variant: str, sms: int, head_dim: int = 64) -> None:
    chosen = {name: replace(layout, head_dim=head_dim) for name, layout in _BLACKWELL_BACKWARD_LAYOUTS.items()}

    def layouts() -> list[Case]:
        return list(blackwell_backward_cases(variant, chosen, sms).values())

    CAMPAIGNS[f"blackwell-bwd/{variant}"] = (layouts, frozenset({"prepare_kernel", "cast_kernel", "sum_kernel"}))


_blackwell_backward("m64", 1)
_blackwell_backward("m128", 1, 128)  # where dQ has the columns of dP
_blackwell_backward("pair", 2)
CAMPAIGNS["blackwell/forward"] = (lambda: list(blackwell_cases({}, _BLACKWELL_LAYOUTS, sms=1).values()), frozenset())
for _variant in ("solo64", "pair128", "tri64", "trio64"):  # the forward synchronises at D = 64 as at D = 128
    _hopper(_variant)
for _variant, _dim in (("rule", 64), ("short-gap", 128), ("summed", 128)):  # the backward's steps differ
    _hopper_backward(_variant, _dim)
_hopper_backward("hold", 128, _HELD_LAYOUTS)
_hopper_backward("turns", 128, _TURN_LAYOUTS, sms=2)
_hopper_backward("pairs", 128, _PAIR_LAYOUTS, sms=2)
_hopper_backward("broadcast", 128, _SUMMED_LAYOUTS)
_hopper_backward("keep", 128, _KEPT_LAYOUTS)


def _read_arguments() -> dict[str, str]:
    text = resources.files("kernels.simulator").joinpath("survivors.csv").read_text()
    return {row["mutant"]: row["argument"] for row in csv.DictReader(text.splitlines()) if row["argument"]}


#: By `mutation.argument_key`: why a mutant that survives is the same kernel.
ARGUMENTS: dict[str, str] = _read_arguments()
