"""The backward's schedule, built on the device: the host knows neither the lengths nor how many tiles there are.

Tiles, order and ownership are those of `kernels.hopper.backward_schedule`, whose record this fills. Three kernels:

- `measure_kernel`: each sequence's rank (its work), its items and its blocks of Q. An item is what is dealt at once: an
  owned sequence, or one tile of another, for one head.
- `order_kernel`: the place of each sequence in the order, by comparing it with all others; its items; its blocks of Q.
- `deal_kernel`: one program for each CTA of the main kernel counts the tiles of the CTAs before it and writes its own.

Where tiles take turns, a sequence that isn't owned has its items in three places: the tiles that open, one a head, are
before all else, and those that close behind all else. Where pairs of CTAs do all tiles, items are dealt to the pairs.

What the host allocates and launches is bounded by totals and longest lengths. A shared block's place in the
accumulator is its place among all blocks of Q; blocks past the last have no rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.hopper.backward_record import (
    ACC_BLOCK,
    ACC_GROUP,
    AFTER_ITSELF,
    BACK,
    BLOCK,
    CAST_FROM,
    CASTS,
    COUNTER,
    CUT_END,
    CUT_FROM,
    FIELDS,
    FIRST_FROM,
    HEAD,
    HOLDS,
    K_LEN,
    K_ROW,
    K_START,
    LASTS,
    OUT_START,
    PARTIALS,
    Q_LEN,
    Q_START,
    ROLE,
    ROW_BLOCK,
    STEPS,
    STORES,
    TOUCHED,
    WANTED,
)
from kernels.hopper.forward_schedule import lengths_of

BLOCK_FIELDS = tl.constexpr(6)
NEVER = tl.constexpr(2**30)


@triton.jit
def _is_owned(q_blocks, k_blocks, owned_blocks, owned_steps):
    """Whether one CTA does all of a sequence's tiles for a head."""
    few = (k_blocks <= owned_blocks) & (q_blocks * k_blocks <= owned_steps)
    return (k_blocks > 0) & (owned_blocks > 0) & ((k_blocks == 1) | few)


@triton.jit
def _steps(tile, len_q, len_k, left, right, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr,
           HAS_RIGHT: tl.constexpr):
    """``(low, steps)``: the blocks of Q with a row that sees the ``tile``-th block of keys; 0, 0 if there is none."""
    row = tile * BLOCK_N
    shift = len_k - len_q
    low_row = row * 0
    high_row = len_q + row * 0
    if HAS_RIGHT:
        low_row = tl.minimum(tl.maximum(row - shift - right, 0), len_q)
    if HAS_LEFT:
        last_key = tl.minimum(row + BLOCK_N, len_k) - 1
        high_row = tl.minimum(tl.maximum(last_key - shift + left + 1, 0), len_q)
    low = low_row // BLOCK_M
    steps = tl.where(high_row > low_row, tl.cdiv(high_row, BLOCK_M) - low, 0)
    return tl.where(steps > 0, low, 0), steps


@triton.jit(do_not_specialize=["batch", "longest_q", "longest_k", "owned_blocks", "owned_steps", "left", "right",
                               "group", "heads"])
def measure_kernel(cu_q, cu_k, ranks, items, blocks, batch, longest_q, longest_k, owned_blocks, owned_steps, left,
                   right, group, heads, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr,
                   HAS_RIGHT: tl.constexpr, SORTED: tl.constexpr, SEQUENCES: tl.constexpr):
    """Writes int32 [batch] each: ``ranks`` (most work first), ``items`` for ``heads`` heads, ``blocks`` of Q."""
    b = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    inside = b < batch
    _q_start, len_q = lengths_of(cu_q, b, inside, longest_q)
    _k_start, len_k = lengths_of(cu_k, b, inside, longest_k)
    q_blocks, k_blocks = tl.cdiv(len_q, BLOCK_M), tl.cdiv(len_k, BLOCK_N)
    owned = _is_owned(q_blocks, k_blocks, owned_blocks, owned_steps)
    total = q_blocks * k_blocks
    highest = q_blocks
    if HAS_LEFT or HAS_RIGHT:
        total = q_blocks * 0
        highest = q_blocks * 0
        for tile in tl.range(0, tl.max(k_blocks, 0), num_stages=1):
            _low, steps = _steps(tile, len_q, len_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT)
            steps = tl.where(tile < k_blocks, steps, 0)
            total += steps
            highest = tl.maximum(highest, steps)
    rank = tl.where(owned, total * group + k_blocks, highest * group + 1)
    if not SORTED:
        rank = rank * 0
    tl.store(ranks + b, rank, mask=inside)
    tl.store(items + b, heads * tl.where(owned, 1, k_blocks), mask=inside)
    tl.store(blocks + b, q_blocks, mask=inside)


