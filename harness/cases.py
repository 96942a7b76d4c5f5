"""`Case`: one attention shape with its actual lengths, and the expansion of a config into cases."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

import numpy as np

from harness.config import BenchConfig, DeviceType, DType, Hazard, Mode, SweepBlock
from harness.distributions import Base, make_lengths
from harness.errors import UserError
from kernels.mask import Mask

MODES: tuple[str, ...] = get_args(Mode)
HAZARDS: tuple[str, ...] = get_args(Hazard)
DTYPES: tuple[str, ...] = get_args(DType)
DEVICE_TYPES: tuple[str, ...] = get_args(DeviceType)
MAX_CASES = 10_000
MAX_SEQUENCES = 2**26  # of all cases together: their lengths are held in memory

# Keys of a block that are swept, in the order in which they are appended to names.
_LENGTH_KEYS = {"self": ("lengths",), "cross": ("lengths_q", "lengths_k"), "short_kv": ("lengths_q", "lengths_k"),
                "broadcast_q": ("len_q", "lengths_k")}
_SHAPE_KEYS = ("batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype", "causal", "window", "hazard", "seed")


@dataclass(frozen=True, eq=False)
class Case:
    """One row of a sweep: what to compute, not with what or how often.

    ``lengths_q`` and ``lengths_k`` are int64 ``[B]``. With ``mode == "broadcast_q"`` every ``lengths_q[b]`` is the
    dense Q's length, and Q itself is stored once. ``hazard`` names how inputs are spoilt (see `harness.inputs`).
    ``distribution`` is a short label for people; ``density`` in the records comes from the lengths. ``seed`` is that
    of the inputs (and of the lengths, where they were drawn). ``devices`` are the device types that can hold it.
    """

    name: str
    mode: str
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    dtype: str
    mask: Mask
    lengths_q: np.ndarray = field(repr=False)
    lengths_k: np.ndarray = field(repr=False)
    distribution: str = ""
    hazard: str = "none"
    seed: int = 0
    devices: tuple[str, ...] = DEVICE_TYPES

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return len(self.lengths_k)

    @property
    def broadcast_q(self) -> bool:
        """One dense Q for all sequences."""
        return self.mode == "broadcast_q"

    @property
    def total_q(self) -> int:
        """Query rows, of all sequences (B x Sq for broadcast-Q)."""
        return int(self.lengths_q.sum())

    @property
    def total_k(self) -> int:
        """Key rows, of all sequences."""
        return int(self.lengths_k.sum())

    @property
    def max_seqlen_q(self) -> int:
        """The longest query sequence; 0 without any."""
        return int(self.lengths_q.max(initial=0))

    @property
    def max_seqlen_k(self) -> int:
        """The longest key sequence; 0 without any."""
        return int(self.lengths_k.max(initial=0))

    @property
    def density(self) -> float | None:
        """Mean over maximum length: of the queries, of the keys for broadcast-Q; None when all are empty."""
        lengths = self.lengths_k if self.broadcast_q else self.lengths_q
        return float(lengths.mean() / lengths.max()) if lengths.max(initial=0) > 0 else None

    @cached_property
    def visible_pairs(self) -> int:
        """Number of (query, key) pairs that the mask leaves, over all sequences; per head."""
        return int(self.mask.visible_pairs(self.lengths_q, self.lengths_k).sum())

    @cached_property
    def case_id(self) -> str:
        """12 hex digits: a hash of the shape, mask, hazard, seed and actual lengths (not of the name)."""
        shape = [self.mode, self.num_heads_q, self.num_heads_kv, self.head_dim, self.dtype, self.mask.left,
                 self.mask.right, self.hazard, self.seed]
        digest = hashlib.sha256(json.dumps(shape).encode())
        digest.update(np.ascontiguousarray(self.lengths_q, dtype="<i8").tobytes())
        digest.update(np.ascontiguousarray(self.lengths_k, dtype="<i8").tobytes())
        return digest.hexdigest()[:12]

    def declines(self, device_type: str) -> str | None:
        """Why the case isn't meant for a device type (``cpu``, ``cuda``), in one line; None if it is."""
        return None if device_type in self.devices else f"the case is for {', '.join(self.devices)} only"

    def to_json(self) -> dict[str, Any]:
        """Everything, lengths included, as plain JSON data that `from_json` reads back."""
        return {"case_id": self.case_id, "name": self.name, "mode": self.mode, "num_heads_q": self.num_heads_q,
                "num_heads_kv": self.num_heads_kv, "head_dim": self.head_dim, "dtype": self.dtype,
                "window": [self.mask.left, self.mask.right], "distribution": self.distribution, "hazard": self.hazard,
                "seed": self.seed, "devices": list(self.devices), "lengths_q": self.lengths_q.tolist(),
                "lengths_k": self.lengths_k.tolist()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """The case of `to_json`. Raises `UserError` for what no config makes, or an id that isn't the content's."""
        values = dict(data)
        try:
            case_id, (left, right) = values.pop("case_id"), values.pop("window")
            values |= {key: np.asarray(values[key], dtype=np.int64) for key in ("lengths_q", "lengths_k")}
            case = cls(mask=Mask.make(window_size=(left, right)), **values | {"devices": tuple(values["devices"])})
            impossible = _impossible(case)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"case {data.get('name', '?')!r}: not the JSON of a case: {error!r}") from None
        if impossible:
            raise UserError(f"case {case.name!r}: not the JSON of a case: {impossible}")
        if case.case_id != case_id:
            raise UserError(f"case {case.name!r}: its content has the id {case.case_id}, not {case_id}: it was altered")
        return case


