"""The source logs in with TLS and SASL with both libraries, and reports mistakes; on Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dualwrite.testing.certificates import KEY_PASSWORD, Certificates, make_certificates
from spark_sink.errors import SinkOptionError, SourceReadError
from spark_sink.reading.connections import connect, consumer
from spark_sink.reading.offsets import OffsetRange, Partition
from spark_sink.reading.options import SourceOptions, parse
from tests.apache_kafka.conftest import running
from tests.apache_kafka.secured import LISTENERS, PASSWORDS, WORKER, secured_kafka, unsecured_token
from tests.spark.written_topics import Topics
from tests.support.servers.apache_kafka import ApacheKafka

Come = Callable[..., SourceOptions]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(certificates: Certificates) -> Iterator[ApacheKafka]:
    yield from running(secured_kafka(certificates))


@pytest.fixture(scope="module")
def topic(kafka: ApacheKafka) -> str:
    topics = Topics(kafka.address("PLAINTEXT"))
    name = topics.create()
    topics.write(name, "a", "b")
    return name


@pytest.fixture(params=["confluent-kafka", "kafka-python"])
def come(request: pytest.FixtureRequest, kafka: ApacheKafka, topic: str) -> Come:
    def come(listener: str, settings: dict[str, str], **more: str) -> SourceOptions:
        given = {
            "bootstrap.servers": kafka.address(listener),
            "security.protocol": LISTENERS[listener],
            "default.api.timeout.ms": "10000",
            **settings,
        }
        options = {"subscribe": topic, "consumer.library": request.param, **more}
        return parse(options | {f"kafka.{name}": value for name, value in given.items()})

    return come


def token() -> str:
    return unsecured_token(WORKER)


def jaas(module: str, password: str = PASSWORDS[WORKER]) -> str:
    return f'org.apache.kafka.common.security.{module}LoginModule required username="{WORKER}" password="{password}";'


def read(options: SourceOptions, topic: str) -> list[bytes | None]:
    cluster = connect(options)
    try:
        partition = Partition(topic, 0)
        assert cluster.ends([partition]) == {partition: 2}
    finally:
        cluster.close()
    with consumer(options) as records:
        chunks = records.read(OffsetRange(partition, 0, 2), headers=False, patience_ms=10_000)
        return [value for chunk in chunks for value in chunk.values]


@pytest.mark.parametrize("way", ["TLS", "MUTUAL", "PLAIN", "SCRAM", "SCRAM over TLS"])
def test_ways_in(come: Come, topic: str, certificates: Certificates, way: str) -> None:
    tls = {"ssl.truststore.location": str(certificates.authority), "ssl.truststore.type": "PEM"}
    identity = {
        "ssl.certificate.location": str(certificates.client),
        "ssl.key.location": str(certificates.client_key),
        "ssl.key.password": KEY_PASSWORD,
    }
    scram = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas("scram.Scram")}
    listener, settings = {
        "TLS": ("TLS", tls),
        "MUTUAL": ("MUTUAL", tls | identity),
        "PLAIN": ("SASL", {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("plain.Plain")}),
        "SCRAM": ("SASL", scram),
        "SCRAM over TLS": ("SASL_TLS", tls | scram),
    }[way]
    assert read(come(listener, settings), topic) == [b"a", b"b"]


def test_tokens(come: Come, topic: str, certificates: Certificates) -> None:
    settings = {
        "ssl.ca.location": str(certificates.authority),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauth.token.provider": f"{__name__}:token",
    }
    assert read(come("SASL_TLS", settings, **{"consumer.library": "auto"}), topic) == [b"a", b"b"]


@pytest.mark.parametrize("wrong", ["password", "authority"])
def test_wrong_settings_are_reported_without_secrets(
    come: Come, topic: str, certificates: Certificates, wrong: str
) -> None:
    if wrong == "password":
        settings = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas("plain.Plain", "a-wrong-secret")}
        options = come("SASL", settings)
    else:
        options = come("TLS", {"ssl.ca.location": str(certificates.stranger)})
    with pytest.raises(
        SourceReadError, match=r"Kafka refuses the login of the source: .*(password|ssl.ca.location)"
    ) as refused:
        read(options, topic)
    assert "a-wrong-secret" not in str(refused.value)


def test_a_missing_file(come: Come, topic: str) -> None:
    with pytest.raises(SinkOptionError, match=r"ssl.ca.location: '/nowhere.pem' cannot be read"):
        read(come("TLS", {"ssl.ca.location": "/nowhere.pem"}), topic)
