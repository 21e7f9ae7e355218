"""The options `kafka.*`, by the Java client's names as Spark users write them, as settings of the sink's producers.

Every name is translated, taken as it is, or refused with a sentence; none is ignored.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, Final

from dualwrite.config import ProducerConfig
from dualwrite.errors import ConfigError
from dualwrite.java_client import translated
from spark_sink.errors import SinkOptionError

_DECIDED_BY_THE_SINK: Final = {
    "transactional.id": "every attempt of a task leases a transactional id of its own, which begins with sinkId",
    "transaction.two.phase.commit.enable": "the sink asks for what the broker can do; txn.mode says what it must do",
    "accept.bounded.guarantee": "txn.mode=resume accepts it",
    "transaction.timeout.ms": "it is given as txn.timeoutMs",
    "key.serializer": "the column key is written as it is: cast it to string or binary",
    "value.serializer": "the column value is written as it is: cast it to string or binary",
    "retries": "requests are repeated until kafka.delivery.timeout.ms is over",
}

_IN_OTHER_WORDS: Final = {
    "ssl.truststore.password": "name a file in PEM format as kafka.ssl.ca.location, which needs no password",
    "ssl.truststore.certificates": "write them to a file in PEM format and name it as kafka.ssl.ca.location",
    "ssl.keystore.password": "name files in PEM format as kafka.ssl.certificate.location and kafka.ssl.key.location",
    "ssl.keystore.certificate.chain": "write it to a file and name it as kafka.ssl.certificate.location",
    "ssl.keystore.key": "write it to a file and name it as kafka.ssl.key.location",
    "ssl.context": "it is an object of one process, and options are texts that go to every executor",
    "sasl.oauth.extensions": "it is an object of one process, and options are texts that go to every executor",
    "partitioner.ignore.keys": "kafka.partitioner=random puts records anywhere, whatever their keys",
    "sasl.login.callback.handler.class": "kafka.sasl.oauth.token.provider=package.module:function gives tokens",
    "sasl.client.callback.handler.class": "kafka.sasl.oauth.token.provider=package.module:function gives tokens",
    "sasl.oauthbearer.token.endpoint.url": "kafka.sasl.oauth.token.provider=package.module:function gives tokens",
    "sasl.kerberos.service.name": "the mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER",
}

_OF_THE_JVM: Final = (
    *("auto.include.jmx.reporter", "config.providers", "interceptor.classes", "metric.reporters"),
    *("security.providers", "ssl.engine.factory.class", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm"),
    *("ssl.secure.random.implementation", "ssl.provider", "sasl.login.class"),
)

_WITHOUT_COUNTERPART: Final = (
    *("client.dns.lookup", "connections.max.idle.ms", "enable.metrics.push", "metadata.max.idle.ms"),
    *("metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms", "metrics.num.samples"),
    *("metrics.recording.level", "metrics.sample.window.ms", "partitioner.adaptive.partitioning.enable"),
    *("partitioner.availability.timeout.ms", "receive.buffer.bytes", "send.buffer.bytes"),
    *("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"),
    *("ssl.protocol", "ssl.enabled.protocols", "ssl.cipher.suites"),
)

_PARTITIONERS: Final = {
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "round_robin",
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "default",
}

_LEVELS: Final = {f"compression.{codec}.level": codec for codec in ("gzip", "lz4", "zstd")}
_TOKEN_PROVIDER: Final = "sasl.oauth.token.provider"


def checked_settings(given: Mapping[str, str]) -> dict[str, str]:
    """What `kafka.*` said, without that prefix, by the producer's names; texts still, so that they can travel.

    Raises SinkOptionError, whose text has no secret, for what is unknown, wrong, decided by the sink, or only for Java.
    """
    for name, value in given.items():
        _refuse(name, value)
    for store in ("ssl.truststore", "ssl.keystore"):
        if f"{store}.type" in given and f"{store}.location" not in given:
            raise SinkOptionError(f"the option kafka.{store}.type says nothing without kafka.{store}.location")
    try:
        settings = _partitioner(_compression_level(translated(given)))
        ProducerConfig.parse(resolved(settings), {})
    except ConfigError as error:
        raise SinkOptionError(f"the producer's settings, which are the options kafka.*, are wrong: {error}") from None
    return settings


def resolved(settings: Mapping[str, str]) -> dict[str, Any]:
    """Settings as a producer takes them: the function that is named by a text, if any, is found here."""
    provider = settings.get(_TOKEN_PROVIDER)
    if provider is None:
        return dict(settings)
    try:
        return {**settings, _TOKEN_PROVIDER: pkgutil.resolve_name(provider)}
    except (ImportError, AttributeError, ValueError) as error:
        raise SinkOptionError(
            f"kafka.{_TOKEN_PROVIDER} names a function as package.module:function that every process of Spark can "
            f"import, not {provider!r}: {error}"
        ) from error


def _refuse(name: str, value: str) -> None:
    if name in _DECIDED_BY_THE_SINK:
        raise SinkOptionError(f"the option kafka.{name} cannot be set: {_DECIDED_BY_THE_SINK[name]}")
    if name == "enable.idempotence" and value.lower() != "true":
        raise SinkOptionError("kafka.enable.idempotence is true: there are no transactions without it")
    if name == "acks" and value.lower() not in ("all", "-1"):
        raise SinkOptionError("kafka.acks is all: there are no transactions without it")
    if name in _IN_OTHER_WORDS:
        raise SinkOptionError(f"the option kafka.{name} is not understood: {_IN_OTHER_WORDS[name]}")
    if name in _OF_THE_JVM:
        raise SinkOptionError(f"the option kafka.{name} names what only a JVM can load; this producer runs in Python")
    if name in _WITHOUT_COUNTERPART:
        raise SinkOptionError(f"the option kafka.{name} has no counterpart in this producer; leave it out")


def _compression_level(settings: dict[str, str]) -> dict[str, str]:
    """Java has a level for each codec, which counts if that codec is chosen."""
    codec = settings.get("compression.type", "none").lower()
    for name in [name for name in settings if name in _LEVELS]:
        if _LEVELS[name] != codec:
            raise SinkOptionError(
                f"the option kafka.{name} says nothing with kafka.compression.type={codec}; leave it out"
            )
        settings["compression.level"] = settings.pop(name)
    return settings


def _partitioner(settings: dict[str, str]) -> dict[str, str]:
    java_class = settings.pop("partitioner.class", None)
    if java_class is None:
        return settings
    if java_class not in _PARTITIONERS or "partitioner" in settings:
        raise SinkOptionError(
            f"the option kafka.partitioner.class={java_class} is not understood: leave it out for Kafka's own rule, or "
            "set kafka.partitioner to default, consistent_random, random or round_robin"
        )
    settings["partitioner"] = _PARTITIONERS[java_class]
    return settings
