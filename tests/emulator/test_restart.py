"""An emulator in its own process, killed while clients are at work, and restarted on its data directory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.log.record_batch import build_batch
from dualwrite.prepared_state import PreparedTxnState
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.emulator.killable_broker import KillableBroker, Work, committed, make_producer
from tests.emulator.killable_broker import broker as broker
from tests.support.conditions import until


@pytest.mark.parametrize("broker", ["always", "interval"], indirect=True)
def test_what_was_acknowledged_survives_being_killed_exactly_once(broker: KillableBroker) -> None:
    work = Work(broker)
    try:
        for _ in range(3):
            before = len(work.acknowledged)
            until(lambda before=before: len(work.acknowledged) >= before + 60, timeout_s=30)  # type: ignore[misc]
            broker.kill()
            broker.start()
        before = len(work.acknowledged)
        until(lambda: len(work.acknowledged) >= before + 20, timeout_s=30)
    finally:
        work.finish()
    for name in ("w0", "w1"):  # aborts transactions that are still open
        make_producer(broker, name).init_transactions()
    found = Counter(value.decode() for value in committed(broker))
    assert {value: found[value] for value in work.acknowledged} == dict.fromkeys(work.acknowledged, 2)
    assert set(found.values()) == {2}  # a record on each partition, or on none
    assert found.keys() <= work.begun
    with RawClient(broker.address) as client:
        listed = client.call("list_transactions", 0, state_filters=(), producer_id_filters=())
        states = {state.transactional_id: state.transaction_state for state in listed.transaction_states}
        assert states.keys() == {"w0", "w1"}
        assert not [state for state in states.values() if state in ("Ongoing", "PrepareCommit", "PrepareAbort")]
    assert broker.stop() == 0


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_was_prepared_before_the_kill_is_completed_after_the_restart(
    broker: KillableBroker, is_committed: bool
) -> None:
    producer = make_producer(broker, "writer")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"first", partition=0)
    producer.commit_transaction()
    producer.begin_transaction()
    for partition in (0, 1):
        producer.send("orders", b"prepared", partition=partition)
    prepared = producer.prepare_transaction()
    broker.kill()
    producer.close(timeout_s=0)
    broker.start()
    assert committed(broker) == [b"first"]
    with make_producer(broker, "writer") as successor:
        successor.init_transactions(keep_prepared_txn=True)
        assert successor.prepared_txn_state == prepared
        successor.complete_transaction(prepared if is_committed else PreparedTxnState("1:1"))
        until(lambda: _is_complete(broker, "writer"))
    assert sorted(committed(broker)) == [b"first", *[b"prepared"] * (2 if is_committed else 0)]
    broker.kill()
    broker.start()
    assert sorted(committed(broker)) == [b"first", *[b"prepared"] * (2 if is_committed else 0)]


def _is_complete(broker: KillableBroker, transactional_id: str) -> bool:
    with RawClient(broker.address) as client:
        answer = client.call("describe_transactions", 0, transactional_ids=(transactional_id,))
        state: str = answer.transaction_states[0].transaction_state
        return state.startswith("Complete")


def test_a_retry_after_the_restart_is_recognised(broker: KillableBroker) -> None:
    with RawClient(broker.address) as client:
        producer = client.init_producer_id(None)
        records = _idempotent_batch(producer, b"once")
        assert client.produce("orders", plain_batch(b"before")).base_offset == 0
        assert client.produce("orders", records).base_offset == 1
    broker.kill()
    broker.start()
    with RawClient(broker.address) as client:
        again = client.produce("orders", records)
        assert (again.error_code, again.base_offset) == (ErrorCode.none, 1)
        assert client.init_producer_id(None).producer_id > producer.producer_id
    assert committed(broker) == [b"before", b"once"]


def _idempotent_batch(producer: Any, value: bytes) -> bytes:
    return build_batch(
        [(None, value)],
        timestamp_ms=1_700_000_000_000,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
    )
