"""TxnOffsetCommit (key 28), versions 0-6.

Stores offsets of a group inside a transaction: pending under the producer id until its marker is written.

* v2 leader epoch; v3 flexible, generation and member (KIP-447); v4 may return 120; v5 adds the group's partition to the
  transaction implicitly (KIP-890 part 2), older versions have it verified. The table below translates the errors of the
  coordinator; unlike in Produce, no error is retried here, and 14, 15, 16 and 51 are passed on.
* Access: WRITE on the transactional id (53), READ on the group (30) and on the topics (29).
* Empty group id 24; group of another node 16; while loading 14 (15 below v2); wrong generation, or one of an unknown
  group 22; unknown member 25; replaced static member 82. The group is checked after the transaction, so that a client
  that has lost its membership meanwhile cannot commit. A request without a member is always accepted.
* Unknown partition 3; metadata longer than `offset.metadata.max.bytes` 12.
* v6 names topics by id; an unknown id is 100. A generation of an unknown group is 69, a stale member epoch 113
  (KIP-1319); both are 22 before.
* v5 is hidden by the profile kafka-3.9, v6 by kafka-4.3 too. In kafka-3.9 the group is created after the first two
  checks, so that a generation of an unknown group is 25.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import OffsetsToCommit, group_shard, offset_response, offsets_to_commit
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.cluster.topics import Partition
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.groups.offsets import Committer
from dualwrite.broker_emulator.groups.shard import TransactionOfOffsets
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType

_IMPLICIT_ADD_VERSION = 5

_COMMON = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.network_exception: ErrorCode.coordinator_load_in_progress,
    ErrorCode.cluster_authorization_failed: ErrorCode.invalid_txn_state,
}
COORDINATOR_ERRORS: Mapping[ErrorCode, ErrorCode] = _COMMON
COORDINATOR_ERRORS_BEFORE_V4: Mapping[ErrorCode, ErrorCode] = {
    **_COMMON,
    ErrorCode.transaction_abortable: ErrorCode.invalid_txn_state,
}
"""The client's errors for those of the transaction coordinator; other codes stay as they are (2.5)."""


_OWN_ERRORS_VERSION = 6
_OWN_ERRORS = (ErrorCode.group_id_not_found, ErrorCode.stale_member_epoch)
"""Errors that clients of older versions do not know (KIP-1319)."""


async def handle(call: NodeCall) -> Any:
    if not call.may_write_id(call.request.transactional_id):
        return await call.refused(ErrorCode.transactional_id_authorization_failed)
    if not call.is_allowed(AclOperation.READ, ResourceType.GROUP, call.request.group_id):
        return await call.refused(ErrorCode.group_authorization_failed)
    offsets = await offsets_to_commit(call)
    error = await _commit(call, offsets) if offsets.concern_the_group else NO_ERROR
    return await call.made(offset_response, call, "TxnOffsetCommit", offsets.errors(_old_name(call, error)))


async def _commit(call: NodeCall, offsets: OffsetsToCommit) -> ErrorCode:
    request = call.request
    if request.group_id == "":
        return ErrorCode.invalid_group_id
    shard = group_shard(call, request.group_id)
    if isinstance(shard, ErrorCode):
        return shard
    if not call.cluster.config.behaviours.groups_begin_with_a_commit:
        shard.ensure_group(request.group_id)
    guard, error = await _verify(call, shard.partition)
    if error is not NO_ERROR:
        return error
    shard = group_shard(call, request.group_id)
    if isinstance(shard, ErrorCode):  # lost while the transaction was verified
        return shard
    transaction = TransactionOfOffsets(request.producer_id, request.producer_epoch, guard)
    error = await shard.commit_in_transaction(request.group_id, _committer(request), offsets.valid, transaction)
    is_unknown_to_client = error in _OWN_ERRORS and call.version < _OWN_ERRORS_VERSION
    return ErrorCode.illegal_generation if is_unknown_to_client else error


def _committer(request: Any) -> Committer:
    if not hasattr(request, "generation_id"):
        return Committer()
    return Committer(request.member_id, request.group_instance_id, request.generation_id)


async def _verify(call: NodeCall, partition: Partition) -> tuple[VerificationGuard | None, ErrorCode]:
    """Make the coordinator add or verify the group's partition, unless the transaction is already open there."""
    request, log = call.request, partition.log
    adds = call.version >= _IMPLICIT_ADD_VERSION
    if log.has_open_transaction(request.producer_id, request.producer_epoch):
        return None, NO_ERROR
    is_verified = adds or call.node.config.transaction_partition_verification_enable
    if is_verified and log.fences_verification(request.producer_id, request.producer_epoch):
        return None, ErrorCode.invalid_producer_epoch
    guard = log.begin_verification(request.producer_id, request.producer_epoch, -1, supports_epoch_bump=adds)
    if not is_verified:
        return guard, NO_ERROR
    errors = await call.node.add_partitions_to_txn.add_or_verify(
        request.transactional_id, request.producer_id, request.producer_epoch, [partition.name], add=adds
    )
    table = COORDINATOR_ERRORS if call.version >= 4 else COORDINATOR_ERRORS_BEFORE_V4
    error = errors[partition.name]
    return guard, table.get(error, error)


def _old_name(call: NodeCall, error: ErrorCode) -> ErrorCode:
    if call.version < 2 and error is ErrorCode.coordinator_load_in_progress:
        return ErrorCode.coordinator_not_available
    return error


def refuse(call: NodeCall, error: ErrorCode) -> Any:
    return offset_response(call, "TxnOffsetCommit", error)
