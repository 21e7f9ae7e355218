"""Start the broker and the database that a run needs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import sqlalchemy as sa

from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from examples.flights.errors import ServiceError
from examples.flights.table import Base

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0


@contextlib.contextmanager
def running_emulator(topics: Mapping[str, int]) -> Iterator[str]:
    """Run the broker emulator with these topics in a process of its own; yield its bootstrap address."""
    command = [sys.executable, "-m", "dualwrite.broker_emulator", "--listen", "127.0.0.1:0"]
    for name, partitions in topics.items():
        command += ["--topic", f"{name}:{partitions}"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            address = _first_line(process)
            if not address:
                errors.seek(0)
                raise ServiceError(f"the broker emulator did not start:\n{errors.read().strip()}")
            yield address
        finally:
            _stop(process)


def _first_line(process: subprocess.Popen[str]) -> str:
    """Return the first line that the process prints, or an empty text if it ends, or is killed for being too slow."""
    assert process.stdout is not None
    watchdog = threading.Timer(_START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        return process.stdout.readline().strip()
    finally:
        watchdog.cancel()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


@contextlib.contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """Run a Postgres server, whichever this machine offers. Raises ServiceError with all reasons if there is none."""
    try:
        server = PostgresServer.start()
    except ServerUnavailableError as error:
        raise ServiceError(str(error)) from error
    with server:
        yield server


@contextlib.contextmanager
def database_of_its_own(server: PostgresServer) -> Iterator[sa.Engine]:
    """Create a database with the demo's empty tables, and drop it at the end: the server may be the user's."""
    name = f"flights_demo_{uuid.uuid4().hex[:8]}"
    engine = sa.create_engine(server.create_database(name))
    try:
        Base.metadata.create_all(engine)
        yield engine
    finally:
        engine.dispose()
        administration = sa.create_engine(server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with administration.connect() as connection:
            connection.execute(sa.text(f'DROP DATABASE "{name}" WITH (FORCE)'))


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Create a temporary directory for the event file and the workers' logs."""
    with tempfile.TemporaryDirectory(prefix="dualwrite-flights-") as path:
        yield Path(path)
