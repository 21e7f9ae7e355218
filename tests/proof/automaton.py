"""`Automaton`: a program of real code as a deterministic automaton, explored lazily and remembered.

The program is a coroutine that yields each request to its world and is sent the reply. It has no clock, no randomness
and no other input, so the replies so far determine its next request. A *node* stands for such a history. Each edge
(node, reply) is run once, by replaying the history in a fresh program, and then costs one look into a table, however
many states of the world it occurs in.

Ended programs with the same results are one node: their histories have no consequences any more. That leaves a tenth of
the states of the world.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator, Hashable
from typing import Any, Final, NamedTuple

Said = tuple[Any, ...]
"""The result that one caller of the program got."""

Told = tuple[Said, ...]
"""The results of all callers so far."""

Program = Callable[[list[Said]], Coroutine[Any, Any, None]]
"""A program; it appends its callers' results to its argument."""

_MOST_LIVE: Final = 20_000
_MOST_HANDLERS: Final = 100
"""How many requests a program makes at most while it cleans up."""


class DatabaseGone(Exception):  # noqa: N818 - as drivers name it
    """The connection is lost, and with it the transaction, unless it was being committed."""


class Node(NamedTuple):
    """A point at which the program waits for a reply. `request` is None when it has ended."""

    request: Hashable
    told: Told
    came_from: int
    reply: Hashable


@types.coroutine
def ask(request: Hashable) -> Generator[Hashable, Any, Any]:
    """Yield a request to the world, and return its reply."""
    return (yield request)


class Automaton:
    """One program, explored as far as it was asked to go."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.nodes: list[Node] = []
        self._edges: dict[tuple[int, Hashable], int] = {}
        self._ended: dict[Told, int] = {}
        self._live: dict[int, tuple[Coroutine[Any, Any, None], list[Said]]] = {}
        self.replayed = 0
        told: list[Said] = []
        self._arrive(program(told), told, -1, None)

    def step(self, node: int, reply: Hashable) -> int:
        """Return the node that the program reaches from `node` with `reply`."""
        found = self._edges.get((node, reply))
        if found is None:
            running, told = self._running_at(node)
            found = self._edges[node, reply] = self._arrive(running, told, node, reply)
        return found

    def _running_at(self, node: int) -> tuple[Coroutine[Any, Any, None], list[Said]]:
        live = self._live.pop(node, None)
        if live is not None:
            return live
        path: list[Node] = []
        at = node
        while at > 0:
            path.append(self.nodes[at])
            at = self.nodes[at].came_from
        self.replayed += 1
        told: list[Said] = []
        running = self._program(told)
        running.send(None)
        for step in reversed(path):
            request = running.send(step.reply)
            assert request == step.request, f"the program is not deterministic: {request} instead of {step.request}"
        return running, told

    def _arrive(self, running: Coroutine[Any, Any, None], told: list[Said], came_from: int, reply: Hashable) -> int:
        try:
            request = running.send(reply)
        except StopIteration:
            return self._ended_with(tuple(told), came_from, reply)
        self.nodes.append(Node(request, tuple(told), came_from, reply))
        node = len(self.nodes) - 1
        if len(self._live) < _MOST_LIVE:
            self._live[node] = running, told
        return node

    def _ended_with(self, told: Told, came_from: int, reply: Hashable) -> int:
        """Return the node of a program that has ended. It has no future, so only its callers' results are left."""
        node = self._ended.get(told)
        if node is None:
            self.nodes.append(Node(None, told, came_from, reply))
            node = self._ended[told] = len(self.nodes) - 1
        return node

    def close(self) -> None:
        """End the waiting programs, even those that resist."""
        for running, _ in self._live.values():
            _abandon(running)
        self._live.clear()


class _AbandonedError(BaseException):
    """Ends a program that is not needed any more."""


def _abandon(running: Coroutine[Any, Any, None]) -> None:
    for _ in range(_MOST_HANDLERS):
        try:
            running.throw(_AbandonedError())
        except BaseException:
            return
