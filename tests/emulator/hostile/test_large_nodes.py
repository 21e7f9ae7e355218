"""Nodes with ten thousand partitions that start, stop and write to the disk: clients of the others are served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator
from tests.emulator.api.raw_client import RawClient, milliseconds
from tests.emulator.hostile.turns import LONGEST, until_some_turn, watched
from tests.emulator.inside import await_in_loop, cluster_of, has_change_under_way, run_in_loop

MANY = 2_000
SMALL = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Emulator]:
    with Emulator(config=SMALL, nodes=2, data_dir=tmp_path / "data", topics={"big": 2 * MANY}) as broker:
        yield broker


def _leaders(emulator: Emulator, topic: str) -> set[int]:
    return run_in_loop(
        emulator, lambda: {partition.leader_id for partition in cluster_of(emulator).topics[topic].partitions}
    )


def test_a_node_that_stops(pair: Emulator) -> None:
    with watched(pair) as turns:
        pair.stop_node(0)
    assert _leaders(pair, "big") == {1}
    assert turns.longest < LONGEST


def test_a_node_that_starts(pair: Emulator) -> None:
    pair.stop_node(0)
    pair.stop_node(1)
    assert _leaders(pair, "big") == {-1}
    with watched(pair) as turns:
        pair.start_node(1)
    assert _leaders(pair, "big") == {1}
    assert turns.longest < LONGEST


@pytest.mark.parametrize("crashes", [False, True])
def test_a_node_that_ends_while_a_topic_is_created_leads_none_of_it(crashes: bool) -> None:
    with Emulator(config=SMALL, nodes=2) as emulator, RawClient(emulator.bootstrap_servers.split(",")[1]) as client:
        topic = {"name": "created", "num_partitions": MANY, "replication_factor": 2, "assignments": (), "configs": ()}
        values = {"topics": (topic,), "timeout": milliseconds(30_000), "validate_only": False}
        cluster = cluster_of(emulator)

        async def end_node() -> None:
            await until_some_turn(lambda: has_change_under_way(cluster))
            if crashes:
                cluster.nodes[0].crash()
            else:
                await cluster.nodes[0].stop()

        number = client.send("create_topics", 7, **values)
        await_in_loop(emulator, end_node())
        assert client.receive("create_topics", 7, number).topics[0].error_code is ErrorCode.none
        assert _leaders(emulator, "created") == {1}
