"""Open the commit store that the options name: in a database, or in a topic."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from spark_sink.kafka_settings import admin_settings
from spark_sink.options import SinkOptions, StoreOptions, check_topic_store, store_url
from spark_sink.store.topic.topic_url import is_topic, topic_url

if TYPE_CHECKING:
    from spark_sink.store.sink_store import SinkStore
    from spark_sink.store.topic.kafka_log import KafkaLog
    from spark_sink.store.topic.replica import Replica

_replicas: Final[dict[tuple[Any, ...], tuple[KafkaLog, Replica]]] = {}
"""The logs as read by this process, shared by all its sinks. A forked child reads anew."""


def open_store(options: SinkOptions) -> SinkStore:
    """Open the store of the sink, on the engine or the log copy of this process. Raises SinkOptionError."""
    url = store_url(options.store)
    if is_topic(url):
        return _topic_store(options, url)
    from spark_sink.store.commit_store import CommitStore

    return CommitStore.open(options.store)


def _topic_store(options: SinkOptions, url: str) -> SinkStore:
    from spark_sink.store.topic.topic_store import TopicStore

    check_topic_store(options.store, options.dual)
    where = topic_url("commitStore.url", url)
    settings = admin_settings(options.kafka)
    if where.servers is not None:
        settings["bootstrap.servers"] = where.servers
    log, replica = _shared(settings, where.topic, options.store)
    return TopicStore(log, create=options.store.create_tables, replica=replica)


def _shared(settings: dict[str, Any], topic: str, options: StoreOptions) -> tuple[KafkaLog, Replica]:
    from spark_sink.store.topic.kafka_log import KafkaLog
    from spark_sink.store.topic.replica import Replica

    key = (os.getpid(), topic, options.timeout_ms, options.connect_timeout_ms, *sorted(settings.items()))
    if key not in _replicas:
        log = KafkaLog(
            settings,
            topic,
            timeout_ms=options.timeout_ms,
            unreachable_timeout_ms=options.connect_timeout_ms,
        )
        _replicas[key] = (log, Replica(log))
    return _replicas[key]
