"""Offsets of groups committed: at once, or as part of a transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.groups import group_shard
from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.topics import allowed_topic, topic_reference
from dualwrite.broker_emulator.error_codes import NO_ERROR, RefusedError
from dualwrite.broker_emulator.groups.offsets import Committer
from dualwrite.broker_emulator.groups.records import CommittedOffset
from dualwrite.broker_emulator.groups.shard_offsets import TransactionOfOffsets
from dualwrite.broker_emulator.log.verification import VerificationGuard
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.slices import Pace
from dualwrite.broker_emulator.topics.topics import Partition, TopicPartition


class OffsetsToCommit(NamedTuple):
    """The offsets of a request: those that can be stored, and the errors of the others.

    Topics that do not exist or may not be read are in neither; `offset_response` adds their errors.
    """

    valid: dict[TopicPartition, CommittedOffset]
    refused: dict[TopicPartition, ErrorCode]

    @property
    def concern_the_group(self) -> bool:
        """Whether the request involves the group, which it does not if no partition exists."""
        return bool(self.valid) or ErrorCode.offset_metadata_too_large in self.refused.values()

    def errors(self, error: ErrorCode) -> dict[TopicPartition, ErrorCode]:
        """Return the error of each partition, given the `error` of the group."""
        if error is ErrorCode.none:
            return {**self.refused, **dict.fromkeys(self.valid, error)}
        unknown = ErrorCode.unknown_topic_or_partition
        refused = {name: unknown if reason is unknown else error for name, reason in self.refused.items()}
        return {**refused, **dict.fromkeys(self.valid, error)}


async def offsets_to_commit(call: NodeCall) -> OffsetsToCommit:
    """Read the offsets of an OffsetCommit or TxnOffsetCommit request."""
    offsets = OffsetsToCommit({}, {})
    pace = Pace()
    for requested in call.request.topics:
        await pace.keep()
        topic, _ = allowed_topic(call, requested, AclOperation.READ)
        if topic is None:
            continue
        for partition in requested.partitions:
            await pace.keep()
            name = TopicPartition(topic.name, partition.partition_index)
            if not 0 <= name.partition < len(topic.partitions):
                offsets.refused[name] = ErrorCode.unknown_topic_or_partition
            elif len(partition.committed_metadata or "") > call.cluster.config.offset_metadata_max_bytes:
                offsets.refused[name] = ErrorCode.offset_metadata_too_large
            else:
                offsets.valid[name] = _committed_offset(call, name, partition)
    return offsets


def _committed_offset(call: NodeCall, name: TopicPartition, partition: Any) -> CommittedOffset:
    return call.node.groups.value(
        name,
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata,
    )


def offset_response(call: NodeCall, prefix: str, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]) -> Any:
    """Build the response from the types named `prefix`..., with one error for all partitions or one for each.

    Partitions that do not exist or may not be read come first, and then those that the group was asked about: Kafka
    adds the coordinator's response to its own. A topic is named once, unless all partitions have one error.
    """
    new = vars(call.new)
    partition_type, topic_type = new[f"{prefix}ResponsePartition"], new[f"{prefix}ResponseTopic"]
    asked = [_Asked(call, requested, errors) for requested in call.request.topics]
    topics: dict[Any, tuple[Any, list[Any]]] = {}
    for is_known in (None,) if isinstance(errors, ErrorCode) else (False, True):
        for number, topic in enumerate(asked):
            rows = [partition_type(partition_index=index, error_code=code) for index, code in topic.rows(is_known)]
            if rows or (topic.is_unknown and not is_known):
                key = number if is_known is None else tuple(topic.reference.values())
                topics.setdefault(key, (topic.reference, []))[1].extend(rows)
    built = tuple(topic_type(**reference, partitions=tuple(rows)) for reference, rows in topics.values())
    return call.new.response(topics=built)


class _Asked:
    """A topic of the request, with the errors of its partitions."""

    __slots__ = ("_rows", "is_unknown", "reference")

    def __init__(self, call: NodeCall, requested: Any, errors: ErrorCode | Mapping[TopicPartition, ErrorCode]) -> None:
        topic, error = allowed_topic(call, requested, AclOperation.READ)
        self.reference = topic_reference(requested)
        self.is_unknown = topic is None
        """Whether the topic does not exist, or may not be read."""
        indexes = (partition.partition_index for partition in requested.partitions)
        if isinstance(errors, ErrorCode):
            self._rows = [(index, errors, True) for index in indexes]
        elif topic is None:
            self._rows = [(index, error, False) for index in indexes]
        else:
            found = ((index, errors.get(TopicPartition(topic.name, index), _UNKNOWN_PARTITION)) for index in indexes)
            self._rows = [(index, code, code is not _UNKNOWN_PARTITION) for index, code in found]

    def rows(self, is_known: bool | None) -> Iterator[tuple[int, ErrorCode]]:
        """Return the partitions that exist and may be read, or the others; all partitions if `is_known` is None."""
        return ((index, code) for index, code, exists in self._rows if is_known is None or exists is is_known)


_UNKNOWN_PARTITION = ErrorCode.unknown_topic_or_partition


_UNKNOWN_GROUP_VERSION = 9


async def handle_offset_commit(call: NodeCall) -> Any:
    """Serve OffsetCommit (key 8), versions 2-10.

    Stores offsets of a group outside of transactions; the commit of a member is also its heartbeat.

    * v5 drops the retention time; v6 leader epoch (KIP-320); v7 group instance id; v8 flexible; v9 member epochs
      (KIP-848); v10 topic ids (KIP-516; unknown 100).
    * Group of another node 16; while loading 14; unknown member 25, also a commit without a member while the group has
      members; wrong generation 22; replaced static member 82; member that waits for its assignment 27. A generation of
      an unknown group is 69 from v9 on, 22 before and in the profile kafka-3.9. The empty group id is a group.
    * Access: READ on the group (30) and on the topics (29).
    * Consumer groups (KIP-848): a future epoch, and an older one for a partition that the member has not owned since
      then (KIP-1251), is 113 (22 for a member of the classic protocol); below v9, members are 35.
    * Unknown partition 3; metadata longer than `offset.metadata.max.bytes` 12. The other offsets are stored anyway.
    * v10 is hidden by the profile kafka-3.9.
    """
    call.require(AclOperation.READ, ResourceType.GROUP, call.request.group_id)
    offsets = await offsets_to_commit(call)
    error = await _commit_offsets(call, offsets) if offsets.concern_the_group else ErrorCode.none
    return await call.made(offset_response, call, "OffsetCommit", offsets.errors(error))


async def _commit_offsets(call: NodeCall, offsets: OffsetsToCommit) -> ErrorCode:
    request = call.request
    shard = call.node.groups.shard(request.group_id)
    if isinstance(shard, ErrorCode):
        return shard
    committer = Committer(
        request.member_id, getattr(request, "group_instance_id", None), request.generation_id_or_member_epoch
    )
    error = await shard.offsets.commit(request.group_id, committer, offsets.valid, version=call.version)
    says_unknown = call.version >= _UNKNOWN_GROUP_VERSION and call.cluster.config.behaviours.unknown_group_has_own_error
    if error is ErrorCode.group_id_not_found and not says_unknown:
        return ErrorCode.illegal_generation
    return error


def refuse_offset_commit(call: NodeCall, error: ErrorCode) -> Any:
    return offset_response(call, "OffsetCommit", error)


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


async def handle_txn_offset_commit(call: NodeCall) -> Any:
    """Serve TxnOffsetCommit (key 28), versions 0-6.

    Stores offsets of a group inside a transaction: pending under the producer id until its marker is written.

    * v2 leader epoch; v3 flexible, generation and member (KIP-447); v4 may return 120; v5 adds the group's partition to
      the transaction implicitly (KIP-890 part 2), older versions have it verified. The table below translates the
      errors of the coordinator; unlike in Produce, no error is retried here, and 14, 15, 16 and 51 are passed on.
    * Access: WRITE on the transactional id (53), READ on the group (30) and on the topics (29).
    * Empty group id 24; group of another node 16; while loading 14 (15 below v2); wrong generation, or one of an
      unknown group 22; unknown member 25; replaced static member 82. The group is checked after the transaction, so
      that a client that has lost its membership meanwhile cannot commit. A request without a member is always accepted.
    * Unknown partition 3; metadata longer than `offset.metadata.max.bytes` 12.
    * v6 names topics by id; an unknown id is 100. A generation of an unknown group is 69, a stale member epoch 113
      (KIP-1319); both are 22 before.
    * v5 is hidden by the profile kafka-3.9, v6 by kafka-4.3 too. In kafka-3.9 the group is created after the first two
      checks, so that a generation of an unknown group is 25.
    """
    call.require(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, call.request.transactional_id)
    call.require(AclOperation.READ, ResourceType.GROUP, call.request.group_id)
    offsets = await offsets_to_commit(call)
    try:
        error = await _commit_in_transaction(call, offsets) if offsets.concern_the_group else NO_ERROR
    except RefusedError as refused:
        error = refused.error
    return await call.made(offset_response, call, "TxnOffsetCommit", offsets.errors(_old_name(call, error)))


async def _commit_in_transaction(call: NodeCall, offsets: OffsetsToCommit) -> ErrorCode:
    request = call.request
    shard = group_shard(call, request.group_id)
    if not call.cluster.config.behaviours.groups_begin_with_a_commit:
        shard.offsets.ensure_group(request.group_id)
    guard, error = await _verify(call, shard.partition)
    if error is not NO_ERROR:
        return error
    shard = group_shard(call, request.group_id)  # it may have been lost while the transaction was verified
    transaction = TransactionOfOffsets(request.producer_id, request.producer_epoch, guard)
    error = await shard.offsets.commit_in_transaction(request.group_id, _committer(request), offsets.valid, transaction)
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


def refuse_txn_offset_commit(call: NodeCall, error: ErrorCode) -> Any:
    return offset_response(call, "TxnOffsetCommit", error)
