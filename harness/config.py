"""`BenchConfig`: what to run, as read from a YAML file; docs/configs.md lists every key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from harness.distributions import Distribution, TraceLengths
from harness.errors import ConfigError
from harness.strict_model import KeyPath, StrictModel, YamlSource, problem

Direction = Literal["fwd", "bwd"]
Scope = Literal["kernel", "operation"]
Mode = Literal["self", "cross", "short_kv", "broadcast_q"]
Hazard = Literal["none", "stride0", "noncontiguous", "nonfinite_neighbours", "low_lse", "guard"]
DType = Literal["bf16", "fp16"]
DeviceType = Literal["cpu", "cuda"]
Engine = Literal["cuda_events", "cuda_events_sustained", "tritonbench"]
Count = Annotated[int, Field(strict=True, ge=1, le=2**24)]
Heads = Annotated[int, Field(strict=True, ge=1, le=1024)]
HeadDim = Annotated[int, Field(strict=True, ge=8, le=256, multiple_of=8)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Flag = Annotated[bool, Field(strict=True)]
Bound = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Window = tuple[Bound | None, Bound | None]

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+@-]{0,99}$"  # fit for the name of a file


class BackendConfig(StrictModel):
    """A backend of the sweep; in YAML also just its key."""

    backend: str = Field(min_length=1, description=(
        "key of the backend in the registry, such as `jfa` or `fa4`, or `package.module:Class` for one of your own; "
        "`fa4@4.0.0b15` is `fa4` in the environment of that name"))
    name: str = Field(default="", pattern=r"^$|" + NAME, description=(
        "label in records and plots; if left out the key, or the class of a `package.module:Class`"))
    environment: str = Field(default="", pattern=r"^$|" + NAME, description=(
        "named environment whose packages its worker uses, see `make env`; if left out the harness's own"))
    options: dict[str, Any] = Field(default_factory=dict, description="options of this backend, such as a schedule")

    @model_validator(mode="before")
    @classmethod
    def _from_key(cls, data: Any) -> Any:
        if isinstance(data, str):
            data = {"backend": data}
        if isinstance(data, dict) and isinstance(data.get("backend"), str):
            data = {"name": data["backend"].rpartition(":")[2], **data}
            key, at, _ = data["backend"].partition("@")
            if at:
                data = {"environment": data["backend"], **data, "backend": key}
        return data


class TimingConfig(StrictModel):
    """How each row is timed."""

    engine: Engine = Field(
        default="cuda_events", description="what takes the time: CUDA events on a GPU (the host's clock on a CPU), the "
        "same without a pause between calls, or TritonBench's do_bench; see [there](tritonbench.md)")
    cold_l2: Flag = Field(default=True, description="flush the GPU's L2 cache before every sample")
    warmup: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=3, description="untimed calls before the first sample of each block")
    min_samples: Annotated[int, Field(strict=True, ge=30, le=100_000)] = Field(
        default=30, description="samples that every timed row has at least")
    max_samples: Annotated[int, Field(strict=True, ge=30, le=100_000)] = Field(
        default=200, description="samples of a row at most")
    max_seconds: float = Field(
        default=2.0, strict=True, gt=0, le=1e6, allow_inf_nan=False,
        description="seconds of sampling after which a row with `min_samples` stops")
    blocks: Annotated[int, Field(strict=True, ge=2, le=100, multiple_of=2)] = Field(
        default=2, description="blocks that a row's samples come in; backends take turns in the order A B B A")

    @model_validator(mode="after")
    def _check(self) -> TimingConfig:
        if self.max_samples < self.min_samples:
            raise problem(("max_samples",), f"got {self.max_samples}", f"at least min_samples, {self.min_samples}")
        if self.engine == "tritonbench" and not self.cold_l2:
            raise problem(("cold_l2",), "got false", "true with engine tritonbench, whose do_bench always flushes L2")
        return self


class CheckConfig(StrictModel):
    """How each row is checked against the oracle before it is timed."""

    max_pairs: Annotated[int, Field(strict=True, ge=1)] = Field(
        default=100_000_000, description="query-key pairs times query heads that the oracle computes at most; of a "
        "larger case it checks a seeded sample of sequences")
    tolerance_factor: float = Field(
        default=2.0, strict=True, ge=1, le=100,
        description="allowed error, as a multiple of the error of a plain computation in the case's dtype")


class SweepBlock(StrictModel):
    """One or more cases: a key that holds a list is swept, and lists of several keys multiply."""

    name: str = Field(pattern=NAME, description="name of the case; of several, what varies is appended")
    mode: tuple[Mode, ...] = Field(
        min_length=1, description="`self`: keys are as long as queries; `cross`: keys have lengths of their own; "
        "`short_kv`: the same with few keys; `broadcast_q`: one dense query block, shared by all sequences")
    batch: tuple[Count, ...] | None = Field(
        default=None, min_length=1,
        description="number of sequences; may be left out when the lengths are a `list` or `trace`")
    num_heads_q: tuple[Heads, ...] = Field(min_length=1, description="query heads")
    num_heads_kv: tuple[Heads, ...] | None = Field(
        default=None, min_length=1,
        description="key and value heads, a divisor of `num_heads_q`; equal to it if left out")
    head_dim: tuple[HeadDim, ...] = Field(min_length=1, description="elements of a head; a multiple of 8")
    dtype: tuple[DType, ...] = Field(default=("bf16",), min_length=1, description="type of q, k, v and dout")
    causal: tuple[Flag, ...] = Field(
        default=(False,), min_length=1, description="a query sees no later key; sequences are aligned at their ends")
    window: tuple[Window | None, ...] = Field(
        default=(None,), min_length=1, description="`[left, right]`: keys seen before and after the query's own "
        "position, null for no bound; null for no window")
    lengths: tuple[Distribution, ...] | None = Field(
        default=None, min_length=1, description="distribution of the lengths (mode `self`)")
    lengths_q: tuple[Distribution, ...] | None = Field(
        default=None, min_length=1, description="distribution of the queries' lengths (modes `cross`, `short_kv`)")
    lengths_k: tuple[Distribution, ...] | None = Field(
        default=None, min_length=1,
        description="distribution of the keys' lengths (modes `cross`, `short_kv`, `broadcast_q`)")
    len_q: tuple[Count, ...] | None = Field(
        default=None, min_length=1, description="rows of the dense query block (mode `broadcast_q`)")
    hazard: tuple[Hazard, ...] = Field(
        default=("none",), min_length=1, description="how the inputs are spoilt; see below")
    seed: tuple[Seed, ...] = Field(default=(0,), min_length=1, description="added to the config's seed")
    devices: tuple[DeviceType, ...] = Field(
        default=("cpu", "cuda"), min_length=1,
        description="device types that can run the block; elsewhere its rows are `unsupported`")

    @field_validator("mode", "batch", "num_heads_q", "num_heads_kv", "head_dim", "dtype", "causal", "lengths",
                     "lengths_q", "lengths_k", "len_q", "hazard", "seed", "devices", mode="before")
    @classmethod
    def _scalar_is_one(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, (list, tuple)) else (value,)

    @field_validator("window", mode="before")
    @classmethod
    def _pair_is_one(cls, value: Any) -> Any:
        is_pair = isinstance(value, (list, tuple)) and len(value) == 2 and not any(isinstance(x, list) for x in value)
        return (value,) if value is None or is_pair else value

    @model_validator(mode="after")
    def _check_lengths(self) -> SweepBlock:
        needed_by = {"self": ("lengths",), "cross": ("lengths_q", "lengths_k"), "short_kv": ("lengths_q", "lengths_k"),
                     "broadcast_q": ("len_q", "lengths_k")}
        needed = list(dict.fromkeys(key for mode in self.mode for key in needed_by[mode]))
        modes = ", ".join(self.mode)
        for key in ("lengths", "lengths_q", "lengths_k", "len_q"):
            if key in needed and getattr(self, key) is None:
                raise problem((key,), f"missing; mode {modes} needs {' and '.join(needed)}")
            if key not in needed and getattr(self, key) is not None:
                raise problem((key,), f"not used by mode {modes}", f"only {' and '.join(needed)}")
        return self


class BenchConfig(StrictModel):
    """A whole config."""

    name: str = Field(pattern=NAME, description="name of the config; files of a run are named after it")
    description: str = Field(default="", description="what it is for, in a line or two")
    seed: Seed = Field(default=0, description="seed of lengths and inputs")
    backends: tuple[BackendConfig, ...] = Field(
        min_length=1, description="what to measure: a list of keys, or of mappings with `backend`, `name`, `options`")
    directions: tuple[Direction, ...] = Field(
        default=("fwd", "bwd"), min_length=1, description="forward, backward or both")
    scopes: tuple[Scope, ...] = Field(
        default=("kernel", "operation"), min_length=1,
        description="`kernel`: device work on prepared inputs; `operation`: all that a training step pays")
    timing: TimingConfig = Field(default=TimingConfig(), description="how rows are timed")
    check: CheckConfig = Field(default=CheckConfig(), description="how rows are checked")
    timeout_s: float = Field(
        default=600.0, strict=True, ge=1, le=1e6, allow_inf_nan=False,
        description="seconds after which a backend that doesn't answer on a case is a `hang`")
    cases: tuple[SweepBlock, ...] = Field(min_length=1, description="what to compute: a list of sweep blocks")
    _source: YamlSource | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _check(self) -> BenchConfig:
        for key, values in (("backends", [backend.name for backend in self.backends]),
                            ("directions", self.directions), ("scopes", self.scopes)):
            for index, value in enumerate(values):
                if value in values[:index]:
                    hint = "different names (give each a `name`)" if key == "backends" else "each once"
                    raise problem((key, index), f"{value!r} stands there twice", hint)
        return self

    @property
    def source(self) -> Path | None:
        """The file that the config was read from."""
        return Path(self._source.file) if self._source else None

    @property
    def config_hash(self) -> str:
        """12 hex digits: a hash of all values but the description, defaults and the lengths of traces included."""
        content = self.model_dump(mode="json", exclude={"description"})
        content["traces"] = [trace.lengths for block in self.cases for trace in _traces(block)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def error(self, key: KeyPath, text: str, allowed: str = "") -> ConfigError:
        """A `ConfigError` at ``key``, such as ``("cases", 2, "batch")``, naming file and line."""
        return (self._source or YamlSource("config", "")).error(key, text, allowed)


def load_config(path: Path | str) -> BenchConfig:
    """Read and validate a config. Raises `UserError` (unreadable file) or `ConfigError` (file, key, value, allowed)."""
    source = YamlSource.read(path)
    config = source.validate(BenchConfig)
    config._source = source
    return config


def _traces(value: Any) -> list[TraceLengths]:
    """Every trace within a model, tuple or value, in order."""
    if isinstance(value, TraceLengths):
        return [value]
    if isinstance(value, StrictModel):
        value = tuple(getattr(value, key) for key in type(value).model_fields)
    return [trace for item in value for trace in _traces(item)] if isinstance(value, tuple) else []
