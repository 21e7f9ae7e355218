"""Tests of the service with the fixtures of dualwrite[pytest]; each test has a broker of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import transfers
from confluent_kafka import Producer

from dualwrite.broker_emulator import CrashBefore, DropReply, Error, Fault, Faults
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.testing.crashes import Crashes
from dualwrite.testing.emulator_clock import EmulatorClock

SERVICE = [sys.executable, str(Path(transfers.__file__))]


def place(broker: Emulator, *orders: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for order in orders:
        producer.produce(transfers.ORDERS, str(order))
    assert producer.flush(30) == 0


def moved(broker: Emulator, topic: str) -> list[int]:
    return [int(record.value or b"") for record in broker.records(topic)]


def assert_each_moved_once(broker: Emulator, orders: Sequence[int]) -> None:
    topics = (transfers.LARGE, transfers.SMALL)
    assert sorted(order for topic in topics for order in moved(broker, topic)) == sorted(orders)


@pytest.mark.kafka_emulator(topics={"orders": 1, "large-orders": 1, "small-orders": 1})
class TestTransfers:
    def test_orders_go_where_they_belong(self, kafka_emulator: Emulator) -> None:
        place(kafka_emulator, 5, 500)
        assert transfers.move_all(kafka_emulator.bootstrap_servers) == 2
        assert moved(kafka_emulator, transfers.LARGE) == [500]
        assert moved(kafka_emulator, transfers.SMALL) == [5]

    def test_a_lost_answer_moves_nothing_twice(self, kafka_emulator: Emulator, kafka_faults: Faults) -> None:
        place(kafka_emulator, 1, 2, 3)
        lost = kafka_faults.add(Fault(api="EndTxn", action=DropReply()))  # committed, but the response is lost
        assert transfers.move_all(kafka_emulator.bootstrap_servers) == 3
        assert lost.hits == 1
        assert_each_moved_once(kafka_emulator, [1, 2, 3])

    def test_a_busy_coordinator_is_asked_again(self, kafka_emulator: Emulator, kafka_faults: Faults) -> None:
        place(kafka_emulator, 1)
        busy = kafka_faults.add(Fault(api="TxnOffsetCommit", action=Error("COORDINATOR_LOAD_IN_PROGRESS"), count=2))
        assert transfers.move_all(kafka_emulator.bootstrap_servers) == 1
        assert busy.hits == 2

    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("request_", ["Produce", "TxnOffsetCommit", "EndTxn"])
    def test_a_killed_service_is_taken_over(
        self,
        kafka_emulator: Emulator,
        kafka_clock: EmulatorClock,
        kafka_crashes: Crashes,
        request_: str,
        applied: bool,
    ) -> None:
        place(kafka_emulator, 1, 2, 300)
        own = {} if request_ == "TxnOffsetCommit" else {"transactional_id": transfers.TRANSACTIONAL_ID}
        kafka_crashes.kill_client(SERVICE, at=request_, applied=applied, skip=1, **own)
        kafka_clock.advance(ms=46_000)  # session.timeout.ms, after which the group drops the dead member
        transfers.move_all(kafka_emulator.bootstrap_servers)
        assert_each_moved_once(kafka_emulator, [1, 2, 300])

    def test_a_coordinator_that_dies_after_its_decision(
        self, kafka_emulator_cluster: Emulator, kafka_faults: Faults
    ) -> None:
        place(kafka_emulator_cluster, 1, 2, 3)
        # on different nodes: librdkafka 2.16 never finds a lost group coordinator again (its issue 5511)
        kafka_emulator_cluster.move_coordinator(0, group=transfers.GROUP)
        kafka_emulator_cluster.move_coordinator(1, transactional_id=transfers.TRANSACTIONAL_ID)
        kafka_faults.add(Fault(point=PausePoint.AFTER_PREPARE_APPEND, action=CrashBefore()))
        transfers.move_all(kafka_emulator_cluster.bootstrap_servers)
        assert kafka_emulator_cluster.living_nodes == [0, 2]
        assert_each_moved_once(kafka_emulator_cluster, [1, 2, 3])

    def test_an_abandoned_transaction_is_aborted_in_time(
        self, kafka_emulator: Emulator, kafka_clock: EmulatorClock
    ) -> None:
        producer = Producer({"bootstrap.servers": kafka_emulator.bootstrap_servers, "transactional.id": "abandoned"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(transfers.LARGE, "1000")
        assert producer.flush(30) == 0
        kafka_clock.advance(ms=60_000 + 10_000)  # transaction.timeout.ms, and the broker checks every ten seconds
        assert kafka_emulator.transactions()[0].state in ("PrepareAbort", "CompleteAbort")
        assert moved(kafka_emulator, transfers.LARGE) == []
