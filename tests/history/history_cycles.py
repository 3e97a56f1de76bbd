"""Information flow between transactions: what one read from another, directly or not, does not come back to it (K13)."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from history_facts import Facts, identity_of
from history_verdict import Verdict, invalid, unknown, valid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from history_reader import Op

Node = tuple[object, ...]


def k13_cycles(facts: Facts) -> Verdict:
    """No transaction reads, over any number of others, what it wrote itself.

    Nodes are transactions, and messages without a transaction; an edge goes from the writer of an input to the writer of the
    output that names it. Only such edges count: writes of transactions may interleave in a partition.
    """
    edges: dict[Node, dict[Node, Op]] = defaultdict(dict)
    writers = {identity_of(send): _node(send) for send in facts.sends}
    for send in facts.sends:
        reader = _node(send)
        for producer, seq in send.value["payload"]["inputs"]:
            writer = writers.get((producer, seq))
            if writer is not None:
                edges[writer].setdefault(reader, send)
    if not edges:
        return unknown("K13", "no message names an input that was sent in this history")
    cycles = [component for component in components(edges) if len(component) > 1 or component[0] in edges.get(component[0], {})]
    if cycles:
        loop = _shortest_cycle(edges, cycles)
        sends = [edges[one][two] for one, two in zip(loop, [*loop[1:], loop[0]], strict=True)]
        origins = {identity_of(send): send for send in facts.sends}
        inputs = [origins[tuple(name)] for send in sends for name in send.value["payload"]["inputs"] if tuple(name) in origins]
        on_loop = [send for send in inputs if _node(send) in loop]
        names = " → ".join(str(node[-1]) for node in [*loop, loop[0]])
        return invalid("K13", f"information goes round: {names}", [*on_loop, *sends], len(cycles))
    return valid("K13", f"{sum(map(len, edges.values()))} edges")


def _node(send: Op) -> Node:
    txn = send.value["txn"]
    return ("message", *identity_of(send)) if txn is None else ("txn", txn)


def components(edges: Mapping[Node, Mapping[Node, object]]) -> list[list[Node]]:
    """The strongly connected components of a graph (Tarjan, without recursion)."""
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[list[Node]] = []
    for root in edges:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        path = [(root, iter(edges[root]))]
        while path:
            node, children = path[-1]
            for child in children:
                if child not in number:
                    number[child] = low[child] = len(number)
                    stack.append(child)
                    on_stack.add(child)
                    path.append((child, iter(edges.get(child, ()))))
                    break
                if child in on_stack:
                    low[node] = min(low[node], number[child])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    found.append(_pop_component(node, stack, on_stack))
    return found


def _pop_component(root: Node, stack: list[Node], on_stack: set[Node]) -> list[Node]:
    component = []
    while True:
        node = stack.pop()
        on_stack.discard(node)
        component.append(node)
        if node == root:
            return component


def _shortest_cycle(edges: Mapping[Node, Mapping[Node, object]], cycles: list[list[Node]]) -> list[Node]:
    """A cycle through one node of the smallest component, of the least length."""
    inside = set(min(cycles, key=len))
    best: list[Node] = []
    for start in sorted(inside, key=str)[:100]:
        found = _back_to(start, edges, inside)
        if found and (not best or len(found) < len(best)):
            best = found
    return best


def _back_to(start: Node, edges: Mapping[Node, Mapping[Node, object]], inside: set[Node]) -> list[Node]:
    came: dict[Node, Node] = {}
    todo = deque([start])
    while todo:
        node = todo.popleft()
        for child in edges.get(node, ()):
            if child == start:
                loop = [node]
                while loop[-1] != start:
                    loop.append(came[loop[-1]])
                return loop[::-1]
            if child in inside and child not in came:
                came[child] = node
                todo.append(child)
    return []
