"""CreatePartitions (KIP-195)."""

from __future__ import annotations

from pathlib import Path

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.storage.journal import MetadataJournal
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.emulator.partitions.admin_requests import Outcome, create_partitions, describe
from tests.emulator.partitions.conftest import CONFIG


def replicas_of(client: RawClient, topic: str) -> list[tuple[int, ...]]:
    return [row.replica_nodes for row in describe(client, [topic]).topics[0].partitions]


def test_assignments_name_the_nodes(client: RawClient, topic: str) -> None:
    assert create_partitions(client, {topic: 4}, [[2, 0, 1], [1, 0, 2]]) == {topic: Outcome(0)}
    assert replicas_of(client, topic)[2:] == [(2, 0, 1), (1, 0, 2)]
    assert create_partitions(client, {topic: 5}, [[2, 0]])[topic].error == 39  # the others have three copies


def test_internal_topics_stay_as_they_are(client: RawClient) -> None:
    """Otherwise the partition of an id would change while its coordinator works."""
    assert create_partitions(client, {"__transaction_state": 9})["__transaction_state"].error == 42


@pytest.mark.parametrize(("name", "error"), [("nope", KeyError), ("__consumer_offsets", ValueError)])
def test_the_python_call_raises_the_same_error(emulator: Emulator, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        emulator.create_partitions(name, 9)


def test_a_journal_from_before_copies_were_kept_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metadata.journal"
    journal = MetadataJournal(path, sync=False)
    journal.open()
    old = {"created": "t", "id": "0" * 32, "configs": {}, "leader_epochs": [3, 4]}
    journal.record(old)
    journal.record({"extended": "t", "replicas": [[1, 0]]})
    journal.record({"assigned": "t", "partition": 0, "replicas": [1]})
    journal.close()
    assert journal.topics["t"].replicas == [[1], (), [1, 0]]


def test_added_partitions_survive_a_restart(tmp_path: Path) -> None:
    with Emulator(nodes=3, config=CONFIG, data_dir=tmp_path, topics={"t": 1}) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            assert create_partitions(client, {"t": 3}, [[2, 1, 0], [1, 2, 0]]) == {"t": Outcome(0)}
        with RawClient(emulator.bootstrap_servers.split(",")[2]) as leader:
            leader.produce("t", plain_batch(b"kept"), partition=1)
    with (
        Emulator(nodes=3, config=CONFIG, data_dir=tmp_path) as emulator,
        RawClient(emulator.bootstrap_servers) as client,
    ):
        assert replicas_of(client, "t")[1:] == [(2, 1, 0), (1, 2, 0)]
        assert emulator.log("t", 1).log_end_offset == 1
        assert [emulator.log("t", index).leader_epoch for index in range(3)] == [1, 1, 1]
