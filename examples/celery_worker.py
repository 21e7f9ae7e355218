"""A Celery worker whose task writes an order to a table and to a topic, or to neither.

    python -m examples.celery_worker

Each prefork process has a pool of transactional ids of its own. A task that is delivered again, because its process was
killed or its outcome was unknown, finds its order by the primary key: there is never a second row, nor a second event.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from celery import Celery, Task
from celery.signals import worker_init, worker_process_shutdown
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import DualWriteError
from dualwrite.outcome import outcome_of
from dualwrite.recipes.sqlalchemy.writer import DualWriter

TOPIC = "orders"

LONGEST_PAUSE_S = 5

_log = logging.getLogger(__name__)


def queue_in(folder: str) -> dict[str, str]:
    """Return the options of Celery's filesystem transport."""
    return {"data_folder_in": folder, "data_folder_out": folder, "control_folder": f"{folder}/control"}


app = Celery("shop", set_as_current=False)
app.conf.update(
    broker_url="filesystem://",  # for one machine; docs/celery.md tells how other brokers treat a killed worker
    broker_transport_options=queue_in(os.environ.get("SHOP_QUEUE", ".")),
    task_acks_late=True,  # the message leaves the queue when the task is done
    task_reject_on_worker_lost=True,  # a killed process gives it back
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)

pool_settings: dict[str, Any] = {"prefix": "shop"}


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@worker_init.connect  # type: ignore[untyped-decorator]
def create_tables(**_: Any) -> None:
    """Create the tables before the fork: processes that do so at the same time may get an IntegrityError."""
    engine = sa.create_engine(os.environ["SHOP_DATABASE_URL"])
    Base.metadata.create_all(engine)
    engine.dispose()


@cache
def writers() -> DualWriter:
    """Return the pool of this process. The first task creates it, so after the fork, with connections of its own."""
    engine = sa.create_engine(os.environ["SHOP_DATABASE_URL"], pool_pre_ping=True)
    pool = DualWriter(engine, bootstrap_servers=os.environ["SHOP_BOOTSTRAP_SERVERS"], **pool_settings)
    try:
        pool.recover()  # complete the transactions of killed processes
    except DualWriteError as error:
        _log.warning("something is left open, and will be completed in the background: %s", error)
    return pool


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def close_pool(**_: Any) -> None:
    if writers.cache_info().currsize:
        writers().close()


@app.task(  # type: ignore[untyped-decorator]
    bind=True,
    name="shop.place_order",  # the same where this file runs as a program
    max_retries=None,
)
def place_order(task: Task, order_id: int, item: str) -> None:
    """Write an order to both sides; do nothing if it is written."""
    pool = writers()  # outside of `try`: an IntegrityError there says nothing of the order
    try:
        with pool.transaction() as tx:
            tx.session.add(Order(id=order_id, item=item))
            tx.session.flush()
            tx.send(TOPIC, key=str(order_id), value=item)
    except IntegrityError:
        """An earlier delivery of this task has decided; whoever has its transactional id completes Kafka's side."""
    except (DualWriteError, OperationalError) as error:
        if outcome_of(error).is_decided:
            raise  # the record is lost: a retry would find the order, and take the task for done
        raise task.retry(exc=error, countdown=min(2**task.request.retries, LONGEST_PAUSE_S)) from error


def main() -> None:
    """Run a worker on a temporary database, broker and queue, until it has placed ten orders."""
    with tempfile.TemporaryDirectory() as directory, Emulator(topics={TOPIC: 1}) as kafka:
        queue = Path(directory, "queue")
        queue.mkdir()
        url = f"sqlite:///{directory}/shop.db"
        shop = {"SHOP_DATABASE_URL": url, "SHOP_BOOTSTRAP_SERVERS": kafka.bootstrap_servers, "SHOP_QUEUE": str(queue)}
        app.conf.broker_transport_options = queue_in(str(queue))
        for number in range(10):
            place_order.delay(number, "lamp")
        command = [sys.executable, "-m", "celery", "-A", __spec__.name, "worker", "--concurrency", "2", "-l", "ERROR"]
        worker = subprocess.Popen(command, env={**os.environ, **shop}, stdout=sys.stderr)  # Celery's banner
        try:
            while len(kafka.records(TOPIC)) < 10 and worker.poll() is None:
                time.sleep(0.1)
        finally:
            worker.terminate()
            worker.wait()
        print(f"{len(kafka.records(TOPIC))} orders are placed")


if __name__ == "__main__":
    main()
