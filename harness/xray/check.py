"""The static gate: what must not get worse in compiled kernels, against a committed baseline. Needs no GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.records import Status
from harness.xray.rows import XrayRow

SMEM_LIMIT = 232_448  # bytes that a CTA can have
TMEM_LIMIT = 512  # columns that an SM has
BARRIERS = ("mbar_wait", "mbar_arrive", "named_barrier")
MARGIN = 0.10  # share by which a count of a main loop may grow; a count below 10 may not grow at all


@dataclass(frozen=True)
class Finding:
    """``check`` is one of missing, new, failed, smem, tmem, spill, setmaxnreg, loop and barrier."""

    row: XrayRow
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.row.label}: {self.check}: {self.text}"


def check(rows: Sequence[XrayRow], baseline: Sequence[XrayRow],
          offered: Collection[tuple[str, str, str, str]] | None = None) -> list[Finding]:
    """What is worse in ``rows`` than in ``baseline``, or beyond what a GPU has.

    Rows meet by `XrayRow.key`. A kernel or role that a compiled configuration lost is ``missing``, and one that the
    baseline doesn't know is ``new``. Rows of the baseline whose configuration was not compiled this time are not asked
    for, unless ``offered`` is given and doesn't list them: the keys' first four parts (arch, backend, shape, config) of
    all that could be compiled. Fewer instructions, spills or bytes are no finding, but for barriers.
    """
    known = {row.key: row for row in baseline if row.status is Status.OK}
    compiled = {row.key[:4] for row in rows if row.status is Status.OK}
    found = []
    for row in rows:
        if row.status is not Status.OK:
            found.append(Finding(row, "failed", f"{row.status.value}: {row.message}"))
            continue
        found += _limits(row)
        old = known.get(row.key)
        if old is None:
            found.append(Finding(row, "new", "is not in the baseline"))
        else:
            found += _worse(row, old)
    there = {row.key for row in rows}
    backends = {row.backend for row in rows}
    for key, old in known.items():
        gone = offered is not None and old.backend in backends and key[:4] not in offered
        if gone or (key[:4] in compiled and key not in there):
            found.append(Finding(old, "missing", "is in the baseline, and is no longer there"))
    return found


def _limits(row: XrayRow) -> Iterator[Finding]:
    if row.smem_bytes is not None and row.smem_bytes > SMEM_LIMIT:
        yield Finding(row, "smem", f"{row.smem_bytes:,} B of shared memory; a CTA has {SMEM_LIMIT:,}")
    if row.tmem_columns is not None and row.tmem_columns > TMEM_LIMIT:
        yield Finding(row, "tmem", f"{row.tmem_columns} columns of tensor memory; an SM has {TMEM_LIMIT}")


def _worse(row: XrayRow, old: XrayRow) -> Iterator[Finding]:
    for name, what in (("stack_bytes", "B of stack"), ("local_bytes", "B of local memory accessed")):
        bytes_now, bytes_before = getattr(row, name) or 0, getattr(old, name) or 0
        if bytes_now > bytes_before:
            yield Finding(row, "spill", f"{bytes_now} {what}, was {bytes_before}")
    now, before = row.register_requests, old.register_requests
    lost = [kind for kind in before if now.get(kind, 0) < before[kind]]
    if lost:
        yield Finding(row, "setmaxnreg", f"lost {', '.join(lost)}: {row.setmaxnreg or 'none'}, was {old.setmaxnreg}")
    for name, count in row.counts.items():
        if name != "packed" and count > old.counts.get(name, 0) * (1 + MARGIN):  # packing is no more work
            yield Finding(row, "loop", f"{count} {name} in the main loop, was {old.counts.get(name, 0)}")
        if name in BARRIERS and count < old.counts.get(name, 0):
            yield Finding(row, "barrier", f"{count} {name} in the main loop, was {old.counts[name]}")
