"""The relay of a transactional outbox: `python -m benchmarks.outbox_relay ...` moves rows to Kafka until stdin ends.

Written as one would in earnest: a batch is taken by one statement with SKIP LOCKED, so that relays can run beside each
other, produced with idempotence, and gone from the table once Kafka has acknowledged all of it. It polls every few
milliseconds, and at once while there is something left.
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
    """Produce what is there, then forget it; how many records that was."""
    with connection.transaction():
        rows = connection.execute(_TAKE, (BATCH,), prepare=True).fetchall()
        for _, key, body in sorted(rows):
            producer.send(topic, body, key)
        if rows:
            producer.flush()
    return len(rows)


def relay(database_url: str, bootstrap_servers: str, topic: str) -> None:
    """Until standard input ends; says when it is ready."""
    with psycopg.connect(database_url) as connection, Producer(bootstrap_servers=bootstrap_servers) as producer:
        connection.autocommit = True  # so that nothing but the batches' own transactions is open
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
