"""The database under test and the broker, and the events that are in each."""

from __future__ import annotations

import itertools
import uuid
from typing import Any, Final

import sqlalchemy as sa
from kafka import KafkaConsumer, TopicPartition

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.sqlalchemy.state_table import create_state_table, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from dualwrite.testing.conformance.row_store import RowStore
from dualwrite.testing.network_proxy import NetworkProxy

DEADLINE_S: Final = 60
"""How long a test waits for an expected event. Only a failing test takes this long."""

events: Final = sa.Table(
    "dualwrite_conformance",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("body", sa.String(100), nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


class Site:
    """The database under test, with a transactional id and a topic that only one test uses.

    `engine` connects through the relay (`proxy`) if there is one; `direct` always bypasses it.
    """

    def __init__(self, url: sa.URL, emulator: Emulator) -> None:
        self.emulator = emulator
        self.transactional_id = f"conformance-{uuid.uuid4().hex[:12]}"
        self.topic = f"topic-{uuid.uuid4().hex[:12]}"
        self.proxy = NetworkProxy.for_database(url) if _has_address(url) else None
        self.url = url
        self.direct = sa.create_engine(url, poolclass=sa.NullPool)
        reached = url if self.proxy is None else self.proxy.through(url)
        self.engine = sa.create_engine(reached, pool_pre_ping=True)
        self._numbers = itertools.count(1)
        emulator.create_topic(self.topic)
        create_state_table(self.direct)

    def close(self) -> None:
        self.engine.dispose()
        if self.proxy is not None:
            self.proxy.close()
        with self.direct.begin() as connection:
            mine = kafka_transaction_state.c.transactional_id.in_(
                [self.transactional_id, self.transactional_id.upper()]
            )
            connection.execute(sa.delete(kafka_transaction_state).where(mine))
            connection.execute(sa.delete(events))

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> DualWriter:
        return make_writer(self.engine, self.emulator.bootstrap_servers, self.transactional_id, pause, **settings)

    def store(self) -> RowStore:
        """Return the store of state rows; the row of this site's transactional id exists."""
        store = RowStore(self.engine)
        blocking.run(store.ensure_row(self.transactional_id))
        return store

    @property
    def kafka_id(self) -> str:
        """The transactional id as Kafka sees it, with the state table's identity."""
        return RowStore(self.direct).identity().kafka_id(self.transactional_id)

    def put(self, tx: DualTransaction) -> str:
        """Write one event to the database and to Kafka; return its text."""
        return put(tx, self.topic, next(self._numbers))

    def in_table(self) -> list[str]:
        with self.direct.connect() as connection:
            return list(connection.scalars(sa.select(events.c.body).order_by(events.c.id)))

    def in_topic(self) -> list[str]:
        """Return the topic's events up to the last stable offset, read with isolation.level=read_committed."""
        partition = TopicPartition(self.topic, 0)
        consumer: Any = KafkaConsumer(
            bootstrap_servers=self.emulator.bootstrap_servers,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            group_id=None,
        )
        try:
            consumer.assign([partition])
            end = consumer.end_offsets([partition])[partition]
            found: list[str] = []
            while consumer.position(partition) < end:
                for records in consumer.poll(1000).values():
                    found += [record.value.decode() for record in records]
            return found
        finally:
            consumer.close()

    def assert_both_hold(self, *expected: str) -> None:
        """Assert that both sides have exactly these events and that no transaction is open."""
        assert (self.in_table(), self.in_topic()) == (list(expected), list(expected))
        ours = [t for t in self.emulator.transactions() if t.transactional_id == self.kafka_id]
        assert all(transaction.state in ("Empty", "CompleteCommit", "CompleteAbort") for transaction in ours)


def make_writer(
    engine: sa.Engine, bootstrap_servers: str, transactional_id: str, pause: PauseHook | None, **settings: Any
) -> DualWriter:
    limits: dict[str, Any] = {"lock_timeout_ms": 20_000, "resolve_timeout_ms": 20_000, "max_block_ms": 20_000}
    return DualWriter(
        engine,
        bootstrap_servers=bootstrap_servers,
        transactional_id=transactional_id,
        pause=pause,
        **(limits | settings),
    )


def put(tx: DualTransaction, topic: str, number: int) -> str:
    """Write event `number` to the database and to Kafka; return its text."""
    text = f"event {number}"
    tx.connection.execute(sa.insert(events), {"id": number, "body": text})
    tx.send(topic, value=text)
    return text


def _has_address(url: sa.URL) -> bool:
    return bool(url.host or url.query.get("host") or url.query.get("unix_socket"))
