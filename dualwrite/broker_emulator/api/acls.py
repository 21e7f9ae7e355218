"""Access control lists: described, created, deleted; Kafka's numbers converted to ACLs and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.messages.call import CloseConnectionError
from dualwrite.broker_emulator.security.acl import (
    Acl,
    AclFilter,
    AclOperation,
    Authorizer,
    PatternType,
    PermissionType,
    ResourceType,
    acl_problem,
)
from dualwrite.broker_emulator.slices import mapped

_Kind = TypeVar("_Kind", bound=IntEnum)

NO_AUTHORIZER = "No Authorizer is configured."


def allowed_authorizer(call: NodeCall, operation: AclOperation) -> Authorizer:
    """Return the authorizer. Raises RefusedError if the client may not use it (31), or there is none (54)."""
    call.require(operation, ResourceType.CLUSTER)
    if call.cluster.authorizer is None:
        raise RefusedError(ErrorCode.security_disabled)
    return call.cluster.authorizer


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


_Resource = tuple[int, str, int]


async def handle_describe_acls(call: NodeCall) -> Any:
    """Serve DescribeAcls (key 29), versions 1-3.

    The ACLs that match a filter (KIP-140).

    * v1 pattern types, for filters also ANY and MATCH (KIP-290); v2 flexible; v3 the resource type USER (KIP-373).
    * Access: DESCRIBE on the cluster (31). Without access control 54. UNKNOWN (0) in a filter closes the connection.
    * Principal and host must equal those of the ACL: `*` is a value like any other. A number without a name matches no
      ACL.
    """
    wanted = filter_of(call, call.request)
    authorizer = allowed_authorizer(call, AclOperation.DESCRIBE)
    by_resource: dict[_Resource, list[Any]] = {}
    for resource, row in await mapped(lambda acl: (_resource(acl), _described_row(call, acl)), authorizer.acls(wanted)):
        by_resource.setdefault(resource, []).append(row)
    return _described_response(call, ErrorCode.none, by_resource)


def _resource(acl: Acl) -> _Resource:
    return acl.resource_type, acl.name, acl.pattern_type


def _described_row(call: NodeCall, acl: Acl) -> Any:
    return call.new.AclDescription(
        principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
    )


def _described_response(call: NodeCall, error: ErrorCode, by_resource: Mapping[_Resource, Iterable[Any]]) -> Any:
    new = call.new
    return new.response(
        error_code=error,
        error_message=NO_AUTHORIZER if error is ErrorCode.security_disabled else None,
        resources=tuple(
            new.DescribeAclsResource(
                resource_type=resource_type, resource_name=name, pattern_type=pattern_type, acls=tuple(rows)
            )
            for (resource_type, name, pattern_type), rows in by_resource.items()
        ),
    )


def refuse_describe_acls(call: NodeCall, error: ErrorCode) -> Any:
    return _described_response(call, error, {})


async def handle_create_acls(call: NodeCall) -> Any:
    """Serve CreateAcls (key 30), versions 1-3.

    Adds ACLs, which take effect at the next request (KIP-140).

    * v1 pattern types (KIP-290); v2 flexible; v3 the resource type USER (KIP-373).
    * Access: ALTER on the cluster (31). Without access control 54. UNKNOWN (0) in an ACL closes the connection.
    * Each ACL has its own result. 42 for an invalid ACL: a cluster name other than `kafka-cluster`, an empty name, a
      number without a name, a principal without a colon. An existing ACL is no error.
    * ANY and MATCH, which only filters have, are -1 for the whole request, as in Kafka.
    * A failure of the data directory is 56.
    """
    acls = await mapped(lambda creation: acl_of(call, creation), call.request.creations)
    authorizer = allowed_authorizer(call, AclOperation.ALTER)
    if any(map(_is_of_a_filter, acls)):
        return await call.refused(ErrorCode.unknown_server_error)
    return _created_response(call, await mapped(lambda acl: _add(authorizer, acl), acls))


def _is_of_a_filter(acl: Acl) -> bool:
    return (
        acl.resource_type is ResourceType.ANY
        or acl.pattern_type in (PatternType.ANY, PatternType.MATCH)
        or acl.operation is AclOperation.ANY
        or acl.permission is PermissionType.ANY
    )


def _add(authorizer: Authorizer, acl: Acl) -> tuple[ErrorCode, str | None]:
    reason = acl_problem(acl)
    if reason is not None:
        return ErrorCode.invalid_request, reason
    try:
        authorizer.add(acl)
    except StorageError as problem:
        return ErrorCode.kafka_storage_error, str(problem)
    return ErrorCode.none, None


def _created_response(call: NodeCall, results: list[tuple[ErrorCode, str | None]]) -> Any:
    return call.new.response(
        results=tuple(
            call.new.AclCreationResult(error_code=error, error_message=message) for error, message in results
        ),
    )


def refuse_create_acls(call: NodeCall, error: ErrorCode) -> Any:
    message = NO_AUTHORIZER if error is ErrorCode.security_disabled else None
    return _created_response(call, [(error, message)] * len(call.request.creations))


_UNKNOWN = (ResourceType.UNKNOWN, PatternType.UNKNOWN, AclOperation.UNKNOWN, PermissionType.UNKNOWN)


async def handle_delete_acls(call: NodeCall) -> Any:
    """Serve DeleteAcls (key 31), versions 1-3.

    Removes the ACLs that match filters, and returns them by filter (KIP-140).

    * v1 pattern types, for filters also ANY and MATCH (KIP-290); v2 flexible; v3 the resource type USER (KIP-373).
    * Access: ALTER on the cluster (31). Without access control 54. UNKNOWN (0) in a filter closes the connection.
    * A number without a name is 42 for its filter. An ACL that matches several filters is returned for each of them:
      all filters are evaluated before the first ACL is removed.
    * A failure of the data directory is 56 for the filter.
    """
    filters = await mapped(lambda requested: filter_of(call, requested), call.request.filters)
    authorizer = allowed_authorizer(call, AclOperation.ALTER)
    matching = await mapped(authorizer.acls, filters)
    rows = await mapped(lambda pair: _remove(call, authorizer, *pair), zip(filters, matching, strict=True))
    return call.new.response(filter_results=tuple(rows))


def _remove(call: NodeCall, authorizer: Authorizer, wanted: AclFilter, matching: list[Acl]) -> Any:
    if _has_unknown(wanted):
        return _deleted_row(call, ErrorCode.invalid_request, "Unknown patternFilter or entryFilter.")
    try:
        authorizer.remove(wanted)
    except StorageError as problem:
        return _deleted_row(call, ErrorCode.kafka_storage_error, str(problem))
    return _deleted_row(call, ErrorCode.none, None, matching)


def _has_unknown(wanted: AclFilter) -> bool:
    return any(
        given is unknown
        for given, unknown in zip(
            (wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission), _UNKNOWN, strict=True
        )
    )


def _deleted_row(call: NodeCall, error: ErrorCode, message: str | None, removed: list[Acl] | None = None) -> Any:
    return call.new.DeleteAclsFilterResult(
        error_code=error,
        error_message=message,
        matching_acls=tuple(_matching(call, acl) for acl in removed or ()),
    )


def _matching(call: NodeCall, acl: Acl) -> Any:
    return call.new.DeleteAclsMatchingAcl(
        error_code=ErrorCode.none,
        resource_type=acl.resource_type,
        resource_name=acl.name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def refuse_delete_acls(call: NodeCall, error: ErrorCode) -> Any:
    message = NO_AUTHORIZER if error is ErrorCode.security_disabled else None
    row = _deleted_row(call, error, message)
    return call.new.response(filter_results=(row,) * len(call.request.filters))
