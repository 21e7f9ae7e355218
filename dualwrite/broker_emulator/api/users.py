"""Users for operators: client quotas (KIP-546) and SCRAM credentials (KIP-554)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.error_codes import RefusedError
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

    * Components are ANDed: a name (0), the default (1), or either (2) of an entity type. A strict filter excludes
      entities with other types.
    * An invalid filter 42, an unknown entity type 35.
    * Access: DESCRIBE_CONFIGS on the cluster (31).
    * v1 flexible.
    """
    call.require(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    components = (Component(each.entity_type, each.match_type, each.match) for each in call.request.components)
    try:
        wanted = parse_filter(components, strict=call.request.strict)
    except FilterError as error:
        return call.new.response(error_code=error.code, error_message=str(error), entries=None)
    new = call.new

    def entry(entity: Entity, values: Mapping[str, float]) -> Any:
        return new.EntryData(
            entity=tuple(new.EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(entity)),
            values=tuple(new.ValueData(key=key, value=value) for key, value in values.items()),
        )

    found = await selected(lambda quotas: wanted.matches(quotas[0]), list(call.cluster.quotas.all()))
    entries = tuple(await mapped(lambda quotas: entry(*quotas), found))
    return call.new.response(error_code=ErrorCode.none, error_message="", entries=entries)


def refuse_describe_client_quotas(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, entries=None)


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
    return call.new.response(error_code=ErrorCode.none, results=tuple(results))


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


def refuse_describe_user_scram_credentials(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, results=())


MECHANISMS = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
NUMBERS = {name: number for number, name in MECHANISMS.items()}


_Refusals = dict[str, RefusedError | None]
"""By user; None for those that are changed."""

_TWICE = RefusedError(ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request")


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
    refused: _Refusals = {}
    pace = Pace()
    for check, rows in ((_check_deletion, request.deletions), (_check_upsertion, request.upsertions)):
        for row in rows:
            await pace.keep()
            refusal = _refusal(check, call, row)
            # a user keeps its first error; a second change of the same user is an error
            refused[row.name] = refusal if row.name not in refused else refused[row.name] or _TWICE
    for change, rows in ((_delete, request.deletions), (_set, request.upsertions)):
        for row in rows:
            await pace.keep()
            if refused[row.name] is None:
                refused[row.name] = _refusal(change, call, row)
    return await call.made(_alter_scram_response, call, refused)


def _refusal(work: Callable[[NodeCall, Any], None], call: NodeCall, row: Any) -> RefusedError | None:
    try:
        work(call, row)
    except RefusedError as refused:
        return refused
    except StorageError as problem:
        return RefusedError(ErrorCode.kafka_storage_error, str(problem))
    return None


def _check(row: Any) -> None:
    if not row.name:
        raise RefusedError(ErrorCode.unacceptable_credential, "Username must not be empty")
    if row.mechanism not in MECHANISMS:
        raise RefusedError(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")


def _check_deletion(call: NodeCall, deletion: Any) -> None:
    _check(deletion)
    if call.cluster.scram_users.find(deletion.name, MECHANISMS[deletion.mechanism]) is None:
        message = "Attempt to delete a user credential that does not exist"
        raise RefusedError(ErrorCode.resource_not_found, message)


def _check_upsertion(call: NodeCall, upsertion: Any) -> None:
    _check(upsertion)
    if upsertion.iterations < MIN_ITERATIONS:
        raise RefusedError(ErrorCode.unacceptable_credential, "Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        raise RefusedError(ErrorCode.unacceptable_credential, "Too many iterations")


def _delete(call: NodeCall, deletion: Any) -> None:
    call.cluster.scram_users.remove(deletion.name, MECHANISMS[deletion.mechanism])


def _set(call: NodeCall, upsertion: Any) -> None:
    mechanism = MECHANISMS[upsertion.mechanism]
    credential = ScramCredential.of_salted_password(
        mechanism, upsertion.salted_password, upsertion.salt, upsertion.iterations
    )
    call.cluster.scram_users.set(upsertion.name, mechanism, credential)


def _alter_scram_response(call: NodeCall, refused: _Refusals) -> Any:
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
        call, {row.name: RefusedError(error) for row in (*request.deletions, *request.upsertions)}
    )
