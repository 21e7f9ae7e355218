"""Write one order to a table and to a topic, or to neither: `python -m examples.quickstart`."""

from __future__ import annotations

import tempfile

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite import DualWriter
from dualwrite.broker_emulator.emulator import Emulator


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


def place_order(database_url: str, bootstrap_servers: str) -> None:
    """Commit the order and publish it, atomically."""
    engine = sa.create_engine(database_url)
    Base.metadata.create_all(engine)
    with DualWriter(engine, bootstrap_servers=bootstrap_servers, transactional_id="orders-1") as writer:
        with writer.transaction() as tx:
            tx.session.add(Order(id=1, item="lamp"))
            tx.send("orders", key="1", value='{"item": "lamp"}')
        print(f"in the table and in the topic, as Kafka transaction {tx.prepared_state}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, Emulator(topics={"orders": 1}) as kafka:
        place_order(f"sqlite:///{directory}/orders.db", kafka.bootstrap_servers)
