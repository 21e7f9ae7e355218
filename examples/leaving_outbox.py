"""Migrate from an outbox table to dual writes in three steps, without downtime: `python -m examples.leaving_outbox`.

1. *Before*: the application writes its data and a row of the outbox in one commit, and a relay publishes the rows.
2. *Draining*: the relay is stopped, and `drain()` is called in its place, every few milliseconds. New versions of the
   application make dual writes, while old versions may still run and fill the outbox. Each dual write first publishes
   the waiting rows **of its own key**: it deletes and sends them in the same commit, before the new record. So the
   records of a key stay in order although both ways are in use. (A relay that skips locked rows would overtake them.)
3. *After*: no old version is running, `drain()` finds nothing any more, and the table can be dropped.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from dualwrite.testing.postgres import PostgresServer

TOPIC = "accounts"
BATCH = 500


class Base(DeclarativeBase): ...


class Entry(Base):
    __tablename__ = "entries"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str]
    amount: Mapped[int]


class Outbox(Base):
    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(index=True)
    value: Mapped[str]


def book_with_outbox(session: Session, account: str, amount: int) -> None:
    """Write an entry the old way; a relay publishes it later."""
    with session.begin():
        session.add(Entry(account=account, amount=amount))
        session.add(Outbox(key=account, value=str(amount)))


def book(writer: DualWriter, account: str, amount: int) -> None:
    """Write an entry as a dual write, while the outbox is still in use."""
    with writer.transaction() as tx:
        publish_waiting(tx, sa.select(Outbox).where(Outbox.key == account))
        tx.session.add(Entry(account=account, amount=amount))
        tx.send(TOPIC, key=account, value=str(amount))


def publish_waiting(tx: DualTransaction, waiting: sa.Select[Outbox]) -> int:
    """Publish and delete rows of the outbox, in their order; wait for rows that another dual write has locked."""
    rows = tx.session.scalars(waiting.order_by(Outbox.id).with_for_update()).all()
    for row in rows:
        tx.send(TOPIC, key=row.key, value=row.value)
        tx.session.delete(row)
    return len(rows)


def drain(writer: DualWriter) -> int:
    """Publish all rows of the outbox, and return their number."""
    published = 0
    while True:
        with writer.transaction() as tx:
            batch = publish_waiting(tx, sa.select(Outbox).limit(BATCH))
        if not batch:
            return published
        published += batch


def main() -> None:
    with PostgresServer.start() as postgres, Emulator(topics={TOPIC: 1}) as kafka:
        engine = sa.create_engine(postgres.url)
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            book_with_outbox(session, "alice", 10)
            book_with_outbox(session, "bob", 20)
        with DualWriter(engine, bootstrap_servers=kafka.bootstrap_servers, transactional_id="accounts-1") as writer:
            book(writer, "alice", 11)
            print(f"{drain(writer)} record of the outbox was left to publish; the table can be dropped")
        engine.dispose()


if __name__ == "__main__":
    main()
