"""Race 12: `transaction.version` goes up while a transaction is open, and its coordinator goes away as well."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.log.record_batch import iter_records
from tests.emulator.api.raw_client import RawClient, batch_of
from tests.support.conditions import until


def state_records(emulator: Emulator) -> list[int]:
    """The value version of every record of the id's state partition."""
    versions = []
    for index in range(3):
        for batch in emulator.log("__transaction_state", index).batches:
            for record in iter_records(batch):
                assert record.value is not None
                versions.append(int.from_bytes(record.value[:2], "big"))
    return versions


@pytest.mark.parametrize("end", [None, "crash_node", "stop_node"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_by_the_version_of_its_requests(end: str | None, commit: bool) -> None:
    config = BrokerConfig(transaction_version=0, transaction_state_log_num_partitions=3, offsets_topic_num_partitions=3)
    with Emulator(nodes=3, config=config, topics={"t": 1}) as emulator:
        addresses = emulator.bootstrap_servers.split(",")

        def coordinator() -> RawClient:
            return RawClient(addresses[emulator.coordinator(transactional_id="x")])

        producer = coordinator().init_producer_id("x")
        assert coordinator().add_partitions("x", producer, "t", 0) == [0]
        leader = RawClient(addresses[emulator.log("t").leader_id])
        records = batch_of(producer, b"1")
        assert leader.produce("t", records, transactional_id="x", version=11).error_code == 0
        assert state_records(emulator) == [0, 0]
        emulator.set_transaction_version(2)
        if end is not None:
            getattr(emulator, end)(emulator.coordinator(transactional_id="x"))
        ended = coordinator().end_txn("x", producer, commit=commit, version=4)
        assert ended.error_code == 0
        until(lambda: emulator.transactions()[0].state.startswith("Complete"))
        (row,) = emulator.transactions()
        assert row.state == ("CompleteCommit" if commit else "CompleteAbort")
        assert row.producer_epoch == producer.producer_epoch  # no bump: TV0 to its end
        assert state_records(emulator) == [0, 0, 1, 1]
        assert coordinator().end_txn("x", producer, commit=commit, version=4).error_code == 0
        assert coordinator().end_txn("x", producer, commit=not commit, version=4).error_code == 48
        successor = coordinator().init_producer_id("x")
        leader = RawClient(addresses[emulator.log("t").leader_id])
        assert leader.produce("t", batch_of(successor, b"2"), transactional_id="x").error_code == 0
        assert coordinator().end_txn("x", successor, commit=True).producer_epoch == successor.producer_epoch + 1
