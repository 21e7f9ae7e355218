"""`ExactlyOnce`: turns the messages of a FastStream subscriber into dual writes, each record exactly once.

    billing = ExactlyOnce(pool, bill, group_id="billing", offsets=OffsetsInDatabase(engine))

    @billing.subscriber(broker, "orders")
    async def on_orders(message: KafkaMessage) -> None:
        await billing.take(message)

    async def bill(tx, record): ...

FastStream owns the consumer and calls the application. By itself it would go on behind a message whose subscriber
failed, or that its parser, a middleware or a dependency dropped. So its subscriber gets the next message from here
(`get_msg`): records are polled, placed, checked and written by the steps of consume-transform-write (`steps.py`), and a
message that `take` did not write is read again before any later one.

FastStream must commit no offsets itself: in a partition without a row, failed records before them would be skipped. So
no message is ever acknowledged, and a message that was not delivered from here is refused.

Both of FastStream's Kafka brokers work, on aiokafka and on confluent-kafka; this module imports neither.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import ConfigError
from dualwrite.guarded import pass_on_signal
from dualwrite.recipes.consume.consume_async import AsyncHandler, AsyncPoisonHandler
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.consume.consumer_confluent import ConfluentAdapter
from dualwrite.recipes.consume.consumers import ConsumedRecord, ConsumerAdapter, listener
from dualwrite.recipes.consume.steps import ConsumeSteps
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter

_log = logging.getLogger(__name__)

_POLL_MS: Final = 100
_MAX_RECORDS: Final = 500
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0

_NOT_BY_FASTSTREAM: Final = "by its dual write"
"""The mark of a message that FastStream must take for acknowledged, so that it commits no offset for it."""


@dataclass
class _Delivery:
    """A message that FastStream was given last."""

    records: Sequence[ConsumedRecord]
    raw: Any
    is_taken: bool = False
    is_written: bool = False

    @property
    def has_failed(self) -> bool:
        return self.is_taken and not self.is_written


class ExactlyOnce:
    """Takes the messages of one FastStream subscriber, which `subscriber` makes.

    `handle(tx, record)` is called for each record in order, in a dual write of all records of a message (several with
    `batch=True`). If a record fails, the message is divided until that record is alone: those before it are written,
    and it is delivered again after a pause, with those behind it. With `poison`, it is passed to `poison(tx, record,
    error)` in a separate dual write, and then skipped.
    """

    def __init__(
        self,
        writer: AsyncDualWriter,
        handle: AsyncHandler,
        *,
        group_id: str,
        offsets: OffsetsInDatabase,
        poison: AsyncPoisonHandler | None = None,
    ) -> None:
        self.group_id: Final = group_id
        """The group of the subscriber, which is also the group of the rows."""
        self._new_steps = partial(ConsumeSteps, writer, topics=(), handle=handle, offsets=offsets, poison=poison)
        self._subscriber: Any = None
        self._consumer: Any = None
        self._adapter: Any
        self._steps: ConsumeSteps
        self._new_partitions: set[TopicPartition] = set()
        self._stopped: tuple[type[Exception], ...] = ()
        self._is_batch = False
        self._max_records = 1
        self._delivery: _Delivery | None = None
        self._taking = asyncio.Lock()
        self._failures = 0

    def subscriber(self, broker: Any, *topics: str, **settings: Any) -> Callable[[Callable[..., Any]], Any]:
        """Return a subscriber of a FastStream broker or router, which decorates the function that calls `take`.

        `settings` are those of `broker.subscriber()`, for example `batch=True`, except for those that the guarantees
        depend on. By default `auto_offset_reset` is "earliest". Raises ConfigError for an excluded setting, and if
        there is a subscriber already.
        """
        from faststream import AckPolicy

        own = {
            "group_id": self.group_id,
            "isolation_level": "read_committed",
            "ack_policy": AckPolicy.MANUAL,
            "parser": _parsed,
            "decoder": _body_of,
            **self._hooks(is_confluent=type(broker).__module__.startswith("faststream.confluent")),
        }
        taken = {*own, "max_workers", "partitions", "batch_timeout_ms", "polling_interval"} & settings.keys()
        if taken or self._subscriber is not None:
            why = f"it sets {', '.join(sorted(taken))} itself" if taken else "it has a subscriber already"
            raise ConfigError(
                f"ExactlyOnce.subscriber() did not subscribe: {why}; use another ExactlyOnce, or leave "
                "these settings out"
            )
        self._is_batch = bool(settings.get("batch"))
        self._max_records = (settings.get("max_records") or _MAX_RECORDS) if self._is_batch else 1
        self._subscriber = broker.subscriber(*topics, **{"auto_offset_reset": "earliest"} | settings, **own)
        self._subscriber.get_msg = self._next_message
        made: Callable[[Callable[..., Any]], Any] = self._subscriber
        return made

    def _hooks(self, *, is_confluent: bool) -> dict[str, Any]:
        """Return the settings by which FastStream's consumer tells its adapter of partitions."""
        if not is_confluent:
            from aiokafka import ConsumerRebalanceListener
            from aiokafka.errors import ConsumerStoppedError

            self._stopped = (ConsumerStoppedError,)
            return {"listener": listener(ConsumerRebalanceListener, self._new_partitions)}

        def revoked(*given: Any) -> None:
            self._adapter.on_revoke(*given)

        return {"on_assign": lambda *given: self._adapter.on_assign(*given), "on_revoke": revoked, "on_lost": revoked}

    # ---- FastStream's loop ------------------------------------------------------------------------------------------

    async def _next_message(self, *_: Any) -> Any:
        """Return the next message, or None if there is none yet; the last one again, if it was not written."""
        try:
            return await self._deliver()
        except self._stopped:  # FastStream's loop ends
            _log.error("the consumer of group %s was stopped, and its subscriber ends", self.group_id)
            raise
        except Exception as error:
            pass_on_signal(error)
            _log.error("group %s reads nothing for the moment: %s", self.group_id, error)
            await self._pause()
            return None

    async def _deliver(self) -> Any:
        if self._subscriber.consumer is not self._consumer:
            self._begin(self._subscriber.consumer)
        async with self._taking:
            last, self._delivery = self._delivery, None
        if last is not None and not last.is_written:
            if not last.is_taken:
                _log.error(
                    "the message at %s did not reach take(), and is delivered again; FastStream's log has the reason. "
                    "Later messages wait behind it",
                    last.records[0],
                )
            await self._pause()
        records = await self._steps.fetch(_POLL_MS)
        if not records:
            return None
        raw = tuple(each.raw for each in records)
        self._delivery = _Delivery(records, raw if self._is_batch else raw[0])
        return self._delivery.raw

    def _begin(self, consumer: Any) -> None:
        """Read with a consumer that FastStream has started and subscribed."""
        self._adapter = self._adapter_of(consumer)
        self._steps = self._new_steps(self._adapter, max_records=self._max_records)
        self._consumer = consumer
        self._delivery = None
        self._taking = asyncio.Lock()

    def _adapter_of(self, consumer: Any) -> ConsumerAdapter:
        if hasattr(consumer, "consumer"):  # FastStream's own, around confluent-kafka's
            executor = consumer._thread_pool  # noqa: SLF001 - it calls the consumer there, and closes it there
            return ConfluentAdapter(consumer.consumer, partial(asyncio.get_running_loop().run_in_executor, executor))
        from dualwrite.recipes.consume.consumer_aiokafka import AiokafkaAdapter

        return AiokafkaAdapter(consumer, self._new_partitions)

    async def _pause(self) -> None:
        """Wait a moment, longer with each failure, so that a record that cannot be written does not fill the log."""
        pause_s = min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures += 1
        await asyncio.sleep(pause_s)

    async def take(self, message: Any) -> None:
        """Write the records of the message. Raises the errors of the handler and the dual write.

        After an error neither side has the failed record or those behind it (after `OutcomeUnknown` that is not known
        yet): they are delivered again, here or to the next consumer of the partition.
        """
        async with self._taking:
            delivery = self._delivery
            if delivery is None or message.raw_message is not delivery.raw or delivery.has_failed:
                message.committed = _NOT_BY_FASTSTREAM
                raise ConfigError(_FOREIGN)
            if delivery.is_written:
                return
            delivery.is_taken = True
            await self._steps.write(delivery.records)
            delivery.is_written = True
            self._failures = 0


