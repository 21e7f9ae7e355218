"""The relay of a transactional outbox: `python -m benchmarks.outbox_relay ...` moves rows to Kafka until stdin ends.

Written as for production: SKIP LOCKED takes a batch, in one statement on PostgreSQL, so that relays can run
concurrently; the batch is produced with idempotence, and deleted from the table once Kafka has acknowledged all of it.
The relay polls every few milliseconds, and immediately while rows are left. With `--transactional-id` each batch is a
Kafka transaction, so that consumers see it as a whole; a crash between the two commits still publishes it twice. It
prints its CPU seconds at the end.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from collections.abc import Callable

import sqlalchemy as sa

from dualwrite import Producer

POLL_S = 0.005
BATCH = 500

_TAKE = """
DELETE FROM bench_outbox WHERE id IN (
    SELECT id FROM bench_outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING id, key, body
"""
_LOCK = "SELECT id, `key`, body FROM bench_outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
_DELETE = "DELETE FROM bench_outbox WHERE id IN %s"
"""MariaDB takes no LIMIT in a subquery."""


Row = tuple[int, str, bytes]
Publish = Callable[[list[Row]], None]


def move_batch(engine: sa.Engine, publish: Publish) -> int:
    """Produce and delete one batch, and return the number of its records."""
    with engine.begin() as connection:
        rows = _taken(connection)
        if rows:
            publish(sorted(rows))
    return len(rows)


def _taken(connection: sa.Connection) -> list[Row]:
    if connection.dialect.name == "postgresql":
        return [(*row,) for row in connection.exec_driver_sql(_TAKE, (BATCH,))]
    rows: list[Row] = [(*row,) for row in connection.exec_driver_sql(_LOCK, (BATCH,))]
    if rows:
        connection.exec_driver_sql(_DELETE, ([number for number, _, _ in rows],))
    return rows


def at_least_once(producer: Producer, topic: str) -> Publish:
    def publish(rows: list[Row]) -> None:
        for _, key, body in rows:
            producer.send(topic, body, key)
        producer.flush()

    return publish


def in_transactions(producer: Producer, topic: str) -> Publish:
    producer.init_transactions()

    def publish(rows: list[Row]) -> None:
        producer.begin_transaction()
        for _, key, body in rows:
            producer.send(topic, body, key)
        producer.commit_transaction()

    return publish


def relay(database_url: str, bootstrap_servers: str, topic: str, transactional_id: str | None = None) -> None:
    """Move batches until standard input ends; print "ready" first, and CPU seconds last."""
    engine = sa.create_engine(database_url, isolation_level="READ COMMITTED")
    with Producer(bootstrap_servers=bootstrap_servers, transactional_id=transactional_id) as producer:
        publish = (at_least_once if transactional_id is None else in_transactions)(producer, topic)
        print("ready", flush=True)
        began_s = time.process_time()
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            while move_batch(engine, publish):
                pass
        print(time.process_time() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outbox_relay")
    for name in ("--database-url", "--bootstrap-servers", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--transactional-id")
    relay(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
