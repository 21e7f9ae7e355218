"""The checks of a database for dual writes. They read settings and catalogs, and change nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.cli.doctor_checks import Check, failure, warning
from dualwrite.cli.doctor_pooler import pooler_check
from dualwrite.cli.output import counted
from dualwrite.delivery import Outbox
from dualwrite.errors import StoreFullError
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.judge import REFUSALS
from dualwrite.recipes.sql.outbox_elsewhere import OUTBOX_SQL
from dualwrite.recipes.sqlalchemy.examination import findings_of
from dualwrite.recipes.sqlalchemy.outbox_table import has_outboxes, kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_database, kafka_transaction_lease

_WHERE: Final = "database"
_DURABLE: Final = "otherwise the database could lose a decision that Kafka has already completed"
_TABLE: Final = kafka_transaction_state.name
_RIGHTS: Final = {
    kafka_transaction_state.name: ("SELECT", "INSERT", "UPDATE"),
    kafka_transaction_database.name: ("SELECT",),  # its one row is created with the table
    kafka_transaction_lease.name: ("SELECT", "INSERT", "UPDATE"),
    kafka_transaction_outbox.name: ("SELECT", "INSERT", "UPDATE", "DELETE"),
}


def database_checks(engine: sa.Engine, *, max_stored_age_s: float = 60.0) -> list[Check]:
    """Return all checks; warn of blocks that have waited in an outbox for `max_stored_age_s`.

    Raises the database's error if it cannot be reached.
    """
    with engine.connect() as connection:
        checks = [Check(_WHERE, "dialect", version_of(connection)), *_safety(connection), *_isolation(connection)]
        checks += [*_table(connection), _leases(connection), *_outboxes(connection, max_stored_age_s)]
        return checks + _OF_DIALECT.get(connection.dialect.name, _unknown)(connection)


def version_of(connection: sa.Connection) -> str:
    """Return the database's dialect and version, and the driver."""
    version = ".".join(map(str, connection.dialect.server_version_info or ()))
    return f"{connection.dialect.name} {version}, driver {connection.dialect.driver}"


def _safety(connection: sa.Connection) -> list[Check]:
    """Check whether writers refuse the database as it is set up, or warn of it."""
    return [
        (failure if finding.is_refused else warning)(_WHERE, finding.name, finding.found, finding.why)
        for finding in findings_of(connection)
    ]


def _isolation(connection: sa.Connection) -> list[Check]:
    level = connection.get_isolation_level()
    if level == "AUTOCOMMIT":
        remedy = "dual writes need transactions: remove isolation_level=AUTOCOMMIT from the URL or engine"
        return [failure(_WHERE, "isolation level", level, remedy)]
    if level in ("REPEATABLE READ", "SERIALIZABLE") and connection.dialect.name != "sqlite":
        remedy = "blocks may fail with serialization errors: retry them, or use READ COMMITTED"
        return [warning(_WHERE, "isolation level", level, remedy)]
    return [Check(_WHERE, "isolation level", level)]


def _table(connection: sa.Connection) -> list[Check]:
    inspector = sa.inspect(connection)
    if not inspector.has_table(_TABLE):
        remedy = (
            "create it: dualwrite init-db, or a migration (docs/cli.md); "
            "without create_table=False, the first dual write does, if it has the right to"
        )
        return [warning(_WHERE, _TABLE, "missing", remedy)]
    missing = {column.name for column in kafka_transaction_state.columns} - {
        column["name"] for column in inspector.get_columns(_TABLE)
    }
    if missing:
        remedy = "it is another table of that name, or was created by hand: compare it with dualwrite init-db --sql"
        return [failure(_WHERE, _TABLE, f"lacks {', '.join(sorted(missing))}", remedy)]
    key = inspector.get_pk_constraint(_TABLE)["constrained_columns"]
    if key != ["transactional_id"]:
        remedy = "make transactional_id its primary key: two rows of one id could hold contradicting decisions"
        return [failure(_WHERE, _TABLE, f"primary key {key or 'none'}", remedy)]
    return [Check(_WHERE, _TABLE, _rows(connection, kafka_transaction_state))]