def expand(config: BenchConfig, seed: int | None = None) -> list[Case]:
    """The cases of a config in its order; ``seed`` replaces the config's.

    The same distribution, batch and seed give the same lengths in every config. Raises `ConfigError` for sweeps that
    can't be: shapes that contradict each other, no or too many sequences, rows or cases, names that repeat.
    """
    base_seed = config.seed if seed is None else seed
    counts = [sum(math.prod(len(values) for values in _swept(block, mode).values()) for mode in block.mode)
              for block in config.cases]
    if sum(counts) > MAX_CASES:
        largest = counts.index(max(counts))
        text = f"the config sweeps {sum(counts):,} cases, this block {counts[largest]:,}"
        raise config.error(("cases", largest), text, f"at most {MAX_CASES:,} in all")
    sequences = 0
    cases: dict[str, Case] = {}  # by name
    names: dict[str, str] = {}  # by id
    for index, block in enumerate(config.cases):
        for case in _expand_block(config, index, block, base_seed):
            if case.name in cases:
                raise config.error(("cases", index, "name"), f"two cases are named {case.name!r}", "names that differ")
            if case.case_id in names:
                raise config.error(("cases", index), f"{case.name!r} is the same case as {names[case.case_id]!r}",
                                   "cases that differ; another seed draws other lengths")
            sequences += case.batch
            if sequences > MAX_SEQUENCES:
                raise config.error(("cases", index, "batch"), f"the cases up to {case.name!r} have {sequences:,} "
                                   "sequences", f"at most {MAX_SEQUENCES:,} in all")
            names[case.case_id] = case.name
            cases[case.name] = case
    return list(cases.values())


