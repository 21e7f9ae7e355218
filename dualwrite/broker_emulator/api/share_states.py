"""The five APIs of the share coordinator, each about the state of some share-partitions (KIP-932).

The same for all of them:

* Access: CLUSTER_ACTION on the cluster (31): requests come from brokers.
* State of another node 16; while loading 14; unknown partition 3; negative partition 42, with a message.
* At level 0 of the feature `share.version` everything is 35.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_groups import are_share_groups_on
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.state import UNKNOWN_COUNT, ShareStateUpdate, StateBatch, StateError, StateKey
from dualwrite.broker_emulator.share.state_coordinator import StateShard
from dualwrite.broker_emulator.slices import Pace, mapped

_NO_TOPIC: Final = UUID(int=0)
_NO_FIELDS: Final[dict[str, Any]] = {}
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
        raise RefusedError(ErrorCode.unsupported_version)
    call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
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


async def handle_initialize_share_group_state(call: NodeCall) -> Any:
    """Serve InitializeShareGroupState (key 83), version 0.

    Gives share-partitions a new state, before a group gets them assigned or when their start offsets are altered.

    * An older state epoch than the known one is 124; a negative one, or a negative start offset other than -1, is 42.
    """
    return await for_each_partition(call, "InitializeStateResult", _NO_FIELDS, _initialize_work)


async def _initialize_work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
    shard.initialize(key, partition.state_epoch, partition.start_offset)
    return {}


def refuse_initialize_share_group_state(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, "InitializeStateResult", _NO_FIELDS, error)


_READ_DEFAULTS: dict[str, Any] = {"state_epoch": 0, "start_offset": 0, "state_batches": ()}


async def handle_read_share_group_state(call: NodeCall) -> Any:
    """Serve ReadShareGroupState (key 84), version 0.

    Reads the state of share-partitions for the leaders of the partitions, which fences older leaders.

    * No state 42, with a message; an older leader epoch than the known one 74, a negative one 42.
    * A partition named twice has one row, as in the other four APIs.
    """

    async def with_batches(fields: dict[str, Any]) -> dict[str, Any]:
        batches = await mapped(lambda batch: call.new.StateBatch(**batch._asdict()), fields["state_batches"])
        return {**fields, "state_batches": tuple(batches)}

    return await for_each_partition(call, "ReadStateResult", _READ_DEFAULTS, _read_work, with_batches)


async def _read_work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
    state = shard.read(key, partition.leader_epoch)
    return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": state.batches}


def refuse_read_share_group_state(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, "ReadStateResult", _READ_DEFAULTS, error)


async def handle_write_share_group_state(call: NodeCall) -> Any:
    """Serve WriteShareGroupState (key 85), versions 0-1.

    Writes leaders' changes of the state of share-partitions.

    * v1: the number of records whose delivery is complete (KIP-1226).
    * No state, or a negative epoch, 42, with a message; an older leader epoch than the known one 74, an older state
      epoch 124.
    * Offsets, states and counts that no leader writes are 42, with a message: Kafka stores them, and its leaders fail
      when they read them. A state too large for a record is -1.
    """
    return await for_each_partition(call, "WriteStateResult", _NO_FIELDS, _write_work)


async def _write_work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
    batches = tuple(await mapped(_batch, partition.state_batches))
    count = getattr(partition, "delivery_complete_count", UNKNOWN_COUNT)
    update = ShareStateUpdate(partition.leader_epoch, partition.start_offset, count, batches)
    if shard.is_large(key, update):
        await shard.write_large(key, partition.state_epoch, update)
    else:
        shard.write(key, partition.state_epoch, update)
    return {}


def _batch(batch: Any) -> StateBatch:
    return StateBatch(batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count)


def refuse_write_share_group_state(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, "WriteStateResult", _NO_FIELDS, error)


async def handle_delete_share_group_state(call: NodeCall) -> Any:
    """Serve DeleteShareGroupState (key 86), version 0.

    Deletes the state of share-partitions, if there is any.
    """
    return await for_each_partition(call, "DeleteStateResult", _NO_FIELDS, _delete_work)


async def _delete_work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
    shard.delete(key)
    return {}


def refuse_delete_share_group_state(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, "DeleteStateResult", _NO_FIELDS, error)


_SUMMARY_DEFAULTS: dict[str, Any] = {
    "state_epoch": 0,
    "leader_epoch": 0,
    "start_offset": 0,
    "delivery_complete_count": -1,
}


async def handle_read_share_group_state_summary(call: NodeCall) -> Any:
    """Serve ReadShareGroupStateSummary (key 87), versions 0-1.

    Reads the epochs and start offsets in the state of share-partitions; without a state the start offset is -1.

    * v1: the number of records whose delivery is complete (KIP-1226).
    """
    return await for_each_partition(call, "ReadStateSummaryResult", _SUMMARY_DEFAULTS, _summary_work)


async def _summary_work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
    return shard.summary(key)._asdict()


def refuse_read_share_group_state_summary(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, "ReadStateSummaryResult", _SUMMARY_DEFAULTS, error)