def _leases(connection: sa.Connection) -> Check:
    """Check the lease table, which only pools need, and which they create themselves by default."""
    table = kafka_transaction_lease
    if not sa.inspect(connection).has_table(table.name):
        return Check(_WHERE, table.name, "none; only pools need it: they, or dualwrite init-db, create it")
    return Check(_WHERE, table.name, _rows(connection, table))


def _outboxes(connection: sa.Connection, max_age_s: float) -> list[Check]:
    """Check whether blocks have waited in an outbox for too long, if the table exists."""
    has_any = has_outboxes(connection.dialect) and sa.inspect(connection).has_table(kafka_transaction_outbox.name)
    return [_backlog(connection, max_age_s)] if has_any else []


def _backlog(connection: sa.Connection, max_age_s: float) -> Check:
    table = kafka_transaction_outbox
    waiting = (
        sa.select(sa.func.count(), sa.func.sum(sa.func.length(table.c.records)), sa.func.min(table.c.stored_at_ms))
        .where(sa.text(OUTBOX_SQL[connection.dialect.name].is_waiting))
        .group_by(table.c.transactional_id)
    )
    try:
        with connection.begin_nested():
            outboxes = connection.execute(waiting).all()
    except sa.exc.DBAPIError as error:
        return Check(_WHERE, table.name, f"present, but not readable: {first_line(error)}")
    if not outboxes:
        return Check(_WHERE, table.name, "nothing waits")
    blocks, sizes, since_ms = map(list, zip(*outboxes, strict=True))
    age_s = max(0.0, time.time() - min(since_ms) / 1000)
    waiting_now = (
        f"{counted(sum(blocks), 'block')} ({int(sum(sizes))} bytes) under {counted(len(outboxes), 'outbox id')}"
    )
    found = f"{waiting_now}, the oldest for {age_s:.0f} s"
    default = Outbox()
    if max(sizes) > default.max_stored_bytes or age_s > max(max_age_s, default.max_stored_age_ms / 1000):
        full = REFUSALS[StoreFullError]
        return failure(_WHERE, full.name, found, f"{full.remedy}: pools with the default limits refuse blocks")
    if age_s <= max_age_s:
        return Check(_WHERE, table.name, found)
    remedy = (
        "get Kafka back, and see that a process with Outbox(publishes=True) is alive, whose log has the reason: "
        "dualwrite top names the outboxes, and dualwrite recover publishes those that no process publishes. At "
        "max_stored_age_ms and max_stored_bytes blocks are refused"
    )
    return warning(_WHERE, table.name, found, remedy)


def _rows(connection: sa.Connection, table: sa.Table) -> str:
    """Count the rows, or say that they are not readable; the check of the rights says which right is missing."""
    try:
        with connection.begin_nested():  # otherwise an error would fail the checks that follow
            return counted(connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0, "row")
    except sa.exc.DBAPIError as error:
        return f"present, but not readable: {first_line(error)}"


def _postgresql(connection: sa.Connection) -> list[Check]:
    checks = [Check(_WHERE, "row locks", "FOR UPDATE SKIP LOCKED, lock_timeout")]
    if connection.scalar(sa.text("SELECT pg_is_in_recovery()")):
        checks.append(failure(_WHERE, "server", "a replica", "connect to the primary: a replica cannot lock rows"))
    checks += _synchronous_commit(connection)
    replicas = connection.scalar(sa.text("SELECT count(*) FROM pg_stat_replication"))
    standbys = connection.scalar(sa.text("SELECT current_setting('synchronous_standby_names')"))
    if replicas and not standbys:
        remedy = f"set synchronous_standby_names: after a failover to a replica that lags, {_DURABLE}"
        checks.append(warning(_WHERE, "replication", f"{counted(replicas, 'replica')}, none synchronous", remedy))
    return [*checks, *_postgresql_rights(connection), pooler_check(connection)]


