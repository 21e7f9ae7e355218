"""DescribeUserScramCredentials (key 50), version 0.

The SCRAM users, with their mechanisms and iterations (KIP-554), but never their keys.

* No users, or null, means all. An unknown user is 91, a duplicate one 92.
* Access: DESCRIBE on the cluster (31).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.k51_alter_user_scram_credentials import NUMBERS
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import mapped


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    requested = call.request.users
    if requested:
        names = Counter(user.name for user in requested)
        results = await mapped(lambda name: _result(call, name, is_repeated=names[name] > 1), names)
    else:
        results = await mapped(lambda name: _result(call, name), list(call.cluster.scram_users.names()))
    return _response(call, tuple(results), ErrorCode.none, None)


def _result(call: NodeCall, name: str, *, is_repeated: bool = False) -> Any:
    if is_repeated:
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return _refused(call, name, ErrorCode.duplicate_resource, message)
    credentials = call.cluster.scram_users.credentials(name)
    if not credentials:
        message = f"Attempt to describe a user credential that does not exist: {name}"
        return _refused(call, name, ErrorCode.resource_not_found, message)
    return call.new.DescribeUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.none,
        error_message="",  # Kafka sends an empty message on success, not null
        credential_infos=tuple(
            call.new.CredentialInfo(mechanism=NUMBERS[mechanism], iterations=credential.iterations)
            for mechanism, credential in sorted(credentials.items())
        ),
    )


def _refused(call: NodeCall, name: str, error: ErrorCode, message: str | None) -> Any:
    return call.new.DescribeUserScramCredentialsResult(
        user=name, error_code=error, error_message=message, credential_infos=()
    )


def _response(call: NodeCall, results: tuple[Any, ...], error: ErrorCode, message: str | None) -> Any:
    return call.new.response(throttle_time=NO_THROTTLE, error_code=error, error_message=message, results=results)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return _response(call, (), error, None)
