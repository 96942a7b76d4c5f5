"""`Machine`: what a GPU can do, from a YAML file in which every figure says where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import core_schema
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

#: Where a figure comes from. ``assumed``: as another machine's, or an argument in its source; nobody measured it.
Kind = Literal["published", "architectural", "measured", "fitted", "assumed"]
MACHINES = Path(__file__).parent.parent / "machines"
#: Figures that times are divided by.
DIVISORS = ("sms", "clock_mhz", "hbm_tbps", "l2_bytes", "port_bytes", "tensor_flops", "smem_bytes", "issue", "fma",
            "alu", "mufu")
TENSOR_MEMORY = ("tmem_read_bytes", "tmem_write_bytes")  # likewise, where there is one


class Figure(float):
    """A number with its ``kind`` (see `Kind`) and ``source``, read from ``{value: ..., kind: ..., source: ...}``."""

    kind: Kind
    source: str

    @classmethod
    def make(cls, value: float, kind: Kind, source: str) -> Figure:
        """A figure from its parts."""
        figure = cls(value)
        figure.kind, figure.source = kind, source
        return figure

    @classmethod
    def _read(cls, data: Any) -> Figure:
        if isinstance(data, Figure):
            return data
        if not isinstance(data, dict) or set(data) != {"value", "kind", "source"}:
            raise ValueError("expected {value: a number, kind: ..., source: text}")
        value, kind, source = data["value"], data["kind"], data["source"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"value: expected a number from 0 on, got {value!r}")
        if kind not in get_args(Kind):
            raise ValueError(f"kind: expected one of {', '.join(get_args(Kind))}, got {kind!r}")
        if not isinstance(source, str) or not source.strip():
            raise ValueError(f"source: expected text, got {source!r}")
        return cls.make(float(value), kind, source)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._read)


class Machine(BaseModel):
    """A GPU. Clocks are SM clocks; bytes and operations are of one SM unless the name says ``chip``.

    Frozen; ``changed`` gives another. Attributes by group:

    - the chip: ``sms``, ``clock_mhz`` (highest), ``tensor_load`` (how much longer a clock gets under the power cap
      where tensor cores are always busy), ``power_window_ms`` (the cap averages over it, so idle time counts);
    - memory: ``hbm_tbps`` (what a copy reaches), ``l2_bytes`` (a clock and SM), ``l2_mib`` (that data can count on),
      ``drift_share`` (of what CTAs walk at one moment, the part that others still have to read),
      ``port_bytes`` (a clock and SM at most), ``l2_clocks`` and ``hbm_clocks`` (latency of a bulk copy),
      ``load_clocks`` and ``l1_clocks`` (of a scalar load), ``reduce_ratio`` (a byte reduce-added, in bytes stored);
    - tensor cores: ``tensor_flops`` (a clock), ``tensor_clocks`` (from a
      matmul's last clock to its result), ``port_clocks`` (that an instruction keeps them from the registers, where
      accumulators are there);
    - the rest of an SM: ``smem_bytes``, ``tmem_read_bytes``, ``tmem_write_bytes`` (a clock), ``issue`` (warp
      instructions a clock), ``fma``, ``alu``, ``mufu`` (lanes a clock), ``chain`` (clocks an instruction of one warp
      alone), ``overhead`` (instructions beside those that the source names, as a share of them);
    - synchronisation, clocks: ``wait_clocks`` (a wait that finds its barrier complete), ``wake_clocks`` (from
      completion to a waiting task), ``arrive_clocks``, ``sync_clocks`` (a barrier of warps), ``fence_clocks``,
      ``issue_clocks`` (to issue a bulk copy or a matmul), ``shuffle_clocks`` (a reduction across lanes);
    - launches: ``launch_us`` (start and end of a kernel).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    arch: Literal[90, 100]
    note: str

    sms: Figure
    clock_mhz: Figure
    tensor_load: Figure
    power_window_ms: Figure

    hbm_tbps: Figure
    l2_bytes: Figure
    l2_mib: Figure
    drift_share: Figure
    port_bytes: Figure
    l2_clocks: Figure
    hbm_clocks: Figure
    load_clocks: Figure
    l1_clocks: Figure
    reduce_ratio: Figure

    tensor_flops: Figure
    port_clocks: Figure
    tensor_clocks: Figure

    smem_bytes: Figure
    tmem_read_bytes: Figure
    tmem_write_bytes: Figure
    issue: Figure
    fma: Figure
    alu: Figure
    mufu: Figure
    chain: Figure
    overhead: Figure

    wait_clocks: Figure
    wake_clocks: Figure
    arrive_clocks: Figure
    sync_clocks: Figure
    fence_clocks: Figure
    issue_clocks: Figure
    shuffle_clocks: Figure

    launch_us: Figure

    @field_validator(*DIVISORS, *TENSOR_MEMORY)
    @classmethod
    def _above_zero(cls, figure: Figure, info: ValidationInfo) -> Figure:
        if not figure > 0 and (info.field_name in DIVISORS or info.data.get("arch") == 100):
            raise ValueError(f"value: expected a number above 0, got {figure:g}")
        return figure

    @field_validator("sms")
    @classmethod
    def _whole(cls, figure: Figure) -> Figure:
        if not figure.is_integer():
            raise ValueError(f"value: expected a whole number, got {figure:g}")
        return figure

    def changed(self, **values: float) -> Machine:
        """The same with other values of some figures; their kind becomes ``assumed``."""
        figures = {name: Figure.make(value, "assumed", f"changed from {getattr(self, name):g}")
                   for name, value in values.items()}
        return self.model_copy(update=figures)


def load_machine(name: str | Path) -> Machine:
    """The machine of that name in ``kernels/simulator/machines`` (``h200``, ``b200``), or of a YAML file.

    Raises `ValueError`, one line that names the file, the key, the value and what is allowed.
    """
    path = Path(name) if str(name).endswith((".yaml", ".yml")) else MACHINES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in MACHINES.glob("*.yaml")))
        raise ValueError(f"machine: {name} is neither a file nor one of {known}")
    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: can't be read: {error}") from None
    except YAMLError as error:
        raise ValueError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a mapping of figures by name, got {type(data).__name__}")
    try:
        return Machine.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        what = {"missing": "is missing", "extra_forbidden":
                f"unknown key; known are {', '.join(Machine.model_fields)}"}.get(first["type"], message)
        raise ValueError(f"{path}: {key}: {what}") from None
