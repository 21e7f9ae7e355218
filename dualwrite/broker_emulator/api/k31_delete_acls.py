"""DeleteAcls (key 31), versions 1-3.

Removes the ACLs that match filters, and returns them by filter (KIP-140).

* v1 pattern types, for filters also ANY and MATCH (KIP-290); v2 flexible; v3 the resource type USER (KIP-373).
* Access: ALTER on the cluster (31). Without access control 54. UNKNOWN (0) in a filter closes the connection.
* A number without a name is 42 for its filter. An ACL that matches several filters is returned for each of them: all
  filters are evaluated before the first ACL is removed.
* A failure of the data directory is 56 for the filter.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.acls import NO_AUTHORIZER, authorizer_or_error, filter_of
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import (
    Acl,
    AclFilter,
    AclOperation,
    Authorizer,
    PatternType,
    PermissionType,
    ResourceType,
)
from dualwrite.broker_emulator.slices import mapped

_UNKNOWN = (ResourceType.UNKNOWN, PatternType.UNKNOWN, AclOperation.UNKNOWN, PermissionType.UNKNOWN)


async def handle(call: NodeCall) -> Any:
    filters = await mapped(lambda requested: filter_of(call, requested), call.request.filters)
    authorizer = authorizer_or_error(call, AclOperation.ALTER)
    if isinstance(authorizer, ErrorCode):
        return await call.refused(authorizer)
    matching = await mapped(authorizer.acls, filters)
    rows = await mapped(lambda pair: _remove(call, authorizer, *pair), zip(filters, matching, strict=True))
    return _response(call, rows)


def _remove(call: NodeCall, authorizer: Authorizer, wanted: AclFilter, matching: list[Acl]) -> Any:
    if _has_unknown(wanted):
        return _row(call, ErrorCode.invalid_request, "Unknown patternFilter or entryFilter.")
    try:
        authorizer.remove(wanted)
    except StorageError as problem:
        return _row(call, ErrorCode.kafka_storage_error, str(problem))
    return _row(call, ErrorCode.none, None, matching)


def _has_unknown(wanted: AclFilter) -> bool:
    return any(
        given is unknown
        for given, unknown in zip(
            (wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission), _UNKNOWN, strict=True
        )
    )


def _row(call: NodeCall, error: ErrorCode, message: str | None, removed: list[Acl] | None = None) -> Any:
    return call.new.DeleteAclsFilterResult(
        error_code=error,
        error_message=message,
        matching_acls=tuple(_matching(call, acl) for acl in removed or ()),
    )


def _matching(call: NodeCall, acl: Acl) -> Any:
    return call.new.DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _response(call: NodeCall, rows: list[Any]) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, filter_results=tuple(rows))


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    message = NO_AUTHORIZER if error is ErrorCode.security_disabled else None
    return _response(call, [_row(call, error, message)] * len(call.request.filters))
