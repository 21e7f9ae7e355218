"""Translate the options `kafka.*`, with the Java client's names that Spark users know, to settings of the producers.

Every name is translated, passed on, or refused with advice; none is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from dualwrite.config import AdminConfig, ProducerConfig
from dualwrite.errors import ConfigError
from dualwrite.java_client import translated
from spark_sink.errors import SinkOptionError

_DECIDED_BY_THE_SINK: Final = {
    "transactional.id": "every attempt of a task leases a transactional id of its own, which begins with sinkId",
    "transaction.two.phase.commit.enable": "the sink adapts to the broker; txn.mode sets the required support",
    "accept.bounded.guarantee": "txn.mode=resume accepts it",
    "transaction.timeout.ms": "set txn.timeoutMs instead",
    "key.serializer": "the column key is sent as it is: cast it to string or binary",
    "value.serializer": "the column value is sent as it is: cast it to string or binary",
    "retries": "requests are retried until kafka.delivery.timeout.ms has passed",
}

_OF_ADMIN: Final = frozenset(each.name for each in fields(AdminConfig))
"""The settings of connections, by names with underscores."""

_SET_TOKEN_PROVIDER: Final = "set kafka.sasl.oauth.token.provider=package.module:function, which returns tokens"

_ALTERNATIVES: Final = {
    "ssl.truststore.password": "set kafka.ssl.ca.location to a file in PEM format, which needs no password",
    "ssl.truststore.certificates": "write them to a file in PEM format, and set kafka.ssl.ca.location to it",
    "ssl.keystore.password": "set kafka.ssl.certificate.location and kafka.ssl.key.location to files in PEM format",
    "ssl.keystore.certificate.chain": "write it to a file, and set kafka.ssl.certificate.location to it",
    "ssl.keystore.key": "write it to a file, and set kafka.ssl.key.location to it",
    "ssl.context": "it is an object of one process, and options are strings that are sent to every executor",
    "sasl.oauth.extensions": "it is an object of one process, and options are strings that are sent to every executor",
    "partitioner.ignore.keys": "kafka.partitioner=random chooses partitions regardless of the keys",
    "sasl.login.callback.handler.class": _SET_TOKEN_PROVIDER,
    "sasl.client.callback.handler.class": _SET_TOKEN_PROVIDER,
    "sasl.oauthbearer.token.endpoint.url": _SET_TOKEN_PROVIDER,
    "sasl.kerberos.service.name": "the supported mechanisms are PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER",
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


def checked_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options `kafka.*` by the producer's names, without that prefix; still strings, to be pickled.

    Raises SinkOptionError, whose text has no secret, for an option that is unknown, invalid, set by the sink, or only
    for Java.
    """
    for name, value in given.items():
        _refuse(name, value)
    for store in ("ssl.truststore", "ssl.keystore"):
        if f"{store}.type" in given and f"{store}.location" not in given:
            raise SinkOptionError(f"the option kafka.{store}.type has no effect without kafka.{store}.location")
    try:
        settings = _partitioner(_compression_level(translated(given)))
        ProducerConfig.parse(settings, {})
    except ConfigError as error:
        raise SinkOptionError(
            f"the producer's settings, which are the options kafka.*, are invalid: {in_terms_of_options(str(error))}"
        ) from None
    return settings


_OWN_OPTIONS: Final = {
    "accept.bounded.guarantee=true": "txn.mode=resume",
    "transaction.timeout.ms": "txn.timeoutMs",
}
"""Options of the sink itself, by the settings of the producer that they decide."""

_NAMES: Final = sorted({each.name.replace("_", ".") for each in fields(ProducerConfig)} - _DECIDED_BY_THE_SINK.keys())
_NAMED: Final = re.compile(rf"(?<![\w.])({'|'.join(re.escape(name) for name in _NAMES if '.' in name)})(?!\.?\w)")


def in_terms_of_options(sentence: str) -> str:
    """Return a producer's message with each setting replaced by the sink's option for it."""
    for setting, option in _OWN_OPTIONS.items():
        sentence = sentence.replace(setting, option)
    return _NAMED.sub(r"kafka.\1", sentence)


def admin_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the producer's settings that an admin client has, too: those of connections."""
    return {name: value for name, value in settings.items() if name.replace(".", "_") in _OF_ADMIN}


def _refuse(name: str, value: str) -> None:
    if name in _DECIDED_BY_THE_SINK:
        raise SinkOptionError(f"the option kafka.{name} cannot be set: {_DECIDED_BY_THE_SINK[name]}")
    if name == "enable.idempotence" and value.lower() != "true":
        raise SinkOptionError("kafka.enable.idempotence must be true: there are no transactions without it")
    if name == "acks" and value.lower() not in ("all", "-1"):
        raise SinkOptionError("kafka.acks must be all: there are no transactions without it")
    if name in _ALTERNATIVES:
        raise SinkOptionError(f"the option kafka.{name} is not supported: {_ALTERNATIVES[name]}")
    if name in _OF_THE_JVM:
        raise SinkOptionError(
            f"the option kafka.{name} names code that only a JVM can load; this producer runs in Python"
        )
    if name in _WITHOUT_COUNTERPART:
        raise SinkOptionError(f"the option kafka.{name} has no counterpart in this producer; omit it")


def _compression_level(settings: dict[str, str]) -> dict[str, str]:
    """Translate the compression level: Java has one for each codec, which has an effect only with that codec."""
    codec = settings.get("compression.type", "none").lower()
    for name in [name for name in settings if name in _LEVELS]:
        if _LEVELS[name] != codec:
            raise SinkOptionError(f"the option kafka.{name} has no effect with kafka.compression.type={codec}; omit it")
        settings["compression.level"] = settings.pop(name)
    return settings


def _partitioner(settings: dict[str, str]) -> dict[str, str]:
    java_class = settings.pop("partitioner.class", None)
    if java_class is None:
        return settings
    if java_class not in _PARTITIONERS or "partitioner" in settings:
        raise SinkOptionError(
            f"the option kafka.partitioner.class={java_class} is not supported: omit it for Kafka's own rule, or set "
            "kafka.partitioner to default, consistent_random, random or round_robin"
        )
    settings["partitioner"] = _PARTITIONERS[java_class]
    return settings
