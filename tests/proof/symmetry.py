"""`Symmetry`: states that differ only by an exchange of like processes are one state.

Processes are alike if their programs are the same, or differ only in the values that they write. Exchanging two such
processes, and their values wherever they occur, maps each possible step of a world to one of the other, because no
broker, database or program looks into a value. So both worlds have the same futures, up to names, and visiting one of
them is enough.

A program's node stands for a history of replies, which may contain values of other processes (the records that are read
from the log). The node of the exchanged world is the one that the other program reaches with the replies of the other
names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, permutations, product
from typing import Any

from tests.proof.automaton import Automaton


class Symmetry:
    """All exchanges of like processes."""

    def __init__(
        self, programs: Sequence[Automaton], written: Sequence[Sequence[bytes]], identical: Sequence[int] = ()
    ) -> None:
        """`written`: the values of the programs that begin the list. `identical`: processes that have one program.

        Processes are given by their numbers; those of writers are also the numbers of their programs.
        """
        alike: dict[int, list[int]] = {}
        for number, values in enumerate(written):
            alike.setdefault(len(values), []).append(number)
        groups = [tuple(numbers) for numbers in (*alike.values(), identical) if len(numbers) > 1]
        exchanges = product(*(permutations(group) for group in groups))
        next(exchanges)  # the first one exchanges nothing
        numbers = [number for group in groups for number in group]
        self._exchanges = [
            _Exchange(programs, written, dict(zip(numbers, chain(*chosen), strict=True))) for chosen in exchanges
        ]

    def key(self, world: Any) -> int:
        """Return the same number for all worlds that are one state."""
        if not self._exchanges:
            return hash(world)
        return min((hash(world), *(hash(exchange.applied(world)) for exchange in self._exchanges)))


class _Exchange:
    """One exchange: each process, and its values, for another one."""

    def __init__(
        self, programs: Sequence[Automaton], written: Sequence[Sequence[bytes]], becomes: Mapping[int, int]
    ) -> None:
        self._programs = programs
        self._becomes = becomes
        self._writers = len(written)
        pairs = [(written[a], written[b]) for a, b in becomes.items() if a < self._writers]
        self._names = {old: new for olds, news in pairs for old, new in zip(olds, news, strict=True)}
        self._nodes: dict[tuple[int, int], int] = {}
        self._values: dict[Any, Any] = {}

    def applied(self, world: Any) -> Any:
        """Return the world after the exchange."""
        processes = list(world.processes)
        for number, process in enumerate(world.processes):
            program = self._program(process.program)
            node = self._node(process.program, process.node)
            processes[self._becomes.get(number, number)] = process._replace(program=program, node=node)
        txns = sorted(
            self._renamed(txn)._replace(process=self._becomes.get(txn.process, txn.process)) for txn in world.txns
        )
        return world._replace(
            **{name: self._renamed(value) for name, value in world._asdict().items() if name not in _APART},
            processes=tuple(processes),
            txns=tuple(txns),
            late=tuple(sorted(map(self._renamed, world.late), key=repr)),
        )

    def _program(self, program: int) -> int:
        return self._becomes[program] if program < self._writers and program in self._becomes else program

    def _node(self, program: int, node: int) -> int:
        """Return the node of the other program that the replies with the other names lead to."""
        path = []
        while node and (program, node) not in self._nodes:
            path.append(node)
            node = self._programs[program].nodes[node].came_from
        other = self._programs[self._program(program)]
        at = self._nodes[program, node] if node else 0
        for each in reversed(path):
            at = self._nodes[program, each] = other.step(at, self._renamed(self._programs[program].nodes[each].reply))
        return at

    def _renamed(self, value: Any) -> Any:
        """Return a value with the written values exchanged."""
        if isinstance(value, bytes):
            return self._names.get(value, value)
        if not isinstance(value, tuple | frozenset):
            return value
        found = self._values.get((type(value), value))
        if found is None:
            parts = [self._renamed(each) for each in value]
            make: Any = getattr(value, "_make", type(value))
            found = self._values[type(value), value] = make(parts)
        return found


_APART = ("processes", "txns", "late")
