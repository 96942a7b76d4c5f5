"""The oracle: jagged attention and its gradients from explicit formulas, one sequence at a time, on any device.

Two precisions share one body. The oracle computes everything in ``dtype`` (fp64). The low-precision twin is textbook
attention as tensor cores do it: operands of every matmul (inputs, P, dS, and the output that enters delta) rounded to
the kernels' dtype, products accumulated in fp32, results rounded once. The twin's error against the oracle is what a
correct kernel may be wrong by, up to a small factor.

A row whose error comes from few roundings, such as the two keys of a short sequence, has a twin that is right by
chance as often as not. What such a row may be wrong by is the variance of the twin's error: of each value that is
rounded, carried through to the results to first order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from kernels.jagged_layout import JaggedLayout
from kernels.problem import JaggedProblem

SCORES_PER_PIECE = 2**24  # scores held at once: 128 MiB in fp64; the backward holds about four such tensors


def attention_reference(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                        dtype: torch.dtype = torch.float64,
                        sequences: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)`` in ``dtype``, shapes as in `JaggedProblem`.

    A query that sees no key has ``out`` 0 and ``lse`` -inf. ``sequences`` computes only those sequences and leaves
    the other rows NaN. Reads the layouts' offsets on the host.
    """
    return _forward(problem, q, k, v, _Precision(dtype, dtype), sequences)


