"""Online softmax that keeps an older maximum: exponentials are taken relative to it as long as they stay small enough.

A row's probabilities may be relative to any maximum that the row had before, as long as nothing overflows. So a step
takes no maximum: it computes exponentials and their sums, and a warp in which a sum passed `LIMIT` (or is no number)
takes the maxima after all, does the step's exponentials again and rescales what it had accumulated (`settle`).

A row's state is ``[64, 4]``, one element in each of the four threads that hold a row of the scores: ``m``, the maximum
times scale, the same in all of them, and ``norm``, which adds up to the row's sum.
"""

import triton
import triton.language as tl

WIDTH = tl.constexpr(4)  # columns of a part: one in each of the four threads that hold a row
LIMIT = tl.constexpr(2.0**14)  # of a thread's sums in a step: below the largest fp16


@triton.jit
def parts_of(x):
    """``x [M, N]``, of wgmma's layout, as a tuple of N / 4 tensors ``[M, 4]``; a row stays in its threads."""
    if x.shape[1] == 8:
        return x.reshape([x.shape[0], 4, 2]).split()
    else:
        a, b = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()
        return parts_of(a) + parts_of(b)


@triton.jit
def joined(parts):
    """The inverse of `parts_of`."""
    if len(parts) == 2:
        return tl.join(parts[0], parts[1]).reshape([parts[0].shape[0], 8])
    else:
        a = joined(parts[:len(parts) // 2])
        b = joined(parts[len(parts) // 2:])
        return tl.join(a, b).permute(0, 2, 1).reshape([a.shape[0], 2 * a.shape[1]])


@triton.jit
def _maximum(parts):
    if len(parts) == 1:
        return parts[0]
    else:
        return tl.maximum(_maximum(parts[:len(parts) // 2]), _maximum(parts[len(parts) // 2:]))


@triton.jit
def _exponentials(parts, origin, scale):
    """``2^(x * scale - origin)`` of every part."""
    if len(parts) == 1:
        return (tl.math.exp2(parts[0] * scale - origin),)
    else:
        return (_exponentials(parts[:len(parts) // 2], origin, scale)
                + _exponentials(parts[len(parts) // 2:], origin, scale))


@triton.jit
def _total(parts):
    if len(parts) == 1:
        return parts[0]
    else:
        return _total(parts[:len(parts) // 2]) + _total(parts[len(parts) // 2:])


@triton.jit
def _cast(parts, DTYPE: tl.constexpr):
    if len(parts) == 1:
        return (parts[0].to(DTYPE),)
    else:
        return _cast(parts[:len(parts) // 2], DTYPE) + _cast(parts[len(parts) // 2:], DTYPE)


@triton.jit
def scaled(parts, factor):
    """Parts ``[M, 4]`` times ``factor [M, 4]``, joined."""
    return joined(_scaled(parts, factor))


@triton.jit
def _scaled(parts, factor):
    if len(parts) == 1:
        return (parts[0] * factor,)
    else:
        return _scaled(parts[:len(parts) // 2], factor) + _scaled(parts[len(parts) // 2:], factor)


@triton.jit
def spread(x):
    """``[M]`` as ``[M, 4]``."""
    return tl.broadcast_to(x[:, None], [x.shape[0], WIDTH])


@triton.jit
def first_step(s, scale, DTYPE: tl.constexpr):
    """``(p, m, norm)`` of a tile's first block ``s [M, N]``; a row without a visible key has p = 0, m = -inf."""
    parts = parts_of(s)
    m = spread(tl.max(_maximum(parts), 1) * scale)
    p = _exponentials(parts, tl.where(m == -float("inf"), 0.0, m), scale)
    return joined(_cast(p, DTYPE)), m, _total(p)


@triton.jit
def hopeful_step(s, m, scale):
    """``(p, sums)`` of one more block with the maximum as it was: p's parts, and their sum ``[M, 4]``."""
    p = _exponentials(parts_of(s), m, scale)
    return p, _total(p)


@triton.constexpr_function
def _settling(scores, outputs):
    """PTX of `settle` and its constraints, for ``scores`` and ``outputs`` parts of S and O, in two rows a thread.

    Results are written before all operands are read, hence ``=&``: without it they may get an operand's register.
    """
    limit = LIMIT.value
    written, read = 2 * (scores + 2 + outputs), 2 * (2 * scores + 4 + outputs)
    names = iter(f"${i}" for i in range(written + read))

    def take(parts):
        return [next(names) for _ in range(2 * parts)]

    p_out, m_out, norm_out, acc_out = take(scores), take(1), take(1), take(outputs)
    s, p, m, norm, sums, factor, acc = take(scores), take(scores), take(1), take(1), take(1), take(1), take(outputs)
    scale = factor[0]
    lines = [f"// settle {scores} {outputs} {limit}", "{", ".reg .pred bad, any, none;",
             ".reg .f32 t, u, a, more0, more1;",
             f"add.f32 t, {sums[0]}, {sums[1]};", f"setp.gtu.f32 bad, t, {limit};",
             "vote.sync.any.pred any, bad, 0xffffffff;", f"mov.f32 more0, {sums[0]};", f"mov.f32 more1, {sums[1]};"]
    lines += [f"mov.f32 {out}, {old};" for out, old in zip(p_out + m_out + norm_out + acc_out, p + m + norm + acc,
                                                           strict=True)]
    lines += ["@!any bra.uni DONE;"]
    for row in (0, 1):
        more = f"more{row}"
        lines += [f"max.f32 t, {s[row]}, {s[row + 2]};", *(f"max.f32 t, t, {each};" for each in s[row + 4::2])]
        for lanes in (1, 2):
            lines += [f"shfl.sync.bfly.b32 u, t, {lanes}, 0x1f, 0xffffffff;", "max.f32 t, t, u;"]
        lines += [f"mul.f32 t, t, {scale};", f"max.f32 t, t, {m_out[row]};", "setp.eq.f32 none, t, 0fFF800000;",
                  "selp.f32 u, 0f00000000, t, none;", f"sub.f32 a, {m_out[row]}, u;", f"mov.f32 {m_out[row]}, t;",
                  "ex2.approx.ftz.f32 a, a;", "neg.f32 u, u;", f"mov.f32 {more}, 0f00000000;"]
        for score, out in zip(s[row::2], p_out[row::2], strict=True):
            lines += [f"fma.rn.f32 {out}, {score}, {scale}, u;", f"ex2.approx.ftz.f32 {out}, {out};",
                      f"add.f32 {more}, {more}, {out};"]
        lines += [f"mul.f32 {out}, {out}, a;" for out in [norm_out[row], *acc_out[row::2]]]
    lines += ["DONE:", *(f"add.f32 {norm_out[row]}, {norm_out[row]}, more{row};" for row in (0, 1))]
    return "\n".join([*lines, "}"]), ",".join(["=&f"] * written + ["f"] * read)


@triton.constexpr_function
def _asm(scores, outputs):
    return _settling(scores, outputs)[0]


@triton.constexpr_function
def _constraints(scores, outputs):
    return _settling(scores, outputs)[1]


@triton.constexpr_function
def _types(scores, outputs):
    return (tl.float32,) * (scores + 2 + outputs)


@triton.jit
def settle(s, p, m, norm, sums, acc, scale, DTYPE: tl.constexpr):
    """``(p, m, norm, acc)`` after a block: `hopeful_step`'s ``p`` if no warp's sum went too far, else done again."""
    SCORES: tl.constexpr = s.shape[1] // WIDTH
    OUTPUTS: tl.constexpr = acc.shape[1] // WIDTH
    settled = tl.inline_asm_elementwise(
        _asm(SCORES, OUTPUTS), _constraints(SCORES, OUTPUTS),
        parts_of(s) + p + (m, norm, sums, tl.full([s.shape[0], WIDTH], 0.0, tl.float32) + scale)
        + parts_of(acc), _types(SCORES, OUTPUTS), False, 2)
    return (joined(settled[:SCORES]).to(DTYPE), settled[SCORES], settled[SCORES + 1], joined(settled[SCORES + 2:]))
