"""Which instructions are counted, and under which name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from harness.xray.sass import Instruction

_KINDS: dict[str, str] = {  # name of the count -> opcodes
    "mma": r"HGMMA|QGMMA|HMMA|UTC[A-Z]*MMA",
    "ex2": r"MUFU\.EX2",
    "ffma": r"FFMA2?",
    "fmul": r"FMUL2?",
    "fadd": r"FADD2?",
    "packed": r"(FFMA|FMUL|FADD)2",
    "ldtm": r"LDTM",
    "sttm": r"STTM",
    "tma_load": r"UTMALDG|UBLKCP\.S\.G",
    "tma_store": r"UTMASTG|UBLKCP\.G\.S",
    "tma_reduce": r"UTMAREDG|UBLKRED",
    "mbar_wait": r"SYNCS\.PHASECHK",
    "mbar_arrive": r"SYNCS\.ARRIVE|UTCBAR",
    "named_barrier": r"BAR",
    "local_load": r"LDL",
    "local_store": r"STL",
}
_PATTERNS = {name: re.compile(rf"(?:{opcodes})(?![A-Z0-9])") for name, opcodes in _KINDS.items()}
COUNTS: tuple[str, ...] = ("instructions", *_KINDS)
#: Kinds that make a loop worth looking at; the rest is addressing, waiting and arithmetic beside them.
WORK: tuple[str, ...] = ("mma", "ex2", "ldtm", "sttm", "tma_load", "tma_store", "tma_reduce")


def count(instructions: Iterable[Instruction]) -> Counter[str]:
    """How many there are of each kind; ``instructions`` is all of them. A packed FFMA2 is one ``ffma``."""
    found: Counter[str] = Counter()
    for each in instructions:
        found["instructions"] += 1
        found.update(name for name, pattern in _PATTERNS.items() if pattern.match(each.opcode))
    return found


def local_bytes(instructions: Iterable[Instruction]) -> int:
    """Bytes a thread that loads from and stores to local memory move, each instruction counted once."""
    total = 0
    for each in instructions:
        if each.base in ("LDL", "STL"):
            width = re.search(r"\.(64|128)\b", each.opcode)
            total += int(width[1]) // 8 if width else 4
    return total
