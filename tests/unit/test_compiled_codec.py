"""kafka-python's compiled functions and its own `encode` and `decode` give the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.kafka_python import EndTxnRequest, EndTxnResponse, ProduceRequest, ProduceResponse
from dualwrite.client.wire import compiled


def end_txn(version: int) -> Any:
    return EndTxnRequest(
        version=version, transactional_id="shop-ä", producer_id=4711, producer_epoch=3, committed=version % 2 == 0
    )


def produce(version: int) -> Any:
    topic_class = ProduceRequest.TopicProduceData
    part = topic_class.PartitionProduceData(version=version, index=7, records=b"r" * 100_000)
    topic = topic_class(version=version, name="topic", partition_data=[part])
    return ProduceRequest(version=version, transactional_id="t", acks=-1, timeout_ms=9, topic_data=[topic])


@pytest.mark.parametrize(("request_of", "versions"), [(produce, range(3, 13)), (end_txn, range(6))])
def test_requests(request_of: Callable[[int], Any], versions: range) -> None:
    for version in versions:
        assert compiled.encode(request_of(version), version) == bytes(request_of(version).encode(version=version))


@pytest.mark.parametrize(("response", "newest"), [(EndTxnResponse, 5), (ProduceResponse, 12)])
def test_responses(response: Any, newest: int) -> None:
    for version in range(newest + 1):
        body = memoryview(bytes(response(version=version).encode(version=version)))
        assert compiled.decode(response, body, version) == response.decode(body, version=version)


def test_a_version_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="no version 99"):
        compiled.decode(EndTxnResponse, memoryview(b""), 99)


def test_a_long_message_leaves_nothing_in_a_short_one_after_it() -> None:
    compiled.encode(produce(12), 12)
    assert compiled.encode(end_txn(5), 5) == bytes(end_txn(5).encode(version=5))
