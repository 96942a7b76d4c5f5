"""Which CTA computes which tile of the backward, and what becomes of each step's dQ. On the host, from lengths alone.

A tile is one block of BLOCK_N KV rows of one (sequence, KV head); its steps are the blocks of BLOCK_M Q rows with a row
that sees it. As blocks of KV go up, so do both ends of that range. So within a sequence a step at Q block ``m`` is

    the first to touch m    iff m is at or past the end of every earlier tile's range,
    the last to touch m     iff m is before the start of every later tile's range.

A sequence whose tiles all go to one CTA, in order, is *owned*: first steps store dQ to that CTA's own blocks of the
accumulator, others add to them, last ones write dq itself. The tiles of other sequences are dealt one by one; their dQ
is added to blocks that start as zero, none is first or last, and a cast follows. Or they are *counted*
(`kernels.hopper.backward_counted`): dealt from the last to the first, so that a block of Q is stored by the tile dealt
first of those that touch it (by a mask's diagonal, at the start of its walk), added to by others, and cast by one of
their CTAs. Or they take *turns* (`takes_turns`): the tile that opens a sequence (its first) stores dQ, those in the
middle add to it, and the tile that closes it (its second, which touches all that later ones touch) adds its own and
writes dq. Or all sequences are owned by *pairs* of CTAs (`takes_pairs`), the programs ``2c`` and ``2c + 1`` of cluster
``c``, ranks 0 and 1. Within a sequence of ``n`` KV blocks, the first is a *single* tile of one CTA if ``n`` is odd;
then come rounds of two KV blocks, the lower of them rank 0's, whose dQ the pair sums on chip. A cluster does its
(sequence, head) items two by two, a couple: first the singles of both, rank 0 that of the earlier item and rank 1 that
of the other, then the rounds of the earlier item, then those of the other. With broadcast-Q a CTA takes tiles of one
head, whose dQ it sums in blocks of its own from the first tile on; a sum over CTAs follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.hopper.backward_options import HopperBackwardOptions
from kernels.problem import JaggedProblem

FIELDS = 24  # of a tile record, in the order below
Q_START, Q_LEN, OUT_START, K_START, K_LEN, K_ROW, STEPS, CUT_END, CUT_FROM, BLOCK, PARTIALS, FIRST_FROM, LASTS, HEAD, \
    ROW_BLOCK, ACC_BLOCK, ACC_GROUP, AFTER_ITSELF, STORES, CAST_FROM, CASTS, TOUCHED, WANTED, COUNTER = range(24)
ROLE, BACK = STORES, CAST_FROM  # of tiles done by pairs
HOLDS = STORES  # of tiles of kernels that hold a block
NEVER = 2**30
TILE_STEPS = 1.0  # cost of a tile beside its steps, in steps


@dataclass(frozen=True)
class BackwardSchedule:
    """Tiles and tables of one layout pair, as int32 numpy arrays.

    Attributes:
        tiles: ``[T, FIELDS]``. Rows ``Q_START, Q_LEN`` of q and dq, ``OUT_START`` of dout, ``K_START, K_LEN`` of k;
            KV rows of the tile from ``K_ROW`` on; ``STEPS`` blocks of Q from ``BLOCK`` on, of which those before
            ``CUT_END`` and from ``CUT_FROM`` on need a mask; the first ``LASTS`` are the last to touch their block, of
            which the first ``PARTIALS`` find a partial dQ; those from ``FIRST_FROM`` on are the first; KV ``HEAD``;
            the sequence's first block of rows ``ROW_BLOCK``; its first block of the accumulator ``ACC_BLOCK`` and
            blocks to a query head ``ACC_GROUP``; ``AFTER_ITSELF``: 1 if the CTA's last tile wrote to these blocks.
            Counted tiles alone: the first ``STORES`` steps store, the others wait for ``WANTED`` tiles; its CTA casts
            ``CASTS`` blocks from ``CAST_FROM`` on, once ``TOUCHED`` tiles are in.
            Where tiles take turns: a tile's dQ waits until ``WANTED`` tiles of its sequence and head are done (those
            without steps count too), as the counter ``COUNTER = sequence * heads_kv + head`` says. The closing tile
            sets it back to 0. ``COUNTER`` is -1 for a tile that takes no turn.
            Where blocks are held: ``HOLDS`` is the sum of 1 if the tile takes over a block of Q from the one before it,
            2 if it leaves one to the next, and 4 if an earlier tile has touched that one.
            Tiles of pairs: ``ROLE`` is 0 for a single, in a round 1 for the tile of rank 0 and 2 for that of rank 1;
            ``BACK`` is 1 if the walk over Q goes backwards. All steps of a tile are alike: ``FIRST_FROM`` is 0,
            ``PARTIALS`` is ``STEPS`` in a round with a sum in memory (``AFTER_ITSELF`` is then 1: the cluster wrote
            it), ``LASTS`` is ``STEPS`` where nothing is added later, and both are 0 elsewhere.
        bounds: ``[programs + 1]``, the tiles of each CTA.
        blocks: ``[num_blocks, 6]``, for each block of Q of each sequence: first row in out, rows of the sequence, first
            row of the block in it, first row of the sequence in dq, 1 if nothing else writes this dq, and the block's
            place among ``shared_blocks``, -1 if it has none or nobody has to zero and cast it (its tiles take turns).
        acc_blocks: blocks of BLOCK_M rows in the accumulator.
        shared_at: first of them that is shared; block ``s`` of head ``h`` is ``shared_at + h * shared_blocks + s``.
        copies: broadcast-Q: CTAs to each KV head, each with ``group * ACC_GROUP`` blocks, from block 0 on.
        zero_first: broadcast-Q: a CTA's blocks must start as zero.
    """

    tiles: np.ndarray
    bounds: np.ndarray
    blocks: np.ndarray
    acc_blocks: int
    shared_at: int
    shared_blocks: int
    copies: int
    zero_first: bool


def build(problem: JaggedProblem, options: HopperBackwardOptions, order: str, programs: int, block_m: int,
          block_n: int = 128) -> BackwardSchedule:
    """The schedule of a problem for ``programs`` CTAs (with broadcast-Q, for as many as divide among the heads).

    An odd number of them is one too many where pairs are taken.
    """
    len_q, len_k = problem.layout_q.lengths, problem.layout_k.lengths
    out_start, k_start = problem.layout_q.offsets[:-1], problem.layout_k.offsets[:-1]
    q_start = np.zeros_like(out_start) if problem.broadcast_q else out_start
    q_blocks, k_blocks = -(-len_q // block_m), -(-len_k // block_n)
    row_block = np.cumsum(q_blocks) - q_blocks
    tiles = _sequence_tiles(problem, len_q, len_k, q_blocks, k_blocks, block_m, block_n)
    seq = tiles.sequence
    heads, group = problem.num_heads_kv, problem.group_size

    most_blocks, most_steps = ownership(problem, options, programs, block_m, block_n)
    few = (k_blocks <= most_blocks) & (q_blocks * k_blocks <= most_steps)
    owned = (k_blocks > 0) & (most_blocks > 0) & ((k_blocks == 1) | few)
    shared = (k_blocks > 0) & ~owned & (not problem.broadcast_q)
    shared_first = np.cumsum(np.where(shared, q_blocks, 0)) - np.where(shared, q_blocks, 0)
    shared_blocks = int(q_blocks[shared].sum())
    scratch = int((q_blocks[owned & (k_blocks > 1)].max(initial=0)) * group)

    records = np.zeros((len(seq), FIELDS), dtype=np.int64)
    for field, values in ((Q_START, q_start), (Q_LEN, len_q), (OUT_START, out_start), (K_START, k_start),
                          (K_LEN, len_k), (ROW_BLOCK, row_block), (ACC_GROUP, q_blocks)):
        records[:, field] = values[seq]
    records[:, K_ROW], records[:, STEPS], records[:, BLOCK] = tiles.k_row, tiles.steps, tiles.low
    mine = owned[seq]
    last_below = np.where(mine, tiles.last_below, -1)
    first_from = np.where(mine, tiles.first_from, NEVER)
    lasts = np.clip(last_below - tiles.low, 0, tiles.steps)
    first = np.clip(first_from - tiles.low, 0, NEVER)
    records[:, LASTS], records[:, FIRST_FROM] = lasts, first
    records[:, PARTIALS] = np.minimum(lasts, first)
    records[:, CUT_END], records[:, CUT_FROM] = tiles.cut_end, tiles.cut_from
    records[:, AFTER_ITSELF] = mine & (tiles.k_row > 0)
    counts, turns = counted(problem, options), takes_turns(problem, options, programs)
    pairs = takes_pairs(problem, options, programs, block_m, block_n)
    number, of = tiles.k_row // block_n, k_blocks[seq]
    opens, closes = turns & ~mine & (number == 0), turns & ~mine & (number == 1)
    if counts:
        stores = np.clip(tiles.last_below - tiles.low, 0, tiles.steps)
        full = problem.mask.is_full  # then all tiles touch all blocks, and share the casts
        cast_from = number * q_blocks[seq] // of if full else tiles.low
        casts = (number + 1) * q_blocks[seq] // of - cast_from if full else stores
        wanted = of - 1 - number if options.deterministic else np.ones_like(of)
        for field, values in ((STORES, stores), (CAST_FROM, cast_from), (CASTS, casts),
                              (TOUCHED, of if full else number + 1), (WANTED, wanted)):
            records[:, field] = np.where(mine, 0, values)

    if turns:
        records[opens, FIRST_FROM] = records[opens, PARTIALS] = 0
        records[opens, LASTS] = np.clip(tiles.last_below - tiles.low, 0, tiles.steps)[opens]
        records[:, FIRST_FROM] = np.where(mine | opens, records[:, FIRST_FROM], NEVER)
        records[closes, LASTS] = records[closes, PARTIALS] = tiles.steps[closes]
        records[:, WANTED] = np.where(mine | opens, 0, np.where(closes, of - 1, 1))
    if holds(problem, options, pairs):
        records[:, HOLDS] = _held(tiles, mine, number, of)

    if problem.broadcast_q:
        return _broadcast(problem, records, order, programs, q_blocks, row_block, block_m)

    # units of work: an owned sequence's tiles together, others one by one
    unit = np.cumsum(np.r_[True, ~(mine[1:] & (seq[1:] == seq[:-1]))]) - 1 if len(seq) else np.zeros(0, dtype=np.int64)
    cost = np.bincount(unit, tiles.steps * group + TILE_STEPS) if len(unit) else np.zeros(0)
    rank = cost
    if len(unit):  # tiles of one shared sequence stay together, as they read the same Q and dO
        highest = np.zeros(len(len_q))
        np.maximum.at(highest, seq, cost[unit])
        rank = np.zeros(len(cost))
        rank[unit] = highest[seq]
    tile_of_unit = np.split(np.arange(len(seq)), np.flatnonzero(np.diff(unit)) + 1) if len(unit) else []
    of_unit = np.array([t[0] for t in tile_of_unit], dtype=np.int64)
    section = np.where(opens, 0, np.where(closes, 2, 1))[of_unit]  # opening tiles are dealt first, closing ones last
    by_rank = _by_rank(section, seq[of_unit], rank, order)
    items = _with_heads(by_rank, section * len(len_q) + seq[of_unit], heads)
    programs = 2 * max(1, min(programs // 2, len(items))) if pairs else max(1, min(programs, len(items)))
    pieces, bounds = [], np.zeros(programs + 1, dtype=np.int64)
    starts = of_unit.copy()
    if counts and len(starts):  # from the last tile to the first
        starts += np.where(mine[starts], 0, of[starts] - 1 - 2 * number[starts])
    sizes = np.array([len(t) for t in tile_of_unit], dtype=np.int64)
    if pairs:
        dealt, program = _in_pairs(records, items, starts, sizes, programs // 2, order, options, scratch)
        bounds[1:] = np.cumsum(np.bincount(program, minlength=programs))
        pieces.append(dealt)
    elif len(items):
        owner = _deal(len(items), programs, order)
        deal = np.lexsort((_places(owner, programs, options), owner))
        chosen, head = items[deal, 0], items[deal, 1]
        repeat = sizes[chosen]
        before = np.repeat(np.cumsum(repeat) - repeat, repeat)
        index = np.repeat(starts[chosen], repeat) + np.arange(repeat.sum()) - before
        dealt = records[index]
        dealt[:, HEAD] = np.repeat(head, repeat)
        program = np.repeat(owner[deal], repeat)
        is_mine = mine[index]
        in_shared = dealt[:, HEAD] * group * shared_blocks + shared_first[seq[index]]
        dealt[:, ACC_BLOCK] = np.where(is_mine, program * scratch, programs * scratch + in_shared)
        dealt[:, ACC_GROUP] = np.where(is_mine, dealt[:, ACC_GROUP], shared_blocks)
        if turns:
            dealt[:, COUNTER] = np.where(is_mine, -1, seq[index] * heads + dealt[:, HEAD])
        bounds[1:] = np.cumsum(np.bincount(program, minlength=programs))
        pieces.append(dealt)
    dealt = np.concatenate(pieces) if pieces else np.zeros((0, FIELDS), dtype=np.int64)

    table = _blocks(len_q, out_start, q_start, q_blocks, row_block, block_m)
    touched = _touched(tiles, row_block, len(table))
    seq_of_block = np.repeat(np.arange(len(len_q)), q_blocks)
    shared_block = shared[seq_of_block]
    table[:, 4] = ~touched & (~shared_block | counts | turns)
    place = np.arange(len(table)) - row_block[seq_of_block]
    table[:, 5] = np.where(shared_block & (not turns), shared_first[seq_of_block] + place, -1)
    return BackwardSchedule(dealt.astype(np.int32), bounds.astype(np.int32), table.astype(np.int32),
                            programs * scratch + problem.num_heads_q * shared_blocks, programs * scratch,
                            shared_blocks, 0, False)


@dataclass(frozen=True)
class _Tiles:
    """Arrays over all (sequence, KV block), sequences in order and blocks ascending."""

    sequence: np.ndarray
    k_row: np.ndarray
    low: np.ndarray  # first block of Q
    steps: np.ndarray
    cut_end: np.ndarray
    cut_from: np.ndarray
    first_from: np.ndarray  # blocks of Q from here on are touched first by this tile
    last_below: np.ndarray  # and those below here last


def _sequence_tiles(problem: JaggedProblem, len_q: np.ndarray, len_k: np.ndarray, q_blocks: np.ndarray,
                    k_blocks: np.ndarray, block_m: int, block_n: int) -> _Tiles:
    seq = np.repeat(np.arange(len(len_k)), k_blocks)
    number = np.arange(len(seq)) - np.repeat(np.cumsum(k_blocks) - k_blocks, k_blocks)
    k_row = number * block_n
    rows_q, rows_k, blocks = len_q[seq], len_k[seq], q_blocks[seq]
    shift = rows_k - rows_q
    bounds = zip((problem.mask.left, problem.mask.right), problem.window_bounds, strict=True)
    left, right = (None if bound is None else cut for bound, cut in bounds)  # as the kernels are given them
    last_key = np.minimum(k_row + block_n, rows_k) - 1
    low_row = np.zeros_like(k_row) if right is None else np.clip(k_row - shift - right, 0, rows_q)
    high_row = rows_q if left is None else np.clip(last_key - shift + left + 1, 0, rows_q)
    low, high = low_row // block_m, -(-high_row // block_m)
    steps = np.where(high_row > low_row, high - low, 0)
    low = np.where(steps > 0, low, 0)
    # blocks of Q all of whose rows see all of the tile
    full_from = np.zeros_like(k_row) if right is None else -((-(k_row + block_n - 1 - shift - right)) // block_m)
    full_to = blocks if left is None else (k_row - shift + left + 1) // block_m
    full_from = np.where(k_row + block_n > rows_k, NEVER, full_from)
    cut_end = np.clip(full_from - low, 0, steps)
    cut_from = np.clip(full_to - low, cut_end, steps)

    first_from, last_below = np.zeros_like(k_row), np.full_like(k_row, NEVER)
    ends = np.where(steps > 0, low + steps, 0)
    starts = np.where(steps > 0, low, NEVER)
    # running maximum of the ends of earlier tiles, running minimum of the starts of later ones, within a sequence
    for step in range(1, int(k_blocks.max(initial=0))):
        here = np.flatnonzero(number == step)
        first_from[here] = np.maximum(first_from[here - 1], ends[here - 1])
        from_end = np.flatnonzero(k_blocks[seq] - 1 - number == step)
        last_below[from_end] = np.minimum(last_below[from_end + 1], starts[from_end + 1])
    return _Tiles(seq, k_row, low, steps, cut_end, cut_from, first_from, last_below)


def counted(problem: JaggedProblem, options: HopperBackwardOptions) -> bool:
    """Whether sequences that aren't owned are counted: not with a left window; in a fixed order only without a mask."""
    mask = problem.mask
    allowed = mask.is_full if options.deterministic else mask.left is None
    return options.counted and allowed and not problem.broadcast_q