def attention_reference_backward(
        problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
        dtype: torch.dtype = torch.float64,
        sequences: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)`` in ``dtype``, shapes as in `JaggedProblem`.

    ``sequences`` computes only those sequences and leaves the other rows NaN; the dense ``dq`` of broadcast-Q is
    then the sum over those sequences.
    """
    return _backward(problem, q, k, v, dout, _Precision(dtype, dtype), sequences)


def attention_reference_lowp(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                             dtype: torch.dtype | None = None,
                             sequences: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """``(out, lse)`` of the low-precision twin: ``out`` in ``dtype`` (default: the problem's), ``lse`` in fp32."""
    return _forward(problem, q, k, v, _Precision(torch.float32, dtype or problem.dtype), sequences)


def attention_reference_lowp_backward(
        problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
        dtype: torch.dtype | None = None,
        sequences: Sequence[int] | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``(dq, dk, dv)`` of the low-precision twin, in ``dtype`` (default: the problem's)."""
    return _backward(problem, q, k, v, dout, _Precision(torch.float32, dtype or problem.dtype), sequences)


def rounding_variance(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Variance of the error of rounding each element of ``x`` to ``dtype``, if its mantissa is random; of ``x``'s
    dtype."""
    limits = torch.finfo(dtype)
    return x.abs().clamp_(min=limits.tiny).mul_(limits.eps * 24**-0.5).square_()  # an ulp is eps * x to half of that


def attention_reference_lowp_variance(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor,
                                      v: torch.Tensor) -> torch.Tensor:
    """Expected squared error of the twin's ``out`` before it is rounded, fp32 of its shape."""
    group, dtype = problem.group_size, problem.dtype
    variance = torch.zeros(problem.out_shape, dtype=torch.float32, device=q.device)
    for piece in _pieces(problem, q.device):
        q_piece = _fold(q[piece.rows_q, piece.heads_q].float(), group)  # [heads, group * m, D]
        k_piece = k[piece.rows_k, piece.heads_kv].float().transpose(0, 1)  # [heads, n, D]
        v_piece = v[piece.rows_k, piece.heads_kv].float().transpose(0, 1)
        p, _ = _probabilities((q_piece @ k_piece.mT).mul_(problem.softmax_scale), piece.visible, group)
        variance[piece.rows_out, piece.heads_q] = _unfold(_operand_variance(p, dtype) @ v_piece.square(), group)
    return variance


def attention_reference_lowp_backward_variance(
        problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        dout: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Expected squared errors of the twin's ``(dq, dk, dv)`` before they are rounded, fp32 of their shapes."""
    group, dtype = problem.group_size, problem.dtype
    dq = torch.zeros(problem.q_shape, dtype=torch.float32, device=q.device)
    dk = torch.zeros(problem.kv_shape, dtype=torch.float32, device=q.device)
    dv = torch.zeros_like(dk)
    for piece in _pieces(problem, q.device):
        q_piece = _fold(q[piece.rows_q, piece.heads_q].float(), group)  # [heads, group * m, D]
        k_piece = k[piece.rows_k, piece.heads_kv].float().transpose(0, 1)  # [heads, n, D]
        v_piece = v[piece.rows_k, piece.heads_kv].float().transpose(0, 1)
        dout_piece = _fold(dout[piece.rows_out, piece.heads_q].float(), group)
        p, _ = _probabilities((q_piece @ k_piece.mT).mul_(problem.softmax_scale), piece.visible, group)
        p_variance = _operand_variance(p, dtype)  # [heads, group * m, n]
        out, dp, dout_square = p @ v_piece, dout_piece @ v_piece.mT, dout_piece.square()
        delta_variance = ((_operand_variance(out, dtype) * dout_square).sum(dim=-1, keepdim=True)
                          + (p_variance * dp.square()).sum(dim=-1, keepdim=True))  # [heads, group * m, 1]
        ds = dp.sub_((dout_piece * out).sum(dim=-1, keepdim=True)).mul_(p)  # [heads, group * m, n]
        ds_variance = _operand_variance(ds, dtype)
        # One delta serves a whole row of dS, so what it adds to dq is one error, not one a key.
        dq_piece = ds_variance @ k_piece.square() + delta_variance * (p @ k_piece).square()
        dk_piece = ds_variance.addcmul_(delta_variance, p.square()).mT @ q_piece.square()
        dq[piece.rows_q, piece.heads_q] += _unfold(dq_piece, group) * problem.softmax_scale**2
        dk[piece.rows_k, piece.heads_kv] += dk_piece.transpose(0, 1) * problem.softmax_scale**2
        dv[piece.rows_k, piece.heads_kv] += (p_variance.mT @ dout_square).transpose(0, 1)
    return dq, dk, dv


def select_sequences(problem: JaggedProblem,
                     sequences: Sequence[int]) -> tuple[JaggedProblem, torch.Tensor, torch.Tensor]:
    """``(part, rows_q, rows_k)``: the problem of some sequences alone, packed in the order given.

    ``rows_q`` and ``rows_k`` are int64 indices of their rows in the whole problem's ``out`` and ``k``, on its
    device: ``attention_reference(part, q[rows_q], k[rows_k], v[rows_k])`` (``q`` itself with broadcast-Q) needs no
    memory for the other rows. Raises `IndexError` for a sequence that the problem does not have.
    """
    chosen = np.asarray(sequences, dtype=np.int64).reshape(-1)
    if len(chosen) and not 0 <= chosen.min() <= chosen.max() < problem.batch:
        raise IndexError(f"sequences: expected 0 to {problem.batch - 1}, got {chosen.min()} to {chosen.max()}")
    layouts, rows = [], []
    for layout in (problem.layout_q, problem.layout_k):
        lengths = layout.lengths[chosen]
        part = JaggedLayout.from_lengths(lengths, layout.device)
        if problem.broadcast_q and layout is problem.layout_q:
            part.max_seqlen = layout.max_seqlen  # the dense q's rows, even with no sequence chosen
        shift = np.repeat(layout.offsets[:-1][chosen] - part.offsets[:-1], lengths)
        layouts.append(part)
        rows.append(torch.from_numpy(shift + np.arange(part.total)).to(layout.device))
    return replace(problem, layout_q=layouts[0], layout_k=layouts[1]), rows[0], rows[1]


@dataclass(frozen=True)
class _Precision:
    """``compute`` holds sums and elementwise work; what enters a matmul or leaves as a result is in ``storage``."""

    compute: torch.dtype
    storage: torch.dtype

    def operand(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.storage).to(self.compute)


@dataclass(frozen=True)
class _Piece:
    """Some query rows and KV heads of one sequence, small enough to hold all scores of."""

    rows_q: slice  # of q and dq
    rows_out: slice  # of out, dout and lse; differs from rows_q with broadcast-Q
    rows_k: slice
    heads_q: slice
    heads_kv: slice
    visible: torch.Tensor | None  # [m, n] bool; None: all


def _pieces(problem: JaggedProblem, device: torch.device) -> Iterator[_Piece]:
    group = problem.group_size
    offsets_q, offsets_k = problem.layout_q.offsets, problem.layout_k.offsets
    for b in range(problem.batch):
        start_q, start_k = int(offsets_q[b]), int(offsets_k[b])
        len_q, len_k = int(offsets_q[b + 1]) - start_q, int(offsets_k[b + 1]) - start_k
        if len_q == 0 or len_k == 0:
            continue
        heads = min(max(1, SCORES_PER_PIECE // (group * len_q * len_k)), problem.num_heads_kv)
        rows = min(max(1, SCORES_PER_PIECE // (group * len_k)), len_q)
        for row in range(0, len_q, rows):
            end = min(row + rows, len_q)
            visible = None
            if not problem.mask.is_full:
                low, high = problem.mask.key_bounds(np.arange(row, end), np.int64(len_q), np.int64(len_k))
                key = torch.arange(len_k, device=device)
                visible = ((key >= torch.from_numpy(low).to(device)[:, None])
                           & (key < torch.from_numpy(high).to(device)[:, None]))
            start_dense = 0 if problem.broadcast_q else start_q
            for head in range(0, problem.num_heads_kv, heads):
                last = min(head + heads, problem.num_heads_kv)
                yield _Piece(slice(start_dense + row, start_dense + end), slice(start_q + row, start_q + end),
                             slice(start_k, start_k + len_k), slice(head * group, last * group), slice(head, last),
                             visible)


def _fold(x: torch.Tensor, group: int) -> torch.Tensor:
    """``[m, heads * group, D]`` -> ``[heads, group * m, D]``: the queries of one KV head, one below the other."""
    m, heads, dim = x.shape
    return x.reshape(m, heads // group, group, dim).permute(1, 2, 0, 3).reshape(heads // group, group * m, dim)


def _unfold(x: torch.Tensor, group: int) -> torch.Tensor:
    """The inverse of `_fold`."""
    heads, rows, dim = x.shape
    return x.reshape(heads, group, rows // group, dim).permute(2, 0, 1, 3).reshape(rows // group, heads * group, dim)


def _probabilities(scores: torch.Tensor, visible: torch.Tensor | None,
                   group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``(P [heads, group * m, n], lse [heads, group * m])``; overwrites ``scores``, of P's shape."""
    heads, rows, n = scores.shape
    if visible is None:
        lse = torch.logsumexp(scores, dim=-1)
        return scores.sub_(lse[..., None]).exp_(), lse
    hidden = ~visible
    by_query = scores.view(heads, group, rows // group, n).masked_fill_(hidden, float("-inf"))
    lse = torch.logsumexp(by_query, dim=-1, keepdim=True)
    by_query.sub_(lse).exp_().masked_fill_(hidden, 0.0)  # -inf - -inf where no key is visible
    return scores, lse.view(heads, rows)


def _forward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, precision: _Precision,
             sequences: Sequence[int] | None) -> tuple[torch.Tensor, torch.Tensor]:
    if sequences is not None:
        part, rows_q, rows_k = select_sequences(problem, sequences)
        out, lse = _forward(part, q if problem.broadcast_q else q[rows_q], k[rows_k], v[rows_k], precision, None)
        return _among_nan(out, rows_q, problem.layout_q.total), _among_nan(lse.T, rows_q, problem.layout_q.total).T
    group = problem.group_size
    out = torch.zeros(problem.out_shape, dtype=precision.storage, device=q.device)
    lse = torch.full((problem.num_heads_q, problem.layout_q.total), float("-inf"), dtype=precision.compute,
                     device=q.device)
    for piece in _pieces(problem, q.device):
        q_piece = _fold(precision.operand(q[piece.rows_q, piece.heads_q]), group)  # [heads, group * m, D]
        k_piece = precision.operand(k[piece.rows_k, piece.heads_kv]).transpose(0, 1)  # [heads, n, D]
        v_piece = precision.operand(v[piece.rows_k, piece.heads_kv]).transpose(0, 1)
        p, lse_piece = _probabilities((q_piece @ k_piece.mT).mul_(problem.softmax_scale), piece.visible, group)
        out[piece.rows_out, piece.heads_q] = _unfold(precision.operand(p) @ v_piece, group).to(precision.storage)
        lse[piece.heads_q, piece.rows_out] = lse_piece.reshape(-1, piece.rows_out.stop - piece.rows_out.start)
    return out, lse


def _backward(problem: JaggedProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor,
              precision: _Precision,
              sequences: Sequence[int] | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if sequences is not None:
        part, rows_q, rows_k = select_sequences(problem, sequences)
        dq, dk, dv = _backward(part, q if problem.broadcast_q else q[rows_q], k[rows_k], v[rows_k], dout[rows_q],
                               precision, None)
        return (dq if problem.broadcast_q else _among_nan(dq, rows_q, problem.layout_q.total),
                _among_nan(dk, rows_k, problem.layout_k.total), _among_nan(dv, rows_k, problem.layout_k.total))
    group = problem.group_size
    dq = torch.zeros(problem.q_shape, dtype=precision.compute, device=q.device)
    dk = torch.zeros(problem.kv_shape, dtype=precision.compute, device=q.device)
    dv = torch.zeros_like(dk)
    for piece in _pieces(problem, q.device):
        q_piece = _fold(precision.operand(q[piece.rows_q, piece.heads_q]), group)  # [heads, group * m, D]
        k_piece = precision.operand(k[piece.rows_k, piece.heads_kv]).transpose(0, 1)  # [heads, n, D]
        v_piece = precision.operand(v[piece.rows_k, piece.heads_kv]).transpose(0, 1)
        dout_piece = _fold(precision.operand(dout[piece.rows_out, piece.heads_q]), group)
        p, _ = _probabilities((q_piece @ k_piece.mT).mul_(problem.softmax_scale), piece.visible, group)
        p_operand = precision.operand(p)
        out = precision.operand(p_operand @ v_piece)
        delta = (dout_piece * out).sum(dim=-1, keepdim=True)  # [heads, group * m, 1]
        ds = precision.operand((dout_piece @ v_piece.mT).sub_(delta).mul_(p))  # [heads, group * m, n]
        dq[piece.rows_q, piece.heads_q] += _unfold(ds @ k_piece, group) * problem.softmax_scale
        dk[piece.rows_k, piece.heads_kv] += (ds.mT @ q_piece).transpose(0, 1) * problem.softmax_scale
        dv[piece.rows_k, piece.heads_kv] += (p_operand.mT @ dout_piece).transpose(0, 1)
    return dq.to(precision.storage), dk.to(precision.storage), dv.to(precision.storage)


def _operand_variance(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`rounding_variance`, but 0 where ``dtype`` holds ``x`` exactly, as P of a query that sees one key."""
    return rounding_variance(x, dtype).masked_fill_(x.to(dtype) == x, 0.0)


def _among_nan(values: torch.Tensor, rows: torch.Tensor, total: int) -> torch.Tensor:
    """``values`` at ``rows`` of a tensor of ``total`` rows that is NaN elsewhere."""
    whole = values.new_full((total, *values.shape[1:]), float("nan"))
    whole[rows] = values
    return whole
