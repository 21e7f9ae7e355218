"""The clock of one process's code, among many that are interleaved in one thread."""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Hashable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from tests.proof.kafka_model import NO_DEADLINE_MS

ResultT = TypeVar("ResultT")


class Clock:
    """The clock of one process: its time passes only on order."""

    def __init__(self, *modules: ModuleType) -> None:
        """`modules` look at it, by the name `time`."""
        self._modules = modules
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def time(self) -> float:
        return 1.0 + self._now_s

    def time_ns(self) -> int:
        return int(self.time() * 10**9)

    def give_up(self) -> None:
        """Let more time pass than any caller waits."""
        self.pass_s(2 * NO_DEADLINE_MS)

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds

    @types.coroutine
    def told(self, steps: Coroutine[Any, Any, ResultT]) -> Generator[Hashable, Any, ResultT]:
        """Carry out steps that look at this clock."""
        reply: Any = None
        error: BaseException | None = None
        while True:
            with self._in_force():
                try:
                    request = steps.send(reply) if error is None else steps.throw(error)
                except StopIteration as end:
                    result: ResultT = end.value
                    return result
            reply = error = None
            try:
                reply = yield request
            except BaseException as thrown:
                error = thrown

    @contextmanager
    def _in_force(self) -> Iterator[None]:
        real = [vars(module)["time"] for module in self._modules]
        for module in self._modules:
            vars(module)["time"] = self
        try:
            yield
        finally:
            for module, time in zip(self._modules, real, strict=True):
                vars(module)["time"] = time
