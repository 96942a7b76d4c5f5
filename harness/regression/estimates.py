"""Estimates from samples in blocks: the logarithm of a latency, or of a ratio of two, with its bootstrap error.

Samples of one block share clock, temperature and power state, so the block is what is resampled, then samples within
it. The two sides of a ratio that were measured in turns keep their blocks paired: what drifts meets both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

RESAMPLES = 250


@dataclass(frozen=True)
class Estimate:
    """A logarithm, ``value``; ``draw`` makes bootstrap replicates of it, ``[RESAMPLES]``."""

    value: float
    draw: Callable[[], np.ndarray]

    @cached_property
    def replicates(self) -> np.ndarray:
        """Made when first asked for: many estimates are wanted for their value alone."""
        return self.draw()

    @property
    def error(self) -> float:
        """Standard error: what this run's own scatter leaves open."""
        return float(np.std(self.replicates))


def exactly(value: float) -> Estimate:
    """Something known without error."""
    return Estimate(value, lambda: np.full(RESAMPLES, value))


def log_latency(blocks: Sequence[np.ndarray], seed: int = 0) -> Estimate:
    """Of the geometric mean over blocks of their medians, in ms."""
    return _estimate([blocks], [1.0], seed)


def log_ratio(numerator: Sequence[np.ndarray], denominator: Sequence[np.ndarray], seed: int = 0) -> Estimate:
    """Of the geometric mean over pairs of blocks of the ratio of their medians: a speed-up, for (rival, ours).

    Blocks are paired in order; where one side has fewer (it ran alone at some time), sides are resampled apart.
    """
    if len(numerator) == len(denominator):
        return _estimate([numerator, denominator], [1.0, -1.0], seed)
    return difference(log_latency(numerator, seed), log_latency(denominator, seed + 1))


def difference(first: Estimate, second: Estimate) -> Estimate:
    """Of two independent estimates; their replicates are taken pairwise."""
    return Estimate(first.value - second.value, lambda: first.replicates - second.replicates)


def mean(estimates: Sequence[Estimate]) -> Estimate:
    """Of independent estimates, such as those of several runs or rows."""
    return Estimate(float(np.mean([each.value for each in estimates])),
                    lambda: np.mean([each.replicates for each in estimates], axis=0))


def _estimate(sides: Sequence[Sequence[np.ndarray]], signs: Sequence[float], seed: int) -> Estimate:
    """Sum over sides of sign times the mean log median of its blocks; blocks of all sides are drawn together."""
    n_blocks = len(sides[0])
    medians = [[math.log(_median(np.sort(block))) for block in side] for side in sides]
    value = sum(sign * sum(side) / n_blocks for sign, side in zip(signs, medians, strict=True))

    def draw() -> np.ndarray:
        random = np.random.default_rng(seed)
        drawn = np.zeros((n_blocks, RESAMPLES))
        for sign, side in zip(signs, sides, strict=True):
            drawn += sign * np.stack([_log_medians(block, random) for block in side])
        chosen = random.integers(n_blocks, size=(n_blocks, RESAMPLES))
        return np.take_along_axis(drawn, chosen, axis=0).mean(axis=0)

    return Estimate(value, draw)


def _median(ordered: np.ndarray) -> float:
    """Of sorted values; NumPy's own takes ten times as long on so few."""
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _log_medians(block: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Logarithms of medians of resampled blocks."""
    ordered = np.sort(block)
    indices = np.sort(random.integers(len(block), size=(RESAMPLES, len(block))), axis=1)
    low, high = (len(block) - 1) // 2, len(block) // 2
    return np.log((ordered[indices[:, low]] + ordered[indices[:, high]]) / 2)
