"""AddOffsetsToTxn (key 25), versions 0-4.

Makes the group's partition of `__consumer_offsets` part of a transaction: an AddPartitionsToTxn for that partition.

* Access: WRITE on the transactional id (53), READ on the group (30).
* v2 may return 90 (below, it is sent as 47); v3 flexible; v4 may return 120. TV2 clients do not use it.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.cluster.topics import OFFSETS_TOPIC, TopicPartition
from dualwrite.broker_emulator.error_codes import producer_fenced_below
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType


async def handle(call: NodeCall) -> Any:
    request = call.request
    if not call.may_write_id(request.transactional_id):
        return await call.refused(ErrorCode.transactional_id_authorization_failed)
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, request.group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    error = await call.node.transactions.add_partitions(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [TopicPartition(OFFSETS_TOPIC, call.cluster.group_partition(request.group_id))],
        transaction_version=0,
    )
    return refuse(call, producer_fenced_below(2, call.version, error))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error)
