"""Checks a backend's results against the fp64 oracle, with limits derived from a low-precision twin.

What is correct is not a constant: it is what a plain computation in the case's dtype gets wrong on the same inputs
(`kernels.reference.attention_reference_lowp`) and is expected to get wrong there
(`kernels.reference.attention_reference_lowp_variance`), times ``tolerance_factor``. One without the other won't do:
rounding is a draw, and where an error comes from few of them the twin's may be close to nothing by chance. A norm of
few independent errors also strays further from what is expected than one of many, see `_slack`.

Each tensor must pass three criteria, each catching what the others average away:

- ``norm``: Frobenius norm of the error over all checked rows.
- ``chunk``: the same over each run of `CHUNK_ROWS` rows of one sequence: a wrong tile, a wrong short sequence.
- ``element``: the largest absolute error: a stray element.

Besides, no checked tensor may hold a NaN or an infinity anywhere, in sampled sequences or not: outputs are allocated
from NaN-filled memory (see `poison`), so that a row which a kernel forgot to write shows. Where a case plants NaN in
some sequences, only the clean ones are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from harness.backends.base import Outputs
from harness.inputs import Inputs
from kernels import reference
from kernels.problem import JaggedProblem

CHUNK_ROWS = 64
SPREAD = 3.0  # standard deviations
ELEMENT_SLACK = 2.0  # the worst of many elements lies further out in a kernel than in the twin
MAX_SEQUENCES = 256  # of a sample: bounds the oracle's loop over sequences where they are short
RELATIVE_FLOOR = {torch.bfloat16: 2.0**-10, torch.float16: 2.0**-13}  # an eighth of the dtype's epsilon
LSE_FLOOR = 1e-4  # fp32, through approximate exp2 and log2
ABSOLUTE_FLOOR = 2.0**-14  # where the exact result is 0, such as dq of a query with one key; inputs are of order 1


@dataclass(frozen=True)
class Verdict:
    """Outcome of one check.

    ``errors`` are relative Frobenius errors by tensor name (absolute where the exact result is all 0); ``share`` is
    the largest share of its limit that any criterion takes; ``message`` is empty iff the check passed.
    """

    errors: Mapping[str, float]
    share: float
    message: str = ""


@dataclass(frozen=True, eq=False)
class _Expected:
    """Exact values of one tensor's checked rows, and what may differ from them."""

    name: str
    values: torch.Tensor  # fp32 [rows, H, D]
    rows: torch.Tensor | None  # int64 [rows]: where they lie in the backend's tensor; None: all of it
    chunk_of_row: torch.Tensor  # int64 [rows]
    chunk_sequences: np.ndarray  # [chunks]: number of the sequence, for messages
    norm: float
    norm_limit: float
    chunk_limits: torch.Tensor  # fp64 [chunks]
    element_limit: float


