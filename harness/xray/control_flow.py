"""Dominators and natural loops of a control-flow graph, as in any compiler textbook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Loop:
    """A natural loop: its header dominates all of ``blocks``, and some of them branch back to it."""

    header: int
    blocks: frozenset[int]


def reverse_postorder(successors: Sequence[Sequence[int]]) -> list[int]:
    """Nodes that can be reached from node 0, each before its successors but for back edges."""
    order: list[int] = []
    seen = {0}
    stack = [(0, iter(successors[0]))]
    while stack:
        node, following = stack[-1]
        fresh = next((each for each in following if each not in seen), None)
        if fresh is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(fresh)
            stack.append((fresh, iter(successors[fresh])))
    return order[::-1]


def predecessors(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """The graph with its edges turned round."""
    found: list[list[int]] = [[] for _ in successors]
    for node, following in enumerate(successors):
        for each in following:
            found[each].append(node)
    return found


def dominators(successors: Sequence[Sequence[int]]) -> dict[int, int]:
    """The immediate dominator of every node that can be reached from node 0; of 0, itself."""
    order = reverse_postorder(successors)
    rank = {node: at for at, node in enumerate(order)}
    before = predecessors(successors)
    parent = {0: 0}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [each for each in before[node] if each in parent]
            best = known[0]
            for other in known[1:]:
                while best != other:
                    while rank[best] > rank[other]:
                        best = parent[best]
                    while rank[other] > rank[best]:
                        other = parent[other]
            if parent.get(node) != best:
                parent[node] = best
                changed = True
    return parent


def dominates(parent: dict[int, int], above: int, node: int) -> bool:
    """Whether every path to ``node`` passes ``above``."""
    while node != above and node != parent[node]:
        node = parent[node]
    return node == above


def natural_loops(successors: Sequence[Sequence[int]]) -> list[Loop]:
    """All of them, those with one header merged, by header."""
    parent = dominators(successors)
    before = predecessors(successors)
    bodies: dict[int, set[int]] = {}
    for node in parent:
        for header in successors[node]:
            if not dominates(parent, header, node):
                continue
            body = bodies.setdefault(header, {header})
            stack = [node]
            while stack:
                each = stack.pop()
                if each not in body and each in parent:
                    body.add(each)
                    stack.extend(before[each])
    return [Loop(header, frozenset(bodies[header])) for header in sorted(bodies)]