def all_seen(problem: JaggedProblem) -> bool:
    """Whether it is known that some query sees each key: then no tile is without steps."""
    layout_q, layout_k = problem.layout_q, problem.layout_k
    if layout_q is layout_k:
        return True
    known = layout_q.on_host and layout_k.on_host
    none_unseen = known and not layout_k.lengths[layout_q.lengths == 0].any()
    return problem.mask.is_full and (problem.broadcast_q or none_unseen)


def holds(problem: JaggedProblem, options: HopperBackwardOptions, pairs: bool) -> bool:
    """Whether tiles of owned sequences hand blocks of Q on; ``pairs``: whether pairs of CTAs do all tiles."""
    return (options.hold and options.serpentine and options.kv_stages == 1 and options.dq_stages == 2 and not pairs
            and not problem.broadcast_q and problem.group_size == 1 and problem.mask.left is None
            and not counted(problem, options))


def takes_turns(problem: JaggedProblem, options: HopperBackwardOptions, programs: int) -> bool:
    """Whether the tiles of all sequences that aren't owned take turns, with ``programs`` CTAs.

    Not with a left window, as the closing tile has to touch all that those in the middle touch; and not with fewer than
    two (sequence, KV head) pairs to a CTA, where a CTA would wait for an opening tile.

    Nobody waits in a circle, as long as all CTAs are resident. Number all tiles as they are dealt: those that open,
    then those in the middle and owned ones, then those that close. A CTA does its own in that order, and counts a tile
    as done before it waits for another. A tile waits only for tiles of earlier sections. So of the tiles that aren't
    done, the one dealt first can always go on.
    """
    left_out = problem.broadcast_q or options.deterministic or options.counted or options.rotate
    return (options.turns and options.direct_dq and not left_out and problem.mask.left is None
            and problem.batch * problem.num_heads_kv >= 2 * programs)


