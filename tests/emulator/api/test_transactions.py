"""The transaction APIs over the wire: the coordinator's decisions as each version returns them."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.admin.transactions import DescribeTransactionsResponse

from dualwrite.broker_emulator import BrokerConfig, Emulator, PausePoint
from tests.emulator.api.raw_client import RawClient, batch_of, encode, milliseconds, plain_batch, request_parts

TWO_PHASE_COMMIT_TIMEOUT_MS = 2147483647


def end(client: RawClient, version: int, producer: Any, *, epoch: int | None = None, commit: bool = True) -> Any:
    return client.call(
        "end_txn",
        version,
        transactional_id="x",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch if epoch is None else epoch,
        committed=commit,
    )


def add(
    client: RawClient, version: int, producer: Any, *topics: tuple[str, int], verify_only: bool = False
) -> dict[tuple[str, int], int]:
    parts = request_parts("add_partitions_to_txn", version)
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    named = tuple(parts.AddPartitionsToTxnTopic(name=topic, partitions=(index,)) for topic, index in topics)
    if version >= 4:
        transaction = parts.AddPartitionsToTxnTransaction(
            transactional_id="x", **identity, verify_only=verify_only, topics=named
        )
        response = client.call("add_partitions_to_txn", version, transactions=(transaction,))
        assert response.error_code == 0
        results = response.results_by_transaction[0].topic_results
    else:
        old = {"transactional_id": "x", **identity, "topics": named}
        fields = {f"v3_and_below_{name}": value for name, value in old.items()}
        results = client.call("add_partitions_to_txn", version, **fields).results_by_topic_v3_and_below
    return {
        (topic.name, row.partition_index): int(row.partition_error_code)
        for topic in results
        for row in topic.results_by_partition
    }


@pytest.mark.parametrize(("version", "expected"), [(3, 47), (4, 90), (5, 90)])
def test_init_producer_id_of_a_fenced_producer(client: RawClient, version: int, expected: int) -> None:
    first = client.init_producer_id("x")
    for _ in range(3):
        client.init_producer_id("x")
    answer = client.call(
        "init_producer_id",
        version,
        transactional_id="x",
        transaction_timeout=milliseconds(1000),
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
    )
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (expected, -1, -1)


def test_init_producer_id_keeps_a_prepared_transaction(emulator: Emulator, client: RawClient) -> None:
    flags = {"enable2_pc": True, "keep_prepared_txn": False}
    prepared = client.init_producer_id("x", **flags)
    client.produce("t", batch_of(prepared, b"1"), transactional_id="x")
    recovering = client.init_producer_id("x", **{**flags, "keep_prepared_txn": True})
    assert recovering.error_code == 0
    assert recovering.ongoing_txn_producer_id == prepared.producer_id
    assert recovering.ongoing_txn_producer_epoch == prepared.producer_epoch
    assert emulator.transactions()[0].timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS
    assert end(client, 5, recovering).error_code == 0
    committed = client.fetch("t", max_wait_ms=5000)
    assert committed.last_stable_offset == 2
    assert committed.aborted_transactions == ()


def test_init_producer_id_beyond_the_maximum_timeout(client: RawClient) -> None:
    assert client.init_producer_id("x", transaction_timeout=milliseconds(900_001)).error_code == 50
    assert client.init_producer_id("").error_code == 42


@pytest.mark.parametrize("version", range(6))
def test_end_txn(client: RawClient, version: int) -> None:
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    ended = end(client, version, producer)
    assert ended.error_code == 0
    if version == 5:
        assert (ended.producer_id, ended.producer_epoch) == (producer.producer_id, producer.producer_epoch + 1)
    assert client.fetch("t", max_wait_ms=5000).last_stable_offset == 2


@pytest.mark.parametrize(("version", "expected"), [(0, 47), (1, 47), (2, 90), (5, 90)])
def test_end_txn_of_a_fenced_producer(client: RawClient, version: int, expected: int) -> None:
    producer = client.init_producer_id("x")
    for _ in range(3):
        client.init_producer_id("x")
    assert end(client, version, producer).error_code == expected


@pytest.mark.parametrize("version", range(6))
def test_add_partitions(emulator: Emulator, client: RawClient, version: int) -> None:
    producer = client.init_producer_id("x")
    assert add(client, version, producer, ("t", 0)) == {("t", 0): 0}
    assert emulator.transactions()[0].topic_partitions == (("t", 0),)


@pytest.mark.parametrize("version", range(6))
def test_one_unknown_partition_keeps_all_out(emulator: Emulator, client: RawClient, version: int) -> None:
    producer = client.init_producer_id("x")
    added = add(client, version, producer, ("t", 0), ("t", 7), ("nope", 0))
    assert added == {("t", 0): 55, ("t", 7): 3, ("nope", 0): 3}
    assert emulator.transactions()[0].state == "Empty"


@pytest.mark.parametrize(("version", "expected"), [(3, 29), (4, 0)])
def test_only_brokers_add_internal_partitions(client: RawClient, version: int, expected: int) -> None:
    producer = client.init_producer_id("x")
    internal = ("__consumer_offsets", 0)
    assert add(client, version, producer, internal) == {internal: expected}


@pytest.mark.parametrize(("version", "expected"), [(0, 47), (1, 47), (2, 90), (5, 90)])
def test_add_partitions_of_a_fenced_producer(client: RawClient, version: int, expected: int) -> None:
    producer = client.init_producer_id("x")
    client.init_producer_id("x")
    assert add(client, version, producer, ("t", 0)) == {("t", 0): expected}


@pytest.mark.parametrize("version", [4, 5])
def test_verify_only(emulator: Emulator, client: RawClient, version: int) -> None:
    emulator.create_topic("other")
    producer = client.init_producer_id("x")
    add(client, 3, producer, ("t", 0))
    verified = add(client, version, producer, ("t", 0), ("other", 0), verify_only=True)
    assert verified == {("t", 0): 0, ("other", 0): 120}


def write_marker(client: RawClient, version: int, producer: Any, topic: str, **values: Any) -> int:
    parts = request_parts("write_txn_markers", version)
    marker = parts.WritableTxnMarker(
        **{
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "transaction_result": False,
            "topics": (parts.WritableTxnMarkerTopic(name=topic, partition_indexes=(0,)),),
            "coordinator_epoch": 0,
            "transaction_version": 2,
            **values,
        }
    )
    response = client.call("write_txn_markers", version, markers=(marker,))
    return int(response.markers[0].topics[0].partitions[0].error_code)


def test_write_txn_markers_ends_a_hanging_transaction(client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    assert write_marker(client, 2, producer, "t") == 47  # TV2: the marker's epoch must be newer
    assert write_marker(client, 1, producer, "t") == 0  # the old rule: it may be equal
    fetched = client.fetch("t")
    assert fetched.last_stable_offset == 2
    assert [(row.producer_id, row.first_offset) for row in fetched.aborted_transactions] == [(producer.producer_id, 0)]


def test_write_txn_markers_refused(client: RawClient) -> None:
    producer = client.init_producer_id("x")
    assert write_marker(client, 1, producer, "nope") == 3
    assert write_marker(client, 1, producer, "t", coordinator_epoch=5) == 0
    assert write_marker(client, 1, producer, "t", coordinator_epoch=4) == 52
    assert client.call("write_txn_markers", 1, markers=()).markers == ()


def test_describe_producers(client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.produce("t", plain_batch(b"0"))
    client.produce("t", batch_of(producer, b"1", b"2"), transactional_id="x")
    parts = request_parts("describe_producers", 0)
    topics = (
        parts.TopicRequest(name="t", partition_indexes=(0, 5)),
        parts.TopicRequest(name="not/legal", partition_indexes=(0,)),
    )
    response = client.call("describe_producers", 0, topics=topics)
    rows = [partition for topic in response.topics for partition in topic.partitions]
    assert [row.error_code for row in rows] == [0, 3, 17]
    (active,) = rows[0].active_producers
    assert (active.producer_id, active.producer_epoch, active.last_sequence) == (producer.producer_id, 0, 1)
    assert (active.coordinator_epoch, active.current_txn_start_offset) == (-1, 1)


def test_describe_transactions(client: RawClient) -> None:
    """Decode with kafka-python: kio rejects the start time -1, which Kafka sends if there is none."""
    producer = client.init_producer_id("x")
    client.init_producer_id("idle", transaction_timeout=milliseconds(5))
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    client.send_bytes(encode("describe_transactions", 0, 1, "raw", transactional_ids=("x", "idle", "nope", "")))
    decode: Any = DescribeTransactionsResponse.decode
    response = decode(client.receive_frame()[5:], version=0)
    ongoing, idle, unknown, empty = response.transaction_states
    assert (ongoing.error_code, ongoing.transaction_state, ongoing.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert ongoing.transaction_start_time_ms > 1_700_000_000_000
    assert [(topic.topic, list(topic.partitions)) for topic in ongoing.topics] == [("t", [0])]
    assert (idle.transaction_state, idle.transaction_start_time_ms, idle.transaction_timeout_ms) == ("Empty", -1, 5)
    assert (unknown.error_code, empty.error_code) == (105, 42)


@pytest.mark.parametrize("version", range(3))
def test_list_transactions(client: RawClient, version: int) -> None:
    producer = client.init_producer_id("x")
    client.init_producer_id("idle")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")

    def listed(**filters: Any) -> list[tuple[str, str]]:
        values = {"state_filters": (), "producer_id_filters": (), **filters}
        response = client.call("list_transactions", version, **values)
        return sorted((row.transactional_id, row.transaction_state) for row in response.transaction_states)

    assert listed() == [("idle", "Empty"), ("x", "Ongoing")]
    assert listed(state_filters=("Ongoing",)) == [("x", "Ongoing")]
    assert listed(producer_id_filters=(producer.producer_id,)) == [("x", "Ongoing")]
    if version == 2:
        assert listed(transactional_id_pattern="i.*") == [("idle", "Empty")]
        pattern = {"state_filters": (), "producer_id_filters": (), "transactional_id_pattern": "["}
        assert client.call("list_transactions", 2, **pattern).error_code == 128
    unknown = client.call("list_transactions", version, state_filters=("Nope",), producer_id_filters=())
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (("Nope",), ())


def test_the_wrong_node_says_so() -> None:
    with Emulator(nodes=3, topics={"t": 1}) as emulator:
        clients = [RawClient(address) for address in emulator.bootstrap_servers.split(",")]
        coordinator = clients[0].call("find_coordinator", 3, key="x", key_type=1)
        errors = [client.init_producer_id("x").error_code for client in clients]
        assert sorted(errors) == [0, 16, 16]
        assert errors[coordinator.node_id] == 0
        assert emulator.bootstrap_servers.split(",")[coordinator.node_id].endswith(f":{coordinator.port}")


def test_a_transaction_across_nodes() -> None:
    with Emulator(nodes=3, topics={"many": 6}) as emulator:
        clients = [RawClient(address) for address in emulator.bootstrap_servers.split(",")]
        coordinator = clients[clients[0].call("find_coordinator", 3, key="x", key_type=1).node_id]
        producer = coordinator.init_producer_id("x")
        for index in range(6):
            leader = clients[emulator.log("many", index).leader_id]
            records = batch_of(producer, b"1")
            assert leader.produce("many", records, transactional_id="x", partition=index).error_code == 0
        hold = emulator.hold(PausePoint.AFTER_COMPLETE_APPEND)
        assert coordinator.end_txn("x", producer, commit=True).error_code == 0
        hold.wait_reached()
        hold.release()
        assert [emulator.log("many", index).last_stable_offset for index in range(6)] == [2] * 6
        assert len({emulator.log("many", index).leader_id for index in range(6)}) == 3


def test_a_deleted_topic_does_not_keep_a_transaction_open(emulator: Emulator, client: RawClient) -> None:
    producer = client.init_producer_id("x")
    client.produce("t", batch_of(producer, b"1"), transactional_id="x")
    client.call("delete_topics", 5, topic_names=("t",), timeout=milliseconds(1))
    hold = emulator.hold(PausePoint.AFTER_COMPLETE_APPEND)
    assert client.end_txn("x", producer, commit=True).error_code == 0
    hold.wait_reached()
    hold.release()
    assert emulator.transactions()[0].state == "CompleteCommit"


def test_two_phase_commit_can_be_disabled() -> None:
    config = BrokerConfig(transaction_two_phase_commit_enable=False)
    with Emulator(config=config) as emulator, RawClient(emulator.bootstrap_servers) as client:
        assert client.init_producer_id("x", enable2_pc=True).error_code == 53
