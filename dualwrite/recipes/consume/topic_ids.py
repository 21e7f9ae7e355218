"""Which topics there are behind the names that a consumer reads, asked of the cluster that the writer writes to."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import fields
from typing import Any, Final

from dualwrite.admin import AsyncTransactionAdmin, TopicIds
from dualwrite.client.io_thread import IoThread, process_generation, shared_io_thread
from dualwrite.config import AdminConfig
from dualwrite.recipes.consume.consumer_side import ConsumerSide

_SETTINGS: Final = frozenset(field.name for field in fields(AdminConfig))
_TIMEOUT_MS: Final = 30_000

Wait = Callable[["Future[TopicIds]"], Awaitable[TopicIds]]


async def _blocked(asked: Future[TopicIds]) -> TopicIds:
    return asked.result()


async def _awaited(asked: Future[TopicIds]) -> TopicIds:
    return await asyncio.wrap_future(asked)


class WritersTopicIds:
    """`TopicLookUp` by connections with a writer's settings, in the I/O thread.

    A consumer of another cluster has other topics of the same names, whose ids cannot be told here.
    """

    def __init__(self, writer: Any, wait: Wait) -> None:
        settings = getattr(writer, "producer_settings", None)
        self._settings = None if settings is None else {k: v for k, v in settings.items() if k in _SETTINGS}
        self._wait = wait
        self._io: IoThread | None = None
        self._admin: AsyncTransactionAdmin
        self._is_same_cluster: bool | None = None

    @classmethod
    def blocking(cls, writer: Any) -> WritersTopicIds:
        """For threads."""
        return cls(writer, _blocked)

    @classmethod
    def awaiting(cls, writer: Any) -> WritersTopicIds:
        """For tasks."""
        return cls(writer, _awaited)

    async def ids_for(self, consumer: ConsumerSide, topics: Collection[str]) -> Mapping[str, str]:
        """Raises KafkaTimeoutError, and what else `AsyncTransactionAdmin` does."""
        if self._settings is None or self._is_same_cluster is False:
            return {}
        if self._io is None:
            self._admin = AsyncTransactionAdmin(**self._settings)
            self._io = shared_io_thread()
            weakref.finalize(self, _close_soon, self._admin, self._io, process_generation()).atexit = False
        asking = self._admin.describe_topic_ids(topics, timeout_ms=_TIMEOUT_MS)
        found = await self._wait(asyncio.run_coroutine_threadsafe(asking, self._io.loop))
        if self._is_same_cluster is None:
            self._is_same_cluster = found.cluster_id is not None and found.cluster_id == await consumer.cluster_id()
        return found.ids if self._is_same_cluster else {}


def _close_soon(admin: AsyncTransactionAdmin, io: IoThread, generation: int) -> None:
    """Without waiting: a pipeline may be forgotten in any thread, and in the I/O thread too."""
    if generation == process_generation() and not sys.is_finalizing():
        asyncio.run_coroutine_threadsafe(admin.close(), io.loop)
