"""The commit store as the commands open it, and the options that only they have: those of `dualwrite spark`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from dualwrite.cli.connection import KafkaAccess, database
from dualwrite.errors import ConfigError
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.topic.kafka_log import KafkaLog
from spark_sink.store.topic.topic_store import TopicStore
from spark_sink.store.topic.topic_url import is_topic as is_topic
from spark_sink.store.topic.topic_url import topic_url

AnyStore = CommitStore | TopicStore


def schema_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--schema`."""
    return click.option(
        "--schema", metavar="NAME", help="The schema of the commit store, like the option commitStore.schema."
    )(function)


def sink_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--sink`, which the command gets as `sink_ids`."""
    return click.option(
        "--sink", "sink_ids", multiple=True, metavar="ID", help="Only this sink; may be repeated (default: all)."
    )(function)


@contextmanager
def commit_store(url: str, schema: str | None, access: KafkaAccess) -> Iterator[AnyStore]:
    """Open the commit store, in a database or in a topic, and create nothing in it. Raises ConfigError."""
    if is_topic(url):
        with topic_store(url, schema, access) as store:
            yield store
        return
    with database(url) as engine:
        yield CommitStore(engine, schema=schema, create_tables=False)


@contextmanager
def topic_store(url: str, schema: str | None, access: KafkaAccess) -> Iterator[TopicStore]:
    """Open the commit store in a topic. Raises ConfigError."""
    where = topic_url("--database", url)
    if schema is not None:
        raise ConfigError("--schema has no effect with a commit store in a topic; nothing was changed: omit it")
    settings = access.settings if where.servers is None else access.settings | {"bootstrap_servers": where.servers}
    if "bootstrap_servers" not in settings:
        raise ConfigError(
            "--database kafka:///topic needs --bootstrap-server; or name the brokers in it: kafka://host:port/topic"
        )
    log = KafkaLog(settings, where.topic, timeout_ms=access.timeout_ms, unreachable_timeout_ms=access.reach_ms)
    try:
        yield TopicStore(log, create=False)
    finally:
        log.close()
