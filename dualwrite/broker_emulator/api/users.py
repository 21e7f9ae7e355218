"""Users for operators: client quotas (KIP-546) and SCRAM credentials (KIP-554)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.quotas.client_quotas import (
    Component,
    Entity,
    FilterError,
    entity,
    parse_filter,
    quota_problem,
    shown,
)
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.security.sasl.mechanism import SCRAM_SHA_256, SCRAM_SHA_512
from dualwrite.broker_emulator.security.sasl.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential
from dualwrite.broker_emulator.slices import Pace, mapped, selected


async def handle_describe_client_quotas(call: NodeCall) -> Any:
    """Serve DescribeClientQuotas (key 48), versions 0-1.

    The quotas of the entities that match a filter (KIP-546).

    * Components are ANDed: a name (0), the default (1), or either (2) of an entity type. Strict: no entities with other
      types.
    * An invalid filter 42, an unknown entity type 35.
    * Access: DESCRIBE_CONFIGS on the cluster (31).
    * v1 flexible.
    """
    call.require(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    components = (Component(each.entity_type, each.match_type, each.match) for each in call.request.components)
    try:
        wanted = parse_filter(components, strict=call.request.strict)
    except FilterError as error:
        return _quotas_response(call, error.code, str(error), None)
    new = call.new

    def entry(entity: Entity, values: Mapping[str, float]) -> Any:
        return new.EntryData(
            entity=tuple(new.EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(entity)),
            values=tuple(new.ValueData(key=key, value=value) for key, value in values.items()),
        )

    found = await selected(lambda quotas: wanted.matches(quotas[0]), list(call.cluster.quotas.all()))
    return _quotas_response(call, ErrorCode.none, "", tuple(await mapped(lambda quotas: entry(*quotas), found)))


def _quotas_response(call: NodeCall, error: ErrorCode, message: str | None, entries: tuple[Any, ...] | None) -> Any:
    return call.new.response(error_code=error, error_message=message, entries=entries)


def refuse_describe_client_quotas(call: NodeCall, error: ErrorCode) -> Any:
    return _quotas_response(call, error, None, None)


Outcome = tuple[ErrorCode, str | None]


async def handle_alter_client_quotas(call: NodeCall) -> Any:
    """Serve AlterClientQuotas (key 49), versions 0-1.

    Sets quotas of users, client ids, both together, and addresses, or removes them (KIP-546, KIP-599, KIP-612).

    * Invalid entities, quotas or values are 42 (INVALID_REQUEST). So is an entity, or one of its quotas, that is named
      twice, but the changes named first are made.
    * Names are those of `quotas/client_quotas.py`. Removing an unset quota succeeds.
    * Access: ALTER_CONFIGS on the cluster (31).
    * ValidateOnly returns the same response and changes nothing. A failure of the disk is 56.
    * v1 flexible.
    """
    call.require(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER)
    outcomes: dict[Entity, Outcome] = {}
    pace = Pace()
    for entry in call.request.entries:
        await pace.keep()
        named = entity((part.entity_type, part.entity_name) for part in entry.entity)
        keys = [change.key for change in entry.ops]
        if named in outcomes or len(set(keys)) < len(keys):
            outcomes[named] = ErrorCode.invalid_request, f"Ignoring duplicate entity {shown(named)}"
        else:
            outcomes[named] = _alter(
                call, named, {change.key: None if change.remove else change.value for change in entry.ops}
            )
    return await call.made(_alter_quotas_response, call, outcomes.items())


def _alter(call: NodeCall, named: Entity, changes: dict[str, float | None]) -> Outcome:
    message = quota_problem(named, changes)
    if message is not None:
        return ErrorCode.invalid_request, message
    if not call.request.validate_only:
        try:
            call.cluster.quotas.alter(named, changes)
        except StorageError as problem:
            return ErrorCode.kafka_storage_error, str(problem)
    return ErrorCode.none, None


def _alter_quotas_response(call: NodeCall, outcomes: Iterable[tuple[Entity, Outcome]]) -> Any:
    new = call.new
    entries = tuple(
        new.EntryData(
            error_code=error,
            error_message=message,
            entity=tuple(new.EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(named)),
        )
        for named, (error, message) in outcomes
    )
    return new.response(entries=entries)


def refuse_alter_client_quotas(call: NodeCall, error: ErrorCode) -> Any:
    named = [entity((part.entity_type, part.entity_name) for part in entry.entity) for entry in call.request.entries]
    return _alter_quotas_response(call, [(each, (error, None)) for each in named])


async def handle_describe_user_scram_credentials(call: NodeCall) -> Any:
    """Serve DescribeUserScramCredentials (key 50), version 0.

    The SCRAM users, with their mechanisms and iterations (KIP-554), but never their keys.

    * No users, or null, means all. An unknown user is 91, a duplicate one 92.
    * Access: DESCRIBE on the cluster (31).
    """
    call.require(AclOperation.DESCRIBE, ResourceType.CLUSTER)
    requested = call.request.users
    if requested:
        names = Counter(user.name for user in requested)
        results = await mapped(lambda name: _result(call, name, is_repeated=names[name] > 1), names)
    else:
        results = await mapped(lambda name: _result(call, name), list(call.cluster.scram_users.names()))
    return _scram_response(call, tuple(results), ErrorCode.none, None)


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


def _scram_response(call: NodeCall, results: tuple[Any, ...], error: ErrorCode, message: str | None) -> Any:
    return call.new.response(error_code=error, error_message=message, results=results)


def refuse_describe_user_scram_credentials(call: NodeCall, error: ErrorCode) -> Any:
    return _scram_response(call, (), error, None)


MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
NUMBERS = {name: number for number, name in MECHANISMS.items()}


class _Refusal(NamedTuple):
    error: ErrorCode
    message: str | None


_TWICE = _Refusal(ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request")


async def handle_alter_user_scram_credentials(call: NodeCall) -> Any:
    """Serve AlterUserScramCredentials (key 51), version 0.

    Adds SCRAM users, changes their passwords, removes them (KIP-554). Clients send a salted password; the broker stores
    the keys derived from it.

    * Each user has its own result: a user without a name is 93, an unknown mechanism 33, a duplicate user 92, the
      removal of a credential that does not exist 91, fewer than 4096 or more than 16384 iterations 93, a failure of the
      data directory 56.
    * Access: ALTER on the cluster (31).
    """
    call.require(AclOperation.ALTER, ResourceType.CLUSTER)
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
    return await call.made(_alter_scram_response, call, refused)


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


def _alter_scram_response(call: NodeCall, refused: dict[str, _Refusal | None]) -> Any:
    return call.new.response(
        results=tuple(
            call.new.AlterUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.none if refusal is None else refusal.error,
                error_message=None if refusal is None else refusal.message,
            )
            for name, refusal in refused.items()
        ),
    )


def refuse_alter_user_scram_credentials(call: NodeCall, error: ErrorCode) -> Any:
    request = call.request
    return _alter_scram_response(
        call, {row.name: _Refusal(error, None) for row in (*request.deletions, *request.upsertions)}
    )
