"""CreateAcls (key 30), versions 1-3.

Adds ACLs, which take effect at the next request (KIP-140).

* v1 pattern types (KIP-290); v2 flexible; v3 the resource type USER (KIP-373).
* Access: ALTER on the cluster (31). Without access control 54. UNKNOWN (0) in an ACL closes the connection.
* Each ACL has its own result. 42 for an invalid ACL: a cluster name other than `kafka-cluster`, an empty name, a number
  without a name, a principal without a colon. An existing ACL is no error.
* ANY and MATCH, which only filters have, are -1 for the whole request, as in Kafka.
* A failure of the data directory is 56.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.acls import NO_AUTHORIZER, acl_of, authorizer_or_error
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import (
    Acl,
    AclOperation,
    Authorizer,
    PatternType,
    PermissionType,
    ResourceType,
    acl_problem,
)
from dualwrite.broker_emulator.slices import mapped


async def handle(call: NodeCall) -> Any:
    acls = await mapped(lambda creation: acl_of(call, creation), call.request.creations)
    authorizer = authorizer_or_error(call, AclOperation.ALTER)
    if isinstance(authorizer, ErrorCode):
        return await call.refused(authorizer)
    if any(map(_is_of_a_filter, acls)):
        return await call.refused(ErrorCode.unknown_server_error)
    return _response(call, await mapped(lambda acl: _add(authorizer, acl), acls))


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


def _response(call: NodeCall, results: list[tuple[ErrorCode, str | None]]) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        results=tuple(
            call.new.AclCreationResult(error_code=error, error_message=message) for error, message in results
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    message = NO_AUTHORIZER if error is ErrorCode.security_disabled else None
    return _response(call, [(error, message)] * len(call.request.creations))
