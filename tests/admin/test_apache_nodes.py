"""Two nodes of a real Apache Kafka, one killed with SIGKILL: missing results are reported, and come back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dualwrite.admin import TopicPartition, TransactionAdmin
from dualwrite.errors import IncompleteAnswerError
from dualwrite.producer import Producer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.wire import Wire
from tests.support.servers.apache_kafka import ApacheKafka
from tests.support.unavailable import skip

IDS = [f"worker-{number}" for number in range(6)]


@pytest.fixture
def kafka() -> Iterator[ApacheKafka]:
    server = ApacheKafka(nodes=2, properties={"num.partitions": "2", "default.replication.factor": "2"})
    try:
        server.start()
    except ServerUnavailableError as error:
        skip(error)
    yield server
    server.stop()


def test_a_node_is_killed(kafka: ApacheKafka) -> None:
    for transactional_id in IDS:
        with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()
    with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=IDS[0]) as owner:
        owner.init_transactions()
        owner.begin_transaction()
        owner.send("orders", value=b"1", partition=0)
        owner.flush()
        with TransactionAdmin(bootstrap_servers=kafka.bootstrap_servers, retry_backoff_ms=20) as admin:
            listed = admin.list_transactions()
            assert [row.transactional_id for row in listed] == IDS
            brokers = {broker.broker_id for broker in admin.describe_cluster().brokers}
            assert {row.coordinator_id for row in listed} == brokers == set(admin.describe_features())
            partition = TopicPartition("orders", 0)
            of_the_leader = admin.describe_producers([partition])
            assert [row.current_transaction_start_offset for row in of_the_leader[partition]] == [0]
            for broker_id in brokers:  # the leader and its follower
                assert admin.describe_producers([partition], broker_id=broker_id) == of_the_leader
                assert admin.find_hanging("orders", broker_id=broker_id, max_transaction_timeout_ms=-1) == ()
            _kill_one(kafka, admin, max(brokers))
        owner.close(timeout_s=0)


def _kill_one(kafka: ApacheKafka, admin: TransactionAdmin, killed: int) -> None:
    """Kill the second process, which is only a broker; the first is also the controller, which moves leaders."""
    there = {row.transactional_id for row in admin.list_transactions() if row.coordinator_id != killed}
    kafka.kill(killed)
    with pytest.raises(IncompleteAnswerError, match=f"broker {killed} is not connected") as caught:
        admin.list_transactions(timeout_ms=300)
    assert {row.transactional_id for row in caught.value.partial} == there
    assert list(caught.value.failures) == [killed]
    taken_over = admin.list_transactions()
    assert [row.transactional_id for row in taken_over] == IDS
    assert killed not in {row.coordinator_id for row in taken_over}
    described = admin.describe_transactions(IDS)
    assert {row.state for row in described.values() if row is not None} == {"Empty", "Ongoing"}
    terminated = admin.force_terminate_transaction(IDS[0])
    assert terminated.found.state == "Ongoing"
    address = next(broker for broker in admin.describe_cluster().brokers if broker.broker_id != killed)
    with Wire(f"{address.host}:{address.port}") as wire:
        assert wire.describe(IDS[0]).state == "CompleteAbort"
