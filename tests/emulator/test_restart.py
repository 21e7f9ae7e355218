"""An emulator in its own process, killed while clients are at work, and restarted on its data directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.emulator.api.raw_client import RawClient
from tests.emulator.killable_broker import KillableBroker, Work, committed, make_producer
from tests.emulator.killable_broker import broker as broker
from tests.support.conditions import until


@pytest.mark.parametrize(
    ("fsync", "nodes", "kills"),
    [
        ("always", 1, 3),
        *(
            pytest.param(fsync, nodes, 50, marks=pytest.mark.proof)
            for fsync in ("always", "interval", "never")
            for nodes in (1, 2)
        ),
    ],
)
def test_acknowledged_records_survive_a_kill_exactly_once(tmp_path: Path, fsync: str, nodes: int, kills: int) -> None:
    random = Random(f"{fsync} {nodes}")
    broker = KillableBroker(tmp_path / "data", fsync, nodes).start()
    work = Work(broker)

    def acknowledge(count: int) -> None:
        wanted = len(work.acknowledged) + count
        until(lambda: len(work.acknowledged) >= wanted, timeout_s=60)

    try:
        for _ in range(kills):
            acknowledge(random.randint(1, 40))
            broker.kill()
            broker.start()
        acknowledge(20)
    finally:
        work.finish()
    for name in ("w0", "w1"):  # aborts transactions that are still open
        make_producer(broker, name).init_transactions()
    found = Counter(value.decode() for value in committed(broker))
    assert {value: found[value] for value in work.acknowledged} == dict.fromkeys(work.acknowledged, 2)
    assert set(found.values()) == {2}  # a record on each partition, or on none
    assert found.keys() <= work.begun
    assert _states(broker) == {"w0": "Empty", "w1": "Empty"}
    assert broker.stop() == 0
    assert "Traceback" not in broker.log
    assert "ERROR" not in broker.log


def _states(broker: KillableBroker) -> dict[str, str]:
    found: dict[str, str] = {}
    for address in broker.address.split(","):
        with RawClient(address) as client:
            listed = client.call("list_transactions", 0, state_filters=(), producer_id_filters=())
        found |= {state.transactional_id: state.transaction_state for state in listed.transaction_states}
    return found


def test_a_transaction_prepared_before_the_kill_is_completed_after_the_restart(broker: KillableBroker) -> None:
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
        successor.complete_transaction(prepared)
        until(lambda: _is_complete(broker, "writer"))
    assert sorted(committed(broker)) == [b"first", b"prepared", b"prepared"]
    broker.kill()
    broker.start()
    assert sorted(committed(broker)) == [b"first", b"prepared", b"prepared"]


def _is_complete(broker: KillableBroker, transactional_id: str) -> bool:
    with RawClient(broker.address) as client:
        answer = client.call("describe_transactions", 0, transactional_ids=(transactional_id,))
        state: str = answer.transaction_states[0].transaction_state
        return state.startswith("Complete")
