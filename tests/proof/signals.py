"""Signals whose handlers raise, at random moments of blocks, for as long as is wanted.

    python -m tests.proof.signals --seconds 600

Half of the writers report to OpenTelemetry. At the end rows and records must be equal, no slot may be stuck, no block
may have been refused for another reason than a signal, no connection may be in a transaction, and each `close` ends in
its time.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from dualwrite import DualWriter, PsycopgDualWriter
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.records import traces
from dualwrite.recipes.core import metrics
from dualwrite.recipes.sqlalchemy.sessions import dual_write_sessions, send
from dualwrite.testing.postgres import PostgresServer
from tests.support.strikes import is_of_new_statement

CLOSES_WITHIN_S: Final = 60


class SoftTimeLimit(Exception):  # noqa: N818 - as Celery calls it
    """An ordinary exception."""


class Abort(BaseException):
    """One that no `except Exception` catches."""


KINDS: Final[tuple[type[BaseException], ...]] = (SoftTimeLimit, Abort, KeyboardInterrupt, SystemExit)


@dataclass
class Face:
    """A writer, and its topic and table."""

    name: str
    writer: Any
    write: Callable[[Any, str, int], object]
    told: Counter[str] = field(default_factory=Counter)
    unexpected: list[str] = field(default_factory=list)
    number: int = 0
    longest_s: float = 0.05
    """How long a block takes."""


def in_sqlalchemy(writer: Any, name: str, number: int) -> None:
    with writer.transaction() as tx:
        tx.connection.execute(sa.text("INSERT INTO rows VALUES (:name, :n)"), {"name": name, "n": number})
        tx.send(name, str(number))


def in_psycopg(writer: Any, name: str, number: int) -> None:
    with writer.transaction() as tx:
        tx.connection.execute("INSERT INTO rows VALUES (%s, %s)", (name, number))
        tx.send(name, str(number))


def in_session(engine: sa.Engine) -> Callable[[Any, str, int], None]:
    made = sessionmaker(engine)

    def write(writer: Any, name: str, number: int) -> None:
        dual_write_sessions(made, writer)
        with made() as session:
            try:
                session.execute(sa.text("INSERT INTO rows VALUES (:name, :n)"), {"name": name, "n": number})
                send(session, name, str(number))
                session.commit()
            except SoftTimeLimit:  # SQLAlchemy invalidates a connection only behind a BaseException
                session.invalidate()
                raise

    return write


def faces_of(server: PostgresServer, bootstrap_servers: str, suffix: str) -> list[Face]:
    # A signal inside SQLAlchemy's QueuePool loses a place of it (tests/unit/test_sqlalchemy_internals.py).
    engine = sa.create_engine(server.url, poolclass=sa.NullPool)
    conninfo = server.url.set(drivername="postgresql").render_as_string(hide_password=False)
    kafka: Any = {"bootstrap_servers": bootstrap_servers}
    of_pool: Any = {**kafka, "max_writers": 2, "acquire_timeout_ms": 60_000}
    made: list[tuple[str, Any, Callable[[Any, str, int], None]]] = [
        ("sqlalchemy", lambda name: DualWriter(engine, transactional_id=name, **kafka), in_sqlalchemy),
        ("psycopg", lambda name: PsycopgDualWriter(conninfo, transactional_id=name, **kafka), in_psycopg),
        ("pool", lambda name: DualWriter(engine, prefix=name, **of_pool), in_sqlalchemy),
        ("psycopg-pool", lambda name: PsycopgDualWriter(conninfo, prefix=name, **of_pool), in_psycopg),
        ("session", lambda name: DualWriter(engine, transactional_id=name, **kafka), in_session(engine)),
        ("session-pool", lambda name: DualWriter(engine, prefix=name, **of_pool), in_session(engine)),
    ]
    return [Face(f"{name}-{suffix}", make(f"{name}-{suffix}"), write) for name, make, write in made]


class Struck:
    """The handler of the signal, which raises once where it is awaited.

    The timer's signal may reach another thread late, when the timer is already off: then the handler does nothing.
    """

    kind: type[BaseException] = SoftTimeLimit
    is_awaited = False
    raised: BaseException | None = None
    is_wrapped = False
    """Whether SQLAlchemy makes a StatementError of it."""

    def __call__(self, _: int, frame: FrameType | None) -> None:
        if self.is_awaited:
            self.is_awaited = False
            self.is_wrapped = issubclass(self.kind, Exception) and is_of_new_statement(frame)
            self.raised = self.kind()
            raise self.raised

    def has_reached(self, error: BaseException) -> bool:
        """Return whether `error`, which reached the caller, is the one that was raised.

        SQLAlchemy asserts in a `finally` that a COMMIT or ROLLBACK has ended its transaction.
        """
        if isinstance(error, AssertionError):
            return error.__context__ is self.raised
        return self.raised is not None and (error.__cause__ if self.is_wrapped else error) is self.raised


def strike(face: Face, struck: Struck) -> None:
    """Write one event, with a signal at a random moment."""
    struck.kind, struck.raised = random.choice(KINDS), None
    face.number += 1
    began_s = time.monotonic()
    try:
        try:
            struck.is_awaited = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1.2 * face.longest_s))
            face.write(face.writer, face.name, face.number)
        finally:
            struck.is_awaited = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        face.longest_s += 0.05 * (time.monotonic() - began_s - face.longest_s)
        face.told["written"] += 1
    except BaseException as error:
        text = f"{face.number}: {type(error).__name__}: {error}"[:300]
        if not struck.has_reached(error):
            face.unexpected.append(text)
        face.told[type(error).__name__] += 1
        struck.raised = None  # it would keep the frames of the block, and so its use of the id


def write(face: Face) -> None:
    """Write one event that nothing disturbs: it must succeed."""
    face.number += 1
    try:
        face.write(face.writer, face.name, face.number)
    except Exception as error:
        face.unexpected.append(f"{face.number}, undisturbed: {type(error).__name__}: {error}"[:300])


def use_telemetry(*, used: bool) -> None:
    """Report to an SDK of OpenTelemetry from now on, or to nothing."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(Nowhere()))
    tracer = tracers.get_tracer("signals")
    made = metrics.Instruments(MeterProvider([InMemoryMetricReader()]).get_meter("signals"), tracer)
    metrics.instruments = lambda: made if used else None  # type: ignore[assignment]
    traces.tracer = lambda: tracer if used else None  # type: ignore[assignment]


