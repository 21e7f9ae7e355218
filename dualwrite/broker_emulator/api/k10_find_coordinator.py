"""FindCoordinator (key 10), versions 0-6.

The leader of the partition of `__consumer_offsets` or `__transaction_state` that a key belongs to.

* v0 knows groups only; v1 adds the key type (0 group, 1 transaction, 2 share group); v4 takes several keys (KIP-699).
* A share group's key includes a partition, as in `group:topic id:partition`; any other key, and any other key type, is
  42. Only the coordinator validates the other keys.
* Access: DESCRIBE on the group (30) or the transactional id (53); for share groups, which v6 introduces, CLUSTER_ACTION
  (31).
* No living node to lead the partition: 15.
* Kafka creates the internal topic at the first request and returns 15 meanwhile; here it exists from the start.
"""

from __future__ import annotations

import base64
import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.api.share_groups import are_share_groups_on
from dualwrite.broker_emulator.cluster.cluster import ClusterNode
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.slices import mapped

_GROUP, _SHARE_GROUP = 0, 2
_SHARE_GROUPS_VERSION = 6


async def handle(call: NodeCall) -> Any:
    request = call.request
    if _asks_for_share_groups(call) and not call.is_allowed(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    if call.version < 4:
        node, error = _find(call, request.key)
        return _single(call, node, error)
    rows = await mapped(lambda key: _coordinator(call, key, *_find(call, key)), request.coordinator_keys)
    return _many(call, rows)


def _asks_for_share_groups(call: NodeCall) -> bool:
    return call.version >= _SHARE_GROUPS_VERSION and call.request.key_type == _SHARE_GROUP


def _find(call: NodeCall, key: str) -> tuple[ClusterNode | None, ErrorCode]:
    match getattr(call.request, "key_type", _GROUP):
        case 0:
            if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, key):
                return None, ErrorCode.group_authorization_failed
            node = call.cluster.group_coordinator(key)
        case 1:
            if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
                return None, ErrorCode.transactional_id_authorization_failed
            node = call.cluster.transaction_coordinator(key)
        case 2 if call.version >= _SHARE_GROUPS_VERSION and are_share_groups_on(call):
            share_partition = share_partition_of(key)
            if share_partition is None:
                return None, ErrorCode.invalid_request
            node = call.cluster.nodes.get(call.cluster.share_states.partition(share_partition).leader_id)
        case _:
            return None, ErrorCode.invalid_request
    return node, ErrorCode.coordinator_not_available if node is None else ErrorCode.none


def share_partition_of(key: str) -> StateKey | None:
    """Return the share-partition of a key `group:topic id:partition`; None for an invalid key."""
    group_id, topic_id, partition = [*key.rsplit(":", 2), "", ""][:3]
    try:
        decoded = base64.b64decode(f"{topic_id}==", altchars=b"-_", validate=True)
        return StateKey(group_id, uuid.UUID(bytes=decoded), int(partition)) if group_id else None
    except ValueError:
        return None


def _address(call: NodeCall, node: ClusterNode | None) -> dict[str, Any]:
    if node is None:
        return {"node_id": -1, "host": "", "port": -1}
    return {"node_id": node.node_id, **call.endpoint(node)._asdict()}


def _single(call: NodeCall, node: ClusterNode | None, error: ErrorCode) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, error_message=None, **_address(call, node))


def _coordinator(call: NodeCall, key: str, node: ClusterNode | None, error: ErrorCode) -> Any:
    return call.new.Coordinator(key=key, error_code=error, error_message=None, **_address(call, node))


def _many(call: NodeCall, coordinators: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, coordinators=tuple(coordinators))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    if call.version < 4:
        return _single(call, None, error)
    return _many(call, [_coordinator(call, key, None, error) for key in call.request.coordinator_keys])
