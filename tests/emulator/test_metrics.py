"""Metrics: their values, and the text for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Error, Fault, VirtualClock
from dualwrite.broker_emulator.metrics.prometheus import render_prometheus
from dualwrite.broker_emulator.metrics.snapshot import MetricsSnapshot
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.support.conditions import until

prometheus_parser: Any = import_module("prometheus_client.parser")

CONFIG = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(config=CONFIG, clock=VirtualClock(), topics={"t": 1}) as emulator:
        yield emulator


def test_requests_errors_and_bytes(emulator: Emulator, client: RawClient) -> None:
    client.produce("t", plain_batch(b"v"))
    until(lambda: emulator.metrics().nodes[0].connections == 1)  # those of other tests are gone
    before = emulator.metrics()
    emulator.faults.add(Fault(api="Produce", action=Error("NOT_LEADER_OR_FOLLOWER")))
    assert client.produce("t", plain_batch(b"v")).error_code == 6
    assert client.produce("missing", plain_batch(b"v")).error_code == 3
    assert client.produce("t", plain_batch(b"v" * 1000)).error_code == 0
    after = emulator.metrics()

    produce, produced = before.api("Produce"), after.api("Produce")
    assert produced.requests - produce.requests == 2  # the fault answered instead of the broker
    assert produced.durations.times == produced.requests
    assert 0 < produced.durations.longest_ms <= produced.durations.total_ms
    assert {name: count - produce.errors.get(name, 0) for name, count in produced.errors.items()} == {
        "NOT_LEADER_OR_FOLLOWER": 1,
        "UNKNOWN_TOPIC_OR_PARTITION": 1,
    }
    assert after.nodes[0].bytes_in - before.nodes[0].bytes_in > 1000
    assert after.nodes[0].bytes_out > before.nodes[0].bytes_out
    assert after.nodes[0].connections == 1
    assert after.nodes[0].connections_made >= 1


def test_metrics_of_an_unknown_partition_raise_key_error(emulator: Emulator) -> None:
    with pytest.raises(KeyError, match="no node has served EndTxnn"):
        emulator.metrics().api("EndTxnn")
    with pytest.raises(KeyError, match="t-9"):
        emulator.metrics().partition("t", 9)


# text


@pytest.fixture(scope="module")
def snapshot(emulator: Emulator) -> MetricsSnapshot:
    with RawClient(emulator.bootstrap_servers) as client:
        client.produce("t", plain_batch(b"v"))
        client.produce("missing", plain_batch(b"v"))
    return emulator.metrics()


def test_prometheus_parses_all_metrics(snapshot: MetricsSnapshot) -> None:
    text = render_prometheus(snapshot)
    families = {family.name: family for family in prometheus_parser.text_string_to_metric_families(text)}
    assert text.count("# TYPE ") == len(families)
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}

    def value(name: str, **labels: str) -> float:
        (found,) = (
            sample.value
            for family in families.values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        )
        return float(found)

    produce = snapshot.api("Produce")
    assert value("kafka_requests_total", node="0", api="Produce") == produce.requests
    assert value("kafka_request_duration_milliseconds_count", node="0", api="Produce") == produce.requests
    infinity = {"node": "0", "api": "Produce", "le": "+Inf"}
    assert value("kafka_request_duration_milliseconds_bucket", **infinity) == produce.requests
    missing = {"node": "0", "api": "Produce", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert value("kafka_request_errors_total", **missing) == produce.errors["UNKNOWN_TOPIC_OR_PARTITION"]
    assert value("kafka_high_watermark", topic="t", partition="0") == snapshot.partition("t").high_watermark
    assert value("kafka_active_transaction_open_time_max_milliseconds", node="0") == 0
    assert value("kafka_partitions_with_late_transactions", node="0") == 0
