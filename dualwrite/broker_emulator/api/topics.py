"""Topics and partitions in requests: by name or id, with access control, leaders and assigned replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.topics.topics import Partition, Topic

MAX_PARTITIONS_PER_REQUEST = 10_000
"""The number of partitions that one request can create (MAX_PARTITIONS_PER_BATCH of Kafka's controller)."""


def requested_topic(call: NodeCall, requested: Any) -> tuple[Topic | None, ErrorCode]:
    """Return the topic that an element of a request names, or None and the error: 100 for an unknown id, else 3."""
    if hasattr(requested, "topic_id"):
        topic = call.cluster.topic_by_id(requested.topic_id)
        return topic, NO_ERROR if topic else ErrorCode.unknown_topic_id
    topic = call.cluster.topics.get(requested_name(requested))
    return topic, NO_ERROR if topic else ErrorCode.unknown_topic_or_partition


def allowed_topic(call: NodeCall, requested: Any, operation: AclOperation) -> tuple[Topic | None, ErrorCode]:
    """Return the topic that an element of a request names if the client may do the operation, or None and the error.

    A forbidden name gives 29 whether or not the topic exists, so that clients cannot probe for topics. An unknown id
    gives 100, which reveals nothing (KIP-516).
    """
    topic, error = requested_topic(call, requested)
    if call.cluster.authorizer is None or (topic is None and hasattr(requested, "topic_id")):
        return topic, error
    name = requested_name(requested) if topic is None else topic.name
    if not call.is_allowed(operation, ResourceType.TOPIC, name):
        return None, ErrorCode.topic_authorization_failed
    return topic, error


def requested_name(requested: Any) -> str:
    """Return the topic name in an element of a request; the field is `name` in some messages, `topic` in others."""
    name: str = requested.name if hasattr(requested, "name") else requested.topic
    return name


def topic_reference(requested: Any) -> dict[str, Any]:
    """Return the fields that name the request's topic in a response."""
    if hasattr(requested, "topic_id"):
        return {"topic_id": requested.topic_id}
    name = requested_name(requested)
    return {"name": name, "topic": name}


def topics_response(call: NodeCall, topic_type: str, row_of: Callable[[Any, Any], Any], **fields: Any) -> Any:
    """Build a response with the structure of its request: a row of `topic_type` for each topic, with its partitions.

    `row_of` takes an element of the request's topics, and one of its partitions.
    """
    new = vars(call.new)[topic_type]
    return call.new.response(
        topics=tuple(
            new(**topic_reference(topic), partitions=tuple(row_of(topic, each) for each in _partitions(topic)))
            for topic in call.request.topics
        ),
        **fields,
    )


def named_partitions(call: NodeCall) -> list[tuple[Any, Any]]:
    """Return the pairs of elements of the request for which `topics_response` needs a row."""
    return [(topic, each) for topic in call.request.topics for each in _partitions(topic)]


def _partitions(topic: Any) -> Any:
    return topic.partition_indexes if hasattr(topic, "partition_indexes") else topic.partitions


def may_create_topic(call: NodeCall, name: str) -> bool:
    """Return whether the client may create topics, or one of this name."""
    return call.is_allowed(AclOperation.CREATE, ResourceType.CLUSTER, is_logged=False) or call.is_allowed(
        AclOperation.CREATE, ResourceType.TOPIC, name
    )


def led_partition(call: NodeCall, topic: Topic, index: int) -> tuple[Partition | None, ErrorCode]:
    """Return the partition if this node leads it, or None and the error."""
    if not 0 <= index < len(topic.partitions):
        return None, ErrorCode.unknown_topic_or_partition
    partition = topic.partitions[index]
    if partition.leader_id != call.node.node_id:
        return None, ErrorCode.not_leader_or_follower
    return partition, NO_ERROR


def check_leader_epoch(partition: Partition, requested: Any) -> ErrorCode:
    """Check the leader epoch that the client knows (KIP-320), unless it is -1 or the version has none."""
    known = getattr(requested, "current_leader_epoch", -1)
    if known < 0 or known == partition.log.leader_epoch:
        return NO_ERROR
    return ErrorCode.fenced_leader_epoch if known < partition.log.leader_epoch else ErrorCode.unknown_leader_epoch


def is_isolation_level(number: int) -> bool:
    """Return whether Kafka knows the isolation level; its handlers of Fetch and ListOffsets fail for any other."""
    return number in (0, 1)


# --- the new leader in a response (KIP-951) ---------------------------------------------------------------------------

_HINTED_ERRORS = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
_NO_FIELDS: Mapping[str, Any] = {}


class LeaderHints:
    """The fields of one response that name the new leader of a partition and so save the client a Metadata request.

    Produce v10 and Fetch v16 introduced them; older versions have none.
    """

    __slots__ = ("_call", "_leaders")

    def __init__(self, call: NodeCall, errors: Iterable[ErrorCode]) -> None:
        self._call = call
        self._leaders: set[int] | None = None
        if not _HINTED_ERRORS.isdisjoint(errors) and hasattr(call.new, "NodeEndpoint"):
            self._leaders = set()

    def for_partition(self, requested: Any, index: int, error: ErrorCode) -> Mapping[str, Any]:
        """Return the fields to add for a partition of the topic that `requested` names."""
        if self._leaders is None or error not in _HINTED_ERRORS:
            return _NO_FIELDS
        topic, _ = requested_topic(self._call, requested)
        partition = None if topic is None else self._call.cluster.partition(topic.name, index)
        if partition is None or partition.leader_id not in self._call.cluster.nodes:
            return _NO_FIELDS
        self._leaders.add(partition.leader_id)
        leader_epoch = partition.log.leader_epoch
        hint = self._call.new.LeaderIdAndEpoch(leader_id=partition.leader_id, leader_epoch=leader_epoch)
        return {"current_leader": hint}

    def for_response(self) -> Mapping[str, Any]:
        """Return the fields to add to the response itself: the addresses of the leaders named so far."""
        if not self._leaders:
            return _NO_FIELDS
        nodes = (self._call.cluster.nodes[node_id] for node_id in sorted(self._leaders))
        return {
            "node_endpoints": tuple(
                self._call.new.NodeEndpoint(node_id=node.node_id, rack=None, **self._call.endpoint(node)._asdict())
                for node in nodes
            )
        }


# --- replicas assigned by a client ------------------------------------------------------------------------------------


def why_not_assignable(call: NodeCall, replicas: Sequence[int], replication_factor: int | None = None) -> str | None:
    """Return why a partition cannot have its replicas on these nodes (error 39), or None.

    If a replication factor is given, the number of replicas has to match it.
    """
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    for before, node_id in zip((None, *sorted(replicas)), sorted(replicas), strict=False):
        if node_id not in call.cluster.nodes:
            return f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
        if node_id == before:
            return f"The manual partition assignment includes the broker {node_id} more than once."
    if replication_factor is not None and len(replicas) != replication_factor:
        return (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )
    return None
