"""One request of every API that requires a right, by the cases' names, and the compared parts of a response.

Requests are about the topic `known`, which exists, the topic `missing`, which does not, and the group `offsets`, which
has committed. Requests with effects are about resources that bear the user's name.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kafka.protocol.api_message import ApiMessage

from tests.emulator.api.raw_client import decode, encode, milliseconds
from tests.interop.wire import EARLIEST, Wire, message, record_batch

NO_OPERATIONS = -(2**31)
FETCH = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "forgotten_topics_data": []}
"""The common fields of every Fetch, without a session."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A user, a broker, and a super user to prepare the case."""

    admin: Wire
    who: str
    known_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class KioRequest:
    """A request that kafka-python has no codec for."""

    api: str
    version: int
    values: Mapping[str, Any]


Request = ApiMessage | KioRequest


def ask(wire: Wire, request: Request) -> dict[str, Any]:
    """The decoded response to a request."""
    if isinstance(request, KioRequest):
        frame = wire.exchange(encode(request.api, request.version, 1, "wire", **request.values)[4:])
        answer: dict[str, Any] = asdict(decode(request.api, request.version, frame)[1])
        return answer
    decoded: dict[str, Any] = wire.call(request).to_dict()
    return decoded


def known_and_missing(partitions: list[Any], **names: str) -> list[dict[str, Any]]:
    """The two topics, with the same partitions."""
    ((name, values),) = names.items() or {"name": "partitions"}.items()
    return [{name: topic, values: partitions} for topic in ("known", "missing")]


# -- the data


def produce(scene: Scene) -> ApiMessage:
    partition = {"index": 0, "records": record_batch([b"v"])}
    topics = known_and_missing([partition], name="partition_data")
    return message("Produce", 9, transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=topics)


def produce_by_id(scene: Scene) -> ApiMessage:
    partition = {"index": 0, "records": record_batch([b"v"])}
    topics = [{"topic_id": topic_id, "partition_data": [partition]} for topic_id in (scene.known_id, uuid.UUID(int=7))]
    return message("Produce", 13, transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=topics)


def produce_in_transaction(scene: Scene) -> ApiMessage:
    identity = scene.admin.init_ok(scene.who)
    partition = {"index": 0, "records": record_batch([b"v"], identity, 0, transactional=True)}
    topics = known_and_missing([partition], name="partition_data")
    return message("Produce", 12, transactional_id=scene.who, acks=-1, timeout_ms=1_000, topic_data=topics)


def fetch(scene: Scene) -> ApiMessage:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return message("Fetch", 12, replica_id=-1, topics=known_and_missing([partition], topic="partitions"), **FETCH)


def fetch_by_id(scene: Scene) -> ApiMessage:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic_id": topic_id, "partitions": [partition]} for topic_id in (scene.known_id, uuid.UUID(int=7))]
    return message("Fetch", 13, replica_id=-1, topics=topics, **FETCH)


def fetch_as_replica(scene: Scene) -> ApiMessage:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return message("Fetch", 12, replica_id=1, topics=known_and_missing([partition], topic="partitions"), **FETCH)


def list_offsets(scene: Scene) -> ApiMessage:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": EARLIEST}
    topics = known_and_missing([partition], name="partitions")
    return message("ListOffsets", 7, replica_id=-1, isolation_level=0, topics=topics)


def offset_for_leader_epoch(scene: Scene) -> ApiMessage:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = known_and_missing([partition], topic="partitions")
    return message("OffsetForLeaderEpoch", 4, replica_id=-2, topics=topics)


def delete_records(scene: Scene) -> ApiMessage:
    partition = {"partition_index": 0, "offset": 0}
    return message("DeleteRecords", 2, topics=known_and_missing([partition], name="partitions"), timeout_ms=1_000)


# -- topics


def _metadata(version: int, topics: list[Any] | None, *, creates: bool = False, operations: bool = False) -> ApiMessage:
    asked = {"include_topic_authorized_operations": operations} if version >= 8 else {}
    asked |= {"include_cluster_authorized_operations": operations} if 8 <= version <= 10 else {}
    return message("Metadata", version, topics=topics, allow_auto_topic_creation=creates, **asked)


