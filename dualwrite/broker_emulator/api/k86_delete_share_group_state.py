"""DeleteShareGroupState (key 86), version 0.

Deletes the state of share-partitions, if there is any.

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

_RESULT = "DeleteStateResult"
_DEFAULTS: dict[str, Any] = {}


async def handle(call: NodeCall) -> Any:
    return await for_each_partition(call, _RESULT, _DEFAULTS, _work)


async def _work(shard: StateShard, key: StateKey, partition: Any) -> dict[str, Any]:
    shard.delete(key)
    return {}


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return refusal(call, _RESULT, _DEFAULTS, error)
