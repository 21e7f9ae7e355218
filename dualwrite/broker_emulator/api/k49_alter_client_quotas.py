"""AlterClientQuotas (key 49), versions 0-1.

Sets quotas of users, client ids, both together, and addresses, or removes them (KIP-546, KIP-599, KIP-612).

* Invalid entities, quotas or values are 42 (INVALID_REQUEST). So is an entity, or one of its quotas, that is named
  twice, but the changes named first are made.
* Names are those of `quotas/client_quotas.py`. Removing an unset quota succeeds.
* Access: ALTER_CONFIGS on the cluster (31).
* ValidateOnly returns the same response and changes nothing. A failure of the disk is 56.
* v1 flexible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.registry import NO_THROTTLE
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.quotas.client_quotas import Entity, entity, quota_problem, shown
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace

Outcome = tuple[ErrorCode, str | None]


async def handle(call: NodeCall) -> Any:
    if not call.is_allowed(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER):
        return await call.refused(ErrorCode.cluster_authorization_failed)
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
    return await call.made(_response, call, outcomes.items())


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


def _response(call: NodeCall, outcomes: Iterable[tuple[Entity, Outcome]]) -> Any:
    new = call.new
    entries = tuple(
        new.EntryData(
            error_code=error,
            error_message=message,
            entity=tuple(new.EntityData(entity_type=kind, entity_name=name) for kind, name in sorted(named)),
        )
        for named, (error, message) in outcomes
    )
    return new.response(throttle_time=NO_THROTTLE, entries=entries)


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    named = [entity((part.entity_type, part.entity_name) for part in entry.entity) for entry in call.request.entries]
    return _response(call, [(each, (error, None)) for each in named])
