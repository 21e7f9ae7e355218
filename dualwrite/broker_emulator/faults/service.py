"""Serve a request that a fault may act on; a fault of a part cuts that out, answers it, and joins both responses.

Uses only the names of fields, so that a new API needs no code here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from kio.schema.errors import ErrorCode

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
from dualwrite.broker_emulator.faults.fault import (
    OWNER_LISTS,
    PARTITION_LISTS,
    TOPIC_LISTS,
    partition_number,
    topic_name,
)
from dualwrite.broker_emulator.faults.registry import FaultHandle, Faults, ReorderedPair

if TYPE_CHECKING:
    from dualwrite.broker_emulator.messages.call import Call


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


_IDENTITIES = (
    "transactional_id",
    "producer_id",
    "group_id",
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "partition_id",
    "partition_index",
    "index",
    "partition",
    "node_id",
    "broker_id",
)
"""Fields that identify a row: rows of two responses with the same values describe the same thing."""


async def answer_with_partition_error(
    call: Call,
    error: ErrorCode,
    *,
    topic: str,
    partition: int | None,
    apply: Callable[[Call], Awaitable[Any]],
) -> Any:
    """Apply `call` without the selected part, and return one response for both parts."""
    request = _without_waiting(call.request)
    selected, rest = (_part(call, request, topic, partition, keep) for keep in (True, False))
    refuse = call.api.functions.refuse_partitions
    refused = None if selected is None else refuse(replace(call, request=selected), error)
    applied = None if rest is None else await apply(replace(call, request=rest))
    if refused is None or applied is None:
        return refused if applied is None else applied
    return _in_order_of(call, _joined(applied, refused))


def _without_waiting(request: Any) -> Any:
    """Return the request without its waiting time: a Fetch response with an error is sent at once."""
    return replace(request, max_wait=timedelta(0)) if hasattr(request, "max_wait") else request


def _part(call: Call, holder: Any, topic: str, partition: int | None, keep: bool) -> Any:
    """Return `holder` with only the selected part (`keep`) or only the rest; None if it would be empty."""
    changed: dict[str, Any] = {}
    for name in TOPIC_LISTS:
        elements = getattr(holder, name, None)
        if elements:
            changed[name] = _topics(call, elements, topic, partition, keep)
    for name in OWNER_LISTS:
        owners = getattr(holder, name, None)
        if owners and is_dataclass(owners[0]):
            parts = (_part(call, owner, topic, partition, keep) for owner in owners)
            changed[name] = tuple(part for part in parts if part is not None)
    if getattr(holder, "topic_names", None):
        changed["topic_names"] = tuple(name for name in holder.topic_names if (name == topic) is keep)
    return replace(holder, **changed) if any(changed.values()) else None


def _topics(call: Call, elements: tuple[Any, ...], topic: str, partition: int | None, keep: bool) -> tuple[Any, ...]:
    parts = []
    for element in elements:
        is_named = topic_name(call, element) == topic
        lists = [name for name in PARTITION_LISTS if hasattr(element, name)]
        if partition is None or not is_named or not lists:
            if is_named is keep:
                parts.append(element)
            continue
        kept = tuple(entry for entry in getattr(element, lists[0]) if (partition_number(entry) == partition) is keep)
        if kept:
            parts.append(replace(element, **{lists[0]: kept}))
    return tuple(parts)


def _joined(first: Any, second: Any) -> Any:
    """Return `first` with the rows of `second` that it lacks; rows that both have are joined recursively."""
    changed = {}
    for member in fields(first):
        rows = getattr(first, member.name)
        others = getattr(second, member.name)
        if isinstance(rows, tuple) and isinstance(others, tuple) and any(map(is_dataclass, (*rows, *others))):
            changed[member.name] = _joined_rows(rows, others)
    return replace(first, **changed)


def _joined_rows(rows: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    joined = list(rows)
    places = {_identity(row): place for place, row in enumerate(rows)}
    for other in others:
        place = places.get(_identity(other))
        if place is None:
            joined.append(other)
        else:
            joined[place] = _joined(joined[place], other)
    return tuple(joined)


def _identity(row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, name, None) for name in _IDENTITIES)


def _in_order_of(call: Call, response: Any) -> Any:
    """Return the response with its topics in the order of the request, as brokers send them."""
    names = [name for name in TOPIC_LISTS if getattr(call.request, name, None)]
    if not names:
        return response
    order = {_topic_key(topic): place for place, topic in enumerate(getattr(call.request, names[0]))}
    changed = {}
    for member in fields(response):
        rows = getattr(response, member.name)
        if isinstance(rows, tuple) and rows and all(_topic_key(row) in order for row in rows):
            changed[member.name] = tuple(sorted(rows, key=lambda row: order[_topic_key(row)]))
    return replace(response, **changed)


def _topic_key(row: Any) -> Any:
    for name in ("name", "topic", "topic_id"):
        value = getattr(row, name, None)
        if value is not None:
            return value
    return row if isinstance(row, str) else None
