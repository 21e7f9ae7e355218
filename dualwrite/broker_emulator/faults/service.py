"""Serve a request that a fault may act on."""

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
from dualwrite.broker_emulator.faults.partition_errors import answer_with_partition_error
from dualwrite.broker_emulator.faults.registry import FaultHandle, Faults, ReorderedPair

if TYPE_CHECKING:
    from dualwrite.broker_emulator.api.call import Call


class Link(Protocol):
    """The connection back to the sender of a request."""

    def answer(self, response: Any) -> None:
        """Send the response; None sends nothing."""

    def abort(self) -> None:
        """Close the connection at once."""

    def close(self) -> None:
        """Close the connection after sending the buffered data."""

    def silence(self) -> None:
        """Stop reading and responding."""

    def overtake(self, answering: Coroutine[Any, Any, None]) -> None:
        """Serve the following requests meanwhile, but send their responses after that of `answering`."""


Apply = Callable[["Call"], Awaitable[Any]]


async def serve_with_faults(faults: Faults, call: Call, handle: Apply, link: Link) -> None:
    """Serve `call` by `handle`, or apply the first fault that selects it."""
    service = _Service(faults, call, handle, link)
    taken = faults.take(call)
    if taken is None:
        link.answer(await service.apply(call))
    else:
        await service.serve(taken)


class _Service:
    """One request, and the effect of one fault on it."""

    def __init__(self, faults: Faults, call: Call, handle: Apply, link: Link) -> None:
        self._faults = faults
        self._call = call
        self._handle = handle
        self._link = link

    async def apply(self, call: Call) -> Any:
        """Serve `call`, and then the delayed copies of other requests that are due."""
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
        """Apply the first request of the pair after the second one, or when the fault releases it."""
        released = asyncio.ensure_future(taken.hold())
        await asyncio.wait((pair.second_applied, released), return_when=asyncio.FIRST_COMPLETED)
        released.cancel()
        if taken.pair is pair:  # released
            taken.pair = None
        try:
            self._link.answer(await self.apply(self._call))
        finally:
            pair.first_done.set_result(None)
