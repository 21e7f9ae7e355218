"""Access control in requests: converting Kafka's numbers to ACLs and filters."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.call import CloseConnectionError
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.security.acl import (
    Acl,
    AclFilter,
    AclOperation,
    Authorizer,
    PatternType,
    PermissionType,
    ResourceType,
)

_Kind = TypeVar("_Kind", bound=IntEnum)

NO_AUTHORIZER = "No Authorizer is configured."


def authorizer_or_error(call: NodeCall, operation: AclOperation) -> Authorizer | ErrorCode:
    """Return the authorizer, or CLUSTER_AUTHORIZATION_FAILED (31) or SECURITY_DISABLED (54)."""
    if not call.is_allowed(operation, ResourceType.CLUSTER):
        return ErrorCode.cluster_authorization_failed
    return call.cluster.authorizer or ErrorCode.security_disabled


def acl_of(call: NodeCall, creation: Any) -> Acl:
    """Return the ACL that an element of a CreateAcls request describes."""
    _check_known(creation.resource_type, creation.resource_pattern_type, creation.operation, creation.permission_type)
    return Acl(
        _named(ResourceType, creation.resource_type),
        creation.resource_name,
        _named(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        _operation(call, creation.operation),
        _named(PermissionType, creation.permission_type),
    )


def filter_of(call: NodeCall, requested: Any) -> AclFilter:
    """Return the filter that a DescribeAcls request, or an element of a DeleteAcls request, describes."""
    _check_known(
        requested.resource_type_filter, requested.pattern_type_filter, requested.operation, requested.permission_type
    )
    return AclFilter(
        _named(ResourceType, requested.resource_type_filter),
        requested.resource_name_filter,
        _named(PatternType, requested.pattern_type_filter),
        requested.principal_filter,
        requested.host_filter,
        _operation(call, requested.operation),
        _named(PermissionType, requested.permission_type),
    )


def _check_known(*numbers: int) -> None:
    """Raise CloseConnectionError for UNKNOWN (0), as Kafka does, but not for numbers without a name."""
    if 0 in numbers:
        raise CloseConnectionError("UNKNOWN (0) is not a valid type, operation or permission")


def _operation(call: NodeCall, number: int) -> AclOperation:
    operation = _named(AclOperation, number)
    knows_it = call.cluster.config.behaviours.has_two_phase_commit_acl
    return operation if knows_it or operation is not AclOperation.TWO_PHASE_COMMIT else AclOperation.UNKNOWN


def _named(kind: type[_Kind], number: int) -> _Kind:
    try:
        return kind(number)
    except ValueError:
        return kind(0)