def describe_topic_partitions(scene: Scene) -> ApiMessage:
    topics = [{"name": "known"}, {"name": "missing"}]
    return message("DescribeTopicPartitions", 0, topics=topics, response_partition_limit=10, cursor=None)


def create_topics(scene: Scene) -> ApiMessage:
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in (f"new-{scene.who}", "known")
    ]
    return message("CreateTopics", 7, topics=topics, timeout_ms=5_000, validate_only=False)


def create_partitions(scene: Scene) -> ApiMessage:
    topics = [{"name": name, "count": 1, "assignments": None} for name in ("known", "missing")]
    return message("CreatePartitions", 3, topics=topics, timeout_ms=5_000, validate_only=True)


def delete_topics(scene: Scene) -> ApiMessage:
    scene.admin.create_topic(f"doomed-{scene.who}")
    topics = [{"name": name, "topic_id": uuid.UUID(int=0)} for name in (f"doomed-{scene.who}", "missing")]
    return message("DeleteTopics", 6, topics=topics, timeout_ms=5_000)


def delete_topics_by_id(scene: Scene) -> ApiMessage:
    name = f"doomed-{scene.who}"
    scene.admin.create_topic(name)
    topic_id = scene.admin.call(_metadata(12, [{"name": name}])).topics[0].topic_id
    return message("DeleteTopics", 6, topics=[{"name": None, "topic_id": topic_id}], timeout_ms=5_000)


# -- groups


def _commit(scene: Scene, topics: list[dict[str, Any]], version: int) -> ApiMessage:
    return message(
        "OffsetCommit",
        version,
        group_id=f"group-{scene.who}",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=topics,
    )


COMMITTED = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}


def offset_commit_by_id(scene: Scene) -> ApiMessage:
    topics = [{"topic_id": topic_id, "partitions": [COMMITTED]} for topic_id in (scene.known_id, uuid.UUID(int=7))]
    return _commit(scene, topics, 10)


def offset_fetch(scene: Scene) -> ApiMessage:
    topics = known_and_missing([0], name="partition_indexes")
    return message("OffsetFetch", 7, group_id="offsets", topics=topics, require_stable=False)


def offset_fetch_of_all(scene: Scene) -> ApiMessage:
    groups = [{"group_id": group_id, "topics": None} for group_id in ("offsets", "others")]
    return message("OffsetFetch", 8, groups=groups, require_stable=False)


def offset_fetch_by_id(scene: Scene) -> ApiMessage:
    topics = [{"topic_id": topic_id, "partition_indexes": [0]} for topic_id in (scene.known_id, uuid.UUID(int=7))]
    return message("OffsetFetch", 10, groups=[{"group_id": "offsets", "topics": topics}], require_stable=False)


def offset_delete(scene: Scene) -> ApiMessage:
    scene.admin.call(_commit(scene, [{"name": "known", "partitions": [COMMITTED]}], 8))
    topics = known_and_missing([{"partition_index": 0}], name="partitions")
    return message("OffsetDelete", 0, group_id=f"group-{scene.who}", topics=topics)


MEMBER = {"generation_id": 1, "member_id": "absent", "group_instance_id": None}


def sync_group(scene: Scene) -> ApiMessage:
    names = {"protocol_type": "consumer", "protocol_name": "range"}
    return message("SyncGroup", 5, group_id="offsets", assignments=[], **MEMBER, **names)


def delete_groups(scene: Scene) -> ApiMessage:
    scene.admin.call(_commit(scene, [{"name": "known", "partitions": [COMMITTED]}], 8))
    return message("DeleteGroups", 2, groups_names=[f"group-{scene.who}"])


