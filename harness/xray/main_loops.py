"""The main loop of each role in a warp-specialised kernel, found in its machine code.

A main loop is a natural loop (its header dominates it) that holds *work*, as `counting.WORK` has it, waits for an
mbarrier or a named barrier, and holds no other such loop; a small loop inside that never waits counts once. Two kinds
of loop are no loops here: those that only ask an mbarrier again, so that a wait counts once, and those that repeat an
instruction whose operand must be uniform for lanes that differ (``BRA.U.ANY``). What a loop does names its role:

    mma+softmax   matmuls and exponentials                 (Hopper's consumers)
    mma           matmuls                                  (Blackwell's MMA warp)
    softmax       exponentials                             (Blackwell's softmax or compute warps)
    reduce        adds to global memory by TMA             (dQ)
    load          loads by TMA
    correction    reads and writes tensor memory           (rescales O)
    epilogue      reads tensor memory
    store         stores by TMA, or writes tensor memory

Of several loops of one role (copies for two warp groups, with and without a mask) the one with the most work stands for
them, and of equals the one with the fewest instructions: the steady state. Exponentials don't count here, as some may
be computed by other means where there is no mask. Code outside of main loops belongs to the role whose main loops alone
are found nearest above it in the dominator tree; else to no role.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.xray.control_flow import Loop, dominators, natural_loops, predecessors, reverse_postorder
from harness.xray.counting import WORK, count, local_bytes
from harness.xray.sass import Instruction, Sass

ROLES = ("load", "mma", "mma+softmax", "softmax", "correction", "reduce", "epilogue", "store")
AT_LAUNCH = 0  # registers: no setmaxnreg came before
_WAITS = ("mbar_wait", "named_barrier")
_SPIN = 16  # instructions at most of a loop that only asks a barrier again


@dataclass(frozen=True)
class Role:
    """A role's steady state.

    Attributes:
        name: one of `ROLES`.
        registers: values of the last setmaxnreg before its main loops; `AT_LAUNCH` where a path has none.
        loops: main loops of this role.
        counts: of the loop that stands for them, by `counting.COUNTS`.
        local_bytes: bytes of local memory that instructions of the role's whole code access.
    """

    name: str
    registers: tuple[int, ...]
    loops: int
    counts: Counter[str]
    local_bytes: int


def find_roles(sass: Sass) -> list[Role]:
    """The kernel's roles, in the order of `ROLES`; none where no loop holds work."""
    loops = [loop for loop in natural_loops(sass.successors) if not _is_waterfall(sass, loop)]
    spins = [loop for loop in loops if _is_spin(sass, loop)]
    spinning = frozenset(block for loop in spins for block in loop.blocks)
    counted = {loop: _count(sass, loop, spins, spinning) for loop in loops}
    busy = {loop: counts for loop, counts in counted.items()
            if any(counts[kind] for kind in WORK) and any(counts[kind] for kind in _WAITS)}
    main = {loop: counts for loop, counts in busy.items()
            if not any(other.blocks < loop.blocks for other in busy)}
    named = {loop: _role(counts) for loop, counts in main.items()}
    registers = _registers(sass)
    owners = _owners(sass, named)
    roles = []
    for name in ROLES:
        mine = [loop for loop, role in named.items() if role == name]
        if mine:
            steady = max(mine, key=lambda loop: (sum(main[loop][kind] for kind in WORK if kind != "ex2"),
                                                 -main[loop]["instructions"]))
            values = sorted(frozenset().union(*(registers[loop.header] for loop in mine)))
            code = (sass.instructions[at] for block, owner in owners.items() if owner == name
                    for at in sass.blocks[block])
            roles.append(Role(name, tuple(values), len(mine), main[steady], local_bytes(code)))
    return roles


def _instructions(sass: Sass, blocks: Iterable[int]) -> Iterable[Instruction]:
    return (sass.instructions[at] for block in sorted(blocks) for at in sass.blocks[block])


def _is_spin(sass: Sass, loop: Loop) -> bool:
    counts = count(_instructions(sass, loop.blocks))
    return counts["mbar_wait"] > 0 and counts["instructions"] <= _SPIN and not any(counts[kind] for kind in WORK)


def _is_waterfall(sass: Sass, loop: Loop) -> bool:
    back = [block for block in loop.blocks if loop.header in sass.successors[block]]
    return all(sass.instructions[sass.blocks[block][-1]].opcode == "BRA.U.ANY" for block in back)


def _count(sass: Sass, loop: Loop, spins: list[Loop], spinning: frozenset[int]) -> Counter[str]:
    """Counts of a loop's body. A spin that is not the retry of a try before it is a wait of its own."""
    counts = count(_instructions(sass, loop.blocks - spinning))
    before = predecessors(sass.successors)
    for spin in spins:
        if spin.blocks < loop.blocks:
            entries = [block for block in before[spin.header] if block not in spin.blocks]
            if len(entries) == 1 and len(sass.blocks[entries[0]]) <= _SPIN and not _tries(sass, entries):
                entries = before[entries[0]]  # a retry out of line may set a register first
            counts["mbar_wait"] += not _tries(sass, entries)
    return counts


def _tries(sass: Sass, blocks: Iterable[int]) -> bool:
    return any("SYNCS.PHASECHK" in each.opcode for each in _instructions(sass, blocks))


def _role(counts: Counter[str]) -> str:
    tests = {
        "mma+softmax": counts["mma"] and counts["ex2"], "mma": counts["mma"], "softmax": counts["ex2"],
        "reduce": counts["tma_reduce"], "load": counts["tma_load"], "correction": counts["ldtm"] and counts["sttm"],
        "epilogue": counts["ldtm"]}
    return next((name for name, holds in tests.items() if holds), "store")


def _registers(sass: Sass) -> dict[int, frozenset[int]]:
    """Of each block, the values that the last setmaxnreg before its end may have set."""
    own = {}
    for number, block in enumerate(sass.blocks):
        for at in block:
            if sass.instructions[at].base == "USETMAXREG":
                found = re.findall(r"0x([0-9a-f]+)", sass.instructions[at].operands)
                own[number] = frozenset({int(found[-1], 16)})
    before = predecessors(sass.successors)
    order = reverse_postorder(sass.successors)
    leaving: dict[int, frozenset[int]] = dict.fromkeys(order, frozenset())
    changed = True
    while changed:
        changed = False
        for node in order:
            entering = frozenset().union(*(leaving[each] for each in before[node] if each in leaving))
            value = own.get(node, entering | ({AT_LAUNCH} if node == 0 else frozenset()))
            changed |= value != leaving[node]
            leaving[node] = value
    return leaving


def _owners(sass: Sass, named: dict[Loop, str]) -> dict[int, str | None]:
    """The role that each block belongs to."""
    parent = dominators(sass.successors)
    under: dict[int, set[str]] = {node: set() for node in parent}
    for loop, role in named.items():
        node = loop.header
        while role not in under[node]:
            under[node].add(role)
            node = parent[node]
    inside = {block: role for loop, role in named.items() for block in loop.blocks}
    owners: dict[int, str | None] = {}
    for node in parent:
        above = node
        while not under[above] and above != parent[above]:
            above = parent[above]
        owners[node] = inside.get(node) or (next(iter(under[above])) if len(under[above]) == 1 else None)
    return owners
