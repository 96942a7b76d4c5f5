"""Small TLX kernels, right ones and ones broken in one way, for the tests of the simulator."""

import triton
import triton.language as tl
import triton.language.extra.tlx as tlx


@triton.jit
def pipeline(desc_in, desc_out, n, BLOCK: tl.constexpr, SLOTS: tl.constexpr, FAULT: tl.constexpr):
    """A loader fills a ring, a consumer doubles each block and stores it. FAULT breaks one thing."""
    ring = tlx.local_alloc((BLOCK, 64), tl.bfloat16, SLOTS)
    out = tlx.local_alloc((BLOCK, 64), tl.bfloat16, 1)
    full = tlx.alloc_barriers(SLOTS)
    empty = tlx.alloc_barriers(SLOTS)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            for i in tl.range(0, n):
                slot = i % SLOTS
                phase = (i // SLOTS) & 1
                if FAULT != "no wait for full":
                    tlx.barrier_wait(full[slot], phase)
                x = tlx.local_load(ring[slot])
                if FAULT == "read after release":
                    tlx.barrier_arrive(empty[slot])
                    x = tlx.local_load(ring[slot])
                elif FAULT == "two releases":
                    tlx.barrier_arrive(empty[slot])
                    tlx.barrier_arrive(empty[slot])
                elif FAULT != "no release":
                    tlx.barrier_arrive(empty[slot])
                if FAULT != "no wait for store":
                    tlx.async_descriptor_store_wait(0)
                tlx.local_store(out[0], x + x)
                tlx.async_descriptor_store(desc_out, out[0], [i * BLOCK if FAULT != "same place" else 0, 0])
            if FAULT != "no wait at exit":
                tlx.async_descriptor_store_wait(0)
        with tlx.async_task(num_warps=1):
            for i in tl.range(0, n if FAULT != "one block less" else n - 1):
                slot = i % SLOTS
                phase = (i // SLOTS) & 1
                if FAULT != "no wait for empty":
                    tlx.barrier_wait(empty[slot], phase ^ 1)
                tlx.barrier_expect_bytes(full[slot], BLOCK * 64 * (4 if FAULT == "too many bytes" else 2))
                tlx.async_descriptor_load(desc_in, ring[slot], [i * BLOCK, 0], full[slot])
            if FAULT == "one block more":
                slot = n % SLOTS
                tlx.barrier_wait(empty[slot], ((n // SLOTS) & 1) ^ 1)
                tlx.barrier_expect_bytes(full[slot], BLOCK * 64 * 2)
                tlx.async_descriptor_load(desc_in, ring[slot], [0, 0], full[slot])


@triton.jit
def product(x, desc_b, out, FENCE: tl.constexpr, WAIT: tl.constexpr):
    """wgmma whose A operand was written by ordinary stores."""
    a = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    b = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    bar = tlx.alloc_barriers(1)
    tlx.barrier_expect_bytes(bar[0], 64 * 64 * 2)
    tlx.async_descriptor_load(desc_b, b[0], [0, 0], bar[0])
    rows = tl.arange(0, 64)
    tlx.local_store(a[0], tl.load(x + rows[:, None] * 64 + rows[None, :]))
    if FENCE:
        tlx.fence("async_shared")
    tlx.barrier_wait(bar[0], 0)
    acc = tlx.async_dot(a[0], b[0])
    if WAIT:
        acc = tlx.async_dot_wait(0, acc)
    tl.store(out + rows[:, None] * 64 + rows[None, :], acc)


@triton.jit
def uninitialised(out):
    tile = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    tl.store(out, tl.sum(tl.sum(tlx.local_load(tile[0]).to(tl.float32), 1), 0))


@triton.jit
def early_release(desc, out, WARP: tl.constexpr):
    tile = tlx.local_alloc((64, 64), tl.bfloat16, 1)
    full = tlx.alloc_barriers(1)
    empty = tlx.alloc_warp_barrier(1, num_warps=4) if WARP else tlx.alloc_barriers(1)
    tlx.barrier_expect_bytes(full[0], 64 * 64 * 2)
    tlx.async_descriptor_load(desc, tile[0], [0, 0], full[0])
    tlx.barrier_wait(full[0], 0)
    x = tlx.local_load(tile[0])
    tlx.barrier_arrive(empty[0])
    acc = tlx.async_dot(x, tile[0])
    acc = tlx.async_dot_wait(0, acc)
    tl.store(out, tl.sum(tl.sum(acc, 1), 0))


@triton.jit
def assignment_loses_constexpr(x, N: tl.constexpr):
    k = N
    for i in tl.static_range(k):
        tl.store(x + i, 1.0)


@triton.jit
def annotation_keeps_constexpr(x, N: tl.constexpr):
    k: tl.constexpr = N
    for i in tl.static_range(k):
        tl.store(x + i, 1.0)


@triton.jit
def overflow(x, n):
    p = n * 65536
    tl.store(x, 1.0 * (p * 65536))


@triton.jit
def wide(x, n):
    p = n.to(tl.int64) * 65536
    tl.store(x, 1.0 * (p * 65536))


@triton.jit
def c_division(x, n):
    tl.store(x, 1.0 * ((0 - n) // 2))
    tl.store(x + 1, 1.0 * ((0 - n) % 2))
    tl.store(x + 2, 1.0 * tl.cdiv(n, 2))


@triton.jit
def replicas(x, N: tl.constexpr):
    bar = tlx.alloc_barriers(1, arrive_count=N)
    y = 5
    with tlx.async_tasks():
        with tlx.async_task("default"):
            y = y + 100
            tlx.barrier_wait(bar[0], 0)
            tl.store(x + N, 1.0 * y)
        with tlx.async_task(num_warps=4, replicate=N):
            r: tl.constexpr = tlx.async_task_replica_id()
            y += r
            tl.store(x + r, 1.0 * y)
            tlx.barrier_arrive(bar[0])


@triton.jit
def two_defaults(x):
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tl.store(x, 1.0)
        with tlx.async_task("default"):
            tl.store(x + 1, 1.0)


@triton.jit
def bulk(x, y, n, OFFSET: tl.constexpr, COMPLETE: tl.constexpr):
    """Global to shared to global by bulk copies, then an ordinary read of what was stored."""
    tile = tlx.local_alloc((64,), tl.float32, 1)
    bar = tlx.alloc_barriers(1)
    tlx.barrier_expect_bytes(bar[0], 256)
    tlx.async_load(x + OFFSET, tile[0], bulk=True, barrier=bar[0])
    tlx.barrier_wait(bar[0], 0)
    tlx.async_store(y, tile[0], 256)
    if COMPLETE:
        tl.inline_asm_elementwise("cp.async.bulk.wait_group 0; // $0", "=r,r", [n], dtype=tl.int32, is_pure=False,
                                  pack=1)
    else:
        tlx.async_descriptor_store_wait(0)
    tl.store(y + 64, tl.load(y))


@triton.jit
def reinterpret(x, out):
    """fp32 written, read back as two bf16 halves through another shape."""
    tile = tlx.local_alloc((64, 32), tl.float32, 1)
    rows = tl.arange(0, 64)
    cols = tl.arange(0, 32)
    tlx.local_store(tile[0], tl.load(x + rows[:, None] * 32 + cols[None, :]))
    halves = tlx.local_load(tlx.local_reinterpret(tile[0], tl.bfloat16, [64, 64]))
    wide_cols = tl.arange(0, 64)
    tl.store(out + rows[:, None] * 64 + wide_cols[None, :], halves)


@triton.jit
def exchange(out, REMOTE: tl.constexpr):
    """Two CTAs of a cluster swap a tile; REMOTE says how the peer is told."""
    rank = tlx.cluster_cta_rank()
    tile = tlx.local_alloc((64, 32), tl.float32, 2)
    bar = tlx.alloc_barriers(1)
    tlx.cluster_barrier()
    value = tl.zeros([64, 32], tl.float32) + rank
    if REMOTE == "copy":
        tlx.local_store(tile[0], value)
        tlx.fence("async_shared")
        tlx.barrier_expect_bytes(bar[0], 64 * 32 * 4)
        tlx.async_remote_shmem_copy(tile[1], tile[0], rank ^ 1, bar[0])
        tlx.barrier_wait(bar[0], 0)
    else:
        tlx.remote_shmem_store(tile[1], value, rank ^ 1)
        if REMOTE == "view":
            tlx.barrier_arrive(tlx.remote_view(bar[0], rank ^ 1))
        elif REMOTE == "rank":
            tlx.barrier_arrive(bar[0], remote_cta_rank=rank ^ 1)
        if REMOTE != "nothing":
            tlx.barrier_wait(bar[0], 0)
    rows = tl.arange(0, 64)
    cols = tl.arange(0, 32)
    got = tlx.local_load(tile[1])
    tlx.cluster_barrier()
    tl.store(out + rank * 2048 + rows[:, None] * 32 + cols[None, :], got)


@triton.jit
def write_global(x, n, STEP: tl.constexpr, ATOMIC: tl.constexpr):
    """CTA p writes 64 elements from p * STEP."""
    at = x + tl.program_id(0) * STEP + tl.arange(0, 64)
    if ATOMIC:
        tl.atomic_add(at, 1.0)
    else:
        tl.store(at, 1.0, mask=tl.arange(0, 64) < n)


@triton.jit
def hand_over(flag, data, out, SYNC: tl.constexpr):
    """CTA 0 writes data and raises a flag; CTA 1 spins on the flag and reads."""
    if tl.program_id(0) == 0:
        tl.store(data, 7.0)
        tl.atomic_add(flag, 1, sem="release" if SYNC else "relaxed")
    else:
        seen = tl.atomic_add(flag, 0, sem="acquire")
        while seen == 0:
            seen = tl.atomic_add(flag, 0, sem="acquire")
        tl.store(out, tl.load(data))


@triton.jit
def turns(x, TWICE: tl.constexpr):
    """One task arrives at a named barrier, or twice, before the other waits there."""
    arrived = tlx.alloc_barriers(1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            tlx.barrier_wait(arrived[0], 0)
            tlx.named_barrier_wait(9, 256)
            tl.store(x, 1.0)
        with tlx.async_task(num_warps=4):
            tlx.named_barrier_arrive(9, 256)
            if TWICE:
                tlx.named_barrier_arrive(9, 256)
            tlx.barrier_arrive(arrived[0])


@triton.jit
def store_without_fence(desc, x, out, HOW: tl.constexpr):
    """One task writes shared memory, another stores it; neither has a proxy fence."""
    tile = tlx.local_alloc((64, 64), tl.float32, 1)
    full = tlx.alloc_barriers(1)
    with tlx.async_tasks():
        with tlx.async_task("default"):
            at = tl.arange(0, 64)
            tlx.local_store(tile[0], tl.load(x + at[:, None] * 64 + at[None, :]))
            tlx.barrier_arrive(full[0])
        with tlx.async_task(num_warps=1, registers=24):
            tlx.barrier_wait(full[0], 0)
            if HOW == "store":
                tlx.async_descriptor_store(desc, tile[0], [0, 0])
            elif HOW == "add":
                tlx.async_descriptor_store(desc, tile[0], [0, 0], store_reduce="add")
            else:
                tlx.async_store(out, tile[0], 64 * 64 * 4)
            tlx.async_descriptor_store_wait(0)


@triton.jit
def too_much_smem(x):
    tlx.local_alloc((128, 128), tl.bfloat16, 8)
    tl.store(x, 1.0)


@triton.jit
def not_simulated(x, TLX: tl.constexpr):
    if TLX:
        tlx.local_gather(x, x, 0)
    else:
        tl.sort(x)


@triton.jit
def relay(desc, flag, last, FAULT: tl.constexpr):
    """The second CTA stores ones by TMA, the first adds ones to them, in turn by a flag in global memory."""
    tile = tlx.local_alloc((64, 32), tl.float32, 1)
    pid = tl.program_id(0)
    tlx.local_store(tile[0], tl.full((64, 32), 1.0, tl.float32))
    tlx.fence("async_shared")
    if pid == last:
        tlx.async_descriptor_store(desc, tile[0], [0, 0])
        if FAULT == "only read":
            tlx.async_descriptor_store_wait(0)
        else:
            tl.inline_asm_elementwise("cp.async.bulk.wait_group 0; // $0", "=r,r", [pid], tl.int32, False, 1)
        if FAULT != "no count":
            tl.inline_asm_elementwise("@%p red.release.gpu.global.add.s32 [$1], 1; mov.u32 $0, 0;", "=r,l", [flag],
                                      tl.int32, False, 1)
    else:
        if FAULT != "no wait":
            tl.inline_asm_elementwise("""
            _again:
            ld.relaxed.gpu.global.s32 $0, [$1];
            setp.lt.s32 %p, $0, $2;
            @%p bra _again;
            ld.acquire.gpu.global.s32 $0, [$1];""", "=r,l,r", [flag, 1], tl.int32, False, 1)
        tlx.async_descriptor_store(desc, tile[0], [0, 0], store_reduce="add")
        tl.inline_asm_elementwise("cp.async.bulk.wait_group 0; // $0", "=r,r", [pid], tl.int32, False, 1)


@triton.jit
def permuted(x, out, USE: tl.constexpr):
    """Stores through a tile of 64 rows whose eights stand in the order 0 4 1 5 2 6 3 7, and loads the tile as it is."""
    row, column = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    buffers = tlx.local_alloc((64, 64), tl.float32, 1)
    tile = buffers[0]
    view = tlx.local_trans(tlx.local_reshape(tile, [8, 4, 2, 64]), (0, 2, 1, 3))
    if USE == "square":  # as many dimensions as the tile that it is of
        view = tlx.local_reshape(tlx.local_trans(tlx.local_reshape(tile, [64, 2, 32]), (1, 0, 2)), [2, 128, 16])
        view = tlx.local_trans(view, (1, 0, 2))
    view = tlx.local_reshape(view, [64, 64])
    tlx.local_store(view, tl.load(x + row * 64 + column))
    if USE == "trans":
        view = tlx.local_trans(view)
    if USE == "slice":
        view = tlx.local_slice(view, [0, 0], [64, 64])
    if USE == "index":
        view = tlx.local_view(view, 0)
    if USE == "dot":
        tl.store(out + row * 64 + column, tlx.async_dot_wait(0, tlx.async_dot(view, view)))
    tl.store(out + row * 64 + column, tlx.local_load(tile))


@triton.jit
def column(x, out):
    """Stores a tile's first row, and loads its first column."""
    buffers = tlx.local_alloc((64, 64), tl.float32, 1)
    at = tl.arange(0, 64)
    tlx.local_store(tlx.local_view(buffers[0], 0), tl.load(x + at))
    tl.store(out + at, tlx.local_load(tlx.local_view(tlx.local_trans(buffers[0]), 0)))


@triton.jit
def promise(x, n, MORE: tl.constexpr):
    """Promises the compiler that ``n`` is positive and that the numbers from ``n`` on are more than ``MORE``."""
    tl.assume(n > 0)
    tl.assume(n + tl.arange(0, 4) > MORE)
    tl.store(x, n)
