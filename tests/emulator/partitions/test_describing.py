"""DescribeTopicPartitions (KIP-966), DescribeLogDirs and AlterReplicaLogDirs (KIP-113, KIP-827), DescribeQuorum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.emulator.partitions.admin_requests import describe, log_dirs, move_to_directory
from tests.emulator.partitions.conftest import CONFIG


def pages(client: RawClient, topics: list[str], limit: int) -> list[list[tuple[str, list[int]]]]:
    """Every page, until there is no cursor."""
    found, cursor = [], None
    while True:
        response = describe(client, topics, limit, cursor)
        found.append([(topic.name, [row.partition_index for row in topic.partitions]) for topic in response.topics])
        if response.next_cursor is None:
            return found
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)


def test_page_by_page(emulator: Emulator, client: RawClient) -> None:
    emulator.create_topic("page-a", 3)
    emulator.create_topic("page-b", 2)
    assert pages(client, ["page-b", "page-a"], 2) == [
        [("page-a", [0, 1])],
        [("page-a", [2]), ("page-b", [0])],
        [("page-b", [1])],
    ]
    assert pages(client, ["page-b", "page-a"], 3) == [[("page-a", [0, 1, 2])], [("page-b", [0, 1])]]
    assert pages(client, ["page-a"], 0) == [[("page-a", [index])] for index in range(3)]
    everything = [row for page in pages(client, [], 2) for row in page]
    assert ("__consumer_offsets", [0, 1]) in everything


def test_stopped_nodes_are_listed_on_request() -> None:
    """KIP-1073; and KIP-919: brokers know nothing of endpoints of another type."""
    with Emulator(nodes=2, config=CONFIG) as emulator, RawClient(emulator.bootstrap_servers) as client:
        emulator.stop_node(1)

        def ask(endpoint_type: int = 1, *, with_fenced: bool = False) -> Any:
            return client.call(
                "describe_cluster",
                2,
                include_cluster_authorized_operations=False,
                endpoint_type=endpoint_type,
                include_fenced_brokers=with_fenced,
            )

        assert [(broker.broker_id, broker.is_fenced) for broker in ask().brokers] == [(0, False)]
        both = [(broker.broker_id, broker.is_fenced) for broker in ask(with_fenced=True).brokers]
        assert both == [(0, False), (1, True)]
        assert (ask(2).error_code, ask(3).error_code) == (114, 115)
        assert ask(3).error_message == "Unsupported endpoint type 3"


@pytest.fixture(params=["memory", "disk"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "data"


def test_sizes_are_those_of_the_batches(data_dir: Path | None) -> None:
    with Emulator(config=CONFIG, topics={"t": 2, "u": 1}, data_dir=data_dir) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            batch = plain_batch(b"v" * 100)
            for _ in range(3):
                client.produce("t", batch, partition=1)
            (directory,) = log_dirs(client, {"t": [0, 1, 7], "nope": [0]}).results
            sizes = {
                (topic.name, row.partition_index): (row.partition_size, row.offset_lag)
                for topic in directory.topics
                for row in topic.partitions
            }
            assert sizes == {("t", 0): (0, 0), ("t", 1): (3 * len(batch), 0)}
            if data_dir is None:
                assert directory.log_dir == "/memory"
                assert directory.total_bytes - directory.usable_bytes > 3 * len(batch)
            else:
                assert directory.log_dir == str(data_dir)
                assert sum(path.stat().st_size for path in data_dir.glob("t-1/*.log")) == 3 * len(batch)
                assert directory.total_bytes > directory.usable_bytes > 0
            assert {topic.name for topic in log_dirs(client).results[0].topics} >= {"t", "u", "__consumer_offsets"}
            assert log_dirs(client, {}).results[0].topics == ()
            assert client.call("describe_log_dirs", 5, topics=None).results[0].is_cordoned is False

            assert move_to_directory(client, directory.log_dir, "t", 0) == 0
            assert move_to_directory(client, "/elsewhere", "t", 0) == 57
            assert move_to_directory(client, directory.log_dir, "t", 7) == 3
            assert move_to_directory(client, directory.log_dir, "t" * 249, 0) == 17


def test_each_node_describes_its_own_replicas(emulator: Emulator, topic: str) -> None:
    emulator.reassign(topic, 0, [1])
    found: list[list[int]] = []
    for address in emulator.bootstrap_servers.split(","):
        with RawClient(address) as client:
            (directory,) = log_dirs(client, {topic: [0, 1]}).results
            found.append([row.partition_index for each in directory.topics for row in each.partitions])
            assert move_to_directory(client, directory.log_dir, topic, 0) == (0 if 0 in found[-1] else 9)
    assert found == [[1], [0, 1], [1]]


def test_the_quorum_is_the_controller(emulator: Emulator, client: RawClient) -> None:

    def ask(topic: str) -> Any:
        rows = ({"partition_index": 0},)
        return client.call("describe_quorum", 2, topics=({"topic_name": topic, "partitions": rows},))

    response = ask("__cluster_metadata")
    (row,) = response.topics[0].partitions
    assert (row.error_code, row.leader_id) == (0, 0)
    assert [replica.replica_id for replica in row.current_voters] == [0]
    assert [replica.replica_id for replica in row.observers] == [1, 2]
    assert [node.node_id for node in response.nodes] == [0]
    assert ask("t").topics[0].partitions[0].error_code == 3