def takes_pairs(problem: JaggedProblem, options: HopperBackwardOptions, programs: int, block_m: int,
                block_n: int) -> bool:
    """Whether pairs of CTAs do all tiles, with ``programs`` CTAs: only where every sequence is owned, by `ownership`.

    That is decided by totals and longest lengths. What holds for ``programs`` CTAs holds for fewer, down to two.
    """
    allowed = (options.pairs and options.direct_dq and not options.deterministic and options.kv_stages == 1
               and options.dq_stages == 2 and not problem.broadcast_q and problem.mask.is_full
               and problem.group_size == 1 and problem.head_dim == 128)
    if not allowed or programs < 2:
        return False
    blocks, steps = ownership(problem, options, programs, block_m, block_n)
    longest_q, longest_k = -(-problem.layout_q.max_seqlen // block_m), -(-problem.layout_k.max_seqlen // block_n)
    return longest_k <= blocks and longest_q * longest_k <= steps


def ownership(problem: JaggedProblem, options: HopperBackwardOptions, programs: int, block_m: int,
              block_n: int) -> tuple[int, int]:
    """``(blocks, steps)``: what an owned sequence has at most of KV blocks, and of steps for each query head.

    A sequence of one KV block is owned whatever its steps, and none at all if ``blocks`` is 0. ``steps`` is half of a
    CTA's fair share, estimated from mean lengths without a mask.
    """
    own_all = options.deterministic and not counted(problem, options)
    if problem.broadcast_q or not (options.direct_dq or own_all):
        return 0, 0
    if own_all:
        return NEVER, NEVER
    batch = max(problem.batch, 1)
    blocks_q, blocks_k = (layout.total / batch / rows + 0.5 for layout, rows in
                          ((problem.layout_q, block_m), (problem.layout_k, block_n)))
    share = batch * blocks_q * blocks_k * problem.num_heads_kv / programs
    return max(options.owned_blocks, 1), min(int(share / 2), NEVER)


def _held(tiles: _Tiles, owned: np.ndarray, number: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`HOLDS` of all tiles, the ``number``-th of ``count`` of an ``owned`` sequence or not."""
    some, back = tiles.steps > 0, number % 2 == 1
    first, last = tiles.low, tiles.low + tiles.steps - 1
    begins, ends = np.where(back, last, first), np.where(back, first, last)
    leaves = np.zeros(len(number), dtype=bool)
    leaves[:-1] = (owned & some & (number + 1 < count))[:-1] & some[1:] & (ends[:-1] == begins[1:])
    touched = leaves & (ends < tiles.first_from)
    return np.r_[False, leaves[:-1]][:len(leaves)] + 2 * leaves + 4 * touched


def _by_rank(section: np.ndarray, sequence: np.ndarray, rank: np.ndarray, order: str) -> np.ndarray:
    """Units by section, within it in order of rank, those of one sequence next to each other."""
    if order == "none":
        return np.argsort(section, kind="stable")
    return np.lexsort((np.arange(len(rank)), sequence, -rank, section))


def _with_heads(units: np.ndarray, together: np.ndarray, heads: int) -> np.ndarray:
    """``[n, 2]`` of (unit, head): all units with an equal number in ``together`` for one head, then for the next."""
    if not len(units):
        return np.zeros((0, 2), dtype=np.int64)
    numbers = together[units]
    run = np.cumsum(np.r_[True, numbers[1:] != numbers[:-1]]) - 1
    place = np.arange(len(units))
    all_units = np.tile(units, heads)
    all_heads = np.repeat(np.arange(heads), len(units))
    keys = np.lexsort((np.tile(place, heads), all_heads, np.tile(run, heads)))
    return np.stack([all_units[keys], all_heads[keys]], 1)


def _deal(count: int, programs: int, order: str) -> np.ndarray:
    place = np.arange(count)
    owner = place % programs
    if order == "zigzag":
        owner = np.where(place // programs % 2 == 1, programs - 1 - owner, owner)
    return owner


def _places(owner: np.ndarray, workers: int, options: HopperBackwardOptions, size: int = 1) -> np.ndarray:
    """The place of each item in its worker's list, or of its couple if ``size`` is 2; `rotate` shifts them."""
    lists = -(-np.bincount(owner, minlength=workers) // size)
    shift = lists * (np.arange(workers) * 37 % 64) // 64 if options.rotate else np.zeros_like(lists)
    return (np.arange(len(owner)) // workers // size - shift[owner]) % lists[owner]


def _in_pairs(records: np.ndarray, items: np.ndarray, starts: np.ndarray, sizes: np.ndarray, clusters: int, order: str,
              options: HopperBackwardOptions, scratch: int) -> tuple[np.ndarray, np.ndarray]:
    """The records of all (unit, head) ``items`` as ``clusters`` pairs of CTAs do them, and the CTA of each.

    Unit ``u`` is the ``sizes[u]`` records from ``starts[u]`` on.
    """
    owner, turn = _deal(len(items), clusters, order), np.arange(len(items)) // clusters
    place = _places(owner, clusters, options, 2)  # of an item's couple in the cluster's lists

    count = sizes[items[:, 0]]
    item = np.repeat(np.arange(len(items)), count)
    number = np.arange(len(item)) - (np.cumsum(count) - count)[item]  # of the KV block
    odd, second = count[item] % 2, turn[item] % 2
    single = number < odd
    place_in_item = np.where(single, 0, (number + odd) // 2)  # rounds come after the single, two tiles to each
    rank = np.where(single, second, (number - odd) % 2)
    tiles = records[starts[items[item, 0]] + number]
    partial = ~single & (place_in_item > 0)
    tiles[:, HEAD] = items[item, 1]
    tiles[:, ROLE] = np.where(single, 0, 1 + rank)
    tiles[:, BACK] = place_in_item % 2 if options.serpentine else 0
    tiles[:, AFTER_ITSELF] = partial & (tiles[:, STEPS] > 0)
    tiles[:, PARTIALS] = np.where(partial, tiles[:, STEPS], 0)
    tiles[:, LASTS] = np.where(place_in_item == (count[item] - 1) // 2, tiles[:, STEPS], 0)
    tiles[:, FIRST_FROM] = 0
    tiles[:, ACC_BLOCK] = (2 * owner[item] + second) * scratch
    program = 2 * owner[item] + rank
    deal = np.lexsort((place_in_item, second, ~single, place[item], program))
    return tiles[deal], program[deal]


def _blocks(len_q: np.ndarray, out_start: np.ndarray, q_start: np.ndarray, q_blocks: np.ndarray, row_block: np.ndarray,
            block_m: int) -> np.ndarray:
    seq = np.repeat(np.arange(len(len_q)), q_blocks)
    table = np.zeros((len(seq), 6), dtype=np.int64)
    table[:, 0], table[:, 1], table[:, 3] = out_start[seq], len_q[seq], q_start[seq]
    table[:, 2] = (np.arange(len(seq)) - row_block[seq]) * block_m
    table[:, 5] = -1
    return table


def _touched(tiles: _Tiles, row_block: np.ndarray, count: int) -> np.ndarray:
    """Which blocks of Q some tile has a step for."""
    change = np.zeros(count + 1, dtype=np.int64)
    some = tiles.steps > 0
    begin = row_block[tiles.sequence[some]] + tiles.low[some]
    np.add.at(change, begin, 1)
    np.add.at(change, begin + tiles.steps[some], -1)
    return np.cumsum(change[:-1]) > 0


def _broadcast(problem: JaggedProblem, records: np.ndarray, order: str, programs: int, q_blocks: np.ndarray,
               row_block: np.ndarray, block_m: int) -> BackwardSchedule:
    heads, group = problem.num_heads_kv, problem.group_size
    copies = max(1, min(programs // heads, len(records)))
    blocks = -(-problem.layout_q.max_seqlen // block_m)
    zero_first = not problem.mask.is_full
    rank = np.argsort(-records[:, STEPS], kind="stable") if order != "none" else np.arange(len(records))
    owner = _deal(len(rank), copies, order)
    deal = np.argsort(owner, kind="stable")
    one = records[rank[deal]]
    owner = owner[deal]
    one[:, ACC_GROUP] = blocks
    begins = np.r_[True, owner[1:] != owner[:-1]] if len(owner) else np.zeros(0, dtype=bool)
    one[:, AFTER_ITSELF] = ~begins
    one[:, LASTS] = one[:, PARTIALS] = 0
    one[:, FIRST_FROM] = NEVER if zero_first else np.where(begins, 0, NEVER)
    dealt = np.tile(one, (heads, 1))
    head = np.repeat(np.arange(heads), len(one))
    dealt[:, HEAD] = head
    dealt[:, ACC_BLOCK] = (head * copies + np.tile(owner, heads)) * group * blocks
    bounds = np.zeros(heads * copies + 1, dtype=np.int64)
    bounds[1:] = np.cumsum(np.tile(np.bincount(owner, minlength=copies), heads))
    out_start = problem.layout_q.offsets[:-1]
    table = _blocks(problem.layout_q.lengths, out_start, np.zeros_like(out_start), q_blocks, row_block, block_m)
    return BackwardSchedule(dealt.astype(np.int32), bounds.astype(np.int32), table.astype(np.int32),
                            heads * copies * group * blocks, 0, 0, copies if len(records) else 0, zero_first)
