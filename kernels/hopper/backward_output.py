"""The end of a consumer's tile: K is released, dV and dK leave.

They are staged for the writer, or stored by the consumer itself from the slots of V (unless LATE) and K (if KEEP).
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_alternate import is_mine
from kernels.hopper.backward_hold import leaves
from kernels.hopper.backward_parts import DS_READ, LAST_STAGED
from kernels.hopper.backward_record import HEAD, K_LEN, K_ROW, K_START
from kernels.hopper.backward_walk import gives
from kernels.hopper.ragged import store_rows


@triton.jit
def _stage_of_use(use, bar, CID: tl.constexpr, c: tl.constexpr):
    """The stage of a use of the staging, when this consumer's slot there is free."""
    stage = use % c.STAGES
    tlx.barrier_wait(bar.ready[2 * stage + CID], (use // c.STAGES) & 1)
    return stage


@triton.jit
def _stage_blocks(two, last, first, stage, buf, CID: tl.constexpr, c: tl.constexpr):
    """dV or dK of a consumer's last block of keys, and of its first if there are two, to the staging."""
    if c.BLOCKS == 2:
        tlx.local_store(buf.dkv[CID][2 * stage + 1 - two], first.to(c.DTYPE))
    tlx.local_store(buf.dkv[CID][c.BLOCKS * stage + two], last.to(c.DTYPE))


@triton.jit
def end_tile(dk, dv, dk0, dv0, desc_dk, desc_dv, tile, kb, n_step, buf, bar, CID: tl.constexpr, c: tl.constexpr):
    """``dk``, ``dv`` fp32 [64, D] of a tile, and ``dk0``, ``dv0`` of the first of two blocks of keys.

    ``n_step``: the CTA's steps so far, this tile's among them.
    """
    use = n_step + c.USES * tile.n_kv + tile.n_idle  # of the staging, the one after the last step's
    leave = leaves(tile.held, tile.steps - 1, tile.steps)
    unsaid = (tile.steps > 0) & (gives(tile.steps - 1, tile.steps, tile.role) == 0) & (leave == 0)
    mine = is_mine(n_step - 1, CID)  # the last step's dQ
    if c.ALTERNATE:
        unsaid &= mine
    if c.LATE and unsaid:
        tlx.fence("async_shared")
        before = (use + c.STAGES - 1) % c.STAGES * 2
        tlx.barrier_arrive(bar.full[before + CID])
        if c.ALTERNATE:
            tlx.barrier_arrive(bar.full[before + 1 - CID])
    if c.ALTERNATE and mine & (tile.steps > 0):
        tlx.named_barrier_arrive(LAST_STAGED + CID, 256)
    if c.KEEP:
        tlx.named_barrier_wait(DS_READ, 256)  # both have done with this K, and with dS
    else:
        tlx.barrier_arrive(bar.k_empty[kb])
    k_start, k_len = tl.load(tile.record + K_START), tl.load(tile.record + K_LEN)
    row = tl.load(tile.record + K_ROW) + CID * 64
    column = tl.load(tile.record + HEAD) * c.D
    if c.LATE:
        if tile.begin == tile.end:  # else its last step with keys has
            tlx.barrier_arrive(bar.v_empty[kb])
        stage = _stage_of_use(use, bar, CID, c)
        _stage_blocks(tile.two, dv, dv0, stage, buf, CID, c)
        tlx.fence("async_shared")
        tlx.barrier_arrive(bar.full[2 * stage + CID])
    else:
        v = buf.kv[2 * c.NUM_KV + kb * 2 + CID]
        tlx.local_store(v, dv.to(c.DTYPE))
        tlx.fence("async_shared")
        store_rows(desc_dv, v, k_start, k_len, row, column, c.ONCE)
    if c.KEEP:
        k = buf.kv[kb * 2 + CID]
        tlx.local_store(k, dk.to(c.DTYPE))
        tlx.fence("async_shared")
        store_rows(desc_dk, k, k_start, k_len, row, column, c.ONCE)
    else:
        use += c.USES - 1
        if c.HOLD:
            use += leave.to(tl.int32)  # dV's slot again
        if c.ALTERNATE and (mine == 0) & (tile.steps > 0):
            tlx.named_barrier_wait(LAST_STAGED + 1 - CID, 256)
        stage = _stage_of_use(use, bar, CID, c)
        _stage_blocks(tile.two, dk, dk0, stage, buf, CID, c)
        tlx.fence("async_shared")
        tlx.barrier_arrive(bar.full[2 * stage + CID])
    if not c.LATE:
        tlx.async_descriptor_store_wait(0)
        tlx.barrier_arrive(bar.v_empty[kb])
    if c.KEEP:
        tlx.barrier_arrive(bar.k_empty[kb])


@triton.jit
def even_out(tile, n_step, bar, CID: tl.constexpr, c: tl.constexpr):
    """PAIR, after `end_tile`: the use that nobody uses after an odd number of steps alone, see `backward_pair`.

    Returns how many there are so far.
    """
    n_idle = tile.n_idle
    if (tile.role == 0) & (tile.steps % 2 == 1):
        stage = _stage_of_use(n_step + c.USES * tile.n_kv + n_idle + c.USES, bar, CID, c)
        tlx.barrier_arrive(bar.full[2 * stage + CID])
        n_idle += 1
    return n_idle
