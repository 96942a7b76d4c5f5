"""Distributions of sequence lengths, seeded; docs/distributions.md draws each of them.

Each distribution turns ``batch`` uniform numbers into lengths by its inverse cumulative function. Only
`numpy.random.Generator.random` is drawn from, so that the same seed gives the same lengths on every NumPy version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Union

import numpy as np
from pydantic import Field, PrivateAttr, ValidationInfo, model_validator
from scipy.special import ndtri

from harness.length_files import read_lengths
from harness.strict_model import StrictModel, problem

Length = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
PositiveLength = Annotated[int, Field(strict=True, ge=1, lt=2**31)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


def make_lengths(distribution: Distribution, batch: int, seed: int, role: Literal["q", "k"]) -> np.ndarray:
    """Lengths, int64 ``[batch]``, of a seed; queries and keys draw from independent streams.

    Raises `ValueError` for a ``batch`` beyond `Base.available`.
    """
    if distribution.available is not None and batch > distribution.available:
        raise ValueError(f"batch: got {batch}, but {distribution.label} holds {distribution.available} lengths")
    rng = np.random.default_rng([seed, {"q": 0, "k": 1}[role]])
    return np.asarray(distribution.sample(rng, batch), dtype=np.int64)


class Base(StrictModel):
    """What every distribution can do."""

    @property
    def available(self) -> int | None:
        """Number of lengths of a distribution that has so many and no more, else None."""
        return self._count()

    @property
    def label(self) -> str:
        """For people and records, such as ``U[1,512]``."""
        return self._names()[0]

    @property
    def slug(self) -> str:
        """For case names, such as ``u512``."""
        return self._names()[1]

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """``count`` lengths, int64."""
        return self._draw(rng, count)

    def _count(self) -> int | None:
        return None

    def _names(self) -> tuple[str, str]:
        raise NotImplementedError

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        raise NotImplementedError


class ConstantLengths(Base):
    """Every sequence has the same length."""

    kind: Literal["constant"]
    value: Length = Field(description="the length; 0 makes every sequence empty")

    def _names(self) -> tuple[str, str]:
        return str(self.value), str(self.value)

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.full(count, self.value, dtype=np.int64)


class UniformLengths(Base):
    """U[min, max]; ``min`` is 1, or is given, or follows from the density (mean over ``max``)."""

    kind: Literal["uniform"]
    max: PositiveLength = Field(description="the greatest length")
    min: Length | None = Field(default=None, description="the least length; 1 if neither it nor `density` is given")
    density: Share | None = Field(
        default=None, description="mean length over `max`, from 0.5 (U[1, max]) to 1; instead of `min`, "
        "which becomes (2 density - 1) max")

    @model_validator(mode="after")
    def _check(self) -> UniformLengths:
        if self.density is not None and self.min is not None:
            raise problem(("min",), "given beside density", "one of both")
        if self.density is not None and self.density < 0.5:
            raise problem(("density",), f"got {self.density}",
                          "0.5 to 1, as no uniform distribution that reaches max is below; use kind: power")
        if self.low > self.max:
            raise problem(("min",), f"got {self.min}", f"at most max, {self.max}")
        return self

    @property
    def low(self) -> int:
        """The least length."""
        if self.density is not None:
            return max(1, round((2 * self.density - 1) * self.max))
        return 1 if self.min is None else self.min

    def _names(self) -> tuple[str, str]:
        slug = f"u{self.max}" if self.low == 1 else f"u{self.low}to{self.max}"
        return f"U[{self.low},{self.max}]", slug if self.density is None else f"u{self.max}density{self.density:g}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return self.low + np.floor(rng.random(count) * (self.max - self.low + 1)).astype(np.int64)


class PowerLengths(Base):
    """``ceil(max * u^((1 - density) / density))`` of a uniform ``u``: any density, always reaching for ``max``.

    Density 0.5 is U[1, max]; below it short sequences prevail, above it long ones.
    """

    kind: Literal["power"]
    max: PositiveLength = Field(description="the greatest length")
    density: float = Field(strict=True, gt=0, lt=1, description="mean length over `max`, between 0 and 1")

    def _names(self) -> tuple[str, str]:
        return f"power({self.density:g})<={self.max}", f"power{self.max}density{self.density:g}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        share = (1 - rng.random(count)) ** ((1 - self.density) / self.density)
        return _bounded(np.ceil(share * self.max), 1, self.max)


class WideLengths(Base):
    """Log-uniform: every decade between ``min`` and ``max`` is equally likely."""

    kind: Literal["wide"]
    max: PositiveLength = Field(description="the greatest length")
    min: PositiveLength = Field(default=1, description="the least length")

    @model_validator(mode="after")
    def _check(self) -> WideLengths:
        if self.min > self.max:
            raise problem(("min",), f"got {self.min}", f"at most max, {self.max}")
        return self

    def _names(self) -> tuple[str, str]:
        slug = f"wide{self.max}" if self.min == 1 else f"wide{self.min}to{self.max}"
        return f"log-uniform[{self.min},{self.max}]", slug

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        span = np.log(self.max + 1) - np.log(self.min)
        return _bounded(np.floor(np.exp(np.log(self.min) + rng.random(count) * span)), self.min, self.max)


class LognormalLengths(Base):
    """``exp(N(mu, sigma))``, rounded and clipped to [min, max]."""

    kind: Literal["lognormal"]
    mu: float = Field(strict=True, ge=0, le=20, description="mean of the logarithm of the length")
    sigma: float = Field(strict=True, ge=0, le=10, description="standard deviation of the logarithm")
    max: PositiveLength = Field(description="the greatest length; longer draws become it")
    min: Length = Field(default=1, description="the least length; shorter draws become it")

    @model_validator(mode="after")
    def _check(self) -> LognormalLengths:
        if self.min > self.max:
            raise problem(("min",), f"got {self.min}", f"at most max, {self.max}")
        return self

    def _names(self) -> tuple[str, str]:
        return f"lognormal({self.mu:g},{self.sigma:g})<={self.max}", f"lognormal{self.mu:g}s{self.sigma:g}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        draws = np.exp(self.mu + self.sigma * ndtri(_open(rng.random(count))))
        return _bounded(np.rint(np.minimum(draws, self.max)), self.min, self.max)


class ZipfLengths(Base):
    """Length ``n`` in [min, max] with a probability proportional to ``n^-exponent``."""

    kind: Literal["zipf"]
    exponent: float = Field(strict=True, gt=0, le=10, description="how fast the probability falls with the length")
    max: Annotated[int, Field(strict=True, ge=1, le=2**24)] = Field(description="the greatest length")
    min: PositiveLength = Field(default=1, description="the least length")

    @model_validator(mode="after")
    def _check(self) -> ZipfLengths:
        if self.min > self.max:
            raise problem(("min",), f"got {self.min}", f"at most max, {self.max}")
        return self

    def _names(self) -> tuple[str, str]:
        return f"zipf({self.exponent:g})[{self.min},{self.max}]", f"zipf{self.max}exponent{self.exponent:g}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        cumulative = np.cumsum(np.arange(self.min, self.max + 1, dtype=np.float64) ** -self.exponent)
        draws = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
        return _bounded(self.min + draws, self.min, self.max)


class BimodalLengths(Base):
    """Short sequences and long ones, each spread uniformly about its mode."""

    kind: Literal["bimodal"]
    short: PositiveLength = Field(description="the mode of the short sequences")
    long: PositiveLength = Field(description="the mode of the long sequences")
    long_fraction: Share = Field(default=0.5, description="share of the sequences that are long, in expectation")
    spread: Share = Field(default=0.1, description="half-width about a mode as a share of it")

    @model_validator(mode="after")
    def _check(self) -> BimodalLengths:
        if self.short > self.long:
            raise problem(("short",), f"got {self.short}", f"at most long, {self.long}")
        return self

    def _names(self) -> tuple[str, str]:
        return f"bimodal({self.short},{self.long},{self.long_fraction:g})", f"bimodal{self.short}and{self.long}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        mode = np.where(rng.random(count) < self.long_fraction, self.long, self.short)
        return np.maximum(1, np.rint(mode * (1 + self.spread * (2 * rng.random(count) - 1)))).astype(np.int64)


class SkewLengths(Base):
    """Another distribution's lengths in a given order: what a static assignment of work suffers from."""

    kind: Literal["skew"]
    base: Distribution = Field(description="the distribution of the lengths")
    order: Literal["ascending", "descending", "shuffled"] = Field(description="order within the batch")

    def _count(self) -> int | None:
        return self.base.available

    def _names(self) -> tuple[str, str]:
        label, slug = self.base._names()
        return f"{label} {self.order}", f"{slug}_{self.order}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        lengths = self.base.sample(rng, count)
        if self.order == "shuffled":
            return lengths[_permutation(rng, count)]
        return np.sort(lengths) if self.order == "ascending" else np.sort(lengths)[::-1]


