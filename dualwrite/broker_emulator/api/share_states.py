"""The five APIs of the share coordinator in requests, each about the state of some share-partitions (KIP-932)."""

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
"""Carries out the request for one partition and returns the fields of its result. Raises StateError."""

Finish = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Makes the fields of a result that take long; called only for results that are returned."""


async def as_they_are(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields."""
    return fields


async def for_each_partition(
    call: NodeCall, result: str, defaults: dict[str, Any], work: Work, finish: Finish = as_they_are
) -> Any:
    """Do `work` for every partition of the request; return the response, made of the types named `result`...

    `defaults` are the fields of a result beside its error. As in Kafka, a request without a group has no results, and a
    partition named twice is processed twice but has one row, the last result.
    """
    if not are_share_groups_on(call):
        return await call.made(refusal, call, result, defaults, ErrorCode.unsupported_version)
    if not call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return await call.made(refusal, call, result, defaults, ErrorCode.cluster_authorization_failed)
    topics: dict[UUID, dict[int, dict[str, Any]]] = {}
    pace = Pace()
    for topic in call.request.topics if call.request.group_id else ():
        await pace.keep()
        done = topics.setdefault(topic.topic_id or _NO_TOPIC, {})
        for partition in topic.partitions:
            await pace.keep()
            key = StateKey(call.request.group_id, topic.topic_id or _NO_TOPIC, partition.partition)
            done[key.partition] = {**defaults, **await _done(call, key, partition, work), "partition": key.partition}
    results = []
    for topic_id, each in topics.items():
        await pace.keep()
        rows = []
        for fields in each.values():
            await pace.keep()
            rows.append(call.new.PartitionResult(**await finish(fields)))
        results.append(vars(call.new)[result](topic_id=topic_id, partitions=tuple(rows)))
    return call.new.response(results=tuple(results))


async def _done(call: NodeCall, key: StateKey, partition: Any, work: Work) -> dict[str, Any]:
    try:
        states = call.cluster.share_states
        shard = call.node.share_coordinator.shard(states.partition(key).index)
        fields = await work(shard, key, partition)
        await shard.replicated()
    except StateError as error:
        return {"error_code": error.error, "error_message": error.message}
    return {"error_code": ErrorCode.none, "error_message": None, **fields}


def refusal(call: NodeCall, result: str, defaults: dict[str, Any], error: ErrorCode) -> Any:
    """Return a response with one error for each partition."""
    refused = {**defaults, "error_code": error, "error_message": None}
    return call.new.response(
        results=tuple(
            vars(call.new)[result](
                topic_id=topic.topic_id,
                partitions=tuple(
                    call.new.PartitionResult(**refused, partition=row.partition) for row in topic.partitions
                ),
            )
            for topic in call.request.topics
        )
    )
