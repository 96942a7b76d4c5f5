"""Options of the portable kernels: tile sizes, or None to let Triton's autotuner pick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

_ALLOWED: dict[str, tuple[int, ...]] = {
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (16, 32, 64, 128, 256),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6),
}


@dataclass(frozen=True)
class TileOptions:
    """One kernel's tile: ``BLOCK_M`` queries by ``BLOCK_N`` keys, warps of a CTA, stages of the load pipeline.

    Raises `ValueError` for a value that is not allowed.
    """

    BLOCK_M: int = 64
    BLOCK_N: int = 64
    num_warps: int = 4
    num_stages: int = 2

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if isinstance(value, bool) or value not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(map(str, allowed))}, got {value!r}")

    @classmethod
    def make(cls, values: Mapping[str, object], where: str = "") -> TileOptions:
        """From plain values; those left out keep their defaults. Raises `ValueError` naming the key."""
        unknown = [key for key in values if key not in _ALLOWED]
        if unknown:
            raise ValueError(f"{where}{unknown[0]}: no such option; allowed: {', '.join(_ALLOWED)}")
        try:
            return cls(**values)  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{where}{error}") from None

    def __str__(self) -> str:
        return f"{self.BLOCK_M}x{self.BLOCK_N}w{self.num_warps}s{self.num_stages}"


@dataclass(frozen=True)
class BackwardOptions:
    """Tiles of the backward's two kernels; None: autotuned."""

    dkdv: TileOptions | None = None
    dq: TileOptions | None = None

    @classmethod
    def make(cls, values: Mapping[str, object]) -> BackwardOptions:
        """From ``{"dkdv": {...}, "dq": {...}}``, each as `TileOptions.make` takes it. Raises `ValueError`."""
        allowed = [field.name for field in fields(cls)]
        tiles: dict[str, TileOptions | None] = {}
        for key, value in values.items():
            if key not in allowed:
                raise ValueError(f"{key}: no such option; allowed: {', '.join(allowed)}")
            if value is not None and not isinstance(value, Mapping):
                raise ValueError(f"{key}: expected a mapping of {', '.join(_ALLOWED)}, got {value!r}")
            tiles[key] = None if value is None else TileOptions.make(value, where=f"{key}.")
        return cls(**tiles)
