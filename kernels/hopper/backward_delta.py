"""delta and lse inside the main kernel of the Hopper backward: what its otherwise idle warps do."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_parts import FIELDS, tile_at

ROWS = tl.constexpr(64)  # of a block of Q
LOG2_E = tl.constexpr(1.4426950408889634)
CHUNK = tl.constexpr(16)  # columns at a time: the task has 24 registers a thread


@triton.jit
def _prefetch(out, dout, record, i, head, row_stride, D: tl.constexpr):
    """Both rows' blocks of step ``i`` into L2, a line of 128 bytes a thread and tensor."""
    thread = tl.arange(0, 128)
    row = (tl.load(record + 9) + i) * ROWS + thread // 2
    at = (tl.load(record + 2) + row).to(tl.int64) * row_stride + head * D + thread % 2 * 64
    inside = row < tl.load(record + 1)
    tlx.prefetch(out + at, "L2", inside)
    tlx.prefetch(dout + at, "L2", inside)


@triton.jit
def row_statistics(out, dout, lse, lse_stride, row_stride, tiles, begin, end, start, lse_smem, delta_smem, full, empty,
                   GROUP: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr, ROTATE: tl.constexpr):
    """For every step of a CTA, in order: lse * log2(e) (+inf where P is to be 0) and delta = rowsum(O * dO) of 64 rows.

    Reads O once a step. ``full`` and ``empty`` are the barriers of the ``SLOTS`` slots of both buffers.
    """
    n = 0
    for place in tl.range(begin, end, num_stages=1):
        t = tile_at(place, begin, end, start, ROTATE)
        record = tiles + t * FIELDS
        steps = tl.load(record + 6)
        if t + 1 < end:
            after = record + FIELDS
            if tl.load(after + 6) > 0:
                _prefetch(out, dout, after, 0, tl.load(after + 13) * GROUP, row_stride, D)
        for g in tl.range(0, GROUP, num_stages=1):
            head = tl.load(record + 13) * GROUP + g
            for i in tl.range(0, steps, num_stages=1):
                slot = n % SLOTS
                if i + 1 < steps:
                    _prefetch(out, dout, record, i + 1, head, row_stride, D)
                row = (tl.load(record + 9) + i) * ROWS + tl.arange(0, ROWS)
                inside = row < tl.load(record + 1)
                first = tl.load(record + 2)
                at = (first + row).to(tl.int64)[:, None] * row_stride + head * D + tl.arange(0, CHUNK)[None, :]
                delta = tl.zeros([ROWS], tl.float32)
                for c in tl.range(0, D, CHUNK, num_stages=1):
                    o = tl.load(out + at + c, mask=inside[:, None], other=0.0).to(tl.float32)  # [ROWS, CHUNK]
                    do = tl.load(dout + at + c, mask=inside[:, None], other=0.0).to(tl.float32)
                    delta += tl.sum(o * do, 1)
                lse2 = tl.load(lse + head.to(tl.int64) * lse_stride + first + row, mask=inside,
                               other=float("inf")) * LOG2_E
                lse2 = tl.where(lse2 == -float("inf"), float("inf"), lse2)
                tlx.barrier_wait(empty[slot], ((n // SLOTS) & 1) ^ 1)
                tlx.local_store(lse_smem[slot], lse2)
                tlx.local_store(delta_smem[slot], delta)
                tlx.barrier_arrive(full[slot])
                n += 1
