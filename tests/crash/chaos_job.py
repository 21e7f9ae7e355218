"""The orders of the chaos test's processes, their journals, and how they stop.

Every block is journalled before it begins and after it has ended, a line each, in a file that outlives the process.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psycopg
import sqlalchemy as sa

from dualwrite.errors import DualWriteError, IllegalStateError, OutcomeUnknown, PreparedTransactionLost
from dualwrite.outcome import Outcome
from dualwrite.recipes.asyncpg.driver import ERRORS as ERRORS_OF_ASYNCPG
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.pause_points import PausePoint

events = sa.Table(
    "chaos_events",
    sa.MetaData(),
    sa.Column("body", sa.String(60), primary_key=True),
    sa.Column("xid", sa.BigInteger, server_default=sa.text("pg_current_xact_id()::text::bigint")),
    sa.Column("version", sa.BigInteger, comment="of the locked row; null: none was locked"),
    sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()")),
)
"""The data. The server itself notes which transaction wrote a row."""

locked_rows = sa.Table(
    "chaos_locked_rows",
    events.metadata,
    sa.Column("key", sa.String(20), primary_key=True),
    sa.Column("version", sa.BigInteger, server_default="0"),
)

EXPECTED: Final[tuple[type[Exception], ...]] = (
    DualWriteError,
    sa.exc.SQLAlchemyError,
    psycopg.Error,
    *ERRORS_OF_ASYNCPG,
)
RECORDS_PER_WRITE: Final = 2
NICENESS: Final = 10
"""Of processes that hardly pause: servers go first."""
AFTER_TROUBLE_S: Final = 0.3
"""A server may be away: leave it time to come back, and the machine to others."""

BEGUN: Final = "begun"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled-back"
UNKNOWN: Final = "unknown"
LOST: Final = "lost"
"""The database has committed, and the caller was told that Kafka has not: a forbidden state."""
MISTAKE: Final = "mistake"


@dataclass(frozen=True)
class Job:
    """The parameters of every worker."""

    database_url: str
    bootstrap_servers: str
    prefix: str
    topic: str
    writers: int
    journals: Path
    rest_s: float
    """The longest that a thread or task rests between two dual writes."""
    lease_ms: int
    kafka: dict[str, Any]
    """Settings of the producers that follow from the tier."""

    @property
    def producer(self) -> dict[str, Any]:
        """Settings of every producer."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "max_block_ms": 15_000,
            "reconnect_backoff_max_ms": 200,
            **self.kafka,
        }

    @property
    def rival_id(self) -> str:
        """The id that all rivals share."""
        return f"{self.prefix}-rivals"


class GivenUpError(Exception):
    """The block changes its mind."""


class Journal:
    """The results of the blocks of one process."""

    def __init__(self, job: Job, name: str) -> None:
        self._file = os.open(job.journals / f"{name}.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        log_to(job.journals / f"{name}.log")

    def block(self, name: str, key: str) -> Block:
        """`key`: of its rows and records."""
        self.note(name, BEGUN, key)
        return Block(self, name)

    def note(self, name: str, told: str, what: str) -> None:
        os.write(self._file, f"{name} {told} {time.time():.6f} {what}\n".encode())


class Block:
    """One dual write: notes its caller's result, and takes its errors."""

    def __init__(self, journal: Journal, name: str) -> None:
        self._journal = journal
        self.name: Final = name
        self.tx: DualWrite | None = None
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = None if isinstance(error, GivenUpError) else error
        which = "" if self.tx is None else f"{self.tx.transactional_id} {self.tx.prepared_state}"
        self._journal.note(self.name, self._told(error), f"{which} {error!r}" if error is not None else which)
        return True

    def _told(self, error: BaseException | None) -> str:
        if error is None:
            return COMMITTED
        if isinstance(error, GivenUpError):
            return ROLLED_BACK
        if isinstance(error, IllegalStateError) or not isinstance(error, EXPECTED):
            return MISTAKE
        outcome = None if self.tx is None else self.tx.outcome
        if outcome in (Outcome.COMMITTED, Outcome.STORED):
            return LOST if isinstance(error, PreparedTransactionLost) else COMMITTED
        if outcome is not None:
            return ROLLED_BACK
        return UNKNOWN if isinstance(error, OutcomeUnknown) else ROLLED_BACK


def journal_lines(job: Job) -> list[str]:
    return [line for journal in job.journals.glob("*.txt") for line in journal.read_text().splitlines() if line]


def bodies_of(name: str) -> list[str]:
    return [f"{name}:{index}" for index in range(RECORDS_PER_WRITE)]


def statement_of(name: str, key: str) -> str:
    """Return the statement that inserts the rows of a block; unless the key is its name, behind a row that it locks."""
    values = ", ".join(f"('{body}')" for body in bodies_of(name))
    bodies = f"(VALUES {values}) AS bodies (body)"
    if key == name:
        return f"INSERT INTO chaos_events (body) SELECT body FROM {bodies}"
    locks = f"UPDATE chaos_locked_rows SET version = version + 1 WHERE key = '{key}' RETURNING version"
    return (
        f"WITH locked AS ({locks}) INSERT INTO chaos_events (body, version) SELECT body, version FROM locked, {bodies}"
    )


def log_to(path: Path) -> None:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(threadName)s: %(message)s"))
    logger = logging.getLogger("dualwrite")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


@dataclass(frozen=True)
class Trap:
    """An order to report at a pause point, or a moment later, in the middle of the next step; and to stop there.

    `signal` is the process's signal to itself: SIGSTOP or SIGKILL, or None to go on.
    """

    point: PausePoint
    after_s: float
    signal: signal.Signals | None


class Orders:
    """The worker's end of the pipe to the director: a trap, or the word to end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._trap: Trap | None = None

    def obey(self, stop: Callable[[], None]) -> None:
        """Return when told to end, or when the director is gone."""
        try:
            while isinstance(order := self._pipe.recv(), Trap):
                self._trap = order
        except EOFError:
            pass
        self._trap = None
        stop()

    def reach(self, point: PausePoint) -> None:
        """The pause hook of every writer of this process."""
        trap = self._trap
        if trap is None or trap.point != point:
            return
        self._trap = None
        if trap.after_s:
            threading.Timer(trap.after_s, self._spring, (trap,)).start()
        else:
            self._spring(trap)

    def _spring(self, trap: Trap) -> None:
        self._pipe.send(str(trap.point))
        if trap.signal is not None:
            os.kill(os.getpid(), trap.signal)
