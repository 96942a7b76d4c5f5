"""The backward's MMA role: five matmuls a step, issued by one warp, in an order that keeps the tensor core busy.

Step ``n``'s S and dP are issued before the arithmetic between them has finished step ``n - 1``:

    S(0) dP(0) dV(0), then for each further step: S(n) dK(n-1) dQ(n-1) dP(n) dV(n), at last dK dQ of the last step.

tcgen05 MMAs of a CTA run in the order of their issue, and a barrier on one completes when all before it are done. So
S(n) may overwrite P(n-1), which dV(n-1) has read by then, and dP(n) overwrites dS(n-1), which dK(n-1) has read.

Slots are made opaque: else the compiler keeps a descriptor for each 16 columns of every buffer in registers and
spills.
"""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_record import FIELDS, STEPS
from kernels.hopper.backward_step import opaque


@triton.jit
def _s(n, kb, buf, bar, c: tl.constexpr):
    """S^T = K Q^T. `p_full` of the step before was waited for: the compute role has read that step's S."""
    qb = n % c.NUM_Q
    kb = opaque(kb)
    qb = opaque(qb)
    tlx.barrier_wait(bar.q_full[qb], (n // c.NUM_Q) & 1)
    tlx.async_dot(buf.k[kb], tlx.local_trans(buf.q[qb]), buf.s_tmem[0], use_acc=False, mBarriers=[bar.s_full[0]])


@triton.jit
def _dp(n, kb, buf, bar, c: tl.constexpr):
    """dP^T = V dO^T; its completion also says that dQ of the step before is done, and dS free."""
    db = n % c.NUM_DO
    kb = opaque(kb)
    db = opaque(db)
    tlx.barrier_wait(bar.do_full[db], (n // c.NUM_DO) & 1)
    if c.ALIAS_DQ:  # dQ of the step before is where dP goes
        tlx.barrier_wait(bar.dq_empty[0], (n & 1) ^ 1)
    tlx.async_dot(buf.v[kb], tlx.local_trans(buf.do[db]), buf.dp_tmem[0], use_acc=False, mBarriers=[bar.dp_full[0]])


@triton.jit
def _dv(n, use_acc, buf, bar, c: tl.constexpr):
    """dV += P^T dO."""
    db = n % c.NUM_DO
    db = opaque(db)
    tlx.barrier_wait(bar.p_full[0], n & 1)
    tlx.async_dot(buf.p_tmem[0], buf.do[db], buf.dv_tmem[0], use_acc=use_acc, mBarriers=[bar.do_empty[db]])


@triton.jit
def _dk(n, use_acc, buf, bar, c: tl.constexpr):
    """dK += dS^T Q."""
    qb = n % c.NUM_Q
    qb = opaque(qb)
    tlx.barrier_wait(bar.ds_tmem_full[0], n & 1)
    tlx.async_dot(buf.ds_tmem[0], buf.q[qb], buf.dk_tmem[0], use_acc=use_acc, mBarriers=[bar.q_empty[qb]])


@triton.jit
def _dq(n, kb, buf, bar, c: tl.constexpr):
    """dQ = dS K."""
    kb = opaque(kb)
    zero = 0
    zero = opaque(zero)
    tlx.barrier_wait(bar.ds_full[0], n & 1)
    if not c.ALIAS_DQ:
        tlx.barrier_wait(bar.dq_empty[0], (n & 1) ^ 1)
    tlx.async_dot(tlx.local_trans(buf.ds[zero]), buf.k[kb], buf.dq_tmem[0], use_acc=False, mBarriers=[bar.dq_full[0]])


@triton.jit
def multiply(tile, n, n_kv, work, buf, bar, c: tl.constexpr):
    """Issues every matmul of one tile, see `compute`."""
    total = tl.load(work.tiles + tile * FIELDS + STEPS) * c.GROUP
    if total > 0:
        kb = n_kv % c.NUM_KV
        kv_phase = (n_kv // c.NUM_KV) & 1
        tlx.barrier_wait(bar.k_full[kb], kv_phase)
        _s(n, kb, buf, bar, c)
        tlx.barrier_wait(bar.v_full[kb], kv_phase)
        _dp(n, kb, buf, bar, c)
        _dv(n, False, buf, bar, c)
        for i in tl.range(1, total, num_stages=1):
            _s(n + i, kb, buf, bar, c)
            _dk(n + i - 1, i > 1, buf, bar, c)
            _dq(n + i - 1, kb, buf, bar, c)
            _dp(n + i, kb, buf, bar, c)
            _dv(n + i, True, buf, bar, c)
        tlx.tcgen05_commit(bar.dv_full[0])
        _dk(n + total - 1, total > 1, buf, bar, c)
        _dq(n + total - 1, kb, buf, bar, c)
        tlx.tcgen05_commit(bar.dk_full[0])
        n += total
        n_kv += 1
    return n, n_kv
