"""Transactions that a broker completes without their markers (KAFKA-20734): the effects of a bug of Kafka's.

When Apache Kafka 4.4.0 comes back, a partition has no leader for a moment. A coordinator that has markers to write just
then takes the topic for deleted and completes the transaction. Its records stay open in the partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dualwrite.admin import HangingTransaction, TransactionAdmin
from dualwrite.errors import TransactionHangsError
from dualwrite.producer import Producer
from tests.support.conditions import until
from tests.support.names import next_name
from tests.support.real_kafkas import OLDER, RELEASED, Kind, real_kafka

from .conftest import running
from .reading import create_topics, read_committed

TIMEOUT_MS = 1_000  # over long before a broker is back
MOST_RESTARTS = 6


def assert_not_written_behind(hanging: Sequence[HangingTransaction], **settings: Any) -> None:
    """A producer with two-phase commit names the transaction, and leaves it as it is."""
    two_phase: dict[str, Any] = {"transaction_two_phase_commit_enable": True, "accept_bounded_guarantee": True}
    for found in hanging:
        with Producer(**settings, **two_phase) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(found.topic_partition.topic, value="refused", partition=found.topic_partition.partition)
            with pytest.raises(TransactionHangsError) as raised:
                producer.prepare_transaction()
            assert raised.value.partitions == (found.topic_partition,)
            assert raised.value.start_offsets == (found.start_offset,)
            producer.abort_transaction()


def abort_by_a_restart(kind: Kind) -> tuple[int, list[bytes]]:
    """The hanging transactions after a restart, and the records that later transactions of the id make readable."""
    transactional_id, topic = next_name("txn"), next_name("topic")
    for kafka in running(real_kafka(kind)):
        address = kafka.bootstrap_servers
        create_topics(address, topic)
        with Producer(
            bootstrap_servers=address, transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS
        ) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, value="aborted").result(60)
            kafka.kill()
            kafka.start()
        with TransactionAdmin(bootstrap_servers=address) as admin:
            until(lambda: admin.describe_transaction(transactional_id).state == "CompleteAbort", 30)
            hanging = admin.find_hanging(topic, max_transaction_timeout_ms=0)
        assert_not_written_behind(hanging, bootstrap_servers=address, transactional_id=transactional_id)
        with Producer(bootstrap_servers=address, transactional_id=transactional_id) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send(topic, value="committed")
        return len(hanging), read_committed({"bootstrap.servers": address}, topic)
    raise AssertionError("unreachable")


@pytest.mark.timeout(300)
def test_an_aborted_record_becomes_readable_on_4_4() -> None:
    """If the leader is back in time, the marker is written; so not every restart shows it."""
    seen = [abort_by_a_restart(RELEASED)]
    while seen[-1] == (0, [b"committed"]) and len(seen) < MOST_RESTARTS:
        seen.append(abort_by_a_restart(RELEASED))
    assert seen[-1] == (1, [b"aborted", b"committed"])


@pytest.mark.timeout(180)
def test_kafka_3_9_commits_after_a_restart() -> None:
    assert abort_by_a_restart(OLDER) == (0, [b"committed"])
