"""Which topics there are behind the names that a consumer reads, asked of the cluster that the writer writes to."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, Final

from dualwrite.admin import TopicIds, TransactionAdmin
from dualwrite.config import AdminConfig
from dualwrite.recipes.consumer_side import ConsumerSide

_SETTINGS: Final = frozenset(field.name for field in fields(AdminConfig))

Carry = Callable[[Callable[[], TopicIds]], Awaitable[TopicIds]]


async def _here(call: Callable[[], TopicIds]) -> TopicIds:
    return call()


async def _in_a_thread(call: Callable[[], TopicIds]) -> TopicIds:
    return await asyncio.to_thread(call)


class WritersTopicIds:
    """`TopicLookUp` by the connections of a writer.

    A consumer of another cluster has other topics of the same names, whose ids cannot be told here.
    """

    def __init__(self, writer: Any, carry: Carry) -> None:
        settings = getattr(writer, "_producer_settings", None)
        self._settings = None if settings is None else {k: v for k, v in settings.items() if k in _SETTINGS}
        self._carry = carry
        self._admin: TransactionAdmin | None = None
        self._is_same_cluster: bool | None = None

    @classmethod
    def blocking(cls, writer: Any) -> WritersTopicIds:
        """For threads."""
        return cls(writer, _here)

    @classmethod
    def awaiting(cls, writer: Any) -> WritersTopicIds:
        """For tasks."""
        return cls(writer, _in_a_thread)

    async def ids_for(self, consumer: ConsumerSide, topics: Collection[str]) -> Mapping[str, str]:
        if self._settings is None or self._is_same_cluster is False:
            return {}
        if self._admin is None:
            self._admin = TransactionAdmin(**self._settings)
            weakref.finalize(self, self._admin.close)
        admin = self._admin
        found = await self._carry(lambda: admin.describe_topic_ids(topics))
        if self._is_same_cluster is None:
            self._is_same_cluster = found.cluster_id is not None and found.cluster_id == await consumer.cluster_id()
        return found.ids if self._is_same_cluster else {}
