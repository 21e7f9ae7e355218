"""The broker and the database that a run needs; started here unless the caller has them."""

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
    """The broker emulator as a process of its own, with these topics; yields its bootstrap address."""
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
    """What the process prints first, or nothing when it ends, or takes too long and is killed."""
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
    """A Postgres server, from whatever this machine has. Raises ServiceError with every reason if there is none."""
    try:
        server = PostgresServer.start()
    except ServerUnavailableError as error:
        raise ServiceError(str(error)) from error
    with server:
        yield server


@contextlib.contextmanager
def database_of_its_own(server: PostgresServer) -> Iterator[sa.Engine]:
    """An empty database with the demo's tables, dropped at the end: the server may be the user's."""
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
    """A directory for the event file and the workers' logs."""
    with tempfile.TemporaryDirectory(prefix="dualwrite-flights-") as path:
        yield Path(path)
