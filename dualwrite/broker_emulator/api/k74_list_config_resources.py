"""ListConfigResources (key 74), versions 0-1.

The resources that have settings: v0 subscriptions to client metrics only (KIP-714, then ListClientMetricsResources), v1
by type, or of every type if none is given (KIP-1142).

* A type named twice is listed once.
* Topics, living brokers and their loggers are always listed; groups and subscriptions if a setting is altered.
* An unknown type is 35. Access: DESCRIBE_CONFIGS on the cluster (31).
* v1 is hidden by the profile kafka-3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.configs.alteration import ConfigResource
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped

_KNOWN = frozenset(int(resource) for resource in ConfigResource)


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    wanted = (ConfigResource.CLIENT_METRICS,) if call.version == 0 else call.request.resource_types or ConfigResource
    if not _KNOWN.issuperset(wanted):
        return await call.refused(ErrorCode.unsupported_version)
    types = map(ConfigResource, dict.fromkeys(wanted))
    named = [(resource, name) for resource in types for name in _names(call, resource)]
    resources = await mapped(lambda pair: call.new.ConfigResource(resource_type=pair[0], resource_name=pair[1]), named)
    return call.new.response(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, config_resources=tuple(resources))


def _names(call: NodeCall, resource: ConfigResource) -> Sequence[str]:
    if resource is ConfigResource.TOPIC:
        return sorted(call.cluster.topics)
    if resource in (ConfigResource.BROKER, ConfigResource.BROKER_LOGGER):
        return [str(node.node_id) for node in call.cluster.living_nodes]
    return call.cluster.altered_configs.names(resource)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, config_resources=())
