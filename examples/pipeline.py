"""A pipeline: read orders from Kafka, write invoices to a table and to Kafka, with exactly-once effect per order.

    python -m examples.pipeline

The consumer's progress is a row in the same commit. Even if processes are killed or partitions move, no order is billed
twice or left out. An order that cannot be parsed goes to a topic of its own, also in a dual write.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.producer import Producer
from dualwrite.recipes.consume.consume import ConsumedRecord, ConsumeTransformWrite, OffsetsInDatabase
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from dualwrite.testing.postgres import PostgresServer

PRICES = {"lamp": 20, "chair": 45}


class Base(DeclarativeBase): ...


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]
    amount: Mapped[int]


def bill(tx: DualTransaction, record: ConsumedRecord) -> None:
    """Write the invoice of one order."""
    order = json.loads(record.value or b"")
    invoice = Invoice(order_id=order["id"], amount=PRICES[order["item"]])
    tx.session.add(invoice)
    tx.session.flush()  # the database assigns the invoice's id
    tx.send("invoices", key=record.key, value=json.dumps({"invoice": invoice.id, "amount": invoice.amount}))


def set_aside(tx: DualTransaction, record: ConsumedRecord, error: Exception) -> None:
    """Send an order that `bill` failed on to a topic for inspection."""
    tx.send("orders-refused", key=record.key, value=record.value, headers={"error": repr(error).encode()})


def pipeline(engine: sa.Engine, bootstrap_servers: str, consumer: Any, name: str) -> ConsumeTransformWrite:
    """Return one member of the group `billing`; its `name` is unique, and stays the same after a restart."""
    Base.metadata.create_all(engine)
    writer = DualWriter(engine, bootstrap_servers=bootstrap_servers, transactional_id=f"billing-{name}")
    return ConsumeTransformWrite(
        writer, consumer, ["orders"], bill, offsets=OffsetsInDatabase(engine), poison=set_aside, max_records=100
    )


def kafka_python_consumer(bootstrap_servers: str) -> Any:
    library: Any = import_module("kafka")
    return library.KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id="billing",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )


def place_orders(bootstrap_servers: str) -> int:
    """Send orders, one of them malformed, and return their number."""
    orders = [json.dumps({"id": f"order-{number}", "item": item}) for number, item in enumerate(PRICES)]
    with Producer(bootstrap_servers=bootstrap_servers) as producer:
        for order in [*orders, "{"]:
            producer.send("orders", order)
        producer.flush()
    return len(orders) + 1


def main() -> None:
    topics = {"orders": 2, "invoices": 1, "orders-refused": 1}
    with PostgresServer.start() as postgres, Emulator(topics=topics) as kafka:
        engine = sa.create_engine(postgres.url)
        waiting = place_orders(kafka.bootstrap_servers)
        consumer = kafka_python_consumer(kafka.bootstrap_servers)
        billing = pipeline(engine, kafka.bootstrap_servers, consumer, "1")
        while waiting > 0:  # a service would call billing.run(stop.is_set)
            waiting -= billing.step()
        consumer.close()
        with engine.connect() as connection:
            for order_id, amount in connection.execute(sa.select(Invoice.order_id, Invoice.amount)):
                print(f"{order_id} is billed with {amount}")
        print("the malformed order, which the log shows, is in the topic orders-refused")
        engine.dispose()


if __name__ == "__main__":
    main()
