"""A process that carries records from one topic to a table and another topic: `python -m tests.crash.consuming_worker`.

Runs until it is killed, or until its standard input ends.
"""

from __future__ import annotations

import argparse
import os
import select
import sys

import sqlalchemy as sa

from dualwrite.recipes.consume import ConsumedRecord, ConsumeTransformWrite, OffsetsInDatabase, OffsetsInTransaction
from dualwrite.recipes.sqlalchemy import DualTransaction
from tests.crash.scenario import make_writer
from tests.support.consumers import LIBRARIES

SESSION_TIMEOUT_MS = 1_000

# No constraint: what is written twice is there twice.
carried = sa.Table("carried", sa.MetaData(), sa.Column("place", sa.String(40)), sa.Column("body", sa.String(100)))


def carry(tx: DualTransaction, record: ConsumedRecord) -> None:
    assert record.value is not None
    place = f"{record.partition}/{record.offset}"
    tx.connection.execute(sa.insert(carried), {"place": place, "body": record.value.decode()})
    tx.send("out", record.value, key=place)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--database-url", "--bootstrap-servers", "--transactional-id", "--place", "--library"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    engine = sa.create_engine(arguments.database_url)
    place = OffsetsInDatabase(engine) if arguments.place == "database" else OffsetsInTransaction()
    consumer = LIBRARIES[arguments.library](arguments.bootstrap_servers, "carriers", SESSION_TIMEOUT_MS)
    writer = make_writer(engine, arguments.bootstrap_servers, arguments.transactional_id)
    pipeline = ConsumeTransformWrite(writer, consumer, ["in"], carry, offsets=place, max_records=7)
    while not select.select([sys.stdin], [], [], 0)[0]:
        pipeline.step(100)
    writer.close()
    consumer.close()


if __name__ == "__main__":
    main()
