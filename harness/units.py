"""Units for people: which prefix a throughput is shown with, how a duration or a size reads."""

from __future__ import annotations


def throughput_unit(best_tflops: float) -> tuple[float, str]:
    """``(factor, unit)`` that shows figures up to ``best_tflops`` as numbers of 1 and more, if they can be."""
    for factor, unit in ((1.0, "TFLOP/s"), (1e3, "GFLOP/s")):
        if best_tflops * factor >= 1:
            return factor, unit
    return 1e6, "MFLOP/s"


def significant(value: float, digits: int = 3) -> str:
    """``value`` with that many significant digits, without an exponent: 0.0123, 1.23, 123, 12345."""
    if value == 0:
        return "0"
    text = f"{value:.{digits - 1}e}"
    exponent = int(text.split("e")[1])
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def scaled(value: float, unit: str) -> str:
    """``value`` with a decimal prefix, such as ``1.23 GB``."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{significant(value / factor)} {prefix}{unit}"
    return f"{significant(value)} {unit}"


def duration(seconds: float) -> str:
    """Such as ``42 s``, ``3 min 20 s`` or ``1 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
