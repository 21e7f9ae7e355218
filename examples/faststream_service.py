"""A FastStream service: read orders from Kafka, write invoices to a table and to Kafka, each order exactly once.

    python -m examples.faststream_service

FastStream assigns partitions and delivers; the progress of the group is a row in the same commit as the invoice. Kill
the service at any moment, or run several of them: no order is billed twice or left out. By default it runs on
FastStream's broker for aiokafka; `--library confluent` takes the one for confluent-kafka.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import faststream.confluent
import faststream.kafka
from faststream import FastStream
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite.producer import Producer
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.consume.consumers import ConsumedRecord
from dualwrite.recipes.consume.faststream import ExactlyOnce
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from examples.fastapi_service import recover, servers

ORDERS = "orders"
INVOICES = "invoices"
GROUP = "billing"
PRICES = {"lamp": 20, "chair": 45}


class Base(DeclarativeBase): ...


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    amount: Mapped[int]


async def bill(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
    """Write the invoice of one order. Nothing here keeps a second one out."""
    order = json.loads(record.value or b"")
    invoice = Invoice(order_id=order["id"], amount=PRICES[order["item"]])
    tx.session.add(invoice)
    tx.send(INVOICES, key=order["id"], value=str(invoice.amount))


async def set_aside(tx: AsyncDualTransaction, record: ConsumedRecord, error: Exception) -> None:
    """Send an order that `bill` failed on to a topic for inspection."""
    tx.send("orders-refused", key=record.key, value=record.value, headers={"error": repr(error)})


def create_app(
    engine: AsyncEngine,
    bootstrap_servers: str,
    *,
    library: str = "aiokafka",
    instance: str | None = None,
    **settings: Any,
) -> FastStream:
    """Return the service; `settings` are those of the pool.

    `instance` names this process in the group (KIP-345): one that is restarted under its name continues at once.
    """
    pool = AsyncDualWriter(engine, prefix="billing", bootstrap_servers=bootstrap_servers, **settings)
    billing = ExactlyOnce(pool, bill, group_id=GROUP, offsets=OffsetsInDatabase(engine), poison=set_aside)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with pool:
            await recover(pool)
            yield
        await engine.dispose()

    broker: Any
    if library == "confluent":
        broker = faststream.confluent.KafkaBroker(bootstrap_servers)
    else:
        broker = faststream.kafka.KafkaBroker(bootstrap_servers)
    subscriber = billing.subscriber(
        broker,
        ORDERS,
        group_instance_id=instance,
        batch=True,  # all records that are there at once are one dual write,
        max_records=100,  # up to so many
    )

    async def on_orders(message: Any) -> None:
        await billing.take(message)

    message_type = faststream.confluent.KafkaMessage if library == "confluent" else faststream.kafka.KafkaMessage
    on_orders.__annotations__["message"] = message_type
    subscriber(on_orders)
    return FastStream(broker, lifespan=lifespan)


def place_orders(bootstrap_servers: str, count: int) -> None:
    """Send orders, as a shop does."""
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for number in range(count):
            order = {"id": f"order-{number}", "item": "lamp" if number % 2 else "chair"}
            producer.send(ORDERS, key=order["id"], value=json.dumps(order))


def main() -> None:
    parser = argparse.ArgumentParser(description="Bill orders from a topic, into a table and another topic.")
    parser.add_argument("--database-url", help="default: SQLite in a temporary directory, and a temporary broker")
    parser.add_argument("--bootstrap-servers")
    parser.add_argument("--library", choices=["aiokafka", "confluent"], default="aiokafka")
    parser.add_argument("--lease-ms", type=int, default=15_000, help="after which others take over this one's ids")
    arguments = parser.parse_args()
    with servers(arguments.database_url, arguments.bootstrap_servers, topics=(ORDERS, INVOICES, "orders-refused")) as (
        database_url,
        bootstrap_servers,
    ):
        if arguments.bootstrap_servers is None:
            place_orders(bootstrap_servers, 100)

        async def run() -> None:
            engine = create_async_engine(database_url, pool_pre_ping=True)
            app = create_app(engine, bootstrap_servers, library=arguments.library, lease_ms=arguments.lease_ms)
            app.after_startup(lambda: print("running", flush=True))
            await app.run(log_level=logging.WARNING)

        asyncio.run(run())


if __name__ == "__main__":
    main()
