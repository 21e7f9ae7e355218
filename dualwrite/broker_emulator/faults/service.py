"""Serving a request that a fault may have something to do with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from dualwrite.broker_emulator.faults.actions import (
    CloseAfter,
    CloseBefore,
    CrashAfter,
    CrashBefore,
    Delay,
    DropReply,
    DropRequest,
    Duplicate,
    Error,
    Hold,
    HoldReply,
    PartitionError,
    Reorder,
    error_code,
)
from dualwrite.broker_emulator.faults.fault import FaultHandle, Faults, ReorderedPair
from dualwrite.broker_emulator.faults.partition_errors import answer_with_partition_error

if TYPE_CHECKING:
    from dualwrite.broker_emulator.api.call import Call


class Link(Protocol):
    """The way back to whoever sent a request."""

    def answer(self, response: Any) -> None:
        """Send the response (nothing, when None)."""

    def abort(self) -> None:
        """Break the connection at once."""

    def close(self) -> None:
        """Close the connection after what was sent."""

    def silence(self) -> None:
        """Neither read nor answer anything any more."""

    def overtake(self, answering: Coroutine[Any, Any, None]) -> None:
        """Serve what comes next meanwhile, but send its answers after `answering` gave its own."""


Apply = Callable[["Call"], Awaitable[Any]]


async def serve_with_faults(faults: Faults, call: Call, handle: Apply, link: Link) -> None:
    """Serve `call` by `handle`, or do instead what the first fault says that selects it."""
    service = _Service(faults, call, handle, link)
    taken = faults.take(call)
    if taken is None:
        link.answer(await service.apply(call))
    else:
        await service.serve(taken)


class _Service:
    """One request, and what one fault does to it."""

    def __init__(self, faults: Faults, call: Call, handle: Apply, link: Link) -> None:
        self._faults = faults
        self._call = call
        self._handle = handle
        self._link = link

    async def apply(self, call: Call) -> Any:
        """Serve `call`, and then the late copies of others whose turn has come."""
        response = await self._handle(call)
        for late in self._faults.due_copies():
            late.handle.keep_unsent(await self._handle(late.call))
        return response

    async def serve(self, taken: FaultHandle) -> None:
        call, link, action = self._call, self._link, taken.fault.action
        match action:
            case Error():
                link.answer(call.api.functions.refuse(call, error_code(action.code)))
            case PartitionError():
                link.answer(await self._fail_part(taken.fault.topic or "", taken.fault.partition, action))
            case Delay():
                await asyncio.sleep(action.duration_ms / 1000)
                link.answer(await self.apply(call))
            case DropRequest():
                link.silence()
            case DropReply():
                taken.keep_unsent(await self.apply(call))
                link.abort()
            case CloseBefore():
                link.abort()
            case CloseAfter():
                link.answer(await self.apply(call))
                link.close()
            case Hold():
                await taken.hold()
                link.answer(await self.apply(call))
            case HoldReply():
                response = await self.apply(call)
                await taken.hold()
                link.answer(response)
            case CrashBefore():
                self._faults.crash_node(call.node.node_id)
            case CrashAfter():
                taken.keep_unsent(await self.apply(call))
                self._faults.crash_node(call.node.node_id)
            case Duplicate():
                await self._duplicate(taken, action)
            case Reorder():
                await self._reorder(taken)

    async def _fail_part(self, topic: str, partition: int | None, action: PartitionError) -> Any:
        error = error_code(action.code)
        return await answer_with_partition_error(self._call, error, topic=topic, partition=partition, apply=self.apply)

    async def _duplicate(self, taken: FaultHandle, action: Duplicate) -> None:
        response = await self.apply(self._call)
        if action.on_release:
            self._faults.run(self._apply_on_release(taken))
        elif action.after_requests:
            self._faults.copy_later(taken, self._call, action.after_requests)
        else:
            taken.keep_unsent(await self.apply(self._call))
        self._link.answer(response)

    async def _apply_on_release(self, taken: FaultHandle) -> None:
        await taken.hold()
        taken.keep_unsent(await self.apply(self._call))

    async def _reorder(self, taken: FaultHandle) -> None:
        pair = taken.pair
        if pair is None:
            pair = taken.pair = ReorderedPair()
            self._link.overtake(self._apply_second(taken, pair))
            return
        taken.pair = None
        if taken.is_spent:
            self._faults.remove(taken)
        response = await self.apply(self._call)
        pair.second_applied.set_result(None)
        await pair.first_done
        self._link.answer(response)

    async def _apply_second(self, taken: FaultHandle, pair: ReorderedPair) -> None:
        """The first request of the pair, once the other one is applied, or when none is to be waited for any more."""
        released = asyncio.ensure_future(taken.hold())
        await asyncio.wait((pair.second_applied, released), return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        if taken.pair is pair:  # released
            taken.pair = None
        try:
            self._link.answer(await self.apply(self._call))
        finally:
            pair.first_done.set_result(None)
