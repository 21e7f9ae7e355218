"""DescribeAcls (key 29), versions 1-3.

The ACLs that match a filter (KIP-140).

* v1 pattern types, for filters also ANY and MATCH (KIP-290); v2 flexible; v3 the resource type USER (KIP-373).
* Access: DESCRIBE on the cluster (31). Without access control 54. UNKNOWN (0) in a filter closes the connection.
* Principal and host must equal those of the ACL: `*` is a value like any other. A number without a name matches no ACL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.acls import NO_AUTHORIZER, authorizer_or_error, filter_of
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import Acl, AclOperation
from dualwrite.broker_emulator.slices import mapped

_Resource = tuple[int, str, int]


async def handle(call: NodeCall) -> Any:
    wanted = filter_of(call, call.request)
    authorizer = authorizer_or_error(call, AclOperation.DESCRIBE)
    if isinstance(authorizer, ErrorCode):
        return await call.refused(authorizer)
    by_resource: dict[_Resource, list[Any]] = {}
    for resource, row in await mapped(lambda acl: (_resource(acl), _row(call, acl)), authorizer.acls(wanted)):
        by_resource.setdefault(resource, []).append(row)
    return _response(call, ErrorCode.none, by_resource)


def _resource(acl: Acl) -> _Resource:
    return acl.resource_type, acl.name, acl.pattern_type


def _row(call: NodeCall, acl: Acl) -> Any:
    return call.new.AclDescription(
        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
    )


def _response(call: NodeCall, error: ErrorCode, by_resource: Mapping[_Resource, Iterable[Any]]) -> Any:
    new = call.new
    return new.response(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=NO_AUTHORIZER if error is ErrorCode.security_disabled else None,
        resources=tuple(
            new.DescribeAclsResource(
                resource_type=resource_type, resource_name=name, pattern_type=pattern_type, acls=tuple(rows)
            )
            for (resource_type, name, pattern_type), rows in by_resource.items()
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, error, {})
