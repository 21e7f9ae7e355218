"""The five APIs of the share coordinator in requests: each is about the state of some share-partitions (KIP-932)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_groups import are_share_groups_on
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.ports import StateError
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.share.state_coordinator import StateShard
from dualwrite.broker_emulator.slices import Pace

_NO_TOPIC: Final = UUID(int=0)
"""The topic id that the codec reads as None."""

Work = Callable[[StateShard, StateKey, Any], Awaitable[dict[str, Any]]]
"""Does what is asked for one partition and returns the fields of its result. Raises StateError."""


async def for_each_partition(call: NodeCall, result: str, defaults: dict[str, Any], work: Work) -> Any:
    """Do `work` for every partition of the request; return the response, made of the types named `result`...

    `defaults` are the fields of a result beside its error. As in Kafka, a request without a group has no results, and
    what is named twice is done twice and answered once, as it came out last.
    """
    if not are_share_groups_on(call):
        return await call.made(refusal, call, result, defaults, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return await call.made(refusal, call, result, defaults, ErrorCode.cluster_authorization_failed)
    topics: dict[UUID, dict[int, Any]] = {}
    pace = Pace()
    for topic in call.request.topics if call.request.group_id else ():
        await pace.keep()
        rows = topics.setdefault(topic.topic_id or _NO_TOPIC, {})
        for partition in topic.partitions:
            await pace.keep()
            key = StateKey(call.request.group_id, topic.topic_id or _NO_TOPIC, partition.partition)
            rows[partition.partition] = await _row(call, key, partition, defaults, work)
    made = vars(call.new)[result]
    return call.new.response(
        results=tuple(made(topic_id=topic_id, partitions=tuple(rows.values())) for topic_id, rows in topics.items())
    )


async def _row(call: NodeCall, key: StateKey, partition: Any, defaults: dict[str, Any], work: Work) -> Any:
    fields: dict[str, Any] = {"error_code": ErrorCode.none, "error_message": None}
    try:
        states = call.cluster.share_states
        shard = call.node.share_coordinator.shard(states.partition(key).index)
        fields |= await work(shard, key, partition)
        await shard.replicated()
    except StateError as error:
        fields = {"error_code": error.error, "error_message": error.message}
    return call.new.PartitionResult(**{**defaults, **fields, "partition": key.partition})


def _topic(call: NodeCall, result: str, topic: Any, rows: list[Any]) -> Any:
    return vars(call.new)[result](topic_id=topic.topic_id, partitions=tuple(rows))


def refusal(call: NodeCall, result: str, defaults: dict[str, Any], error: ErrorCode) -> Any:
    """Return a response with one error for each partition."""
    refused = {**defaults, "error_code": error, "error_message": None}
    return call.new.response(
        results=tuple(
            _topic(
                call,
                result,
                topic,
                [call.new.PartitionResult(**refused, partition=row.partition) for row in topic.partitions],
            )
            for topic in call.request.topics
        )
    )
