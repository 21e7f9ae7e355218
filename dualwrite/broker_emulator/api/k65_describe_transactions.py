"""DescribeTransactions (key 65), version 0.

The coordinator's state of transactional ids (KIP-664): state, timeout, start, producer, partitions.

* Per id: empty 42, of another node 16, while loading 14, unknown 105. While a transaction is being completed, only
  partitions without their marker are listed.
* Access: DESCRIBE on the transactional id (53); topics that the client may not DESCRIBE are omitted.
* The timeout of a two-phase-commit transaction is 2147483647. A start of -1 means no transaction.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped
from dualwrite.broker_emulator.transactions.inspection import TransactionDescription

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


async def handle(call: NodeCall) -> Any:
    ids = call.request.transactional_ids
    return _response(call, await mapped(lambda name: _state(call, _describe(call, name)), ids))


def _describe(call: NodeCall, transactional_id: str) -> TransactionDescription:
    if call.is_allowed(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return call.node.transactions.describe(transactional_id)
    return TransactionDescription(ErrorCode.transactional_id_authorization_failed, transactional_id)


def _response(call: NodeCall, states: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, transaction_states=tuple(states))


def _state(call: NodeCall, description: TransactionDescription) -> Any:
    by_topic: dict[str, list[int]] = {}
    for name in description.topic_partitions:
        by_topic.setdefault(name.topic, []).append(name.partition)
    shown = [topic for topic in by_topic if call.is_allowed(AclOperation.DESCRIBE, ResourceType.TOPIC, topic)]
    return call.new.TransactionState(
        error_code=description.error,
        transactional_id=description.transactional_id,
        transaction_state=description.state,
        transaction_timeout=timedelta(milliseconds=description.timeout_ms),
        # the codec has no null here: -1 is the millisecond before the epoch
        transaction_start_time=_EPOCH + timedelta(milliseconds=description.start_time_ms),
        producer_id=description.producer_id,
        producer_epoch=description.producer_epoch,
        topics=tuple(call.new.TopicData(topic=topic, partitions=tuple(by_topic[topic])) for topic in shown),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    ids = call.request.transactional_ids
    return _response(call, [_state(call, TransactionDescription(error, name)) for name in ids])
