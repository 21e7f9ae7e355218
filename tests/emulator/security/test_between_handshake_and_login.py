"""Before its login a client learns nothing about the cluster, by any request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.broker_emulator.security.settings import listeners_from
from tests.emulator.api.raw_client import RawClient, decode
from tests.emulator.inside import cluster_of


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    listeners = listeners_from(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
        }
    )
    config = BrokerConfig(connection_failed_authentication_delay_ms=0)
    with Emulator(listeners=listeners, config=config, topics={"secret-topic": 1}) as broker:
        yield broker


def _metadata(version: int) -> dict[str, Any]:
    return {
        "topics": ({"name": "secret-topic", "topic_id": None},),
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }


@pytest.mark.parametrize("version", range(14))
def test_metadata_names_no_brokers(emulator: Emulator, version: int) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        assert client.call("sasl_handshake", 1, mechanism="OAUTHBEARER").error_code == 0
        client.send("metadata", version, **_metadata(version))
        frame = client.receive_frame()
    assert cluster_of(emulator).cluster_id.encode() not in frame
    assert b"127.0.0.1" not in frame
    _, response = decode("metadata", version, frame)
    assert response.brokers == ()
    assert [(topic.error_code, topic.partitions) for topic in response.topics] == [(34, ())]
    assert getattr(response, "controller_id", -1) == -1
    assert getattr(response, "cluster_id", None) is None


@pytest.mark.parametrize("version", [0, 1, 2])
def test_nor_does_the_description_of_the_cluster(emulator: Emulator, version: int) -> None:
    with RawClient(emulator.bootstrap_servers) as client:
        assert client.call("sasl_handshake", 1, mechanism="OAUTHBEARER").error_code == 0
        asked = {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": True}
        response = client.call("describe_cluster", version, **asked)
    assert (response.error_code, response.brokers, response.cluster_id) == (34, (), "")
