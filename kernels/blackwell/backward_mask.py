"""Which scores of a block count, for the compute role of the Blackwell backward."""

import triton
import triton.language as tl

from kernels.blackwell.backward_walk import BLOCK_N, HALF
from kernels.hopper.backward_record import K_LEN, Q_LEN


@triton.jit
def masked(p, row, k_row, record, work, c: tl.constexpr):
    """P^T with zeros where the key is not visible to the query: after the exp2, which may be inf without a key.

    ``p`` is [BLOCK_N, HALF]: keys from ``k_row`` on, queries from ``row`` on.
    """
    k_len = tl.load(record + K_LEN)
    key = k_row + tl.arange(0, BLOCK_N)
    if c.HAS_LEFT or c.HAS_RIGHT:
        # one limit a key, so that a query's number is all that an element needs: tables of positions spill
        query = tl.arange(0, HALF)[None, :]
        at = key - (row + k_len - tl.load(record + Q_LEN))  # the query that stands at the key
        first = tl.where(key < k_len, at - work.right if c.HAS_RIGHT else 0, HALF)
        visible = query >= first[:, None]
        if c.HAS_LEFT:
            visible &= query <= (at + work.left)[:, None]
    else:
        visible = key[:, None] < k_len
    return tl.where(visible, p, 0.0)