def judge(face: Face, server: PostgresServer, emulator: Emulator) -> bool:
    """Close the writer, print its state, and return whether that is right."""
    write(face)
    in_use = face.writer.status.in_use if face.writer.is_pool else 0
    began_s = time.monotonic()
    face.writer.close()
    close_s = time.monotonic() - began_s
    with psycopg.connect(_conninfo(server)) as connection:
        found = connection.execute("SELECT n FROM rows WHERE name = %s ORDER BY n", (face.name,)).fetchall()
    rows = [number for (number,) in found]
    records = sorted(int(record.value or b"0") for record in emulator.records(face.name))
    missing, surplus = set(rows) - set(records), set(records) - set(rows)
    is_right = rows == records and not face.unexpected and in_use == 0 and close_s < CLOSES_WITHIN_S
    print(
        f"{face.name:24} {'right' if is_right else 'WRONG'}: {face.number} blocks, {len(rows)} rows, "
        f"{len(records)} records, {in_use} in use, close {close_s:.1f} s, told {dict(face.told)}"
    )
    for text in [*face.unexpected[:10], *(f"rows without records: {missing}" for _ in missing and [1])]:
        print("   ", text)
    if surplus:
        print("    records without rows:", surplus)
    return is_right


def _conninfo(server: PostgresServer) -> str:
    return server.url.set(drivername="postgresql").render_as_string(hide_password=False)


def run(seconds: float, seed: int) -> bool:
    """Strike for so long. Return whether everything is right."""
    random.seed(seed)
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)  # it tells of each connection that was struck
    struck = Struck()
    before = signal.signal(signal.SIGALRM, struck)
    try:
        with PostgresServer.start() as server, Emulator() as emulator:
            server.spare_the_disk()
            with psycopg.connect(_conninfo(server)) as connection:
                connection.execute("CREATE TABLE rows (name text, n bigint, PRIMARY KEY (name, n))")
            faces = []
            for used in (False, True):
                use_telemetry(used=used)
                faces += faces_of(server, emulator.bootstrap_servers, "otel" if used else "plain")
            for face in faces:
                emulator.create_topic(face.name)
                write(face)
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                face = random.choice(faces)
                strike(face, struck)
                if random.random() < 0.5:
                    write(face)
            is_right = not [face for face in faces if not judge(face, server, emulator)]
            with psycopg.connect(_conninfo(server)) as connection:
                idle = connection.execute(
                    "SELECT query FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
                ).fetchall()
            print("in a transaction:", idle)
            return is_right and not idle
    finally:
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    print("seed", given.seed, flush=True)
    return 0 if run(given.seconds, given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
