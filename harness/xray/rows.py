"""`XrayRow`: one line of the CSV, its columns in order, and how it is written and read."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import UserError
from harness.records import Status
from harness.xray.counting import COUNTS

KERNEL = "kernel"  # the role of a row about the whole kernel


def _count(description: str) -> Any:
    return Field(None, ge=0, description=description)


class XrayRow(BaseModel):
    """A kernel as a whole, or one of its roles. An empty cell (None) does not apply, or nothing was compiled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arch: str = Field(description="what was compiled for: sm_90a or sm_100a")
    backend: str = Field(description="jfa or fa4")
    version: str = Field(default="", description="distribution and version that compiled: fbtriton, or flash-attn-4")
    shape: str = Field(description="direction, head dimension, mask, then gqaN or bcast: fwd-d128-causal, say")
    config: str = Field(description="the variant's name")
    kernel: str = Field(default="", description="the kernel's name")
    role: str = Field(default=KERNEL, description="kernel for all of it, or a role as harness.xray.main_loops names it")
    status: Status = Field(default=Status.OK, description="ok, unsupported, import_error or crash")
    message: str = Field(default="", description="why the row isn't ok")
    threads: int | None = _count("threads of a CTA")
    setmaxnreg: str = Field(default="", description="kernel: setmaxnreg requests in the PTX, such as dec24 x2, inc232")
    registers: str = Field(default="", description="a thread's registers; kernel: at launch; role: as last set before "
                                                   "its main loops, 0 for as launched, joined by /")
    stack_bytes: int | None = _count("kernel: stack a thread, where spills go")
    local_bytes: int | None = _count("bytes of local memory that the code's LDL and STL access, each counted once")
    smem_bytes: int | None = _count("kernel: shared memory a CTA, static and dynamic")
    tmem_columns: int | None = _count("kernel: columns of tensor memory")
    code_bytes: int | None = _count("kernel: machine code")
    loops: int | None = _count("main loops of the role; the counts are those of the one in steady state")
    instructions: int | None = _count("instructions in the main loop")
    mma: int | None = _count("HGMMA, UTCHMMA and relatives")
    ex2: int | None = _count("MUFU.EX2")
    ffma: int | None = _count("FFMA, FFMA2")
    fmul: int | None = _count("FMUL, FMUL2")
    fadd: int | None = _count("FADD, FADD2")
    packed: int | None = _count("of these three, the packed ones, which do two operations: FFMA2, FMUL2, FADD2")
    ldtm: int | None = _count("LDTM: loads from tensor memory")
    sttm: int | None = _count("STTM: stores to tensor memory")
    tma_load: int | None = _count("UTMALDG, UBLKCP: TMA loads")
    tma_store: int | None = _count("UTMASTG, UBLKCP: TMA stores")
    tma_reduce: int | None = _count("UTMAREDG, UBLKRED: TMA reductions")
    mbar_wait: int | None = _count("SYNCS.PHASECHK: waits for an mbarrier, retries apart")
    mbar_arrive: int | None = _count("SYNCS.ARRIVE, UTCBAR: arrivals at an mbarrier")
    named_barrier: int | None = _count("BAR.SYNC, BAR.ARV")
    local_load: int | None = _count("LDL")
    local_store: int | None = _count("STL")

    @property
    def key(self) -> tuple[str, str, str, str, str, str]:
        """``(arch, backend, shape, config, kernel, role)``: unique within a file."""
        return (self.arch, self.backend, self.shape, self.config, self.kernel, self.role)

    @property
    def label(self) -> str:
        """The key in words."""
        return " ".join(part for part in self.key if part)

    @property
    def register_requests(self) -> dict[str, int]:
        """How often each kind of setmaxnreg stands in the PTX: ``{"dec24": 2}``."""
        parts = (part.partition(" x") for part in self.setmaxnreg.split(", ") if part)
        return {kind: int(times or 1) for kind, _, times in parts}

    @property
    def counts(self) -> dict[str, int]:
        """The main loop's counts; none for a whole kernel."""
        return {name: value for name in COUNTS if (value := getattr(self, name)) is not None}


COLUMNS: tuple[str, ...] = tuple(XrayRow.model_fields)


def to_csv(rows: Iterable[XrayRow]) -> str:
    """The rows as CSV with a header; an empty cell is None or nothing to say."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = row.model_dump(mode="json")
        writer.writerow(["" if values[name] is None else values[name] for name in COLUMNS])
    return text.getvalue()


def read_csv(path: Path) -> list[XrayRow]:
    """What `to_csv` wrote. Raises `UserError` naming the file, and the line and column that are wrong."""
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't read it: {getattr(error, 'strerror', None) or error}") from None
    rows: list[XrayRow] = []
    for number, line in enumerate(lines, 2):
        if tuple(line) != COLUMNS:
            raise UserError(f"{path}:{number}: not the columns of harness xray; allowed: {', '.join(COLUMNS)}")
        try:
            rows.append(XrayRow.model_validate({name: value for name, value in line.items() if value}))
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{path}:{number}: {first['loc'][0]}: got {first['input']!r}; {first['msg']}") from None
    if not rows:
        raise UserError(f"{path}: holds no rows")
    return rows


def merge(old: Sequence[XrayRow], new: Sequence[XrayRow],
          offered: Sequence[tuple[str, str, str, str]]) -> list[XrayRow]:
    """``new`` in place of the configurations that it has usable rows of; the others' old rows stay.

    ``offered`` are the configurations that there are, by the first four parts of `XrayRow.key`, in order: rows of
    others are dropped.
    """
    fresh = [row for row in new if row.status is Status.OK]
    replaced = {row.key[:4] for row in fresh}
    place = {key: at for at, key in enumerate(offered)}
    rows = [*fresh, *(row for row in old if row.key[:4] not in replaced)]
    return sorted((row for row in rows if row.key[:4] in place), key=lambda row: place[row.key[:4]])
