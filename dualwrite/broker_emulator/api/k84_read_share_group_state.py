"""ReadShareGroupState (key 84), version 0.

Reads the state of share-partitions for the leaders of the partitions, which fences older leaders.

* No state 42, with a message; an older leader epoch than the known one 74, a negative one 42.
* A partition named twice has one row, as in the other four APIs.
* Access: CLUSTER_ACTION on the cluster (31): requests come from brokers.
* State of another node 16; while loading 14; unknown partition 3; negative partition 42, with a message.
* At level 0 of the feature `share.version` everything is 35.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_states import for_each_partition, refusal
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.share.state_coordinator import StateShard
from dualwrite.broker_emulator.slices import mapped

_RESULT = "ReadStateResult"
_DEFAULTS: dict[str, Any] = {"state_epoch": 0, "start_offset": 0, "state_batches": ()}


async def handle(call: NodeCall) -> Any:
    async def with_batches(fields: dict[str, Any]) -> dict[str, Any]:
        batches = await mapped(lambda batch: call.new.StateBatch(**batch._asdict()), fields["state_batches"])
        return {**fields, "state_batches": tuple(batches)}

    return await for_each_partition(call, _RESULT, _DEFAULTS, _work, with_batches)


async def _work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
    state = shard.read(key, partition.leader_epoch)
    return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": state.batches}


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, _RESULT, _DEFAULTS, error)
