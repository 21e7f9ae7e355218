"""Promises that a database cannot make: judged from its responses, refused before anything is written."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.decisions.database_safety import NAMES, Answers, answer_for, of_mysql, of_postgres, of_sqlite
from dualwrite.errors import ConfigError, NotDurableError, UnsafeDatabaseError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.sqlalchemy.mysql_row_lock import WITNESS_ID
from dualwrite.recipes.sqlalchemy.state_table import create_state_table, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.conformance.row_store import RowStore
from tests.support.databases import MariaDbDatabase, SqliteDatabase, unique
from tests.support.servers.mariadb import global_setting

STATE = PreparedTxnState("42:7")
GALERA = {"wsrep_on": "ON", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}
GROUP = {"group_replication_group_name": "aaaa"}


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ({"version": "8.4.0", "innodb_flush_log_at_trx_commit": "1", "log_bin": "ON", "sync_binlog": "1"}, None),
        (GALERA, "galera"),
        ({"wsrep_on": "ON", "wsrep_provider": "none"}, None),
        ({"wsrep_on": "OFF", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, None),
        ({**GROUP, "group_replication_single_primary_mode": "OFF"}, "group-replication"),
        ({**GROUP, "group_replication_single_primary_mode": "ON"}, None),
        ({"group_replication_group_name": "", "group_replication_single_primary_mode": "OFF"}, None),
        ({"version": "8.0.11-TiDB-v8.1.0", "tidb_txn_mode": "optimistic"}, "tidb-optimistic"),
        ({"version": "8.0.11-TiDB-v8.1.0", "tidb_txn_mode": "pessimistic"}, None),
        ({"innodb_flush_log_at_trx_commit": "0"}, "innodb_flush_log_at_trx_commit"),
        ({"innodb_flush_log_at_trx_commit": "2"}, None),
    ],
)
def test_unsafe_settings_of_mysql_are_refused(answers: Answers, refused: str | None) -> None:
    names = [finding.name for finding in of_mysql(answers) if finding.is_refused]
    assert names == ([] if refused is None else [refused])
    assert set(names) <= NAMES


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ({"version": "PostgreSQL 17.5 on x86_64", "fsync": "on", "full_page_writes": "on"}, None),
        ({"host": "abc.dsql.eu-west-1.on.aws"}, "aurora-dsql"),
        ({"host": "shop.cluster-abc.eu-west-1.rds.amazonaws.com"}, None),
        ({"version": "CockroachDB CCL v24.1.0"}, "cockroachdb"),
        ({"version": "PostgreSQL 15.2-YB-2.25.0.0-b0"}, "yugabytedb"),
        ({"fsync": "off"}, None),
    ],
)
def test_unsafe_settings_of_postgres_are_refused(answers: Answers, refused: str | None) -> None:
    names = [finding.name for finding in of_postgres(answers) if finding.is_refused]
    assert names == ([] if refused is None else [refused])
    assert set(names) <= NAMES


@pytest.mark.parametrize(
    ("name", "findings"),
    [
        ("innodb_flush_log_at_trx_commit", of_mysql({"innodb_flush_log_at_trx_commit": "2"})),
        ("sync_binlog", of_mysql({"log_bin": "ON", "sync_binlog": "0"})),
        ("fsync", of_postgres({"fsync": "off"})),
        ("full_page_writes", of_postgres({"full_page_writes": "off"})),
        ("journal_mode", of_sqlite({"journal_mode": "off", "file": "/shop.db"})),
    ],
)
def test_settings_that_risk_loss_with_the_machine_are_warned_of(
    name: str, findings: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    (finding,) = findings
    with caplog.at_level(logging.WARNING):
        answer_for([finding])  # type: ignore[list-item]
    assert f"the database's {name} is" in caplog.text


def test_without_a_binary_log_its_syncing_is_not_checked() -> None:
    assert of_mysql({"log_bin": "OFF", "sync_binlog": "0"}) == []


def test_a_refusal_names_the_setting_that_accepts_the_risk() -> None:
    with pytest.raises(UnsafeDatabaseError, match=r"dualwrite_accept': \['galera'\]"):
        answer_for(of_mysql(GALERA))
    answer_for(of_mysql(GALERA), {"galera"})


def writer_on(engine: sa.Engine, emulator: Emulator) -> DualWriter:
    return DualWriter(engine, bootstrap_servers=emulator.bootstrap_servers, transactional_id=unique("writer"))


def test_a_server_that_forgets_in_a_crash_is_refused_before_anything_is_written(
    mariadb: MariaDbDatabase, emulator: Emulator
) -> None:
    with global_setting(mariadb.aside, "innodb_flush_log_at_trx_commit", 0):
        with (
            writer_on(mariadb.engine, emulator) as writer,
            pytest.raises(UnsafeDatabaseError, match="innodb_flush_log_at_trx_commit: 0"),
            writer.transaction(),
        ):
            raise AssertionError("the block must not begin")
        assert not sa.inspect(mariadb.aside).has_table(kafka_transaction_state.name)
        accepted = mariadb.engine.execution_options(dualwrite_accept=["innodb_flush_log_at_trx_commit"])
        with writer_on(accepted, emulator) as writer, writer.transaction() as tx:
            tx.send("events", value="accepted")


def test_a_name_that_nothing_has_cannot_be_accepted(mariadb: MariaDbDatabase, emulator: Emulator) -> None:
    engine = mariadb.engine.execution_options(dualwrite_accept="galera")
    with writer_on(engine, emulator) as writer, pytest.raises(ConfigError, match="dualwrite_accept"):
        writer.recover()


def test_an_engine_is_checked_once(
    mariadb: MariaDbDatabase, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(sa.Engine, "_has_events", False)  # a listener leaves it set, for all engines of the process

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def note(*given: Any) -> None:
        asked.append(given[2])

    try:
        for _ in range(2):
            with writer_on(mariadb.engine, emulator) as writer:
                writer.recover()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert len([statement for statement in asked if "SHOW GLOBAL VARIABLES" in statement]) == 1


def test_a_row_of_mariadb_is_made_durable_while_its_lock_is_held(mariadb: MariaDbDatabase) -> None:
    create_state_table(mariadb.engine)
    store = RowStore(mariadb.engine)
    blocking.run(store.ensure_row("t"))
    with mariadb.engine.begin() as connection:
        store.lock(connection, "t", timeout_ms=None)
        store.write(connection, "t", previous=PreparedTxnState(), new=STATE, manifest="")
    with mariadb.engine.connect() as connection:
        assert store.lock(connection, "t", timeout_ms=None) == STATE
        blocking.run(store.make_durable("t", STATE, timeout_ms=5_000))
        first = witnessed_at(mariadb)
        blocking.run(store.make_durable("t", STATE, timeout_ms=5_000))
        assert witnessed_at(mariadb) > first  # an UPDATE that changes nothing would not reach the binary log
        with pytest.raises(NotDurableError, match="finds '42:7' in its row"):
            blocking.run(store.make_durable("t", PreparedTxnState("42:8"), timeout_ms=5_000))


def witnessed_at(database: MariaDbDatabase) -> datetime:
    with database.aside.connect() as connection:
        found = connection.execute(
            sa.select(kafka_transaction_state.c.updated_at).where(
                kafka_transaction_state.c.transactional_id == WITNESS_ID
            )
        ).scalar_one()
    assert isinstance(found, datetime)
    return found


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_attached_files_that_sqlite_commits_each_by_itself(mode: str, tmp_path: Path, emulator: Emulator) -> None:
    database = SqliteDatabase(tmp_path)

    @sa.event.listens_for(database.engine, "connect")
    def attach(made: sqlite3.Connection, _: object) -> None:
        made.execute(f"ATTACH '{tmp_path / 'shop.db'}' AS shop")
        made.execute(f"PRAGMA shop.journal_mode = {mode}")

    refused = pytest.raises(UnsafeDatabaseError, match="attached") if mode == "wal" else nullcontext()
    with writer_on(database.engine, emulator) as writer, refused, writer.transaction() as tx:
        tx.send("events", value="both or neither")
    database.close()


@pytest.mark.parametrize("level", ["OFF", "NORMAL", "FULL"])
def test_sqlite_syncs_the_deciding_commit(level: str, tmp_path: Path, emulator: Emulator) -> None:
    database = SqliteDatabase(tmp_path)
    sa.event.listen(database.engine, "connect", lambda made, _: made.execute(f"PRAGMA synchronous = {level}"))
    with writer_on(database.engine, emulator) as writer, writer.transaction() as tx:
        assert tx.session.connection().exec_driver_sql("PRAGMA synchronous").scalar() == 3
        tx.send("events", value="synced")
    database.close()


def test_a_row_of_sqlite_is_made_durable_while_its_lock_is_held(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    create_state_table(database.engine)
    store = RowStore(database.engine)
    blocking.run(store.ensure_row("t"))
    with database.engine.connect() as connection:
        assert store.lock(connection, "t", timeout_ms=None) == PreparedTxnState()
        blocking.run(store.make_durable("t", PreparedTxnState(), timeout_ms=1_000))
        connection.rollback()
    database.close()