class MixturePart(StrictModel):
    """One part of a mixture."""

    weight: float = Field(strict=True, gt=0, le=1e9, description="how often this part is drawn, relative to the others")
    lengths: Distribution = Field(description="the distribution of this part's lengths")

    @model_validator(mode="after")
    def _check(self) -> MixturePart:
        if self.lengths.available is not None:
            raise problem(("lengths",), f"is of kind {self.lengths.kind!r}", "a distribution without an end of its own")
        return self


class MixtureLengths(Base):
    """Each sequence draws one of several distributions."""

    kind: Literal["mixture"]
    parts: tuple[MixturePart, ...] = Field(min_length=1, description="the distributions and their weights")

    def _names(self) -> tuple[str, str]:
        labels, slugs = zip(*(part.lengths._names() for part in self.parts), strict=True)
        label = ", ".join(f"{part.weight:g} {label}" for part, label in zip(self.parts, labels, strict=True))
        return f"mixture({label})", "_".join(["mix", *slugs])

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        cumulative = np.cumsum([part.weight for part in self.parts])
        chosen = np.searchsorted(cumulative, rng.random(count) * cumulative[-1], side="right")
        chosen = np.minimum(chosen, len(self.parts) - 1)
        lengths = np.zeros(count, dtype=np.int64)
        for index, part in enumerate(self.parts):  # every part draws for every sequence, so that none shifts another
            lengths = np.where(chosen == index, part.lengths.sample(rng, count), lengths)
        return lengths


