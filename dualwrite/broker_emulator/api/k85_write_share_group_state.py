"""WriteShareGroupState (key 85), versions 0-1.

Writes leaders' changes of the state of share-partitions.

* v1: the number of records whose delivery is complete (KIP-1226).
* No state, or a negative epoch, 42, with a message; an older leader epoch than the known one 74, an older state epoch
  124.
* Offsets, states and counts that no leader writes are 42, with a message: Kafka stores them, and its leaders fail when
  they read them. A state too large for a record is -1.

* Access: CLUSTER_ACTION on the cluster (31): requests come from brokers.
* State of another node 16; while loading 14; unknown partition 3; negative partition 42, with a message.
* At level 0 of the feature `share.version` everything is 35.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_states import for_each_partition, refusal
from dualwrite.broker_emulator.share.state import UNKNOWN_COUNT, ShareStateUpdate, StateBatch, StateKey
from dualwrite.broker_emulator.share.state_coordinator import StateShard
from dualwrite.broker_emulator.slices import mapped

_RESULT = "WriteStateResult"
_DEFAULTS: dict[str, Any] = {}


async def handle(call: NodeCall) -> Any:
    return await for_each_partition(call, _RESULT, _DEFAULTS, _work)


async def _work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
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


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, _RESULT, _DEFAULTS, error)