def find_case(cases: Sequence[Case], wanted: str) -> Case:
    """The case of a name, an id, or the beginning of one id only. Raises `UserError` when none or several match."""
    for case in cases:
        if wanted in (case.name, case.case_id):
            return case
    matches = [case for case in cases if wanted and case.case_id.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        found = ", ".join(f"{case.case_id} ({case.name})" for case in matches)
        raise UserError(f"case {wanted!r} is ambiguous: {found}")
    close = difflib.get_close_matches(wanted, [case.name for case in cases], n=3)
    hint = f"; close: {', '.join(close)}" if close else f"; `harness cases CONFIG` lists all {len(cases)}"
    raise UserError(f"no case {wanted!r}{hint}")


def _impossible(case: Case) -> str:
    """Why no config makes a case like this; empty if one could. Raises `TypeError` where types differ."""
    numbers = (case.num_heads_q, case.num_heads_kv, case.head_dim, case.seed)
    if not all(isinstance(number, int) for number in numbers) or not (
            isinstance(case.name, str) and case.name.isprintable()):
        return "name must be text, heads, head_dim and seed must be integers"
    for key, value, allowed in (("mode", case.mode, MODES), ("hazard", case.hazard, HAZARDS),
                                ("dtype", case.dtype, DTYPES), *(("devices", each, DEVICE_TYPES)
                                                                 for each in case.devices)):
        if value not in allowed:
            return f"{key}: got {value!r}; allowed: {', '.join(allowed)}"
    if min(numbers[:3]) < 1 or case.seed < 0 or case.num_heads_q % case.num_heads_kv or case.head_dim % 8:
        return "heads, head_dim or seed are out of bounds"
    for key, lengths in (("lengths_q", case.lengths_q), ("lengths_k", case.lengths_k)):
        if lengths.ndim != 1 or lengths.shape != case.lengths_k.shape or not lengths.size:
            return f"{key}: has the shape {lengths.shape}; both need the same number of lengths, at least one"
        if lengths.min() < 0 or lengths.max() >= 2**31 or lengths.sum() >= 2**31:
            return f"{key}: each must be at least 0, and their sum less than 2^31"
    if case.broadcast_q and np.ptp(case.lengths_q):
        return "lengths_q: must all be the same in the mode broadcast_q"
    return ""


def _swept(block: SweepBlock, mode: str) -> dict[str, tuple[Any, ...]]:
    """The lists that a mode of a block multiplies; a key left out counts as one None."""
    return {key: getattr(block, key) or (None,) for key in (*_LENGTH_KEYS[mode], *_SHAPE_KEYS)}


def _expand_block(config: BenchConfig, index: int, block: SweepBlock, base_seed: int) -> Iterator[Case]:
    for mode in block.mode:
        swept = _swept(block, mode)
        for values in itertools.product(*swept.values()):
            chosen = dict(zip(swept, values, strict=True))
            varied = [_slug(key, value) for key, value in chosen.items() if len(swept[key]) > 1]
            suffix = [mode, *varied] if len(block.mode) > 1 else varied
            name = "_".join(filter(None, [block.name, *suffix]))
            yield _make_case(config, index, block, base_seed, mode, name, chosen)


def _make_case(config: BenchConfig, index: int, block: SweepBlock, base_seed: int, mode: str, name: str,
               chosen: Mapping[str, Any]) -> Case:
    where = ("cases", index)
    heads_q, heads_kv = chosen["num_heads_q"], chosen["num_heads_kv"] or chosen["num_heads_q"]
    if heads_q % heads_kv:
        raise config.error((*where, "num_heads_kv"), f"got {heads_kv}", f"a divisor of num_heads_q, {heads_q}")
    window = chosen["window"] or (None, None)
    if chosen["causal"] and window[1]:
        left = "null" if window[0] is None else window[0]
        text = f"got [{left}, {window[1]}] beside causal: true, which sees no later key"
        raise config.error((*where, "window"), text, f"[{left}, 0], or causal: false")
    seed = base_seed + chosen["seed"]
    distributions = {key: chosen[key] for key in _LENGTH_KEYS[mode] if key != "len_q"}
    batch = _batch_of(config, where, chosen["batch"], distributions)
    lengths = {key: make_lengths(distribution, batch, seed, "k" if key == "lengths_k" else "q")
               for key, distribution in distributions.items()}
    if mode == "self":
        lengths_q = lengths_k = lengths["lengths"]
    else:
        lengths_k = lengths["lengths_k"]
        lengths_q = np.full(batch, chosen["len_q"]) if mode == "broadcast_q" else lengths["lengths_q"]
    for key, rows in (("len_q" if mode == "broadcast_q" else "lengths_q", lengths_q), ("lengths_k", lengths_k)):
        if rows.sum() >= 2**31:
            raise config.error((*where, "lengths" if mode == "self" else key), f"{name!r} has {rows.sum():,} rows",
                               "fewer than 2^31 rows in all")
    if mode == "short_kv" and lengths_k.max() > lengths_q.max():
        raise config.error((*where, "lengths_k"), f"{name!r} has up to {lengths_k.max()} keys, and up to "
                           f"{lengths_q.max()} queries", "keys that are no longer than queries; or mode: cross")
    return Case(name=name, mode=mode, num_heads_q=heads_q, num_heads_kv=heads_kv, head_dim=chosen["head_dim"],
                dtype=chosen["dtype"], mask=Mask.make(chosen["causal"], window), lengths_q=lengths_q,
                lengths_k=lengths_k, distribution=_label(chosen, mode), hazard=chosen["hazard"], seed=seed,
                devices=tuple(dict.fromkeys(block.devices)))


def _batch_of(config: BenchConfig, where: tuple[Any, ...], batch: int | None, distributions: Mapping[str, Base]) -> int:
    available = {key: each.available for key, each in distributions.items() if each.available is not None}
    if batch is None and not available:
        raise config.error((*where, "batch"), "missing; only lengths of kind list or trace bring their own number")
    if batch is None and len(set(available.values())) > 1:
        held = " and ".join(f"{key} {count}" for key, count in available.items())
        raise config.error((*where, "batch"), f"missing; {held} lengths", f"a number up to {min(available.values())}")
    for key, count in available.items():
        if batch is not None and batch > count:
            raise config.error((*where, "batch"), f"got {batch}, but {key} holds {count} lengths", f"at most {count}")
    return batch if batch is not None else next(iter(available.values()))


def _label(chosen: Mapping[str, Any], mode: str) -> str:
    if mode == "self":
        return chosen["lengths"].label
    queries = f"Q={chosen['len_q']}" if mode == "broadcast_q" else f"q {chosen['lengths_q'].label}"
    return f"{queries} / kv {chosen['lengths_k'].label}"


def _slug(key: str, value: Any) -> str:
    """What a swept value adds to a case's name; nothing for a default."""
    if key == "window":
        bounds = ["inf" if bound is None else str(bound) for bound in value or ()]
        return "" if bounds in ([], ["inf", "inf"]) else "w" + "_".join(bounds)
    if key == "causal":
        return "causal" if value else ""
    if key == "hazard":
        return "" if value == "none" else value
    prefixes = {"lengths_q": "q_", "lengths_k": "kv_", "len_q": "q", "batch": "b", "num_heads_q": "h",
                "num_heads_kv": "kvh", "head_dim": "d", "seed": "seed"}
    return prefixes.get(key, "") + (value.slug if isinstance(value, Base) else str(value))
