"""A disassembled kernel: its instructions, and which may follow which."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

_SECTION = re.compile(r"^//-+\s+\.text\.(\S+)\s+-+$")
_LABEL = re.compile(r"^(\.L_x_\d+):$")
_INSTRUCTION = re.compile(r"^/\*([0-9a-f]+)\*/\s+(?:(@!?\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;(?:\s|$)")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_TARGETS = re.compile(r"BRANCH_TARGETS ([.\w,]+)")
_ENDS = frozenset({"EXIT", "RET", "BRX", "JMX", "KILL"})  # nothing falls through, unless predicated
_BYTES = 16  # of one instruction


@dataclass(frozen=True)
class Instruction:
    """``opcode`` with its modifiers, such as ``MUFU.EX2``; ``predicate`` such as ``@!P0``, or empty."""

    opcode: str
    predicate: str
    operands: str

    @property
    def base(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Sass:
    """One kernel's instructions; ``targets[i]`` are the instructions that a branch at ``i`` names."""

    instructions: tuple[Instruction, ...]
    targets: dict[int, tuple[int, ...]]

    @classmethod
    def parse(cls, text: str) -> Sass:
        """From what ``nvdisasm -c`` prints of a cubin with one kernel. Raises `ValueError` where there is none."""
        instructions: list[Instruction] = []
        labels: dict[str, int] = {}
        named: dict[int, list[str]] = {}
        sections = 0
        for line in text.splitlines():
            stripped = line.strip()
            if _SECTION.match(stripped):
                sections += 1
            elif label := _LABEL.match(stripped):
                labels[label[1]] = len(instructions)
            elif found := _INSTRUCTION.match(stripped):
                instruction = Instruction(found[3], found[2] or "", found[4])
                goals = _TARGETS.search(stripped)
                wanted = goals[1].split(",") if goals else _TARGET.findall(instruction.operands)
                if wanted and instruction.base not in ("BSSY", "LEPC"):
                    named[len(instructions)] = wanted
                instructions.append(instruction)
        if sections != 1 or not instructions:
            raise ValueError(f"expected the code of one kernel, found {sections} sections, "
                             f"{len(instructions)} instructions")
        targets = {at: tuple(labels[name] for name in names) for at, names in named.items()}
        return cls(tuple(instructions), targets)

    @property
    def code_bytes(self) -> int:
        """Size of the code, with the padding at its end."""
        return _BYTES * len(self.instructions)

    @cached_property
    def blocks(self) -> tuple[range, ...]:
        """Basic blocks as ranges of instructions, in the order of the code."""
        starts = {0} | {target for targets in self.targets.values() for target in targets}
        starts |= {at + 1 for at, each in enumerate(self.instructions) if at in self.targets or each.base in _ENDS}
        bounds = sorted({start for start in starts if start < len(self.instructions)} | {len(self.instructions)})
        return tuple(range(a, b) for a, b in pairwise(bounds))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Of each block, the blocks that may follow it. A call goes to its target and, as if returned, on."""
        block_at = {block.start: number for number, block in enumerate(self.blocks)}
        found = []
        for number, block in enumerate(self.blocks):
            last = self.instructions[block[-1]]
            follows = [block_at[target] for target in self.targets.get(block[-1], ()) if target in block_at]
            if self._falls_through(last) and number + 1 < len(self.blocks):
                follows.append(number + 1)
            found.append(tuple(dict.fromkeys(follows)))
        return tuple(found)

    @staticmethod
    def _falls_through(last: Instruction) -> bool:
        if last.base == "BRA":
            return bool(last.predicate) or bool(re.match(r"!?U?P\d", last.operands))
        return last.base not in _ENDS or bool(last.predicate)
