"""Both faces of the producer behind one set of calls that wait, so that a test is written once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final

from dualwrite.async_producer import AsyncProducer
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer, ProducerState

FACES: Final = ("sync", "async")


class Face:
    """A producer by its name in `FACES`; every call waits until it has ended."""

    def __init__(self, face: str, settings: dict[str, Any]) -> None:
        self._closed = False
        self._runner = asyncio.Runner() if face == "async" else None
        self._producer: Any = Producer(settings) if self._runner is None else self._runner.run(_created(settings))

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        self._call(self._producer.init_transactions, keep_prepared_txn)

    def write(self, topic: str, *values: bytes) -> None:
        """Begin a transaction and have these records stored."""
        self._call(self._producer.begin_transaction)
        for value in values:
            self._call(self._producer.send, topic, value)
        self._call(self._producer.flush)

    def prepare(self, topic: str, *values: bytes) -> PreparedTxnState:
        """Begin a transaction with these records and prepare it."""
        self.write(topic, *values)
        prepared = self._call(self._producer.prepare_transaction)
        assert isinstance(prepared, PreparedTxnState)
        return prepared

    def complete_transaction(self, state: PreparedTxnState) -> None:
        self._call(self._producer.complete_transaction, state)

    def commit_transaction(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort_transaction(self) -> None:
        self._call(self._producer.abort_transaction)

    @property
    def state(self) -> ProducerState:
        state: ProducerState = self._producer.state
        return state

    @property
    def guarantee(self) -> Guarantee:
        guarantee: Guarantee = self._producer.guarantee
        return guarantee

    @property
    def shown(self) -> str:
        """What a log would show of it."""
        return repr(self._producer)

    def close(self, timeout_s: float | None = 0) -> None:
        """Let go of the connections; at once, as the end of the process does, unless there is more time."""
        if self._closed:
            return
        self._closed = True
        self._call(self._producer.close, timeout_s)
        if self._runner is not None:
            self._runner.close()

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        result = call(*arguments)
        if self._runner is None or not inspect.isawaitable(result):
            return result
        return self._runner.run(_awaited(result))


async def _created(settings: dict[str, Any]) -> AsyncProducer:
    return AsyncProducer(settings)


async def _awaited(result: Any) -> Any:
    return await result
