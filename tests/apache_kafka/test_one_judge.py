"""On real brokers too, the tools say of a refused id what its writer says."""

from __future__ import annotations

from pathlib import Path

from dualwrite.broker_emulator import Emulator
from tests.cli.conftest import Call, call
from tests.cli.test_one_judge import finds_a_copy, finds_another_cluster, finds_that_it_went_back
from tests.support.databases import PostgresDatabase, SqliteDatabase

from .clusters import Cluster
from .conftest import NewName
from .reading import create_topics

__all__ = ["call"]  # a fixture


def test_another_cluster(call: Call, cluster: Cluster, new_name: NewName, tmp_path: Path) -> None:
    """The rows are of an emulator: its transactions are unknown to the real cluster."""
    topic = new_name("topic")
    create_topics(cluster.bootstrap_servers, topic)
    with Emulator(topics={topic: 1}) as first:
        finds_another_cluster(call, SqliteDatabase(tmp_path), first, cluster, topic)


def test_a_database_that_went_back(call: Call, cluster: Cluster, new_name: NewName, tmp_path: Path) -> None:
    topic = new_name("topic")
    create_topics(cluster.bootstrap_servers, topic)
    finds_that_it_went_back(call, SqliteDatabase(tmp_path), cluster, topic)


def test_a_copied_database(call: Call, cluster: Cluster, new_name: NewName, postgres: PostgresDatabase) -> None:
    topic = new_name("topic")
    create_topics(cluster.bootstrap_servers, topic)
    finds_a_copy(call, postgres, cluster, topic)
