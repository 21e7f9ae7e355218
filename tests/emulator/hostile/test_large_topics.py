"""Requests about topics with ten thousand partitions, and about ten thousand topics: others are served in between."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.emulator.hostile.turns import LONGEST, watched
from tests.emulator.inside import cluster_of, run_in_loop
from tests.support.topics import delete_topic

MANY = 2_000
NAMED = 8_000
"""Partitions that one request names."""


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
    topics = {"big": MANY, "small": 1, "growing": 1, "doomed": MANY}
    with Emulator(config=config, topics=topics, control="127.0.0.1:0") as broker:
        yield broker


def _create(client: RawClient, name: str, partitions: int) -> Any:
    return client.create_topic(name, partitions, -1).error_code


def _creates(client: RawClient) -> None:
    assert _create(client, "created", MANY) is ErrorCode.none


def _extends(client: RawClient) -> None:
    topics = ({"name": "growing", "count": MANY, "assignments": None},)
    response = client.call("create_partitions", 3, topics=topics, timeout=milliseconds(30_000), validate_only=False)
    assert response.results[0].error_code is ErrorCode.none


def _deletes(client: RawClient) -> None:
    assert client.delete_topic("doomed").error_code is ErrorCode.none


def _deletes_records(client: RawClient) -> None:
    rows = tuple({"partition_index": index % MANY, "offset": -1} for index in range(NAMED))
    topics = ({"name": "big", "partitions": rows},)
    assert len(client.call("delete_records", 2, topics=topics, timeout=milliseconds(1)).topics[0].partitions) == NAMED


def _reassigns(client: RawClient) -> None:
    rows = tuple({"partition_index": index, "replicas": (0,)} for index in range(MANY))
    topics = ({"name": "big", "partitions": rows},)
    response = client.call("alter_partition_reassignments", 0, timeout=milliseconds(1), topics=topics)
    assert len(response.responses[0].partitions) == MANY


def _describes_configs(client: RawClient) -> None:
    resource = {"resource_type": 2, "resource_name": "small", "configuration_keys": None}
    options = {"include_synonyms": True, "include_documentation": True}
    assert len(client.call("describe_configs", 4, resources=(resource,) * 500, **options).results) == 500


def _alters_all_brokers(client: RawClient) -> None:
    change = {"name": "log.retention.ms", "config_operation": 0, "value": "100000000"}
    resources = ({"resource_type": 4, "resource_name": "", "configs": (change,)},)
    response = client.call("incremental_alter_configs", 1, resources=resources, validate_only=False)
    assert response.responses[0].error_code is ErrorCode.none


def _commits_a_transaction(client: RawClient) -> None:
    producer = client.init_producer_id("x")
    assert len(client.add_partitions("x", producer, "big", *(index % MANY for index in range(NAMED)))) == NAMED
    assert client.end_txn("x", producer, commit=True).error_code is ErrorCode.none


def _is_refused(client: RawClient) -> None:
    row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = ({"name": "big", "partitions": (row,) * 3 * NAMED},)
    response = client.call("list_offsets", 7, replica_id=-1, isolation_level=7, topics=topics)
    assert {row.error_code for row in response.topics[0].partitions} == {ErrorCode.unknown_server_error}


@pytest.mark.parametrize(
    "send",
    [
        _creates,
        _extends,
        _deletes,
        _deletes_records,
        _reassigns,
        _describes_configs,
        _alters_all_brokers,
        _commits_a_transaction,
        _is_refused,
    ],
)
def test_other_clients_are_served_in_between(emulator: Emulator, send: Callable[[RawClient], None]) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        with watched(emulator) as turns:
            send(client)
    assert turns.longest < LONGEST


def test_of_two_simultaneous_creations_one_succeeds(emulator: Emulator) -> None:
    with RawClient(emulator.bootstrap_servers) as one, RawClient(emulator.bootstrap_servers) as other:
        counts = {"num_partitions": 5000, "replication_factor": -1}
        topic = {"name": "twice", "assignments": (), "configs": (), **counts}
        values = {"topics": (topic,), "timeout": milliseconds(30_000), "validate_only": False}
        sent = [(client, client.send("create_topics", 7, **values)) for client in (one, other)]
        errors = [client.receive("create_topics", 7, number).topics[0].error_code for client, number in sent]
    assert sorted(errors) == [ErrorCode.none, ErrorCode.topic_already_exists]


def test_an_urgent_request_finishes_the_change_that_is_under_way(emulator: Emulator) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        topic = {
            "name": "interrupted",
            "num_partitions": MANY,
            "replication_factor": -1,
            "assignments": (),
            "configs": (),
        }
        values = {"topics": (topic,), "timeout": milliseconds(30_000), "validate_only": False}
        number = client.send("create_topics", 7, **values)
        emulator.create_topic("at-once", 3)
        response = client.receive("create_topics", 7, number)
    assert response.topics[0].error_code is ErrorCode.none
    assert len(cluster_of(emulator).topics["interrupted"].partitions) == MANY
    assert len(cluster_of(emulator).topics["at-once"].partitions) == 3


def test_a_deleted_topic_is_freed_without_a_collection(emulator: Emulator) -> None:
    """Objects that survive a long collection are exempt from later ones, so they may not be garbage in a cycle."""
    emulator.create_topic("freed", 3)
    gc.disable()
    try:
        log = run_in_loop(emulator, lambda: weakref.ref(cluster_of(emulator).topics["freed"].partitions[1].log))
        delete_topic(emulator, "freed")
        assert run_in_loop(emulator, log) is None
    finally:
        gc.enable()
