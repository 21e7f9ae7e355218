"""The relay of a transactional outbox: `python -m benchmarks.outbox_relay ...` moves rows to Kafka until stdin ends.

Written as for production: one statement with SKIP LOCKED takes a batch, so that relays can run concurrently; the batch
is produced with idempotence, and deleted from the table once Kafka has acknowledged all of it. The relay polls every
few milliseconds, and immediately while rows are left.
"""

from __future__ import annotations

import argparse
import select
import sys

import psycopg

from dualwrite import Producer

POLL_S = 0.005
BATCH = 500

_TAKE = """
DELETE FROM bench_outbox WHERE id IN (
    SELECT id FROM bench_outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) RETURNING id, key, body
"""


def move_batch(connection: psycopg.Connection, producer: Producer, topic: str) -> int:
    """Produce and delete one batch, and return the number of its records."""
    with connection.transaction():
        rows = connection.execute(_TAKE, (BATCH,), prepare=True).fetchall()
        for _, key, body in sorted(rows):
            producer.send(topic, body, key)
        if rows:
            producer.flush()
    return len(rows)


def relay(database_url: str, bootstrap_servers: str, topic: str) -> None:
    """Move batches until standard input ends; print "ready" first."""
    with psycopg.connect(database_url) as connection, Producer(bootstrap_servers=bootstrap_servers) as producer:
        connection.autocommit = True  # so that only the batches' own transactions are ever open
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], POLL_S)[0]:
            while move_batch(connection, producer, topic):
                pass


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outbox_relay")
    for name in ("--database-url", "--bootstrap-servers", "--topic"):
        parser.add_argument(name, required=True)
    relay(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