_WAITS: Final = ("on", "remote_apply")
_RAISED: Final = "dual writes raise it to on for their own commits; for all others, set synchronous_commit=on"
_SET_FOR = sa.text(
    "SELECT concat_ws(' in ', 'role ' || rolname, 'database ' || datname) AS who,"
    " split_part(setting, '=', 2) AS value"
    " FROM pg_db_role_setting LEFT JOIN pg_roles ON pg_roles.oid = setrole"
    " LEFT JOIN pg_database ON pg_database.oid = setdatabase, unnest(setconfig) AS setting"
    " WHERE setting LIKE 'synchronous_commit=%' AND (datname IS NULL OR datname = current_database()) ORDER BY who"
)


def _synchronous_commit(connection: sa.Connection) -> list[Check]:
    """Check the value of this connection with its source, and the values that other roles have set."""
    setting = sa.text("SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'")
    value, source = connection.execute(setting).one()
    found = [("synchronous_commit", f"{value}, from: {source}", value)]
    for who, theirs in connection.execute(_SET_FOR):
        found.append((f"synchronous_commit of {who or 'all'}", theirs, theirs))
    return [
        Check(_WHERE, what, text) if level in _WAITS else warning(_WHERE, what, text, _RAISED)
        for what, text, level in found
    ]


def _postgresql_rights(connection: sa.Connection) -> list[Check]:
    """Check the rights on each table that exists; a missing one has its own check."""
    return [
        _postgresql_rights_on(connection, table, rights)
        for table, rights in _RIGHTS.items()
        if sa.inspect(connection).has_table(table)
    ]


def _postgresql_rights_on(connection: sa.Connection, table: str, rights: Sequence[str]) -> Check:
    lacking = [
        right
        for right in rights
        if not connection.scalar(
            sa.text("SELECT has_table_privilege(:table, :right)"), {"table": table, "right": right}
        )
    ]
    if lacking:
        named = ", ".join(lacking)
        remedy = f"GRANT {named} ON {table} TO the user of this URL"
        return failure(_WHERE, f"rights on {table}", f"no {named}", remedy)
    return Check(_WHERE, f"rights on {table}", ", ".join(rights))


def _mysql(connection: sa.Connection) -> list[Check]:
    checks = [Check(_WHERE, "row locks", "FOR UPDATE, innodb_lock_wait_timeout")]
    if connection.scalar(sa.text("SELECT @@GLOBAL.read_only")):
        checks.append(failure(_WHERE, "read_only", "1", "connect to the primary"))
    engine = connection.scalar(
        sa.text("SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"),
        {"name": _TABLE},
    )
    if engine is not None and str(engine).lower() != "innodb":
        checks.append(
            failure(_WHERE, "storage engine", engine, f"ALTER TABLE {_TABLE} ENGINE=InnoDB: {engine} has no row locks")
        )
    return checks


_SQLITE_SYNCHRONOUS: Final = {0: "off", 1: "normal", 2: "full", 3: "extra"}


def _sqlite(connection: sa.Connection) -> list[Check]:
    remedy = "fine for one process; several writers block each other: use a database with row locks for them"
    checks = [warning(_WHERE, "row locks", "one write lock for the whole file", remedy)]
    journal = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
    level: Any = connection.exec_driver_sql("PRAGMA synchronous").scalar()
    synchronous = _SQLITE_SYNCHRONOUS.get(level, str(level))
    if level == 0 or (level == 1 and journal == "wal"):
        remedy = "dual writes raise it to EXTRA on their connections; for all others: PRAGMA synchronous=FULL"
        checks.append(warning(_WHERE, "synchronous", synchronous, remedy))
    else:
        checks.append(Check(_WHERE, "synchronous", synchronous))
    return checks


def _unknown(connection: sa.Connection) -> list[Check]:
    remedy = "run the conformance tests (python -m dualwrite.testing.conformance) before you rely on it"
    return [warning(_WHERE, "row locks", f"{connection.dialect.name} has not been tested", remedy)]


_OF_DIALECT: Final[dict[str, Callable[[sa.Connection], list[Check]]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
    "sqlite": _sqlite,
}
