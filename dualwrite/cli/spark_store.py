"""The commit store as the commands open it, and the options of `dualwrite spark` alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from dualwrite.cli.connection import KafkaAccess, database, database_option
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


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to reach the commit store of a command, and Kafka."""

    url: str
    schema: str | None
    kafka: KafkaAccess

    @contextmanager
    def open(self) -> Iterator[AnyStore]:
        """Open the commit store, in a database or in a topic, and create nothing in it. Raises ConfigError."""
        if is_topic(self.url):
            with topic_store(self.url, self.schema, self.kafka) as store:
                yield store
            return
        with database(self.url) as engine:
            yield CommitStore(engine, schema=self.schema, create_tables=False)


_Option = Callable[[Callable[..., None]], Callable[..., None]]


def store_options(add_kafka: _Option) -> _Option:
    """Add `--database`, `--schema` and the options of `add_kafka`, which the command gets as `store`, a StoreAccess."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_store(
            *arguments: Any, access: KafkaAccess, database_url: str, schema: str | None, **options: Any
        ) -> None:
            command(*arguments, store=StoreAccess(database_url, schema, access), **options)

        return add_kafka(database_option(required=True)(schema_option(with_store)))

    return add


@dataclass(frozen=True, slots=True)
class NamedBatch:
    """The batch that a command is for."""

    sink_id: str
    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id} of sink {self.sink_id}"


def batch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--sink`, `--query` and `--batch`, which the command gets as `batch`, a NamedBatch."""

    @functools.wraps(command)
    def with_batch(*arguments: Any, sink_id: str, query_id: str, batch_id: int, **options: Any) -> None:
        command(*arguments, batch=NamedBatch(sink_id, query_id, batch_id), **options)

    for option in (
        click.option("--batch", "batch_id", required=True, type=click.IntRange(min=0), metavar="N", help="The batch."),
        click.option("--query", "query_id", required=True, metavar="ID", help="The query, as `status` shows it."),
        click.option("--sink", "sink_id", required=True, metavar="ID", help="The sink."),
    ):
        with_batch = option(with_batch)
    return with_batch


def sink_option(function: Callable[..., None]) -> Callable[..., None]:
    """Add `--sink`, which the command gets as `sink_ids`."""
    return click.option(
        "--sink", "sink_ids", multiple=True, metavar="ID", help="Only this sink; may be repeated (default: all)."
    )(function)


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