def _consumer_heartbeat(scene: Scene, **subscription: Any) -> KioRequest:
    fields = {
        "group_id": f"consumers-{scene.who}",
        "member_id": str(uuid.uuid4()),
        "member_epoch": 0,
        "rebalance_timeout": milliseconds(20_000),
        "subscribed_topic_names": None,
        "subscribed_topic_regex": None,
        "topic_partitions": (),
    }
    return KioRequest("consumer_group_heartbeat", 1, fields | subscription)


def consumer_group_heartbeat(scene: Scene) -> KioRequest:
    return _consumer_heartbeat(scene, subscribed_topic_names=("known",))


def consumer_group_describe(scene: Scene) -> KioRequest:
    joined = ask(scene.admin, consumer_group_heartbeat(scene))
    assert joined["assignment"]["topic_partitions"], joined
    group_ids = (f"consumers-{scene.who}",)
    return KioRequest("consumer_group_describe", 1, {"group_ids": group_ids, "include_authorized_operations": True})


# -- transactions


def _init(transactional_id: str | None, version: int = 5, **fields: Any) -> ApiMessage:
    return message(
        "InitProducerId",
        version,
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
        **fields,
    )


def add_partitions_to_txn(scene: Scene) -> ApiMessage:
    identity = scene.admin.init_ok(scene.who)
    return message(
        "AddPartitionsToTxn",
        3,
        v3_and_below_transactional_id=scene.who,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.producer_epoch,
        v3_and_below_topics=[{"name": name, "partitions": [0]} for name in ("known", "other")],
    )


def add_partitions_to_txn_by_broker(scene: Scene) -> ApiMessage:
    identity = scene.admin.init_ok(scene.who)
    transaction = {
        "transactional_id": scene.who,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
        "verify_only": False,
        "topics": [{"name": "known", "partitions": [0]}],
    }
    return message("AddPartitionsToTxn", 4, transactions=[transaction])


def _of_transaction(scene: Scene) -> dict[str, Any]:
    identity = scene.admin.init_ok(scene.who)
    return {
        "transactional_id": scene.who,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.producer_epoch,
    }


def txn_offset_commit(scene: Scene) -> ApiMessage:
    membership = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    topics = known_and_missing([COMMITTED], name="partitions")
    group_id = f"group-{scene.who}"
    return message("TxnOffsetCommit", 5, group_id=group_id, topics=topics, **_of_transaction(scene), **membership)


def end_txn(scene: Scene) -> ApiMessage:
    """There is no transaction to end: a permitted user gets 48."""
    return message("EndTxn", 4, committed=True, **_of_transaction(scene))


