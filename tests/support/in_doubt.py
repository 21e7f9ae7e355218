"""A batch without a response, while the same producer loses another record: it is stored once, in its place."""

from __future__ import annotations

import pytest

from dualwrite.errors import DeliveryError
from dualwrite.producer import Producer
from tests.support.conditions import until
from tests.support.kafka_proxy import Fate, KafkaProxy

_TOO_LARGE = bytes(2_000_000)
_PRODUCE = 0


def send_in_doubt(address: str, topic: str, other: str) -> list[int]:
    """Return the offsets of three records of `topic`: the second is in doubt while one of topic `other` is refused."""
    with (
        KafkaProxy(address) as proxy,
        Producer(
            bootstrap_servers=proxy.bootstrap_servers,
            max_request_size=2 * len(_TOO_LARGE),
            retry_backoff_ms=1000,
        ) as producer,
    ):
        offsets = [producer.send(topic, b"first", partition=0).result(60).offset]
        producer.send(other, b"first", partition=0).result(60)
        proxy.catch(_PRODUCE, "in doubt", Fate.UNHEARD)
        before = producer.metrics()["record-retry-total"]  # a leader of a new topic may have refused the first ones
        in_doubt = producer.send(topic, b"in doubt", partition=0)
        until(lambda: producer.metrics()["record-retry-total"] == before + 1)
        with pytest.raises(DeliveryError) as refused:
            producer.send(other, _TOO_LARGE, partition=0).result(60)
        assert refused.value.error_code == 10
        assert producer.send(other, b"under the next epoch", partition=0).result(60).offset == 1
        offsets += [in_doubt.result(60).offset, producer.send(topic, b"last", partition=0).result(60).offset]
    return offsets
