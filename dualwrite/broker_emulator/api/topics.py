"""What the API files share: naming a topic by name or by id, and finding a partition that this node leads."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.registry import Call
from dualwrite.broker_emulator.cluster.cluster import Partition, Topic
from dualwrite.broker_emulator.no_error import NO_ERROR
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType

MAX_PARTITIONS_PER_REQUEST = 10_000
"""How many partitions one request can create (MAX_PARTITIONS_PER_BATCH of Kafka's controller)."""


def requested_topic(call: Call, requested: Any) -> tuple[Topic | None, ErrorCode]:
    """The topic that an element of a request means, or why there is none.

    Versions with topic ids (KIP-516) do not tell an unknown name from an unknown id by the same code.
    """
    if hasattr(requested, "topic_id"):
        topic = call.cluster.topic_by_id(requested.topic_id)
        return topic, NO_ERROR if topic else ErrorCode.unknown_topic_id
    topic = call.cluster.topics.get(requested_name(requested))
    return topic, NO_ERROR if topic else ErrorCode.unknown_topic_or_partition


def allowed_topic(call: Call, requested: Any, operation: AclOperation) -> tuple[Topic | None, ErrorCode]:
    """The topic that an element of a request means, where who asks may do that with it; or why there is none.

    A name that he may not use is 29 whether there is such a topic or not, so that nobody learns what exists. An id
    tells nothing (KIP-516): one that is not known is 100.
    """
    topic, error = requested_topic(call, requested)
    if call.node.cluster.authorizer is None or (topic is None and hasattr(requested, "topic_id")):
        return topic, error
    name = requested_name(requested) if topic is None else topic.name
    if not call.is_allowed(operation, ResourceType.TOPIC, name):
        return None, ErrorCode.topic_authorization_failed
    return topic, error


def requested_name(requested: Any) -> str:
    """The name in an element of a request; some messages call it `name`, others `topic`."""
    name: str = requested.name if hasattr(requested, "name") else requested.topic
    return name


def topic_reference(requested: Any) -> dict[str, Any]:
    """The fields with which a response names the topic that the request named."""
    if hasattr(requested, "topic_id"):
        return {"topic_id": requested.topic_id}
    name = requested_name(requested)
    return {"name": name, "topic": name}


def led_partition(call: Call, topic: Topic, index: int) -> tuple[Partition | None, ErrorCode]:
    """The partition, where this node leads it; otherwise None and the error to answer."""
    if not 0 <= index < len(topic.partitions):
        return None, ErrorCode.unknown_topic_or_partition
    partition = topic.partitions[index]
    if partition.leader_id != call.node.node_id:
        return None, ErrorCode.not_leader_or_follower
    return partition, NO_ERROR


def check_leader_epoch(partition: Partition, requested: Any) -> ErrorCode:
    """Fencing by the leader epoch that the client believes in (KIP-320); -1 and older versions believe nothing."""
    believed = getattr(requested, "current_leader_epoch", -1)
    if believed < 0 or believed == partition.log.leader_epoch:
        return NO_ERROR
    return ErrorCode.fenced_leader_epoch if believed < partition.log.leader_epoch else ErrorCode.unknown_leader_epoch