def write_txn_markers(scene: Scene) -> ApiMessage:
    marker = {"producer_id": 77, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    topics = known_and_missing([0], name="partition_indexes")
    return message("WriteTxnMarkers", 1, markers=[{**marker, "topics": topics}])


def describe_transactions(scene: Scene) -> ApiMessage:
    identity = scene.admin.init_ok(scene.who)
    assert scene.admin.add(scene.who, identity, ("known", 0), ("other", 0)) == [0, 0]
    return message("DescribeTransactions", 0, transactional_ids=[scene.who])


def list_transactions(scene: Scene) -> ApiMessage:
    identity = scene.admin.init_ok(scene.who)
    return message("ListTransactions", 0, state_filters=[], producer_id_filters=[identity.producer_id])


# -- the cluster


def describe_quorum(scene: Scene) -> ApiMessage:
    topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    return message("DescribeQuorum", 1, topics=[topic])


def update_features(scene: Scene) -> ApiMessage:
    update = {"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}
    return message("UpdateFeatures", 1, timeout_ms=5_000, feature_updates=[update], validate_only=True)


ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": "User:absent",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def create_acls(scene: Scene) -> ApiMessage:
    acl = {"resource_type": 2, "resource_name": "x", "resource_pattern_type": 3, "principal": "User:absent"}
    return message("CreateAcls", 2, creations=[{**acl, "host": "*", "operation": 3, "permission_type": 3}])


TOPIC, BROKER, CLIENT_METRICS = 2, 4, 16
RESOURCES = [(TOPIC, "known"), (TOPIC, "missing"), (BROKER, "")]


def describe_configs(scene: Scene) -> ApiMessage:
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": ["retention.ms"]}
        for kind, name in RESOURCES
    ]
    return message("DescribeConfigs", 4, resources=resources)


def alter_configs(scene: Scene) -> ApiMessage:
    topics = [(kind, name) for kind, name in RESOURCES if kind == TOPIC]
    resources = [{"resource_type": kind, "resource_name": name, "configs": []} for kind, name in topics]
    return message("AlterConfigs", 2, resources=resources, validate_only=True)


def incremental_alter_configs(scene: Scene) -> ApiMessage:
    resources = [{"resource_type": kind, "resource_name": name, "configs": []} for kind, name in RESOURCES]
    return message("IncrementalAlterConfigs", 1, resources=resources, validate_only=True)


def alter_replica_log_dirs(scene: Scene) -> ApiMessage:
    directory = {"path": "/nowhere", "topics": [{"name": "missing", "partitions": [0]}]}
    return message("AlterReplicaLogDirs", 2, dirs=[directory])


def elect_leaders(scene: Scene) -> ApiMessage:
    partitions = [{"topic": "known", "partitions": [0]}]
    return message("ElectLeaders", 2, election_type=0, topic_partitions=partitions, timeout_ms=5_000)


def alter_partition_reassignments(scene: Scene) -> ApiMessage:
    topic = {"name": "missing", "partitions": [{"partition_index": 0, "replicas": None}]}
    return message("AlterPartitionReassignments", 0, timeout_ms=5_000, topics=[topic])


def alter_client_quotas(scene: Scene) -> ApiMessage:
    entry = {
        "entity": [{"entity_type": "user", "entity_name": "absent"}],
        "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
    }
    return message("AlterClientQuotas", 1, entries=[entry], validate_only=True)


# -- the compared parts of a response

_NAMES = ("name", "topic", "group_id", "transactional_id", "key", "entity_name", "resource_name", "user", "topic_name")
_SHOWN = ("error_code", "partition_error_code")


def codes(answer: dict[str, Any], scene: Scene) -> dict[str, int]:
    """Every error code of a response, and every set of authorized operations, by the names that they stand under.

    A listed resource without an error code of its own counts as 0. The user's own name is written `?`, and a topic that
    is only named by its id `#known` or `#`.
    """
    found: dict[str, int] = {}
    _collect(answer, "", found, str(scene.known_id))
    return {place.replace(scene.who, "?"): code for place, code in sorted(found.items())}


def _collect(value: Any, place: str, found: dict[str, int], known_id: str) -> None:
    if isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, place, found, known_id)
    elif isinstance(value, dict):
        name = _name(value, known_id)
        place = f"{place}/{name}".strip("/") if name else place
        for key, inner in value.items():
            if key in _SHOWN:
                found[place] = int(inner)
            elif key == "topic_config_error_code" and inner:
                found[f"{place} configs"] = int(inner)
            elif key.endswith("authorized_operations"):
                if inner not in (None, NO_OPERATIONS):
                    found[f"{place} operations".strip()] = _bits(inner)
            elif key != "configs":
                _collect(inner, place, found, known_id)
        if name:
            found.setdefault(place, 0)


def _bits(operations: int | list[int]) -> int:
    """Some messages are decoded to a list."""
    return operations if isinstance(operations, int) else sum(1 << int(operation) for operation in operations)


def _name(value: dict[str, Any], known_id: str) -> str:
    for key in _NAMES:
        if value.get(key):
            return str(value[key])
    if "topic_id" in value:
        return "#known" if str(value["topic_id"]) == known_id else "#"
    return ""


def requests_of(module: Mapping[str, Any]) -> dict[str, Callable[[Scene], Request]]:
    """Return the functions of a module that make requests, by their names."""
    return {
        name: function
        for name, function in list(module.items())
        if callable(function) and getattr(function, "__annotations__", {}).get("return") in ("ApiMessage", "KioRequest")
        if not name.startswith("_") and name != "message"
    }