# ---- FastStream's messages, of either library -----------------------------------------------------------------------


async def _parsed(raw: Any, parse: Callable[[Any], Awaitable[Any]]) -> Any:
    """Parse a message as FastStream does, without headers that it cannot read. Handlers get the original headers."""
    try:
        message = await parse(raw)
    except Exception as error:
        pass_on_signal(error)
        _log.debug("FastStream cannot decode the headers of a message, which arrives without them: %s", error)
        message = await parse(tuple(map(_Headerless, raw)) if isinstance(raw, tuple) else _Headerless(raw))
        message.raw_message = raw
    message.committed = _NOT_BY_FASTSTREAM
    return message


async def _body_of(message: Any) -> Any:
    """Leave the body as it is: handlers get bytes. FastStream's own decoder may fail."""
    return message.body


class _Headerless:
    """A record of either library without its headers, which FastStream would decode as UTF-8 text."""

    def __init__(self, record: Any) -> None:
        self._record = record

    @property
    def headers(self) -> Any:
        return list if callable(self._record.headers) else ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


_FOREIGN: Final = (
    "the message is not the one that was delivered last, or was taken before and failed; nothing was written, and it "
    "is read again: await take() once, before the subscriber ends. Or the subscriber was not made by this ExactlyOnce, "
    "so FastStream may commit offsets itself, skip a failed record, or write a record twice: make it with "
    "ExactlyOnce.subscriber(broker, topic)"
)
