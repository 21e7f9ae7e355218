"""A plain worker: take jobs from a table, do them, and publish each result, in one dual write per job.

    python -m examples.worker

The job's row and the record are committed together or not at all, so a worker may be killed at any time: a job that it
had taken is free again, and a result that it had committed reaches Kafka. `SKIP LOCKED` lets any number of workers
share the table; each has a transactional id of its own.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from dualwrite import DualWriter
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.postgres import PostgresServer

POLL_S = 0.2


class Base(DeclarativeBase): ...


class Job(Base):
    __tablename__ = "jobs"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]
    square: Mapped[int | None]


def take_one(session: Session) -> Job | None:
    """Return a job that is not done, locked until the end of the transaction, or None if there is none."""
    waiting = sa.select(Job).where(Job.square.is_(None)).order_by(Job.id).limit(1)
    return session.scalars(waiting.with_for_update(skip_locked=True)).one_or_none()


def work_once(writer: DualWriter) -> bool:
    """Do one job and return True, or return False if there is none."""
    with writer.transaction() as tx:
        job = take_one(tx.session)
        if job is None:
            return False  # nothing was sent, so this is a database transaction only
        job.square = job.number**2
        tx.send("squares", key=str(job.id), value=json.dumps({"number": job.number, "square": job.square}))
        return True


def work(writer: DualWriter, stop: threading.Event, when_idle: Callable[[], object] = lambda: None) -> None:
    """Do jobs until `stop` is set; a job that was begun is finished."""
    while not stop.is_set():
        if not work_once(writer):
            when_idle()
            stop.wait(POLL_S)


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # the signal by which an orchestrator stops a process
    with PostgresServer.start() as postgres, Emulator(topics={"squares": 1}) as kafka:
        engine = sa.create_engine(postgres.url)
        Base.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            session.add_all(Job(number=number) for number in range(10))
        with DualWriter(engine, bootstrap_servers=kafka.bootstrap_servers, transactional_id="worker-1") as writer:
            work(writer, stop, when_idle=stop.set)  # a service would go on waiting for more
        with Session(engine) as session:
            print("squares:", *session.scalars(sa.select(Job.square).order_by(Job.id)))
        engine.dispose()


if __name__ == "__main__":
    main()
