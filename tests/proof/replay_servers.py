"""The servers of a replay: a real Postgres for all of them, and an emulator for each."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any, Final, Self

import psycopg

from dualwrite.broker_emulator.clock import SystemClock, VirtualClock
from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.recipes.core.settings import WritingSettings
from dualwrite.recipes.core.waiting import TASKS
from dualwrite.recipes.postgres.backend import PostgresBackend
from dualwrite.recipes.psycopg.backend import PsycopgDriver
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction
from dualwrite.testing.postgres import PostgresServer
from tests.proof.kafka_requests import TOPIC, TRANSACTIONAL_ID
from tests.proof.replay_network import WAIT_S, ReplayError, postgres_target

TRANSACTION_TIMEOUT_MS: Final = 100_000
"""The timeout of our writers' transactions, if they have one; it differs from that of foreign programs."""
EXPIRATION_MS: Final = 3_600_000
"""Outlasts every transaction in a story; all other state is forgotten later."""

_NEVER_MS: Final = 10**12

_CONFIGS: Final[dict[int, dict[str, Any]]] = {
    1: {"profile": Profile.KIP_939},
    2: {"profile": Profile.KAFKA_4_3, "unstable_api_versions_enable": True},
    3: {"profile": Profile.KAFKA_4_3, "transaction_two_phase_commit_enable": False},
    4: {"profile": Profile.KAFKA_3_9, "transaction_two_phase_commit_enable": False},
}
"""Brokers by tier."""


class Servers:
    """A Postgres started here, or a running one."""

    def __init__(self, server: PostgresServer | None = None) -> None:
        self._own = PostgresServer.start() if server is None else None
        server = server or self._own
        assert server is not None
        if self._own is not None:
            self._own.spare_the_disk()
        url = server.create_database(f"replay_{uuid.uuid4().hex[:12]}")
        host = str(url.query.get("host") or url.host or "127.0.0.1")
        password = "" if url.password is None else f" password={url.password}"
        conninfo = f"dbname={url.database} user={url.username}{password} sslmode=disable gssencmode=disable"
        self.postgres: Final[tuple[str, tuple[str, int] | Path]] = conninfo, postgres_target(host, url.port)
        """A conninfo without an address, and where the server listens."""
        aside = f"{conninfo} host={host}" + (f" port={url.port}" if url.port else "")
        self._kafka_id = asyncio.run(_created(aside))
        self._aside = psycopg.connect(aside, autocommit=True)
        self._aside.execute("CREATE TABLE written (value text NOT NULL)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._aside.close()
        if self._own is not None:
            self._own.stop()

    @staticmethod
    def emulator(tier: int) -> Emulator:
        """Return a broker of a tier whose time stands still; not started."""
        config = BrokerConfig(
            transactional_id_expiration_ms=EXPIRATION_MS,
            transaction_remove_expired_transaction_cleanup_interval_ms=10_000,
            producer_id_expiration_ms=_NEVER_MS,
            log_retention_ms=-1,
            transaction_state_log_num_partitions=1,
            **_CONFIGS[tier],
        )
        return Emulator(config=config, clock=VirtualClock(SystemClock().now_ms()), topics={TOPIC: 1})

    def begin(self) -> str:
        """Empty the tables, and return the transactional id as Kafka knows it."""
        self._aside.execute("TRUNCATE kafka_transaction_state, written")
        return self._kafka_id

    def row_and_table(self) -> tuple[str, tuple[str, ...]]:
        """Return the committed prepared state, and the committed changes of the application."""
        rows = self._aside.execute("SELECT prepared_transaction_state FROM kafka_transaction_state").fetchall()
        table = self._aside.execute("SELECT value FROM written ORDER BY value").fetchall()
        return str(rows[0][0] or "") if rows else "", tuple(str(value) for (value,) in table)

    def wait_until_free(self) -> None:
        """Wait until the lock of the row is free: a server notices the end of a connection a moment later."""
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            free = self._aside.execute("SELECT 1 FROM kafka_transaction_state FOR UPDATE SKIP LOCKED").fetchall()
            if free:
                return
            time.sleep(0.002)
        raise ReplayError("the row stays locked, and in the model nobody holds its lock")

    def end_connection(self, server_process: int) -> None:
        """End a connection, with its transaction and locks."""
        self._aside.execute("SELECT pg_terminate_backend(%s)", (server_process,))
        deadline_s = time.monotonic() + WAIT_S
        while time.monotonic() < deadline_s:
            query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
            if self._aside.execute(query, (server_process,)).fetchone() is None:
                return
            time.sleep(0.002)
        raise ReplayError(f"the server's process {server_process} does not end")


async def _created(conninfo: str) -> str:
    """Create the tables, and return the transactional id as Kafka knows it."""
    backend = PostgresBackend[Any, AsyncPsycopgDualTransaction](
        conninfo,
        driver=PsycopgDriver(psycopg.AsyncConnection, None),
        handle=AsyncPsycopgDualTransaction,
        waiting=TASKS,
        settings=WritingSettings(),
    )
    identity = await backend.database.ensure_row(TRANSACTIONAL_ID)
    await backend.close()
    return identity.kafka_id(TRANSACTIONAL_ID)
