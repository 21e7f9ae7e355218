"""DescribeCluster (key 60), versions 0-2.

Living nodes, controller and cluster id (KIP-700).

* v1 endpoint types (KIP-919): only brokers (1) have endpoints here; controllers (2) are 114, others 115.
* v2 fenced brokers (KIP-1073): the nodes that are down, on request.
* The authorized operations on the cluster (KIP-430) are 0 without DESCRIBE on it.
* v2 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import NOT_ASKED_FOR, AclOperation, ResourceType

_BROKERS, _CONTROLLERS = 1, 2


async def handle(call: NodeCall) -> Any:
    endpoint_type = getattr(call.request, "endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return _refuse(call, ErrorCode.mismatched_endpoint_type, message)
    if endpoint_type != _BROKERS:
        return _refuse(call, ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}")
    cluster, new = call.cluster, call.new
    with_fenced = getattr(call.request, "include_fenced_brokers", False)
    return new.response(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=tuple(
            new.DescribeClusterBroker(
                broker_id=node.node_id, is_fenced=not node.is_alive, **call.endpoint(node)._asdict()
            )
            for _, node in sorted(cluster.nodes.items())
            if node.is_alive or with_fenced
        ),
        cluster_authorized_operations=_operations(call),
    )


def _operations(call: NodeCall) -> int:
    if not call.request.include_cluster_authorized_operations:
        return NOT_ASKED_FOR
    is_shown = call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER)
    return call.authorized_operations(ResourceType.CLUSTER) if is_shown else 0


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _refuse(call, error, None)


def _refuse(call: NodeCall, error: ErrorCode, message: str | None) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE, error_code=error, error_message=message, cluster_id="", brokers=()
    )