class Oracle:
    """The exact results of a case, computed when first asked for; one for all checks of a worker on that case.

    Cases above ``max_pairs`` (query-key pairs times query heads) are checked on a sample of sequences, except for
    broadcast-Q, whose dq is a sum over all of them.
    """

    def __init__(self, inputs: Inputs, max_pairs: int, tolerance_factor: float) -> None:
        problem = inputs.problem
        self._factor = tolerance_factor
        self._floor = RELATIVE_FLOOR[problem.dtype]
        sequences = [int(b) for b in inputs.clean_sequences]
        self._spoilt = len(sequences) < problem.batch
        if not problem.broadcast_q:
            sequences = choose_sequences(problem, sequences, max_pairs, inputs.case.seed)
        self.sequences = np.asarray(sequences, dtype=np.int64)
        self._part, self._rows_q, self._rows_k = reference.select_sequences(problem, sequences)
        self._problem = problem
        self._q = inputs.q if problem.broadcast_q else inputs.q[self._rows_q]
        self._k, self._v = inputs.k[self._rows_k], inputs.v[self._rows_k]
        self._dout = inputs.dout[self._rows_q]
        self._forward: list[_Expected] | None = None
        self._backward: list[_Expected] | None = None

    @property
    def nbytes(self) -> int:
        """Device memory that the oracle holds."""
        tensors = [self._q, self._k, self._v, self._dout, self._rows_q, self._rows_k]
        tensors += [expected.values for expected in (self._forward or []) + (self._backward or [])]
        return sum(tensor.untyped_storage().nbytes() for tensor in {id(t): t for t in tensors}.values())

    def check_forward(self, outputs: Outputs) -> Verdict:
        """Compares ``out``, and ``lse`` where the backend gives it."""
        if self._forward is None:
            out, lse = reference.attention_reference(self._part, self._q, self._k, self._v)
            twin_out, twin_lse = reference.attention_reference_lowp(self._part, self._q, self._k, self._v)
            variance = reference.attention_reference_lowp_variance(self._part, self._q, self._k, self._v)
            self._forward = [self._expect("out", out, twin_out, variance, self._floor),
                             self._expect("lse", _lse_rows(lse), _lse_rows(twin_lse), None, LSE_FLOOR)]
        expected_out, expected_lse = self._forward
        verdicts = [self._compare(expected_out, outputs.out, self._problem.out_shape)]
        if outputs.lse is not None:
            verdicts.append(self._compare_lse(expected_lse, outputs.lse))
        return _merge(verdicts)

    def check_backward(self, outputs: Outputs) -> Verdict:
        """Compares ``dq``, ``dk`` and ``dv``."""
        if self._backward is None:
            arguments = (self._part, self._q, self._k, self._v, self._dout)
            exact = reference.attention_reference_backward(*arguments)
            twins = reference.attention_reference_lowp_backward(*arguments)
            variances = reference.attention_reference_lowp_backward_variance(*arguments)
            self._backward = [self._expect(name, value, twin, variance, self._floor) for name, value, twin, variance in
                              zip(("dq", "dk", "dv"), exact, twins, variances, strict=True)]
        shapes = (self._problem.q_shape, self._problem.kv_shape, self._problem.kv_shape)
        actual = (outputs.dq, outputs.dk, outputs.dv)
        verdicts = [self._compare(expected, tensor, shape)
                    for expected, tensor, shape in zip(self._backward, actual, shapes, strict=True)]
        # A dense q's dq sums over the planted sequences too, so it is NaN by right.
        return _merge(verdicts[1:] if self._spoilt and self._problem.broadcast_q else verdicts)

    def _expect(self, name: str, exact: torch.Tensor, twin: torch.Tensor, variance: torch.Tensor | None,
                floor: float) -> _Expected:
        """``variance``: of the twin's results before they are rounded, overwritten; None: they aren't rounded, and the
        twin's own error is all there is."""
        dense, of_keys = name == "dq" and self._part.broadcast_q, name in ("dk", "dv")
        layout = self._part.layout_k if of_keys else self._part.layout_q
        lengths = np.asarray([exact.shape[0]]) if dense else layout.lengths
        chunk_of_row, chunk_sequences, chunk_rows = _chunks(lengths, None if dense else self.sequences)
        chunk_of_row, chunks = chunk_of_row.to(exact.device), len(chunk_rows)
        values = exact.float()
        twin_error = twin.float() - values
        variance = (torch.zeros_like(values) if variance is None
                    else variance.add_(reference.rounding_variance(values, self._problem.dtype)))
        energies = variance.sum(dim=2, dtype=torch.float64)  # [rows, H]
        expected = _chunk_sums(energies.sum(dim=1), chunk_of_row, chunks)
        draws = _draws(expected, _chunk_sums(energies.square().sum(dim=1), chunk_of_row, chunks))
        if of_keys:  # all keys share the errors of a query
            queries = np.repeat(self._part.layout_q.lengths, -(-lengths // CHUNK_ROWS)) * self._part.num_heads_q
            draws = torch.minimum(draws, torch.from_numpy(queries).to(draws).clamp_(min=1.0))
        slack = float(_slack(_draws(expected.sum(), (expected.square() / draws).sum())))
        counts = torch.from_numpy(chunk_rows).to(exact.device).double() * values[:1].numel()  # elements a chunk
        twin_norms = _chunk_norms(twin_error, chunk_of_row, chunks)
        norm, root_elements = float(_chunk_norms(values, chunk_of_row, chunks).norm()), values.numel() ** 0.5
        rms = norm / max(root_elements, 1.0)
        wrong_norm = max(float(twin_norms.norm()), float(expected.sum().sqrt()))
        wrong_element = max(_largest(twin_error), _largest(variance) ** 0.5)
        rows = None if dense else (self._rows_k if of_keys else self._rows_q)
        return _Expected(
            name, values, rows, chunk_of_row, chunk_sequences, norm,
            self._factor * slack * wrong_norm + floor * norm + ABSOLUTE_FLOOR * root_elements,
            self._factor * _slack(draws) * torch.maximum(twin_norms, expected.sqrt())
            + (floor * rms + ABSOLUTE_FLOOR) * counts.sqrt(),
            self._factor * max(ELEMENT_SLACK, slack) * wrong_element + floor * _largest(values) + ABSOLUTE_FLOOR)

    def _compare_lse(self, expected: _Expected, lse: torch.Tensor) -> Verdict:
        """A query without keys must have an infinite lse (of either sign: conventions differ), others a finite one."""
        if lse.ndim != 2 or lse.shape[::-1] != (self._problem.layout_q.total, self._problem.num_heads_q):
            return _wrong_shape("lse", lse, (self._problem.num_heads_q, self._problem.layout_q.total))
        actual = lse.T[self._rows_q]
        blind = self._blind_rows()
        if not bool(actual[blind].isinf().all()):
            return Verdict({"lse": float(expected.norm)}, 2.0, "lse: not infinite for queries that see no key")
        return self._compare(expected, torch.where(blind[:, None], 0.0, actual.float())[..., None], None)

    def _blind_rows(self) -> torch.Tensor:
        """bool [rows]: queries of the checked sequences that see no key."""
        lengths_q, lengths_k = self._part.layout_q.lengths, self._part.layout_k.lengths
        sequence = np.repeat(np.arange(len(lengths_q)), lengths_q)
        query = np.arange(len(sequence)) - self._part.layout_q.offsets[:-1][sequence]
        low, high = self._part.mask.key_bounds(query, lengths_q[sequence], lengths_k[sequence])
        return torch.from_numpy(high == low).to(self._rows_q.device)

    def _compare(self, expected: _Expected, actual: torch.Tensor | None, shape: Sequence[int] | None) -> Verdict:
        """``shape`` is the whole tensor's; None: ``actual`` is the checked rows already."""
        name = expected.name
        if actual is None:
            return Verdict({}, 2.0, f"{name}: the backend gave none")
        if shape is not None:
            if tuple(actual.shape) != tuple(shape):
                return _wrong_shape(name, actual, shape)
            if actual.dtype != self._problem.dtype:
                return Verdict({}, 2.0, f"{name}: expected {self._problem.dtype}, got {actual.dtype}")
            if not self._spoilt and (message := _nonfinite(name, actual)):
                return Verdict({}, 2.0, message)
            actual = actual if expected.rows is None else actual[expected.rows]
        if message := _nonfinite(name, actual):
            return Verdict({}, 2.0, message)
        error = actual.float() - expected.values
        chunk_norms = _chunk_norms(error, expected.chunk_of_row, len(expected.chunk_limits))
        norm = float(chunk_norms.norm())
        relative = norm / expected.norm if expected.norm else norm
        if not error.numel():
            return Verdict({name: 0.0}, 0.0)
        shares = chunk_norms / expected.chunk_limits
        worst = int(shares.argmax())
        element = _largest(error)
        criteria = (
            (norm / expected.norm_limit, "norm of the error", norm, expected.norm_limit),
            (float(shares[worst]), f"norm of the error in {CHUNK_ROWS} rows", float(chunk_norms[worst]),
             float(expected.chunk_limits[worst])),
            (element / expected.element_limit, "largest error", element, expected.element_limit))
        share, what, value, limit = max(criteria)
        sequence = int(expected.chunk_sequences[worst])
        where = f", worst in sequence {sequence}" if sequence >= 0 else ""
        message = f"{name}: {what} is {value:.3g}, allowed {limit:.3g} (relative error {relative:.2g}{where})"
        return Verdict({name: relative}, share, "" if share <= 1 else message)


def choose_sequences(problem: JaggedProblem, candidates: Sequence[int], max_pairs: int, seed: int) -> list[int]:
    """Which of ``candidates`` to check: all if they are within ``max_pairs``, else a seeded sample, ascending.

    A sample always has the first and last, those with the longest queries and keys, the shortest that isn't empty and
    an empty one; it may exceed ``max_pairs`` for them.
    """
    chosen = np.asarray(candidates, dtype=np.int64)
    lengths_q, lengths_k = problem.layout_q.lengths[chosen], problem.layout_k.lengths[chosen]
    pairs = lengths_q * lengths_k * problem.num_heads_q
    if pairs.sum() <= max_pairs or not len(chosen):
        return chosen.tolist()
    must = [0, len(chosen) - 1, int(lengths_q.argmax()), int(lengths_k.argmax()),
            int(np.where(pairs > 0, pairs, np.iinfo(np.int64).max).argmin())]
    must += np.flatnonzero(pairs == 0)[:1].tolist()
    sample = set(must)
    left = max_pairs - int(pairs[list(sample)].sum())
    for index in np.random.default_rng(seed).permutation(len(chosen)).tolist():
        if len(sample) >= MAX_SEQUENCES:
            break
        if index not in sample and pairs[index] <= left:
            sample.add(index)
            left -= int(pairs[index])
    return sorted(chosen[list(sample)].tolist())


def poison(problem: JaggedProblem, directions: Sequence[str], device: torch.device) -> None:
    """Fill the memory that outputs of these directions will be allocated from with NaN.

    The caching allocator hands out freed blocks of the same size first, so outputs that a kernel allocates
    uninitialised hold NaN until it writes them. On a CPU the same is likely but not certain.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # older blocks would be handed out as well
    shapes: list[tuple[Sequence[int], torch.dtype]] = []
    if "fwd" in directions:
        shapes += [(problem.out_shape, problem.dtype),
                   ((problem.num_heads_q, problem.layout_q.total), torch.float32)]
    if "bwd" in directions:
        shapes += [(shape, dtype) for shape in (problem.q_shape, problem.kv_shape, problem.kv_shape)
                   for dtype in (problem.dtype, torch.float32)]
    blocks = [nan_of_any_dtype(math.prod(shape) * dtype.itemsize, device) for shape, dtype in shapes]
    del blocks


def nan_of_any_dtype(nbytes: int, device: torch.device) -> torch.Tensor:
    """int16, ``nbytes`` or one more; NaN as bf16, fp16 and fp32: a freed block may be handed out for any of them."""
    return torch.full((-(-nbytes // 2),), 0x7FFF, dtype=torch.int16, device=device)


def _lse_rows(lse: torch.Tensor) -> torch.Tensor:
    """``[H, rows]`` -> ``[rows, H, 1]`` with 0 for queries that see no key, which are checked apart."""
    return torch.where(lse.isinf(), 0.0, lse).T[..., None]


def _chunks(lengths: np.ndarray, sequences: np.ndarray | None) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Cuts sequences into runs of `CHUNK_ROWS` rows: chunk of each row; sequence (-1: none) and rows of each chunk."""
    chunks = -(-lengths // CHUNK_ROWS)
    sequence_of_row = np.repeat(np.arange(len(lengths)), lengths)
    row = np.arange(len(sequence_of_row)) - (np.cumsum(lengths) - lengths)[sequence_of_row]
    chunk_of_row = (np.cumsum(chunks) - chunks)[sequence_of_row] + row // CHUNK_ROWS
    rows = np.bincount(chunk_of_row, minlength=int(chunks.sum()))
    names = np.full(len(lengths), -1) if sequences is None else sequences
    return torch.from_numpy(chunk_of_row.astype(np.int64)), np.repeat(names, chunks), rows


def _chunk_norms(values: torch.Tensor, chunk_of_row: torch.Tensor, n_chunks: int) -> torch.Tensor:
    """fp64 ``[chunks]`` Frobenius norms of fp32 ``[rows, H, D]``."""
    energies = torch.linalg.vector_norm(values, dim=(1, 2), dtype=torch.float64).square()
    return _chunk_sums(energies, chunk_of_row, n_chunks).sqrt()


def _chunk_sums(values: torch.Tensor, chunk_of_row: torch.Tensor, n_chunks: int) -> torch.Tensor:
    """fp64 ``[rows] -> [chunks]``."""
    return torch.zeros(n_chunks, dtype=torch.float64, device=values.device).index_add_(0, chunk_of_row, values)


def _draws(total: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Of how many equal independent errors a sum of squares behaves: ``total**2 / squares``, the sums of their
    variances and of the variances' squares; at least 1."""
    return torch.where(squares > 0, total.square() / squares, 1.0).clamp_(min=1.0)


def _slack(draws: torch.Tensor) -> torch.Tensor:
    """How many times its expectation the norm of so many independent errors may be: `SPREAD` deviations above it."""
    return 1 + SPREAD / draws.sqrt()


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _nonfinite(name: str, tensor: torch.Tensor) -> str:
    """Why the tensor can't be right: how many NaN or infinite elements, and where the first is; empty if none."""
    if bool(tensor.isfinite().all()):
        return ""
    bad = ~tensor.isfinite()
    first = int(bad.reshape(bad.shape[0], -1).any(dim=1).nonzero()[0])
    kind = "NaN" if bool(tensor.isnan().any()) else "infinite"
    return f"{name}: {int(bad.sum())} {kind} elements, the first in row {first} (never written?)"


def _wrong_shape(name: str, actual: torch.Tensor, expected: Sequence[int]) -> Verdict:
    return Verdict({}, 2.0, f"{name}: expected shape {list(expected)}, got {list(actual.shape)}")


def _merge(verdicts: Sequence[Verdict]) -> Verdict:
    errors = {name: error for verdict in verdicts for name, error in verdict.errors.items()}
    return Verdict(errors, max(verdict.share for verdict in verdicts),
                   "; ".join(verdict.message for verdict in verdicts if verdict.message))
