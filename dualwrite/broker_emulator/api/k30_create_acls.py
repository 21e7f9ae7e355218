"""CreateAcls (key 30), versions 1-3.

Rules of access control are added, and decide from the next request on (KIP-140).

* v1 pattern types (KIP-290); v2 flexible; v3 the resource type USER (KIP-373).
* Access: ALTER on the cluster (31). Without access control 54. UNKNOWN (0) in a rule closes the connection.
* Each rule has its own answer. 42 for what no rule can have: another name than `kafka-cluster` for the cluster, no
  name, a number that has no name, a principal without a colon. A rule that is there already is no error.
* What only filters have, ANY and MATCH, is -1 for the whole request, as in Kafka.
* What a data directory does not take is 56.
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.acls import NO_AUTHORIZER, acl_of, authorizer_or_error
from dualwrite.broker_emulator.api.registry import NO_THROTTLE, Call
from dualwrite.broker_emulator.log.segment import StorageError
from dualwrite.broker_emulator.security.acl import (
    Acl,
    AclOperation,
    Authorizer,
    PatternType,
    PermissionType,
    ResourceType,
    acl_problem,
)


async def handle(call: Call) -> Any:
    acls = [acl_of(call, creation) for creation in call.request.creations]
    authorizer = authorizer_or_error(call, AclOperation.ALTER)
    if isinstance(authorizer, ErrorCode):
        return refuse(call, authorizer)
    if any(map(_is_of_a_filter, acls)):
        return refuse(call, ErrorCode.unknown_server_error)
    return _response(call, [_add(authorizer, acl) for acl in acls])


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


def _response(call: Call, results: list[tuple[ErrorCode, str | None]]) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        results=tuple(
            call.new.AclCreationResult(error_code=error, error_message=message) for error, message in results
        ),
    )


def refuse(call: Call, error: ErrorCode) -> Any:
    message = NO_AUTHORIZER if error is ErrorCode.security_disabled else None
    return _response(call, [(error, message)] * len(call.request.creations))
