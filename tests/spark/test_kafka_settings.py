"""The options `kafka.*`: each is passed on, translated or refused; none is ignored, and no secret is quoted."""

from __future__ import annotations

import pytest

from spark_sink.errors import SinkOptionError
from spark_sink.kafka_settings import checked_settings, in_terms_of_options

SERVERS = {"bootstrap.servers": "h:1"}

# the producer settings of Apache Kafka 4.x (its documentation's table)
OF_KAFKA = """
acks batch.size bootstrap.servers buffer.memory client.dns.lookup client.id compression.gzip.level compression.lz4.level
compression.type compression.zstd.level config.providers connections.max.idle.ms delivery.timeout.ms enable.idempotence
enable.metrics.push interceptor.classes key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.request.size metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class partitioner.ignore.keys
receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.service.name sasl.login.class
sasl.login.callback.handler.class sasl.mechanism sasl.oauthbearer.token.endpoint.url security.protocol
security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password
ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type transaction.timeout.ms
transaction.two.phase.commit.enable transactional.id value.serializer
"""


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"linger.ms": "3", "batch.size": "1000"}, {"linger.ms": "3", "batch.size": "1000"}),
        ({"acks": "all", "enable.idempotence": "true"}, {"acks": "all", "enable.idempotence": "true"}),
        (
            {"compression.type": "zstd", "compression.zstd.level": "7"},
            {"compression.type": "zstd", "compression.level": "7"},
        ),
        (
            {"partitioner.class": "org.apache.kafka.clients.producer.RoundRobinPartitioner"},
            {"partitioner": "round_robin"},
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
                'username="alice" password="secret";',
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": "/ca.pem",
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "secret",
                "ssl.ca.location": "/ca.pem",
            },
        ),
    ],
)
def test_supported_kafka_settings_are_taken(given: dict[str, str], settings: dict[str, str]) -> None:
    assert checked_settings(SERVERS | given) == SERVERS | settings


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"acks": "1"}, "kafka.acks must be all"),
        ({"enable.idempotence": "false"}, "kafka.enable.idempotence must be true"),
        ({"transactional.id": "t"}, "begins with sinkId"),
        ({"transaction.timeout.ms": "1"}, "txn.timeoutMs"),
        ({"transaction.two.phase.commit.enable": "true"}, "txn.mode"),
        ({"accept.bounded.guarantee": "true"}, "txn.mode=resume"),
        ({"value.serializer": "x"}, "cast it"),
        ({"retries": "3"}, "delivery.timeout.ms"),
        ({"interceptor.classes": "com.example.X"}, "only a JVM"),
        ({"enable.metrics.push": "true"}, "no counterpart"),
        ({"compression.type": "lz4", "compression.zstd.level": "3"}, "has no effect with kafka.compression.type=lz4"),
        ({"partitioner.class": "com.example.X"}, "kafka.partitioner to default"),
        ({"sasl.mechanism": "GSSAPI", "security.protocol": "SASL_SSL"}, "not one of PLAIN"),
        ({"ssl.truststore.location": "/t.jks", "security.protocol": "SSL"}, "JKS.*only Java reads.*ssl.ca.location"),
        ({"ssl.truststore.type": "PEM"}, "has no effect without kafka.ssl.truststore.location"),
        ({"lingerms": "3"}, "unknown setting 'lingerms'; did you mean kafka.linger.ms"),
        ({"linger.ms": "soon"}, "linger.ms.*whole number"),
        ({"sasl.oauth.token.provider": "nowhere.at.all:x"}, "kafka.sasl.oauth.token.provider.*cannot be imported"),
    ],
)
def test_unsupported_kafka_settings_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(SinkOptionError, match=sentence):
        checked_settings(SERVERS | given)


def refusal_of(name: str) -> str:
    try:
        checked_settings(SERVERS | {name: "h:1"})
    except SinkOptionError as refusal:
        return str(refusal)
    return ""


def test_no_setting_of_kafkas_producer_is_unknown() -> None:
    assert [name for name in OF_KAFKA.split() if "unknown" in refusal_of(name)] == []


@pytest.mark.parametrize(
    ("of_the_producer", "of_the_sink"),
    [
        (
            "not within delivery.timeout.ms=5 (or max.block.ms).",
            "not within kafka.delivery.timeout.ms=5 (or kafka.max.block.ms).",
        ),
        ("transaction.timeout.ms is too long", "txn.timeoutMs is too long"),
        ("set accept.bounded.guarantee=true", "set txn.mode=resume"),
        ("kafka.linger.ms stays, and so do transaction.max.timeout.ms and acks", None),
    ],
)
def test_errors_name_the_options_of_the_sink(of_the_producer: str, of_the_sink: str | None) -> None:
    assert in_terms_of_options(of_the_producer) == (of_the_sink or of_the_producer)


def test_settings_that_contradict_each_other_are_named_as_options() -> None:
    with pytest.raises(
        SinkOptionError, match=r"kafka\.delivery\.timeout\.ms must be at least kafka\.linger\.ms \+ kafka"
    ):
        checked_settings({**SERVERS, "delivery.timeout.ms": "10"})
