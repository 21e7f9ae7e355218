"""Cycles in a directed graph, in time linear in its size."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

_NOTHING: Final[Mapping[int, str]] = {}

Graph = Mapping[int, Mapping[int, str]]
"""The successors of each node, each with the reason in words."""


def components(graph: Graph) -> Iterator[list[int]]:
    """Yield the strongly connected components of more than one node (Tarjan, 1972), without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    for root in graph:
        if root in index:
            continue
        path: list[tuple[int, Iterator[int]]] = [(root, iter(graph[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, successors = path[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    path.append((successor, iter(graph.get(successor, _NOTHING))))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == index[node]:
                    component = _popped(stack, on_stack, node)
                    if len(component) > 1:
                        yield component


def _popped(stack: list[int], on_stack: set[int], node: int) -> list[int]:
    component: list[int] = []
    while not component or component[-1] != node:
        component.append(stack.pop())
        on_stack.discard(component[-1])
    return component


def cycle_in(graph: Graph, component: Sequence[int]) -> list[int]:
    """Return a shortest cycle through the first node of a strongly connected component."""
    first = min(component)
    within = set(component)
    came_from: dict[int, int] = {}
    waiting = deque([first])
    while waiting:
        node = waiting.popleft()
        for successor in graph.get(node, _NOTHING):
            if successor == first:
                return _path(came_from, first, node)
            if successor in within and successor not in came_from:
                came_from[successor] = node
                waiting.append(successor)
    raise AssertionError("a strongly connected component has a cycle through each of its nodes")


def _path(came_from: Mapping[int, int], first: int, last: int) -> list[int]:
    path = [last]
    while path[-1] != first:
        path.append(came_from[path[-1]])
    return path[::-1]