@triton.jit(do_not_specialize=["batch", "longest_q", "longest_k", "owned_blocks", "owned_steps", "right", "num_blocks",
                               "heads"])
def order_kernel(cu_q, cu_k, ranks, items, blocks, first_items, first_opens, first_blocks, item_sequences, item_sizes,
                 counts, table, counters, batch, longest_q, longest_k, owned_blocks, owned_steps, right, num_blocks,
                 heads, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_RIGHT: tl.constexpr, BROADCAST: tl.constexpr,
                 COUNTED: tl.constexpr, TURNS: tl.constexpr, SEQUENCES: tl.constexpr, CHUNK: tl.constexpr,
                 WIDTH: tl.constexpr):
    """Writes each sequence's first item and block, its items (sequence and tiles), and its rows of ``table``.

    ``counts`` int32 [1] gets the number of items; ``table`` int32 [num_blocks, 6] is `BackwardSchedule.blocks`. TURNS
    alone: ``counts`` int32 [2] also gets the number of items that open, ``first_opens`` int32 [batch] the first of each
    sequence (``first_items`` is then that of its others, but for those that close), and ``counters`` int32
    [batch, heads] zeros.
    """
    b = tl.program_id(0) * SEQUENCES + tl.arange(0, SEQUENCES)
    inside = b < batch
    rank = tl.load(ranks + b, mask=inside, other=0)
    earlier_items = tl.zeros([SEQUENCES, CHUNK], tl.int32)
    earlier_blocks = tl.zeros([SEQUENCES, CHUNK], tl.int32)
    earlier_opens = tl.zeros([SEQUENCES, CHUNK], tl.int32)
    all_items = tl.zeros([CHUNK], tl.int32)
    all_blocks = tl.zeros([CHUNK], tl.int32)
    all_opens = tl.zeros([CHUNK], tl.int32)
    for other0 in tl.range(0, batch, CHUNK, num_stages=1):
        other = other0 + tl.arange(0, CHUNK)
        valid = other < batch
        other_rank = tl.load(ranks + other, mask=valid, other=0)[None, :]
        other_items = tl.load(items + other, mask=valid, other=0)
        other_blocks = tl.load(blocks + other, mask=valid, other=0)
        before = other[None, :] < b[:, None]  # [SEQUENCES, CHUNK]
        precedes = (other_rank > rank[:, None]) | ((other_rank == rank[:, None]) & before)
        earlier_items += tl.where(precedes, other_items[None, :], 0)
        earlier_blocks += tl.where(before, other_blocks[None, :], 0)
        all_items += other_items
        all_blocks += other_blocks
        if TURNS:
            other_opens = tl.where(other_items > heads, heads, 0)  # an owned one has an item a head
            earlier_opens += tl.where(precedes, other_opens[None, :], 0)
            all_opens += other_opens
    first_item = tl.sum(earlier_items, 1)
    first_block = tl.sum(earlier_blocks, 1)
    used = tl.sum(all_blocks, 0)
    opens, first_open, first_close = used * 0, first_item * 0, first_item * 0
    if TURNS:
        opens, first_open = tl.sum(all_opens, 0), tl.sum(earlier_opens, 1)
        first_item += opens - 2 * first_open
        first_close = tl.sum(all_items, 0) - opens + first_open
        tl.store(first_opens + b, first_open, mask=inside)
        for head0 in tl.range(0, heads, WIDTH, num_stages=1):
            head = head0 + tl.arange(0, WIDTH)[None, :]
            tl.store(counters + b[:, None] * heads + head, b[:, None] * 0 + head * 0,
                     mask=inside[:, None] & (head < heads))
    tl.store(first_items + b, first_item, mask=inside)
    tl.store(first_blocks + b, first_block, mask=inside)
    if tl.program_id(0) == 0:
        tl.store(counts, tl.sum(all_items, 0))
        if TURNS:
            tl.store(counts + 1, opens)

    q_start, len_q = lengths_of(cu_q, b, inside, longest_q)
    _k_start, len_k = lengths_of(cu_k, b, inside, longest_k)
    q_blocks, k_blocks = tl.cdiv(len_q, BLOCK_M), tl.cdiv(len_k, BLOCK_N)
    owned = _is_owned(q_blocks, k_blocks, owned_blocks, owned_steps)
    size = tl.where(owned, k_blocks, 1)
    count = tl.load(items + b, mask=inside, other=0)
    for place0 in tl.range(0, tl.max(count, 0), WIDTH, num_stages=1):
        place = place0 + tl.arange(0, WIDTH)[None, :]
        some = place < count[:, None]  # [SEQUENCES, WIDTH]
        at = first_item[:, None] + place
        if TURNS:
            mine = tl.where(count > heads, heads, 0)[:, None]  # items that open, and as many that close
            late = tl.where(place < 2 * mine, first_close[:, None] + place - mine, at - 2 * mine)
            at = tl.where(place < mine, first_open[:, None] + place, late)
        tl.store(item_sequences + at, b[:, None] + place * 0, mask=some)
        tl.store(item_sizes + at, size[:, None] + place * 0, mask=some)

    low_row = q_blocks * 0  # rows of Q before it see no key at all
    if HAS_RIGHT:
        low_row = tl.minimum(tl.maximum(len_q - len_k - right, 0), len_q)
    low = tl.where((k_blocks > 0) & (low_row < len_q), low_row // BLOCK_M, q_blocks)
    shared = (k_blocks > 0) & ~owned
    q_from = q_start
    if BROADCAST:
        low = low * 0
        q_from = q_start * 0
    if BROADCAST or TURNS:
        shared = k_blocks < 0
    for block0 in tl.range(0, tl.max(q_blocks, 0), WIDTH, num_stages=1):
        block = block0 + tl.arange(0, WIDTH)[None, :]
        some = block < q_blocks[:, None]
        at = first_block[:, None] + block
        record = table + at * BLOCK_FIELDS
        tl.store(record, q_start[:, None] + block * 0, mask=some)
        tl.store(record + 1, len_q[:, None] + block * 0, mask=some)
        tl.store(record + 2, block * BLOCK_M + q_start[:, None] * 0, mask=some)
        tl.store(record + 3, q_from[:, None] + block * 0, mask=some)
        untouched = block < low[:, None]
        if not COUNTED:  # a cast of zeros writes them
            untouched &= ~shared[:, None]
        tl.store(record + 4, untouched.to(tl.int32), mask=some)
        tl.store(record + 5, tl.where(shared[:, None], at, -1), mask=some)
    # fewer than a sequence each, unless rows follow the last sequence or one is longer than was said
    for rest0 in tl.range(used, num_blocks, batch, num_stages=1):
        rest = table + (rest0 + b) * BLOCK_FIELDS
        some = inside & (rest0 + b < num_blocks)
        for field in tl.static_range(BLOCK_FIELDS):
            tl.store(rest + field, b * 0 + (-1 if field == 5 else 0), mask=some)


@triton.jit
def _owner(item, workers, ZIGZAG: tl.constexpr):
    """The worker that an item is dealt to."""
    worker = item % workers
    if ZIGZAG:
        worker = tl.where(item // workers % 2 == 1, workers - 1 - worker, worker)
    return worker


@triton.jit
def _item(turn, worker, workers, ZIGZAG: tl.constexpr):
    """The item that a worker is dealt in a turn; there may be none of that number in the last turn."""
    place = worker + turn * 0
    if ZIGZAG:
        place = tl.where(turn % 2 == 1, workers - 1 - worker, worker)
    return turn * workers + place


@triton.jit(do_not_specialize=["workers", "longest_q", "longest_k", "owned_blocks", "owned_steps", "left", "right",
                               "group", "scratch", "shared_at", "shared_blocks", "acc_group", "heads"])
def deal_kernel(cu_q, cu_k, first_items, first_opens, first_blocks, item_sequences, item_sizes, counts, bounds, tiles,
                workers, longest_q, longest_k, owned_blocks, owned_steps, left, right, group, scratch, shared_at,
                shared_blocks, acc_group, heads, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_LEFT: tl.constexpr,
                HAS_RIGHT: tl.constexpr, ZIGZAG: tl.constexpr, BROADCAST: tl.constexpr, COUNTED: tl.constexpr,
                ORDERED: tl.constexpr, TURNS: tl.constexpr, PAIRS: tl.constexpr, ROTATE: tl.constexpr,
                SERPENTINE: tl.constexpr, HOLD: tl.constexpr, CHUNK: tl.constexpr, ROUNDS: tl.constexpr):
    """Writes the tiles of one CTA and its end in ``bounds``; the last CTA also a record of zeros behind all tiles.

    ``workers`` CTAs share the items: all of them, or with BROADCAST those of one head; or with PAIRS, so many pairs of
    CTAs do. ORDERED: tiles that are counted add in the order in which they were dealt. SERPENTINE means
    something with PAIRS alone. ROUNDS is even.
    """
    program = tl.program_id(0)
    worker = program % workers
    copy = program // workers
    rank = program % 2  # PAIRS: in the pair
    if PAIRS:
        worker = program // 2
        copy = program * 0
    num_items = tl.load(counts)
    before = tl.zeros([CHUNK], tl.int32)
    total = tl.zeros([CHUNK], tl.int32)
    for item0 in tl.range(0, num_items, CHUNK, num_stages=1):
        item = item0 + tl.arange(0, CHUNK)
        size = tl.load(item_sizes + item, mask=item < num_items, other=0)
        owner = _owner(item, workers, ZIGZAG)
        before += tl.where(owner < worker, size, 0)
        total += size
        if PAIRS:
            of_rank0 = size // 2 + tl.where(item // workers % 2 == 0, size % 2, 0)
            before += tl.where((owner == worker) & (rank == 1), of_rank0, 0)
    begin = tl.sum(before, 0) + copy * tl.sum(total, 0)
    if program == 0:
        tl.store(bounds, 0)
    round_ = tl.arange(0, ROUNDS)
    at = begin
    rounds = tl.cdiv(num_items, workers)
    if PAIRS or ROTATE:
        rounds -= (_item(rounds - 1, worker, workers, ZIGZAG) >= num_items).to(tl.int32)
    if PAIRS:  # places in the list: two to a couple, so perhaps one too many
        couples = (rounds + 1) // 2
        rounds = 2 * couples
    first_place = rounds * 0  # in the list, of what is done first
    if ROTATE:
        first_place = (couples if PAIRS else rounds) * (worker * 37 % 64) // 64
    for round0 in tl.range(0, rounds, ROUNDS, num_stages=1):
        turn = round0 + round_
        listed = turn < rounds
        if PAIRS:
            turn = (turn // 2 + first_place) % tl.maximum(couples, 1) * 2 + turn % 2
        elif ROTATE:
            turn = (turn + first_place) % tl.maximum(rounds, 1)
        item = _item(turn, worker, workers, ZIGZAG)
        some = listed & (item < num_items)
        size = tl.load(item_sizes + item, mask=some, other=0)
        if PAIRS:  # of the item's tiles, those in this list: half, and maybe the one ahead of the couple's rounds
            tiles_of_item = size
            odd = size % 2
            single = tl.where(turn % 2 == rank, odd, 0)
            size = size // 2 + single
            earlier = round_[None, :] // 2 < round_[:, None] // 2  # couples
            couple_at = at + tl.sum(tl.where(earlier, size[None, :], 0), 1)
            own = round_[None, :] // 2 == round_[:, None] // 2
            ahead = tl.where(round_[None, :] < round_[:, None], (size - single)[None, :], 0) + single[None, :]
            rounds_at = couple_at + tl.sum(tl.where(own, ahead, 0), 1)
        first = at + tl.sum(tl.where(round_[None, :] < round_[:, None], size[None, :], 0), 1)
        at += tl.sum(size, 0)
        b = tl.load(item_sequences + item, mask=some, other=0)
        q_start, len_q = lengths_of(cu_q, b, some, longest_q)
        k_start, len_k = lengths_of(cu_k, b, some, longest_k)
        row_block = tl.load(first_blocks + b, mask=some, other=0)
        number = item - tl.load(first_items + b, mask=some, other=0)  # of the item among the sequence's
        q_blocks, k_blocks = tl.cdiv(len_q, BLOCK_M), tl.cdiv(len_k, BLOCK_N)
        owned = _is_owned(q_blocks, k_blocks, owned_blocks, owned_steps)
        head = tl.where(owned, number, number // tl.maximum(k_blocks, 1))
        tile0 = tl.where(owned, 0, number % tl.maximum(k_blocks, 1))
        if COUNTED:  # from the last tile to the first
            tile0 = tl.where(owned, 0, k_blocks - 1 - tile0)
        if TURNS:
            opens = tl.load(counts + 1)
            closing = item - (num_items - opens)  # place among the items that close
            ends = (item < opens) | (closing >= 0)
            number_of_end = tl.where(closing >= 0, closing, item) - tl.load(first_opens + b, mask=some, other=0)
            middles = tl.maximum(k_blocks - 2, 1)
            head = tl.where(ends, number_of_end, tl.where(owned, number, number // middles))
            tile0 = tl.where(ends, (closing >= 0).to(tl.int32), tl.where(owned, 0, 2 + number % middles))
        acc_block = tl.where(owned, program * scratch, shared_at + head * group * shared_blocks + row_block)
        if PAIRS:
            acc_block = (2 * worker + turn % 2) * scratch
        if BROADCAST:
            head = head * 0 + program // workers
            acc_block = head * 0 + program * group * acc_group
        for i in tl.range(0, tl.max(size, 0), num_stages=1):
            tile = tile0 + i
            record = tiles + (first + i) * FIELDS
            here = i < size
            if PAIRS:
                round_of_item = i - single
                alone = round_of_item < 0
                tile = tl.where(alone, 0, odd + 2 * round_of_item + rank)
                record = tiles + tl.where(alone, couple_at, rounds_at + round_of_item) * FIELDS
            low, steps = _steps(tile, len_q, len_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT)
            row = tile * BLOCK_N
            shift = len_k - len_q
            full_from = row * 0
            full_to = q_blocks
            if HAS_RIGHT:
                full_from = tl.cdiv(tl.maximum(row + BLOCK_N - 1 - shift - right, 0), BLOCK_M)
            if HAS_LEFT:
                full_to = tl.maximum(row - shift + left + 1, 0) // BLOCK_M
            full_from = tl.where(row + BLOCK_N > len_k, NEVER, full_from)
            cut_end = tl.minimum(tl.maximum(full_from - low, 0), steps)
            cut_from = tl.minimum(tl.maximum(full_to - low, cut_end), steps)
            lasts = steps * 0
            firsts = steps * 0 + NEVER
            group_blocks = q_blocks
            after = tile > 0
            if BROADCAST:
                after = first + i > begin
                group_blocks = q_blocks * 0 + acc_group
                if not (HAS_LEFT or HAS_RIGHT):
                    firsts = tl.where(after, NEVER, 0)
            else:
                low0, steps0 = _steps(tile - 1, len_q, len_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT)
                low1, steps1 = _steps(tile + 1, len_q, len_k, left, right, BLOCK_M, BLOCK_N, HAS_LEFT, HAS_RIGHT)
                end0 = tl.where((tile > 0) & (steps0 > 0), low0 + steps0, 0)
                start1 = tl.where((tile + 1 < k_blocks) & (steps1 > 0), low1, NEVER)
                firsts = tl.where(owned, tl.maximum(end0 - low, 0), NEVER)
                stores = tl.minimum(tl.maximum(start1 - low, 0), steps)
                lasts = tl.where(owned, stores, 0)
                if TURNS:  # the first tile opens, the second closes
                    firsts = tl.where(tile > 0, firsts, 0)
                    lasts = tl.where(tile == 0, stores, tl.where((tile == 1) & ~owned, steps, lasts))
                after = owned & after
                group_blocks = tl.where(owned, q_blocks, shared_blocks)
            partials = tl.minimum(lasts, firsts)
            if PAIRS:
                place_in_item = tl.where(alone, 0, odd + round_of_item)
                firsts = steps * 0
                partials = tl.where(place_in_item > 0, steps, 0)
                lasts = tl.where(place_in_item == (tiles_of_item - 1) // 2, steps, 0)
                after = partials > 0
            q_from = q_start
            if BROADCAST:
                q_from = q_start * 0
            tl.store(record + Q_START, q_from, mask=here)
            tl.store(record + Q_LEN, len_q, mask=here)
            tl.store(record + OUT_START, q_start, mask=here)
            tl.store(record + K_START, k_start, mask=here)
            tl.store(record + K_LEN, len_k, mask=here)
            tl.store(record + K_ROW, row, mask=here)
            tl.store(record + STEPS, steps, mask=here)
            tl.store(record + CUT_END, cut_end, mask=here)
            tl.store(record + CUT_FROM, cut_from, mask=here)
            tl.store(record + BLOCK, low, mask=here)
            tl.store(record + PARTIALS, partials, mask=here)
            tl.store(record + FIRST_FROM, firsts, mask=here)
            tl.store(record + LASTS, lasts, mask=here)
            tl.store(record + HEAD, head, mask=here)
            tl.store(record + ROW_BLOCK, row_block, mask=here)
            tl.store(record + ACC_BLOCK, acc_block, mask=here)
            tl.store(record + ACC_GROUP, group_blocks, mask=here)
            tl.store(record + AFTER_ITSELF, after.to(tl.int32), mask=here)
            if COUNTED:
                cast_from = low
                casts = stores
                touched = tile + 1
                wanted = tile * 0 + 1
                if not HAS_RIGHT:  # all tiles touch all blocks, and share the casts
                    cast_from = tile * q_blocks // tl.maximum(k_blocks, 1)
                    casts = (tile + 1) * q_blocks // tl.maximum(k_blocks, 1) - cast_from
                    touched = k_blocks
                if ORDERED:
                    wanted = k_blocks - 1 - tile
                tl.store(record + STORES, tl.where(owned, 0, stores), mask=here)
                tl.store(record + CAST_FROM, tl.where(owned, 0, cast_from), mask=here)
                tl.store(record + CASTS, tl.where(owned, 0, casts), mask=here)
                tl.store(record + TOUCHED, tl.where(owned, 0, touched), mask=here)
                tl.store(record + WANTED, tl.where(owned, 0, wanted), mask=here)
            if TURNS:
                wanted = tl.where(tile == 1, k_blocks - 1, 1)
                tl.store(record + WANTED, tl.where(owned | (tile == 0), 0, wanted), mask=here)
                tl.store(record + COUNTER, tl.where(owned, -1, b * heads + head), mask=here)
            if HOLD:
                back = tile % 2 == 1
                from0 = tl.where(back, low0 + steps0 - 1, low0)  # where the tile before ends
                at0 = tl.where(back, low + steps - 1, low)  # where this one begins
                to1 = tl.where(back, low, low + steps - 1)
                at1 = tl.where(back, low1, low1 + steps1 - 1)
                some = owned & (steps > 0)
                take = some & (tile > 0) & (steps0 > 0) & (from0 == at0)
                leave = some & (tile + 1 < k_blocks) & (steps1 > 0) & (to1 == at1)
                touched = leave & (to1 - low < firsts)
                holds = take.to(tl.int32) + 2 * leave.to(tl.int32) + 4 * touched.to(tl.int32)
                tl.store(record + HOLDS, holds, mask=here)
            if PAIRS:
                back = place_in_item % 2
                if not SERPENTINE:
                    back = back * 0
                tl.store(record + ROLE, tl.where(alone, 0, 1 + rank), mask=here)
                tl.store(record + BACK, back, mask=here)
    tl.store(bounds + program + 1, at)
    if program == tl.num_programs(0) - 1:
        for field in tl.static_range(FIELDS):
            tl.store(tiles + at * FIELDS + field, 0)
