"""Kafka recognises a batch of an earlier epoch, as long as the partition has none of a later one."""

from __future__ import annotations

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.in_doubt import send_in_doubt
from tests.support.real_kafkas import RELEASED, shared_kafka
from tests.support.unavailable import skip

from .conftest import NewName
from .reading import create_topics, read_committed


def test_a_batch_in_doubt_is_stored_once_when_another_is_lost(new_name: NewName) -> None:
    try:
        address = shared_kafka(RELEASED).bootstrap_servers
    except ServerUnavailableError as error:
        skip(error)
    topic, other = new_name("orders"), new_name("other")
    create_topics(address, topic, other)
    assert send_in_doubt(address, topic, other) == [0, 1, 2]
    assert read_committed({"bootstrap.servers": address}, topic) == [b"first", b"in doubt", b"last"]
