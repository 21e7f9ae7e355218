"""AlterUserScramCredentials (key 51), version 0.

Adds SCRAM users, changes their passwords, removes them (KIP-554). Clients send a salted password; the broker stores the
keys derived from it.

* Each user has its own result: a user without a name is 93, an unknown mechanism 33, a duplicate user 92, the removal
  of a credential that does not exist 91, fewer than 4096 or more than 16384 iterations 93, a failure of the data
  directory 56.
* Access: ALTER on the cluster (31).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.security.sasl.mechanism import SCRAM_SHA_256, SCRAM_SHA_512
from dualwrite.broker_emulator.security.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential
from dualwrite.broker_emulator.slices import Pace

MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
NUMBERS = {name: number for number, name in MECHANISMS.items()}


class _Refusal(NamedTuple):
    error: ErrorCode
    message: str | None


_TWICE = _Refusal(ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request")


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.ALTER, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
    request = call.request
    refused: dict[str, _Refusal | None] = {}
    pace = Pace()
    for deletion in request.deletions:
        await pace.keep()
        _record(refused, deletion.name, _why_not_delete(call, deletion))
    for upsertion in request.upsertions:
        await pace.keep()
        _record(refused, upsertion.name, _why_not_set(upsertion))
    for deletion in request.deletions:
        await pace.keep()
        if refused[deletion.name] is None:
            refused[deletion.name] = _delete(call, deletion)
    for upsertion in request.upsertions:
        await pace.keep()
        if refused[upsertion.name] is None:
            refused[upsertion.name] = _set(call, upsertion)
    return await call.made(_response, call, refused)


def _record(refused: dict[str, _Refusal | None], name: str, refusal: _Refusal | None) -> None:
    """Record the result of a change. A user keeps its first error; a second change of the same user is an error."""
    if name not in refused:
        refused[name] = refusal
    elif refused[name] is None:
        refused[name] = _TWICE


def _why_not(name: str, mechanism: int) -> _Refusal | None:
    if not name:
        return _Refusal(ErrorCode.unacceptable_credential, "Username must not be empty")
    if mechanism not in MECHANISMS:
        return _Refusal(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    return None


def _why_not_delete(call: NodeCall, deletion: Any) -> _Refusal | None:
    refusal = _why_not(deletion.name, deletion.mechanism)
    if refusal is None and call.cluster.scram_users.find(deletion.name, MECHANISMS[deletion.mechanism]) is None:
        message = "Attempt to delete a user credential that does not exist"
        return _Refusal(ErrorCode.resource_not_found, message)
    return refusal


def _why_not_set(upsertion: Any) -> _Refusal | None:
    refusal = _why_not(upsertion.name, upsertion.mechanism)
    if refusal is None and upsertion.iterations < MIN_ITERATIONS:
        return _Refusal(ErrorCode.unacceptable_credential, "Too few iterations")
    if refusal is None and upsertion.iterations > MAX_ITERATIONS:
        return _Refusal(ErrorCode.unacceptable_credential, "Too many iterations")
    return refusal


def _delete(call: NodeCall, deletion: Any) -> _Refusal | None:
    try:
        call.cluster.scram_users.remove(deletion.name, MECHANISMS[deletion.mechanism])
    except StorageError as problem:
        return _Refusal(ErrorCode.kafka_storage_error, str(problem))
    return None


def _set(call: NodeCall, upsertion: Any) -> _Refusal | None:
    mechanism = MECHANISMS[upsertion.mechanism]
    credential = ScramCredential.of_salted_password(
        mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations
    )
    try:
        call.cluster.scram_users.set(upsertion.name, mechanism, credential)
    except StorageError as problem:
        return _Refusal(ErrorCode.kafka_storage_error, str(problem))
    return None


def _response(call: NodeCall, refused: dict[str, _Refusal | None]) -> Any:
    return call.new.response(
        throttle_time=NO_THROTTLE,
        results=tuple(
            call.new.AlterUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.none if refusal is None else refusal.error,
                error_message=None if refusal is None else refusal.message,
            )
            for name, refusal in refused.items()
        ),
    )


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    request = call.request
    return _response(call, {row.name: _Refusal(error, None) for row in (*request.deletions, *request.upsertions)})
