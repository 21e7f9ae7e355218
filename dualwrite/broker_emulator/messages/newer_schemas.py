"""The messages of Kafka 4.4 that kio does not have yet, each like the one of the version before."""

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from types import GenericAlias
from typing import Any, TypeAlias
from uuid import UUID

from kio.schema.api_versions.v4.request import ApiVersionsRequest as ApiVersionsRequestV4
from kio.schema.delete_groups.v2 import response as delete_groups_v2
from kio.schema.txn_offset_commit.v5 import request as txn_offset_commit_v5
from kio.schema.txn_offset_commit.v5 import response as txn_offset_committed_v5
from kio.static.primitive import i16, i32

_Member: TypeAlias = tuple[str, Any, Any]
"""A field: its name, type, and description."""

_NULLABLE_TEXT: Any = str | None


def _like(before: Any, *members: _Member) -> Any:
    """Return the type of a message in the version after `before`, with these fields."""
    constants = ("__type__", "__flexible__", "__api_key__", "__header_schema__")
    namespace = {name: getattr(before, name) for name in constants}
    namespace |= {"__version__": i16(before.__version__ + 1), "__module__": __name__, "__doc__": before.__doc__}
    return make_dataclass(before.__name__, members, namespace=namespace, frozen=True, slots=True, kw_only=True)


def _members(before: Any) -> list[_Member]:
    return [
        (member.name, member.type, field(default=member.default, metadata=member.metadata)) for member in fields(before)
    ]


def _array(name: str, element: Any) -> _Member:
    return name, GenericAlias(tuple, (element, ...)), field()


# ApiVersions v5 names the broker that the client means to reach (KIP-1242). The response is that of v4.
ApiVersionsRequest = _like(
    ApiVersionsRequestV4,
    *_members(ApiVersionsRequestV4),
    ("cluster_id", _NULLABLE_TEXT, field(metadata={"kafka_type": "string"}, default=None)),
    ("node_id", i32, field(metadata={"kafka_type": "int32"}, default=i32(-1))),
)

# DeleteGroups v3 has an error message beside each group's error code. The request is that of v2.
DeletableGroupResult = _like(
    delete_groups_v2.DeletableGroupResult,
    *_members(delete_groups_v2.DeletableGroupResult),
    ("error_message", _NULLABLE_TEXT, field(metadata={"kafka_type": "string"}, default=None)),
)
DeleteGroupsResponse = _like(
    delete_groups_v2.DeleteGroupsResponse,
    *_members(delete_groups_v2.DeleteGroupsResponse)[:-1],
    _array("results", DeletableGroupResult),
)

# TxnOffsetCommit v6 has topic ids instead of names (KIP-1319). Its generation may be a member epoch.
_TOPIC_ID: _Member = ("topic_id", UUID | None, field(metadata={"kafka_type": "uuid"}))
TxnOffsetCommitRequestPartition = _like(
    txn_offset_commit_v5.TxnOffsetCommitRequestPartition,
    *_members(txn_offset_commit_v5.TxnOffsetCommitRequestPartition),
)
TxnOffsetCommitRequestTopic = _like(
    txn_offset_commit_v5.TxnOffsetCommitRequestTopic,
    _TOPIC_ID,
    _array("partitions", TxnOffsetCommitRequestPartition),
)
TxnOffsetCommitRequest = _like(
    txn_offset_commit_v5.TxnOffsetCommitRequest,
    *_members(txn_offset_commit_v5.TxnOffsetCommitRequest)[:-1],
    _array("topics", TxnOffsetCommitRequestTopic),
)
TxnOffsetCommitResponsePartition = _like(
    txn_offset_committed_v5.TxnOffsetCommitResponsePartition,
    *_members(txn_offset_committed_v5.TxnOffsetCommitResponsePartition),
)
TxnOffsetCommitResponseTopic = _like(
    txn_offset_committed_v5.TxnOffsetCommitResponseTopic,
    _TOPIC_ID,
    _array("partitions", TxnOffsetCommitResponsePartition),
)
TxnOffsetCommitResponse = _like(
    txn_offset_committed_v5.TxnOffsetCommitResponse,
    *_members(txn_offset_committed_v5.TxnOffsetCommitResponse)[:-1],
    _array("topics", TxnOffsetCommitResponseTopic),
)
