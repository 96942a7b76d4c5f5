"""The backward's small kernels round the main one: delta and lse per block of Q before it, dQ's cast or sum after it.

All are memory-bound, one CTA to a block of rows of one query head, plain Triton.
"""

import triton
import triton.language as tl

from kernels.hopper.backward_parts import spread_row

BLOCK_FIELDS = tl.constexpr(6)  # of a row of the table of blocks, see `kernels.hopper.backward_schedule`
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["num_blocks", "shared_at", "shared_blocks", "lse_stride"])
def prepare_kernel(out, dout, lse, rows, dq, acc, blocks, num_blocks, lse_stride, row_stride, shared_at, shared_blocks,
                   delta_scale, BLOCK_M: tl.constexpr, D: tl.constexpr, NEGATE: tl.constexpr = False,
                   COUNTED: tl.constexpr = False):
    """Writes ``rows [heads, num_blocks, 2, BLOCK_M]``: lse * log2(e) (+inf where P is to be 0), ``delta_scale`` *
    rowsum(O * dO).

    NEGATE: both with the other sign, for a kernel whose packed arithmetic can add but not subtract.
    Also zeroes the block of the accumulator that others will add to, and the dq that no other kernel writes.
    COUNTED: ``acc`` is the counters of `kernels.hopper.backward_counted`, zeroed in its place.
    """
    heads = tl.num_programs(1)
    pid = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    block, head = pid // heads, pid % heads  # a block's heads together, as their rows are next to each other
    record = blocks + block * BLOCK_FIELDS
    start, length, first = tl.load(record), tl.load(record + 1), tl.load(record + 2)
    q_start, untouched, shared = tl.load(record + 3), tl.load(record + 4), tl.load(record + 5)
    row = first + tl.arange(0, BLOCK_M)
    inside = row < length
    column = tl.arange(0, D)[None, :]
    at = (start + row).to(tl.int64)[:, None] * row_stride + head * D + column
    o = tl.load(out + at, mask=inside[:, None], other=0.0).to(tl.float32)  # [BLOCK_M, D]
    do = tl.load(dout + at, mask=inside[:, None], other=0.0).to(tl.float32)
    lse2 = tl.load(lse + head.to(tl.int64) * lse_stride + start + row, mask=inside, other=float("inf")) * LOG2_E
    to = rows + (head * num_blocks + block).to(tl.int64) * (2 * BLOCK_M) + tl.arange(0, BLOCK_M)
    lse2 = tl.where(lse2 == -float("inf"), float("inf"), lse2)
    delta = tl.sum(o * do, 1) * delta_scale
    tl.store(to, -lse2 if NEGATE else lse2)
    tl.store(to + BLOCK_M, -delta if NEGATE else delta)
    if untouched != 0:
        at = (q_start + row).to(tl.int64)[:, None] * row_stride + head * D + column
        tl.store(dq + at, tl.zeros([BLOCK_M, D], dq.dtype.element_ty), mask=inside[:, None])
    if COUNTED:
        tl.store(acc + head * num_blocks + block, 0)
    elif shared >= 0:
        acc_row = (shared_at + head * shared_blocks + shared).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        tl.store(acc + acc_row[:, None] * D + column, tl.zeros([BLOCK_M, D], tl.float32))


@triton.jit(do_not_specialize=["shared_at", "shared_blocks"])
def cast_kernel(acc, dq, blocks, row_stride, shared_at, shared_blocks, scale, BLOCK_M: tl.constexpr, D: tl.constexpr,
                SPREAD: tl.constexpr = False):
    """dq = scale * accumulator, for the shared blocks of a table; SPREAD: its rows stand as `spread_row` says."""
    head = tl.program_id(1)
    record = blocks + tl.program_id(0) * BLOCK_FIELDS
    length, first = tl.load(record + 1), tl.load(record + 2)
    q_start, shared = tl.load(record + 3), tl.load(record + 5)
    row = tl.arange(0, BLOCK_M)
    inside = ((first + row < length) & (shared >= 0))[:, None]
    column = tl.arange(0, D)[None, :]
    acc_row = (shared_at + head * shared_blocks + shared).to(tl.int64) * BLOCK_M + (spread_row(row) if SPREAD else row)
    x = tl.load(acc + acc_row[:, None] * D + column, mask=inside, other=0.0)  # [BLOCK_M, D]
    at = (q_start + first + row).to(tl.int64)[:, None] * row_stride + head * D + column
    tl.store(dq + at, (x * scale).to(dq.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["len_q", "copies"])
def sum_kernel(acc, dq, len_q, copies, row_stride, scale, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, D: tl.constexpr,
               ROWS: tl.constexpr, SPREAD: tl.constexpr = False):
    """Broadcast-Q: dq = scale * sum of the copies in ``acc [heads_kv, copies, GROUP, rows, D]``, ROWS rows to a CTA.

    SPREAD as for `cast_kernel`.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    inside = (row < len_q)[:, None]
    column = tl.arange(0, D)[None, :]
    acc_rows = tl.cdiv(len_q, BLOCK_M) * BLOCK_M
    first = ((head // GROUP) * copies * GROUP + head % GROUP).to(tl.int64) * acc_rows
    at = acc + (first + (spread_row(row) if SPREAD else row))[:, None] * D + column
    total = tl.zeros([ROWS, D], tl.float32)
    for copy in tl.range(0, copies, num_stages=1):
        total += tl.load(at + copy.to(tl.int64) * GROUP * acc_rows * D, mask=inside, other=0.0)
    tl.store(dq + row.to(tl.int64)[:, None] * row_stride + head * D + column, (total * scale).to(dq.dtype.element_ty),
             mask=inside)
