"""Two CTAs of a cluster do a sequence together: each one block of 128 KV rows, over the same blocks of Q at a time.

Each block of Q needs the sum of both CTAs' dQ. So that neither is always behind, they take blocks of Q two by two, in
opposite order: rank 0 the first and then the second, rank 1 the second and then the first. In the first of two such
steps a CTA *gives* its dQ to the other: staged as ever, but its writer copies it to the other's staging. In the second
it *takes* what was given for this block a step before, adds its own, and sends the sum on: as dq itself, or to memory
in fp32, where it is fetched by the step that gives this block in the sequence's next tile. Of an odd number, the last
three blocks a, b, c go in the orders a b c and c a b: rank 0 gives a and b and takes c. A single block is given by rank
0 and taken by rank 1 in the same step. Sums pass through memory once for two blocks of keys, in a fixed order.

    barrier     completed by                                              waited for by
    ready       at steps that take: the bytes of the other's dQ           consumers, as ever
    may_give    the other's writer: the slot of its next taking step is   writer, before it copies
                free, and `ready` expects the bytes
    taken       the other's consumers have read what was given            writer, before its slot is used again
    met         the other's writer: its sums so far are in memory         writer, before a tile that fetches sums

The giver must know the slot of the staging: both CTAs begin a tile with uses of the same parity, as both have the same
tiles with the same steps, and after an odd number of steps alone comes a use that nobody uses.

Who has ended a tile has taken the last of what the other gave, so the other has fetched all its sums: their memory is
free for another sequence. Nobody waits in a circle: a writer waits only for what the other CTA does in steps before
(`taken`) or has ready a step ahead (`may_give`), and both have their common tiles in the same order.
"""

from typing import NamedTuple

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx

from kernels.hopper.backward_parts import ROWS, dq_stores_done
from kernels.hopper.backward_walk import taken_later


class Hand(NamedTuple):
    """What a consumer's step has to do with the other CTA."""

    give: tl.tensor
    take: tl.tensor
    taken: tlx.mbarrier
    peer: tl.tensor  # its rank


@triton.jit
def give(staging, ready, may_give, stage, n_give, i, steps, role, peer):
    """The writer copies what its consumers have staged in ``stage`` to the other CTA."""
    tlx.barrier_wait(may_give[n_give % 2], (n_give // 2) & 1)
    there = (stage + taken_later(i, steps, role)) % 2
    for c in tl.static_range(2):
        tlx.async_remote_shmem_copy(staging[c][there], staging[c][stage], peer, ready[2 * there + c])


@triton.jit
def make_ready_to_take(ready, may_give, use, n_take, peer, STAGES: tl.constexpr):
    """The writer offers the slots of a use to the other CTA's consumers."""
    for c in tl.static_range(2):
        tlx.async_descriptor_store_wait(1 - c)
        tlx.barrier_expect_bytes(ready[use % STAGES * 2 + c], ROWS * ROWS * 4)
    tlx.barrier_arrive(may_give[n_take % 2], remote_cta_rank=peer)


@triton.jit
def meet(met, n_met, peer):
    """Both writers wait until the sums that both have stored so far are in memory."""
    dq_stores_done(n_met, 1)
    tlx.barrier_arrive(met[0], remote_cta_rank=peer)
    tlx.barrier_wait(met[0], n_met & 1)
