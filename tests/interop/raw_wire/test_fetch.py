"""Session ids and epochs of Fetch (KIP-227), and the leader epochs of ListOffsets: one table for every broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.emulator.api.raw_client import RawClient, fetch_fields, plain_batch
from tests.interop.conftest import Broker
from tests.interop.wire import Wire
from tests.support.names import next_name

FULL, NOT_FOUND = 0, 70
SESSION_IDS: Final = (0, 5, -1, 2**30)
EPOCHS: Final = {-1: FULL, 0: FULL, 1: NOT_FOUND, 5: NOT_FOUND, 2**31 - 1: NOT_FOUND, -2: NOT_FOUND}
"""The error by the epoch alone: none of these sessions exists."""

RECORDS: Final = plain_batch(b"1", b"2")


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[RawClient]:
    with RawClient(broker.bootstrap_servers) as client:
        yield client


@pytest.fixture(scope="module")
def written(broker: Broker, client: RawClient) -> str:
    """A topic with records."""
    name = next_name("fetched")
    with Wire(broker.bootstrap_servers) as wire:
        wire.create_topic(name)
    assert client.produce(name, RECORDS, version=11).error_code == 0
    return name


@pytest.mark.parametrize("version", [7, 12, 13, 17])
@pytest.mark.parametrize("session_id", SESSION_IDS)
@pytest.mark.parametrize("epoch", EPOCHS)
def test_a_session_that_does_not_exist(
    client: RawClient, written: str, version: int, session_id: int, epoch: int
) -> None:
    topic = client.topic_id(written) if version >= 13 else written
    fields = fetch_fields(version, topic, session_id=session_id, session_epoch=epoch)
    response = client.call("fetch", version, **fields)
    assert response.error_code == EPOCHS[epoch]
    sizes = [len(partition.records) for each in response.responses for partition in each.partitions]
    assert sizes == ([len(RECORDS)] if EPOCHS[epoch] == FULL else [])
