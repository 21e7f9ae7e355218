"""Away from an outbox table, in three steps and without a stop: `python -m examples.leaving_outbox`.

1. *Before*: the application writes its data and a row of the outbox in one commit, and a relay publishes the rows.
2. *Draining*: the relay is stopped and `drain()` called in its place, every few milliseconds. New versions of the
   application make dual writes, old ones may still run and fill the outbox. Each dual write first takes the waiting
   rows **of its own key** along: they are deleted and sent in the same decision, before the new record. So records of
   a key stay in order though both ways are in use. (A relay that skips locked rows would overtake them.)
3. *After*: no old version is left, `drain()` finds nothing any more, and the table goes.
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
    """The old way; a relay has to follow."""
    with session.begin():
        session.add(Entry(account=account, amount=amount))
        session.add(Outbox(key=account, value=str(amount)))


def book(writer: DualWriter, account: str, amount: int) -> None:
    """The new way, while the outbox is still in use."""
    with writer.transaction() as tx:
        publish_waiting(tx, sa.select(Outbox).where(Outbox.key == account))
        tx.session.add(Entry(account=account, amount=amount))
        tx.send(TOPIC, key=account, value=str(amount))


def publish_waiting(tx: DualTransaction, waiting: sa.Select[Outbox]) -> int:
    """Take rows of the outbox along, in their order; waits for those that another dual write is taking."""
    rows = tx.session.scalars(waiting.order_by(Outbox.id).with_for_update()).all()
    for row in rows:
        tx.send(TOPIC, key=row.key, value=row.value)
        tx.session.delete(row)
    return len(rows)


def drain(writer: DualWriter) -> int:
    """Publish all that is there; how much that was."""
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
