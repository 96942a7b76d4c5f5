"""Sequences whose tiles several CTAs share, without a pass that zeroes their dQ and one that casts it.

Each block of Q (and query head) has a counter: the tiles that have added their dQ of it to the accumulator in fp32.
The tile that is dealt first *stores* to the block, the others wait for the counter and *add*. When all are in, the idle
warps of one CTA cast the block to dq. What is counted and who casts is in a tile's record, see
`kernels.hopper.backward_schedule`. The counters are zeroed by the kernel before.

Nobody waits in a circle, as long as all CTAs of the launch are resident: there are no more of them than SMs, one fits
on each, and the launch is cooperative, so that no other kernel's CTAs can come between them. Number all tiles as they
are dealt; a CTA does its own in that order. Its writer waits only for tiles of the same sequence and head that were
dealt earlier, and has counted all of a tile's dQ before it waits for the next one's blocks. So of the tiles that
aren't done, the one dealt first can always go on: what it may wait for is done. Idle warps wait for tiles dealt later
too, but nobody waits for idle warps.

Both proxies meet here: dQ is written by TMA, counters are ordinary memory, casts read dQ by ordinary loads. Hence a
writer waits until its stores are complete (not only read) before it counts, and fences both there and behind its own
waiting.
"""

import triton
import triton.language as tl

from kernels.hopper.backward_parts import spread_row, stores_done
from kernels.hopper.backward_record import (
    ACC_BLOCK,
    ACC_GROUP,
    CAST_FROM,
    CASTS,
    FIELDS,
    HEAD,
    Q_LEN,
    Q_START,
    ROW_BLOCK,
    TOUCHED,
)


@triton.jit
def await_adds(counter, wanted):
    """A writer waits until ``wanted`` tiles have added to a block; its TMA accesses come after their adds."""
    return tl.inline_asm_elementwise("""
    {
    .reg .pred %p;
    _again:
    ld.acquire.gpu.global.s32 $0, [$1];
    setp.lt.s32 %p, $0, $2;
    @%p bra _again;
    fence.proxy.async.global;
    }""", "=r,l,r", [counter, wanted], tl.int32, False, 1)


@triton.jit
def await_all_adds(counter, wanted):
    """Idle warps wait likewise, for long: with pauses, and without emptying L1 at every look."""
    return tl.inline_asm_elementwise("""
    {
    .reg .pred %p;
    _again:
    ld.relaxed.gpu.global.s32 $0, [$1];
    setp.lt.s32 %p, $0, $2;
    @%p nanosleep.u32 256;
    @%p bra _again;
    ld.acquire.gpu.global.s32 $0, [$1];
    fence.proxy.async.global;
    }""", "=r,l,r", [counter, wanted], tl.int32, False, 1)


@triton.jit
def count_tile(counter):
    """A one-warp task counts a tile, all of whose dQ is complete."""
    return tl.inline_asm_elementwise("""
    {
    .reg .pred %p;
    .reg .b32 %lane;
    bar.warp.sync 0xffffffff;
    mov.u32 %lane, %laneid;
    setp.eq.s32 %p, %lane, 0;
    @%p red.release.gpu.global.add.s32 [$1], 1;
    mov.u32 $0, 0;
    }""", "=r,l", [counter], tl.int32, False, 1)


@triton.jit
def count_add(counter):
    """The same, of one block: this task's TMA stores so far, once they are complete."""
    stores_done(0)
    return count_tile(counter)


@triton.jit
def cast_counted(acc, dq, counters, tiles, begin, end, num_blocks, row_stride, GROUP: tl.constexpr,
                 BLOCK_M: tl.constexpr, D: tl.constexpr, HINTS: tl.constexpr):
    """The idle warps of a CTA cast the blocks that its tiles' records leave to them: dq = accumulator."""
    ROWS: tl.constexpr = 512 // D  # 16 bytes of fp32 a thread
    GONE: tl.constexpr = "evict_first" if HINTS else ""
    row0 = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, D)[None, :]
    for t in tl.range(begin, end, num_stages=1):
        record = tiles + t * FIELDS
        for i in tl.range(0, GROUP * tl.load(record + CASTS), num_stages=1):
            m = tl.load(record + CAST_FROM) + i // GROUP
            head = tl.load(record + HEAD) * GROUP + i % GROUP
            await_all_adds(counters + head * num_blocks + tl.load(record + ROW_BLOCK) + m, tl.load(record + TOUCHED))
            block = tl.load(record + ACC_BLOCK) + i % GROUP * tl.load(record + ACC_GROUP) + m
            source = acc + block.to(tl.int64) * (BLOCK_M * D)
            into = dq + (tl.load(record + Q_START) + m * BLOCK_M).to(tl.int64) * row_stride + head * D
            rows = tl.minimum(tl.load(record + Q_LEN) - m * BLOCK_M, BLOCK_M)
            for left in tl.range(rows, 0, -2 * ROWS, num_stages=1):
                x = tl.load(source + (spread_row(row0) * D + column), eviction_policy=GONE)  # [ROWS, D]
                y = tl.load(source + (spread_row(ROWS + row0) * D + column), eviction_policy=GONE)
                to = into + (row0 * row_stride + column)
                tl.store(to, x.to(dq.dtype.element_ty), mask=row0 < left)
                tl.store(to + ROWS * row_stride, y.to(dq.dtype.element_ty), mask=row0 < left - ROWS)
                source += 2 * ROWS * D
                into += 2 * ROWS * row_stride