class EmptyFractionLengths(Base):
    """Another distribution with a share of its sequences emptied, at random places."""

    kind: Literal["empty_fraction"]
    base: Distribution = Field(description="the distribution of the other lengths")
    fraction: Share = Field(description="share of the sequences that are empty, exact to one sequence")

    def _count(self) -> int | None:
        return self.base.available

    def _names(self) -> tuple[str, str]:
        label, slug = self.base._names()
        return f"{label}, {self.fraction:.0%} empty", f"{slug}_empty{self.fraction:g}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        lengths = self.base.sample(rng, count).copy()
        lengths[_permutation(rng, count)[: round(self.fraction * count)]] = 0
        return lengths


class ListLengths(Base):
    """These lengths, in this order; ``batch`` may be left out, or take the first few."""

    kind: Literal["list"]
    values: tuple[Length, ...] = Field(min_length=1, description="the lengths")

    def _count(self) -> int | None:
        return len(self.values)

    def _names(self) -> tuple[str, str]:
        few = ",".join(str(value) for value in self.values[:8])
        return f"[{few}{',...' if len(self.values) > 8 else ''}]", f"list{len(self.values)}"

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.asarray(self.values[:count], dtype=np.int64)


class TraceLengths(Base):
    """Lengths of a real batch from a file, in its order; ``batch`` may be left out, or take the first few.

    CSV (with a header) and Parquet need ``column`` unless they have one column only; NPY holds a 1-D integer array.
    """

    kind: Literal["trace"]
    path: str = Field(min_length=1, description="a .csv, .npy or .parquet file; relative to the config's folder")
    column: str | None = Field(default=None, description="the column with the lengths, in a CSV or Parquet file")
    _lengths: tuple[int, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _load(self, info: ValidationInfo) -> TraceLengths:
        folder = (info.context or {}).get("folder", Path())
        self._lengths = tuple(read_lengths(Path(folder) / self.path, self.column))
        return self

    @property
    def lengths(self) -> tuple[int, ...]:
        """All lengths of the file."""
        return self._lengths

    def _count(self) -> int | None:
        return len(self._lengths)

    def _names(self) -> tuple[str, str]:
        name, stem = " ".join(Path(self.path).name.split()), Path(self.path).stem
        return f"trace {name}", "trace_" + re.sub(r"[^A-Za-z0-9_.+-]+", "_", stem)  # a file may be named anything

    def _draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.asarray(self._lengths[:count], dtype=np.int64)


Distribution = Annotated[
    Union[ConstantLengths, UniformLengths, PowerLengths, WideLengths, LognormalLengths, ZipfLengths,  # noqa: UP007
          BimodalLengths, SkewLengths, MixtureLengths, EmptyFractionLengths, ListLengths, TraceLengths],
    Field(discriminator="kind")]

for _model in (SkewLengths, MixturePart, MixtureLengths, EmptyFractionLengths):
    _model.model_rebuild()


def _bounded(lengths: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(lengths, low, high).astype(np.int64)


def _open(uniform: np.ndarray) -> np.ndarray:
    """[0, 1) moved into (0, 1), half a step from either end."""
    return uniform + 2.0**-54


def _permutation(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.argsort(rng.random(count), kind="stable")
