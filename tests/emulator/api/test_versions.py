"""Every API in every version: it is advertised, it has a response, and it can refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kio.schema.index import api_key_map

from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault, Profile
from dualwrite.broker_emulator.api import registry
from dualwrite.broker_emulator.api.registry import APIS, Api
from dualwrite.broker_emulator.messages.schemas import versions_of
from tests.emulator.api.raw_client import (
    ALL_VERSIONS,
    KEYS,
    RawClient,
    fetch_fields,
    milliseconds,
    plain_batch,
    produce_fields,
)
from tests.emulator.api.share_samples import ANSWERS, share_sample

ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def sample(api: str, version: int, topic_id: Any) -> dict[str, Any]:
    """Return a request with topic "t", group "g" and transactional id "x" wherever it has such a field."""
    producer = {"producer_id": 5, "producer_epoch": 0}
    topic = {"name": "t", "topic": "t", "topic_id": topic_id}
    partition: dict[str, Any]
    topics: tuple[dict[str, Any], ...]
    resource: dict[str, Any]
    match api:
        case "produce":
            return produce_fields(version, topic_id if version >= 13 else "t", plain_batch(b"v"))
        case "fetch":
            return fetch_fields(version, topic_id if version >= 13 else "t")
        case "list_offsets":
            partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": 0}
            topics = ({"name": "t", "partitions": (partition,)},)
            return {"replica_id": -1, "isolation_level": 1, "topics": topics, "timeout": milliseconds(0)}
        case "metadata":
            topics = ({"name": "t", "topic_id": None},)
            authorized = {
                "include_topic_authorized_operations": False,
                "include_cluster_authorized_operations": False,
            }
            return {"topics": topics, "allow_auto_topic_creation": True, **authorized}
        case "offset_commit":
            partition = {
                "partition_index": 0,
                "committed_offset": 3,
                "committed_leader_epoch": 0,
                "committed_metadata": "m",
            }
            topics = ({**topic, "partitions": (partition,)},)
            return {"group_id": "g", "member_id": "", "topics": topics}
        case "offset_fetch" if version >= 8:
            topics = ({**topic, "partition_indexes": (0,)},)
            return {"groups": ({"group_id": "g", "topics": topics},)}
        case "offset_fetch":
            return {"group_id": "g", "topics": ({"name": "t", "partition_indexes": (0,)},)}
        case "find_coordinator":
            return {"key": "x", "key_type": 1 if version else 0, "coordinator_keys": ("x", "y")}
        case "join_group":
            timeouts = {"session_timeout": milliseconds(6_000), "rebalance_timeout": milliseconds(6_000)}
            protocols = ({"name": "range", "metadata": b"m"},)
            return {"group_id": "g", "member_id": "", **timeouts, "protocol_type": "consumer", "protocols": protocols}
        case "heartbeat":
            return {"group_id": "g", "generation_id": 1, "member_id": "m"}
        case "leave_group":
            members = ({"member_id": "m"},) if version >= 3 else ()
            return {"group_id": "g", "member_id": "m", "members": members}
        case "sync_group":
            assignment = {"member_id": "m", "assignment": b"a"}
            names = {"protocol_type": "consumer", "protocol_name": "range"}
            return {"group_id": "g", "generation_id": 1, "member_id": "m", **names, "assignments": (assignment,)}
        case "describe_groups":
            return {"groups": ("g",), "include_authorized_operations": True}
        case "consumer_group_heartbeat":
            subscription = {"subscribed_topic_names": ("t",), "subscribed_topic_regex": None, "topic_partitions": ()}
            member = {"group_id": "g", "member_id": "m", "member_epoch": 0}
            return {**member, "rebalance_timeout": milliseconds(1), **subscription}
        case "consumer_group_describe":
            return {"group_ids": ("g",), "include_authorized_operations": True}
        case "list_groups":
            return {"states_filter": (), "types_filter": ()}
        case "delete_groups":
            return {"groups_names": ("g",)}
        case "offset_delete":
            partitions = ({"partition_index": 0},)
            return {"group_id": "g", "topics": ({"name": "t", "partitions": partitions},)}
        case "api_versions":
            return {"client_software_name": "raw", "client_software_version": "1.0"}
        case "create_topics":
            created = {"name": "new", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": ()}
            return {"topics": (created,)}
        case "delete_topics":
            states = ({"name": "t", "topic_id": None},) if version >= 6 else ()
            return {"topics": states, "topic_names": ("t",), "timeout": milliseconds(1)}
        case "delete_records":
            partition = {"partition_index": 0, "offset": 0}
            topics = ({"name": "t", "partitions": (partition,)},)
            return {"topics": topics, "timeout": milliseconds(1)}
        case "offset_for_leader_epoch":
            partition = {"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}
            return {"replica_id": -1, "topics": ({"topic": "t", "partitions": (partition,)},)}
        case "init_producer_id":
            flags = {"enable2_pc": True, "keep_prepared_txn": False}
            return {"transactional_id": "x", "transaction_timeout": milliseconds(1000), **flags}
        case "add_partitions_to_txn" if version >= 4:
            topics = ({"name": "t", "partitions": (0,)},)
            transaction = {"transactional_id": "x", **producer, "verify_only": False, "topics": topics}
            return {"transactions": (transaction,)}
        case "add_partitions_to_txn":
            topics = ({"name": "t", "partitions": (0,)},)
            old = {"transactional_id": "x", **producer, "topics": topics}
            return {f"v3_and_below_{name}": value for name, value in old.items()}
        case "add_offsets_to_txn":
            return {"transactional_id": "x", **producer, "group_id": "g"}
        case "end_txn":
            return {"transactional_id": "x", **producer, "committed": True}
        case "write_txn_markers":
            topics = ({"name": "t", "partition_indexes": (0,)},)
            marker = {
                **producer,
                "transaction_result": True,
                "topics": topics,
                "coordinator_epoch": 0,
                "transaction_version": 2,
            }
            return {"markers": (marker,)}
        case "txn_offset_commit":
            partition = {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_metadata": "m",
                "committed_leader_epoch": 0,
            }
            topics = ({**topic, "partitions": (partition,)},)
            return {"transactional_id": "x", "group_id": "g", **producer, "topics": topics}
        case "update_features":
            update = {
                "feature": "transaction.version",
                "max_version_level": 2,
                "upgrade_type": 1,
                "allow_downgrade": False,
            }
            return {"feature_updates": (update,), "validate_only": False}
        case "describe_cluster":
            return {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": False}
        case "describe_producers":
            return {"topics": ({"name": "t", "partition_indexes": (0,)},)}
        case "describe_transactions":
            return {"transactional_ids": ()}
        case "list_transactions":
            return {"state_filters": (), "producer_id_filters": ()}
        case "describe_acls":
            return ANY_ACL
        case "create_acls":
            created = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3}
            entry = {"principal": "User:x", "host": "*", "operation": 3, "permission_type": 3}
            return {"creations": ({**created, **entry},)}
        case "delete_acls":
            return {"filters": ({**ANY_ACL},)}
        case "alter_replica_log_dirs":
            topics = ({"name": "t", "partitions": (0,)},)
            return {"dirs": ({"path": "/memory", "topics": topics},)}
        case "describe_configs":
            resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
            return {"resources": (resource,), "include_synonyms": True, "include_documentation": True}
        case "alter_configs" | "incremental_alter_configs":
            config = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
            resource = {"resource_type": 2, "resource_name": "t", "configs": (config,)}
            return {"resources": (resource,), "validate_only": False}
        case "list_config_resources":
            return {"resource_types": ()}
        case "describe_log_dirs":
            return {"topics": ({"topic": "t", "partitions": (0,)},)}
        case "create_partitions":
            topics = ({"name": "t", "count": 9, "assignments": None},)
            return {"topics": topics, "timeout": milliseconds(1), "validate_only": True}
        case "elect_leaders":
            named = ({"topic": "t", "partitions": (0,)},)
            return {"election_type": 0, "topic_partitions": named, "timeout": milliseconds(1)}
        case "alter_partition_reassignments":
            moved = ({"partition_index": 0, "replicas": (0,)},)
            return {"topics": ({"name": "t", "partitions": moved},), "timeout": milliseconds(1)}
        case "list_partition_reassignments":
            return {"topics": None, "timeout": milliseconds(1)}
        case "describe_client_quotas":
            return {"components": (), "strict": False}
        case "alter_client_quotas":
            entity = ({"entity_type": "client-id", "entity_name": "c"},)
            changes = ({"key": "producer_byte_rate", "value": 1e9, "remove": False},)
            return {"entries": ({"entity": entity, "ops": changes},), "validate_only": True}
        case "sasl_handshake":
            return {"mechanism": "PLAIN"}
        case "sasl_authenticate":
            return {"auth_bytes": b""}
        case "describe_user_scram_credentials":
            return {"users": None}
        case "alter_user_scram_credentials":
            keys = {"salt": b"salt", "salted_password": b"p" * 32}
            user = {"name": "u", "mechanism": 1, "iterations": 4096, **keys}
            return {"deletions": (), "upsertions": (user,)}
        case "describe_quorum":
            asked = ({"partition_index": 0},)
            return {"topics": ({"topic_name": "__cluster_metadata", "partitions": asked},)}
        case "describe_topic_partitions":
            return {"topics": ({"name": "t"},), "response_partition_limit": 10, "cursor": None}
    fields = share_sample(api, version, topic_id)
    assert fields is not None, api
    return fields


def error_codes(message: Any) -> list[int]:
    """Return every error code in a response."""
    found = []
    for name in type(message).__dataclass_fields__:
        value = getattr(message, name)
        if name in ("error_code", "partition_error_code"):
            found.append(int(value))
        for item in value if isinstance(value, tuple) else (value,):
            if hasattr(type(item), "__dataclass_fields__"):
                found += error_codes(item)
    return found


NOT_BEGUN = dict.fromkeys(("add_partitions_to_txn", "add_offsets_to_txn", "end_txn", "txn_offset_commit"), 49)
NO_ACCESS_CONTROL = dict.fromkeys(("describe_acls", "create_acls", "delete_acls"), 54)
NO_LOGIN_DUE = dict.fromkeys(("sasl_handshake", "sasl_authenticate"), 34)
NO_SUCH_GROUP = {
    **dict.fromkeys(("heartbeat", "leave_group", "sync_group"), 25),
    **dict.fromkeys(("delete_groups", "offset_delete", "consumer_group_describe"), 69),
}
SINCE_VERSION = {("join_group", 4): 79, ("describe_groups", 6): 69}


def answer_to_sample(api: str, version: int) -> int:
    """Return the error of the sample: its transactional id and its group were never initialised."""
    errors = {**NOT_BEGUN, **NO_ACCESS_CONTROL, **NO_LOGIN_DUE, **NO_SUCH_GROUP, **ANSWERS, "elect_leaders": 84}
    errors |= {name: error for (name, since), error in SINCE_VERSION.items() if version >= since}
    return errors.get(api, 0)


@pytest.mark.parametrize(("api", "version"), ALL_VERSIONS)
def test_every_version_answers_and_can_refuse(emulator: Emulator, client: RawClient, api: str, version: int) -> None:
    request = sample(api, version, client.topic_id("t"))
    answered = error_codes(client.call(api, version, **request))
    assert set(answered) - {0} == {answer_to_sample(api, version)} - {0}, answered

    request = sample(api, version, client.topic_id("t") if api != "delete_topics" else None)
    emulator.faults.add(Fault(api=api, action=Error(41)))
    refused = error_codes(client.call(api, version, **request))
    can_say = api not in ("describe_transactions",)  # the sample names no id, because kio cannot read a start of -1
    assert set(refused) <= {0, 41}, refused
    assert 41 in refused or not can_say


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.schema_name)
def test_the_whole_range_of_the_codec_is_served_and_the_docstring_says_so(api: Api) -> None:
    offered = versions_of(api.schema_name)
    assert (api.min_version, api.max_version) == (min(offered), max(offered))
    assert api_key_map[api.key] == api.schema_name
    assert KEYS[api.schema_name] == api.key
    versions = f"{api.min_version}-{api.max_version}" if api.max_version else "0"
    documentation = api.functions.handle.__doc__ or ""
    header = re.fullmatch(r"Serve (\w+) \(key (\d+)\), versions? ([\d-]+)\.", documentation.split("\n")[0])
    assert header is not None, documentation
    assert header.groups() == (api.schema_name.title().replace("_", ""), str(api.key), versions)


def test_every_handler_is_served() -> None:
    files = {path.stem: path.read_text() for path in Path(registry.__file__).parent.glob("*.py")}
    handlers = {(file, name) for file, text in files.items() for name in re.findall(r"def handle_(\w+)", text)}
    assert handlers == {(file, APIS[key].schema_name) for file, keys in registry.FILES.items() for key in keys}
    assert sorted(key for keys in registry.FILES.values() for key in keys) == sorted(APIS)


def advertised(client: RawClient) -> dict[str, tuple[int, int]]:
    response = client.call("api_versions", 4, **sample("api_versions", 4, None))
    return {api_key_map[row.api_key]: (row.min_version, row.max_version) for row in response.api_keys}


FEATURES = [("group.version", 0, 1), ("share.version", 0, 1), ("transaction.version", 0, 2)]
FINALIZED = [("group.version", 1), ("share.version", 1), ("transaction.version", 2)]


@pytest.mark.parametrize(
    ("config", "version", "supported", "finalized"),
    [
        (BrokerConfig(), 3, [], FINALIZED),
        (BrokerConfig(), 4, FEATURES, FINALIZED),
        (BrokerConfig(transaction_version=1), 4, FEATURES, [*FINALIZED[:2], ("transaction.version", 1)]),
        (BrokerConfig(transaction_version=0, group_version=0, share_version=0), 4, FEATURES, []),
        (BrokerConfig(profile=Profile.KAFKA_3_9), 4, [], []),
    ],
)
def test_features(config: BrokerConfig, version: int, supported: list[Any], finalized: list[Any]) -> None:
    with Emulator(config=config) as emulator, RawClient(emulator.bootstrap_servers) as client:
        response = client.call("api_versions", version, **sample("api_versions", version, None))
    assert [(row.name, row.min_version, row.max_version) for row in response.supported_features] == supported
    assert [(row.name, row.max_version_level) for row in response.finalized_features] == finalized
