"""The cluster: its coordinators, nodes, quorum and features."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.api.node_call import NodeCall
from dualwrite.broker_emulator.api.share_groups import are_share_groups_on
from dualwrite.broker_emulator.cluster.cluster import ClusterNode
from dualwrite.broker_emulator.cluster.features import (
    UpgradeType,
    finalized_level,
    level_problem,
    supported_levels,
)
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.share.state import StateKey
from dualwrite.broker_emulator.slices import mapped, mapped_rows

_GROUP, _SHARE_GROUP = 0, 2
_SHARE_GROUPS_VERSION = 6


async def handle_find_coordinator(call: NodeCall) -> Any:
    """Serve FindCoordinator (key 10), versions 0-6.

    The leader of the partition of `__consumer_offsets` or `__transaction_state` that a key belongs to.

    * v0 knows groups only; v1 adds the key type (0 group, 1 transaction, 2 share group); v4 takes several keys
      (KIP-699).
    * A share group's key includes a partition, as in `group:topic id:partition`; any other key, and any other key type,
      is 42. Only the coordinator validates the other keys.
    * Access: DESCRIBE on the group (30) or the transactional id (53); for share groups, which v6 introduces,
      CLUSTER_ACTION (31).
    * No living node to lead the partition: 15.
    * Kafka creates the internal topic at the first request and returns 15 meanwhile; here it exists from the start.
    """
    request = call.request
    if call.version >= _SHARE_GROUPS_VERSION and request.key_type == _SHARE_GROUP:
        call.require(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if call.version < 4:
        node, error = _find_one(call, request.key)
        return _single(call, node, error)
    rows = await mapped(lambda key: _coordinator(call, key, *_find_one(call, key)), request.coordinator_keys)
    return call.new.response(coordinators=tuple(rows))


def _find_one(call: NodeCall, key: str) -> tuple[ClusterNode | None, ErrorCode]:
    match getattr(call.request, "key_type", _GROUP):
        case 0:
            if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.GROUP, key):
                return None, ErrorCode.group_authorization_failed
            node = call.cluster.group_coordinator(key)
        case 1:
            if not call.is_allowed(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
                return None, ErrorCode.transactional_id_authorization_failed
            node = call.cluster.transaction_coordinator(key)
        case 2 if call.version >= _SHARE_GROUPS_VERSION and are_share_groups_on(call):
            share_partition = share_partition_of(key)
            if share_partition is None:
                return None, ErrorCode.invalid_request
            node = call.cluster.nodes.get(call.cluster.share_states.partition(share_partition).leader_id)
        case _:
            return None, ErrorCode.invalid_request
    return node, ErrorCode.coordinator_not_available if node is None else ErrorCode.none


def share_partition_of(key: str) -> StateKey | None:
    """Return the share-partition of a key `group:topic id:partition`; None for an invalid key."""
    group_id, topic_id, partition = [*key.rsplit(":", 2), "", ""][:3]
    try:
        decoded = base64.b64decode(f"{topic_id}==", altchars=b"-_", validate=True)
        return StateKey(group_id, uuid.UUID(bytes=decoded), int(partition)) if group_id else None
    except ValueError:
        return None


def _address(call: NodeCall, node: ClusterNode | None) -> dict[str, Any]:
    if node is None:
        return {"node_id": -1, "host": "", "port": -1}
    return {"node_id": node.node_id, **call.endpoint(node)._asdict()}


def _single(call: NodeCall, node: ClusterNode | None, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, **_address(call, node))


def _coordinator(call: NodeCall, key: str, node: ClusterNode | None, error: ErrorCode) -> Any:
    return call.new.Coordinator(key=key, error_code=error, **_address(call, node))


def refuse_find_coordinator(call: NodeCall, error: ErrorCode) -> Any:
    if call.version < 4:
        return _single(call, None, error)
    rows = tuple(_coordinator(call, key, None, error) for key in call.request.coordinator_keys)
    return call.new.response(coordinators=rows)


_BROKERS, _CONTROLLERS = 1, 2


async def handle_describe_cluster(call: NodeCall) -> Any:
    """Serve DescribeCluster (key 60), versions 0-2.

    Living nodes, controller and cluster id (KIP-700).

    * v1 endpoint types (KIP-919): only brokers (1) have endpoints here; controllers (2) are 114, others 115.
    * v2 fenced brokers (KIP-1073): the nodes that are down, on request.
    * The authorized operations on the cluster (KIP-430) are 0 without DESCRIBE on it.
    * v2 is hidden by the profile kafka-3.9.
    """
    endpoint_type = getattr(call.request, "endpoint_type", _BROKERS)
    if endpoint_type == _CONTROLLERS:
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return _cluster_refused(call, ErrorCode.mismatched_endpoint_type, message)
    if endpoint_type != _BROKERS:
        return _cluster_refused(call, ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}")
    cluster, new = call.cluster, call.new
    with_fenced = getattr(call.request, "include_fenced_brokers", False)
    return new.response(
        error_code=ErrorCode.none,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=tuple(
            new.DescribeClusterBroker(
                broker_id=node.node_id, is_fenced=not node.is_alive, **call.endpoint(node)._asdict()
            )
            for _, node in sorted(cluster.nodes.items())
            if node.is_alive or with_fenced
        ),
        cluster_authorized_operations=call.cluster_operations(),
    )


def refuse_describe_cluster(call: NodeCall, error: ErrorCode) -> Any:
    return _cluster_refused(call, error, None)


def _cluster_refused(call: NodeCall, error: ErrorCode, message: str | None) -> Any:
    return call.new.response(error_code=error, error_message=message, cluster_id="", brokers=())


METADATA_TOPIC = "__cluster_metadata"
_METADATA_PARTITION = (METADATA_TOPIC, 0)


async def handle_describe_quorum(call: NodeCall) -> Any:
    """Serve DescribeQuorum (key 55), versions 0-2.

    The nodes that store the metadata of the cluster (KIP-595). It is not replicated here: the node that acts as
    controller is the only voter, the other living nodes are observers, and each has all metadata.

    * Any partition but `__cluster_metadata`-0 is 3.
    * Access: DESCRIBE on the cluster (31).
    * v1 fetch times (KIP-836), v2 error messages, directories and the nodes' listeners (KIP-853).
    """
    call.require(AclOperation.DESCRIBE, ResourceType.CLUSTER)
    named = [(topic.topic_name, row.partition_index) for topic in call.request.topics for row in topic.partitions]
    is_answered = _METADATA_PARTITION in named
    # all rows are of this moment, however long they take to make
    quorum = _quorum(call) if is_answered else None
    voters = [node for node in call.cluster.living_nodes if node.node_id == call.cluster.controller_id]
    nodes = tuple(_quorum_node(call, node) for node in voters) if is_answered and call.version >= 2 else ()
    rows = await mapped_rows(lambda name: quorum if name == _METADATA_PARTITION else _unknown(call, name[1]), named)
    return await call.made(_quorum_response, call, rows, nodes)


def _quorum_response(call: NodeCall, next_row: Callable[[], Any], nodes: tuple[Any, ...]) -> Any:
    topics = tuple(
        call.new.TopicData(topic_name=topic.topic_name, partitions=tuple(next_row() for _ in topic.partitions))
        for topic in call.request.topics
    )
    return call.new.response(error_code=ErrorCode.none, error_message="", topics=topics, nodes=nodes)


def _quorum(call: NodeCall) -> Any:
    cluster = call.cluster
    controller_id = cluster.controller_id
    # the metadata has no offsets here: the epoch of the features serves as one, because all nodes agree on it
    offset = cluster.finalized_features_epoch
    replicas = {node.node_id: _replica(call, node.node_id, offset) for node in cluster.living_nodes}
    return _quorum_row(
        call,
        0,
        ErrorCode.none,
        leader_id=controller_id,
        leader_epoch=1,
        high_watermark=offset,
        current_voters=(replicas.pop(controller_id),),
        observers=tuple(replicas.values()),
    )


def _replica(call: NodeCall, node_id: int, offset: int) -> Any:
    now_ms = call.cluster.clock.now_ms()
    return call.new.ReplicaState(
        replica_id=node_id,
        replica_directory_id=uuid.uuid5(uuid.NAMESPACE_OID, f"{call.cluster.cluster_id} {node_id}"),
        log_end_offset=offset,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _quorum_node(call: NodeCall, node: ClusterNode) -> Any:
    endpoint = call.endpoint(node)
    listener = call.new.Listener(name="CONTROLLER", host=endpoint.host, port=endpoint.port)
    return call.new.Node(node_id=node.node_id, listeners=(listener,))


def _unknown(call: NodeCall, index: int) -> Any:
    return _quorum_row(call, index, ErrorCode.unknown_topic_or_partition)


def _quorum_row(call: NodeCall, index: int, error: ErrorCode, **values: Any) -> Any:
    defaults = {"leader_id": 0, "leader_epoch": 0, "high_watermark": 0, "current_voters": (), "observers": ()}
    message = "" if error is ErrorCode.none else "This server does not host this topic-partition."
    fields = {**defaults, **values}
    return call.new.PartitionData(partition_index=index, error_code=error, error_message=message, **fields)


def refuse_describe_quorum(call: NodeCall, error: ErrorCode) -> Any:
    return call.new.response(error_code=error, topics=(), nodes=())


async def handle_update_features(call: NodeCall) -> Any:
    """Serve UpdateFeatures (key 57), versions 0-2.

    Sets the finalized levels of `transaction.version` and `group.version` while the cluster runs (KIP-584, KIP-778).
    Every node accepts it, just as brokers forward it to the controller.

    * v0 has AllowDowngrade, which Kafka's controller ignores: v0 only upgrades. v1 has the upgrade type (1 upgrade, 2
      safe and 3 unsafe downgrade) and ValidateOnly. v2 no longer has a result per feature.
    * An unsupported level, a downgrade with the wrong type and an unknown feature are 95. One of them refuses the whole
      request; in kafka-3.9, which has neither feature, each has its own result.
    * Level 0 removes the feature from the ApiVersions response. Every update increments the epoch of the finalized
      features.
    * Access: ALTER on the cluster (31).
    * A failure of the data directory is 56, without any change.
    * v2 is hidden by the profile kafka-3.9.
    """
    call.require(AclOperation.ALTER, ResourceType.CLUSTER)
    updates = call.request.feature_updates
    reasons = await mapped(lambda update: _why_not(call, update), updates)
    refused = next((reason for reason in reasons if reason is not None), None)
    if refused is not None and call.cluster.config.behaviours.features_change_together:
        message = f"The update failed for all features since the following feature had an error: {refused}"
        return _features_response(call, (), ErrorCode.invalid_update_version, message)
    accepted = {update.feature for update, reason in zip(updates, reasons, strict=True) if reason is None}
    if accepted and not getattr(call.request, "validate_only", False):
        levels = {update.feature: update.max_version_level for update in updates if update.feature in accepted}
        try:
            async with call.cluster.changes:
                await call.cluster.changes.make(call.cluster.finalize_features(levels))
        except StorageError as problem:
            return _features_response(call, (), ErrorCode.kafka_storage_error, str(problem))
    return await call.made(_features_response, call, tuple(zip(updates, reasons, strict=True)), ErrorCode.none, None)


def _why_not(call: NodeCall, update: Any) -> str | None:
    config = call.cluster.config
    supported = supported_levels(update.feature, config)
    reason = level_problem(
        update.max_version_level,
        getattr(update, "upgrade_type", UpgradeType.UPGRADE),
        finalized=finalized_level(update.feature, config),
        supported=supported,
    )
    if reason is None:
        return None
    return f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}"


def _features_response(
    call: NodeCall, results: tuple[tuple[Any, str | None], ...], error: ErrorCode, message: str | None
) -> Any:
    rows = {}
    if call.version < 2:
        rows["results"] = tuple(
            call.new.UpdatableFeatureResult(
                feature=update.feature,
                error_code=ErrorCode.none if reason is None else ErrorCode.invalid_update_version,
                error_message=reason,
            )
            for update, reason in results
        )
    return call.new.response(error_code=error, error_message=message, **rows)


def refuse_update_features(call: NodeCall, error: ErrorCode) -> Any:
    return _features_response(call, (), error, None)