_AT_ONCE: dict[str, Callable[[Scene], Request]] = {
    "describe_producers": lambda scene: message(
        "DescribeProducers", 0, topics=known_and_missing([0], name="partition_indexes")
    ),
    "metadata": lambda scene: _metadata(12, [{"name": "known"}, {"name": "missing"}]),
    "metadata_of_all": lambda scene: _metadata(12, None),
    "metadata_by_id": lambda scene: _metadata(12, [{"name": None, "topic_id": scene.known_id}]),
    "metadata_that_creates": lambda scene: _metadata(8, [{"name": f"new-{scene.who}"}], creates=True),
    "metadata_with_operations": lambda scene: _metadata(10, [{"name": "known"}], operations=True),
    "delete_topics_by_unknown_id": lambda scene: message(
        "DeleteTopics", 6, topics=[{"name": None, "topic_id": uuid.UUID(int=7)}], timeout_ms=5_000
    ),
    "find_group_coordinator": lambda scene: message("FindCoordinator", 3, key="offsets", key_type=0),
    "find_transaction_coordinators": lambda scene: message(
        "FindCoordinator", 4, key_type=1, coordinator_keys=[scene.who, "other"]
    ),
    "find_share_coordinator": lambda scene: message("FindCoordinator", 6, key_type=2, coordinator_keys=["no-key"]),
    "offset_commit": lambda scene: _commit(scene, known_and_missing([COMMITTED], name="partitions"), 8),
    "join_group": lambda scene: message(
        "JoinGroup",
        5,
        group_id=f"group-{scene.who}",
        session_timeout_ms=6_000,
        rebalance_timeout_ms=6_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    ),
    "heartbeat": lambda scene: message("Heartbeat", 4, group_id="offsets", **MEMBER),
    "leave_group": lambda scene: message(
        "LeaveGroup", 4, group_id="offsets", members=[{"member_id": "x", "group_instance_id": None}]
    ),
    "describe_groups": lambda scene: message(
        "DescribeGroups", 5, groups=["offsets", "others"], include_authorized_operations=True
    ),
    "list_groups": lambda scene: message("ListGroups", 4, states_filter=["Empty"]),
    "consumer_group_heartbeat_with_regex": lambda scene: _consumer_heartbeat(
        scene, subscribed_topic_regex="known|missing"
    ),
    "init_producer_id": lambda scene: _init(scene.who),
    "init_producer_id_without_transactions": lambda scene: _init(None),
    "init_producer_id_with_two_phase_commit": lambda scene: _init(
        scene.who, 6, enable2_pc=True, keep_prepared_txn=False
    ),
    "add_offsets_to_txn": lambda scene: message("AddOffsetsToTxn", 3, group_id="offsets", **_of_transaction(scene)),
    "describe_cluster": lambda scene: message("DescribeCluster", 0, include_cluster_authorized_operations=True),
    "describe_acls": lambda scene: message("DescribeAcls", 2, **ANY_ACL),
    "delete_acls": lambda scene: message("DeleteAcls", 2, filters=[{**ANY_ACL, "principal_filter": "User:another"}]),
    "list_config_resources": lambda scene: message("ListConfigResources", 1, resource_types=[CLIENT_METRICS]),
    "describe_log_dirs": lambda scene: message("DescribeLogDirs", 4, topics=[{"topic": "missing", "partitions": [0]}]),
    "list_partition_reassignments": lambda scene: message(
        "ListPartitionReassignments", 0, timeout_ms=5_000, topics=None
    ),
    "describe_client_quotas": lambda scene: message("DescribeClientQuotas", 1, components=[], strict=False),
    "describe_user_scram_credentials": lambda scene: message(
        "DescribeUserScramCredentials", 0, users=[{"name": "absent"}]
    ),
    "alter_user_scram_credentials": lambda scene: message(
        "AlterUserScramCredentials", 0, deletions=[{"name": "absent", "mechanism": 1}], upsertions=[]
    ),
}
"""Requests that need no preparation."""

ADMIN_AND_CLIENT_REQUESTS = _AT_ONCE | requests_of(globals())
"""All but those of share groups."""
