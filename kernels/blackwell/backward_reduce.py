"""The backward's reduction role, 4 warps: dQ of each step from tensor memory to global memory.

What becomes of it depends on its block of Q, see `kernels.hopper.backward_schedule`: a step that is the last to touch
the block stores dq itself; else the first stores to the fp32 accumulator, and others add to it.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.blackwell.backward_walk import FETCHED, HALF
from kernels.hopper.backward_record import (
    ACC_BLOCK,
    ACC_GROUP,
    AFTER_ITSELF,
    BLOCK,
    FIELDS,
    FIRST_FROM,
    HEAD,
    LASTS,
    PARTIALS,
    Q_LEN,
    Q_START,
    STEPS,
)
from kernels.hopper.ragged import store_rows


class Target(NamedTuple):
    """Where a step's dQ goes: row ``acc_row`` of the accumulator, or rows of dq if it is the ``last``.

    ``partial``: it is the last, and the accumulator has what is still to be added.
    """

    first: tl.tensor
    last: tl.tensor
    partial: tl.tensor
    acc_row: tl.tensor
    q_start: tl.tensor
    q_len: tl.tensor
    row: tl.tensor
    column: tl.tensor


@triton.jit
def _stores_done(x):
    """Wait until this thread's bulk stores are complete and visible, not only read, for later bulk accesses too."""
    return tl.inline_asm_elementwise("cp.async.bulk.wait_group 0; fence.proxy.async; mov.u32 $0, $1;", "=r,r", [x],
                                     tl.int32, False, 1)


@triton.jit
def _columns(buf, part: tl.constexpr, c: tl.constexpr):
    """Part ``part`` of dQ, ``[LANES, COLUMNS]`` as staged."""
    if c.PAIR:
        return tlx.local_load(tlx.local_slice(buf.dq_lanes[0], [0, part * c.COLUMNS], [c.BLOCK_M, c.COLUMNS]))
    else:
        return tlx.local_load(tlx.local_slice(buf.dq_tmem[0], [0, part * c.COLUMNS], [c.BLOCK_M, c.COLUMNS]))


@triton.jit
def _release(bar, c: tl.constexpr):
    if c.PAIR:
        tlx.barrier_arrive(bar.dq_empty[0], 1, remote_cta_rank=0)
    else:
        tlx.barrier_arrive(bar.dq_empty[0])


@triton.jit
def _fetched(desc_acc, slot, part: tl.constexpr, fetches, to, buf, bar, c: tl.constexpr):
    """A part of the accumulator, by way of the staging slot, which is free for other use then."""
    PIECES: tl.constexpr = 2 if c.PAIR else 1
    tlx.barrier_expect_bytes(bar.partial_full[0], c.BLOCK_M * c.COLUMNS * 4)
    for piece in tl.static_range(PIECES):
        tlx.async_descriptor_load(desc_acc, buf.staging_part[PIECES * slot + piece],
                                  [to.acc_row, piece * (c.D // 2) + part * c.COLUMNS], bar.partial_full[0])
    tlx.barrier_wait(bar.partial_full[0], fetches & 1)
    x = tlx.local_load(buf.staging[slot])
    tlx.named_barrier_wait(FETCHED, 128)
    return x


@triton.jit
def _put(desc_acc, desc_dq, x, part: tl.constexpr, use, fetches, to, work, buf, bar, c: tl.constexpr):
    """Part ``part`` of a step's dQ to memory, ``use`` parts after the first. Returns ``fetches``, its own counted.

    Of a pair's CTA the lower lanes hold columns of dQ's first half, the upper ones those of the second.
    """
    PIECES: tl.constexpr = 2 if c.PAIR else 1
    slot = use % c.STAGES
    tlx.async_descriptor_store_wait(PIECES * (c.STAGES - 1))  # the slot's last stores have left it
    if to.last:
        if to.partial:
            x += _fetched(desc_acc, slot, part, fetches, to, buf, bar, c)
            fetches += 1
        tlx.local_store(buf.final[2 * slot], (x * work.scale).to(c.DTYPE))
        tlx.fence("async_shared")
        for piece in tl.static_range(PIECES):
            store_rows(desc_dq, buf.final_part[2 * PIECES * slot + piece], to.q_start, to.q_len, to.row,
                       to.column + piece * (c.D // 2) + part * c.COLUMNS)
    else:
        tlx.local_store(buf.staging[slot], x)
        tlx.fence("async_shared")
        for piece in tl.static_range(PIECES):
            if to.first:
                tlx.async_descriptor_store(desc_acc, buf.staging_part[PIECES * slot + piece],
                                           [to.acc_row, piece * (c.D // 2) + part * c.COLUMNS])
            else:
                tlx.async_descriptor_store(desc_acc, buf.staging_part[PIECES * slot + piece],
                                           [to.acc_row, piece * (c.D // 2) + part * c.COLUMNS], store_reduce="add")
    return fetches


@triton.jit
def reduce(tile, n, fetches, desc_acc, desc_dq, work, buf, bar, c: tl.constexpr):
    """One tile, COLUMNS columns of each step's dQ at a time.

    ``n`` steps and ``fetches`` of partial dQ came before it. Returns both, this tile's counted.
    """
    PARTS: tl.constexpr = c.D // c.COLUMNS // (2 if c.PAIR else 1)
    ALONE: tl.constexpr = PARTS - c.RELEASE  # parts that are stored one by one
    rank = tlx.cluster_cta_rank() if c.PAIR else 0
    record = work.tiles + tile * FIELDS
    q_start, q_len = tl.load(record + Q_START), tl.load(record + Q_LEN)
    steps, block = tl.load(record + STEPS), tl.load(record + BLOCK)
    firsts, lasts, partials = tl.load(record + FIRST_FROM), tl.load(record + LASTS), tl.load(record + PARTIALS)
    head, acc_block, acc_group = tl.load(record + HEAD), tl.load(record + ACC_BLOCK), tl.load(record + ACC_GROUP)
    if tl.load(record + AFTER_ITSELF) != 0:  # the tile before it wrote to the same blocks
        _stores_done(n)
    for g in tl.range(0, c.GROUP, num_stages=1):
        column = (head * c.GROUP + g) * c.D
        for i in tl.range(0, steps, num_stages=1):
            row = (block + i) * c.BLOCK_M + rank * HALF
            acc_row = (acc_block + g * acc_group) * c.BLOCK_M + row
            to = Target(i >= firsts, i < lasts, i < partials, acc_row, q_start, q_len, row, column)
            use = n * PARTS
            tlx.barrier_wait(bar.dq_full[0], n & 1)
            for part in tl.static_range(ALONE):
                x = _columns(buf, part, c)
                fetches = _put(desc_acc, desc_dq, x, part, use + part, fetches, to, work, buf, bar, c)
            if c.RELEASE == 2:
                x = _columns(buf, ALONE, c)
                y = _columns(buf, ALONE + 1, c)
                _release(bar, c)
                fetches = _put(desc_acc, desc_dq, x, ALONE, use + ALONE, fetches, to, work, buf, bar, c)
                fetches = _put(desc_acc, desc_dq, y, ALONE + 1, use + ALONE + 1, fetches, to, work, buf, bar, c)
            elif c.RELEASE == 1:
                x = _columns(buf, ALONE, c)
                _release(bar, c)
                fetches = _put(desc_acc, desc_dq, x, ALONE, use + ALONE, fetches, to, work, buf, bar, c)
            else:
                _release(bar, c)
            n += 1
    return n, fetches
