"""Lengths of a real batch, read from a CSV, NPY or Parquet file."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from harness.strict_model import choices, problem


def read_lengths(path: Path, column: str | None) -> list[int]:
    """The lengths in a trace file; raises a config problem at ``path`` or ``column``."""
    readers: dict[str, Any] = {".csv": _read_csv, ".npy": _read_npy, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise problem(("path",), f"got {str(path)!r}", "a file that ends in .csv, .npy or .parquet")
    if not os.path.isfile(path):  # unlike Path.is_file, no error for a name that can't be
        raise problem(("path",), f"no such file: {path}", "a file, relative to the folder of the config")
    values = readers[path.suffix](path, column)
    if values.size == 0:
        raise problem(("path",), f"{path} holds no lengths", "at least one")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise problem(("path",), f"{path} holds {values.ndim}-dimensional {values.dtype} data",
                      "a column or 1-D array of integers")
    if values.min() < 0 or values.max() >= 2**31:
        raise problem(("path",), f"{path} holds lengths from {values.min()} to {values.max()}", "0 to 2^31 - 1")
    return [int(value) for value in values]


def _read_npy(path: Path, column: str | None) -> np.ndarray:
    if column is not None:
        raise problem(("column",), f"got {column!r}", "no column, as an NPY file has none")
    try:
        return np.lib.format.open_memmap(path, mode="r")  # mapped: a header may claim any size
    except (ValueError, OSError, EOFError, OverflowError) as error:
        raise problem(("path",), f"can't read {path}: {error}", "an NPY file of a 1-D array of integers") from None


def _read_csv(path: Path, column: str | None) -> np.ndarray:
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more cells than the header
            table = pd.read_csv(path, index_col=False)
    except (ValueError, OSError, pd.errors.ParserWarning) as error:
        raise problem(("path",), f"can't read {path}: {error}", "a comma-separated file with a header") from None
    if all(str(name).strip().isdecimal() for name in table.columns):
        raise problem(("path",), f"{path} begins with numbers", "a comma-separated file with a header")
    return _pick_column(table, path, column)


def _read_parquet(path: Path, column: str | None) -> np.ndarray:
    import pandas as pd

    try:
        table = pd.read_parquet(path)
    except ImportError:
        raise problem(("path",), f"got {path}", "a CSV or NPY file, or pyarrow installed (the extra 'trace')") from None
    except (ValueError, OSError) as error:
        raise problem(("path",), f"can't read {path}: {error}", "a Parquet file") from None
    return _pick_column(table, path, column)


def _pick_column(table: Any, path: Path, column: str | None) -> np.ndarray:
    names = [str(name) for name in table.columns]
    if column is None and len(names) != 1:
        raise problem(("column",), f"missing; {path} has {len(names)} columns", choices(names))
    if column is not None and column not in names:
        raise problem(("column",), f"{path} has no column {column!r}", choices(names, column))
    values = table.iloc[:, 0 if column is None else names.index(column)]
    if len(values) and values.dtype.kind not in "iu":
        wrong = values[values.isna()] if values.isna().any() else values[[not _is_integer(value) for value in values]]
        if len(wrong):
            got = "nothing" if values.isna().any() else repr(str(wrong.iloc[0]))
            raise problem(("path",), f"{path}: row {wrong.index[0] + 1} below the header: got {got}", "a whole number")
    return values.to_numpy()


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) or (isinstance(value, str) and value.strip().isdecimal())
