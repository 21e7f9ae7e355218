"""The database of the chaos test: its tables, how impatient it is, and a history of all decisions that it took."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from dualwrite.recipes.sql.outbox_statements import OF_POSTGRES
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sqlalchemy.state_table import create_state_table, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import create_lease_table
from tests.crash.chaos_job import events

_HISTORY = (
    "CREATE TABLE IF NOT EXISTS chaos_history (n bigserial PRIMARY KEY, transactional_id text, state text, xid bigint, "
    "at timestamptz DEFAULT clock_timestamp())",
    "CREATE OR REPLACE FUNCTION chaos_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "IF NEW.prepared_transaction_state IS DISTINCT FROM OLD.prepared_transaction_state THEN "
    "INSERT INTO chaos_history (transactional_id, state, xid) VALUES "
    "(NEW.transactional_id, NEW.prepared_transaction_state, pg_current_xact_id()::text::bigint); "
    "END IF; RETURN NULL; END $$",
    "CREATE OR REPLACE TRIGGER chaos_note AFTER UPDATE ON kafka_transaction_state "
    "FOR EACH ROW EXECUTE FUNCTION chaos_note()",
)

_TERMINATE = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND backend_type = 'client backend' AND pid <> pg_backend_pid() "
    "ORDER BY (state <> 'idle') DESC, random() LIMIT 1"
)

_LONGEST_IDLE = sa.text(
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0) FROM pg_stat_activity "
    "WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() "
    "AND state LIKE 'idle in transaction%'"
)
_STORED = sa.text(
    f"SELECT count(*), coalesce(sum(length(records)), 0) FROM {OUTBOX_TABLE} WHERE {OF_POSTGRES.is_waiting}"
)
_STORED_BEFORE = sa.text(
    f"SELECT EXISTS (SELECT FROM {OUTBOX_TABLE} WHERE {OF_POSTGRES.is_waiting} AND stored_at_ms < :before_ms)"
)


@dataclass(frozen=True)
class Decision:
    """The database, as the director queries it."""

    transactional_id: str
    state: str
    at: str


class ChaosDatabase:
    """The director's connection."""

    def __init__(self, url: sa.URL) -> None:
        self.url = url
        # The director and the calm phase may be slow: their sessions are never ended for being idle.
        patient = url.update_query_dict({"options": "-cidle_in_transaction_session_timeout=0"})
        self.engine = sa.create_engine(patient, pool_pre_ping=True)
        events.metadata.drop_all(self.engine)
        events.metadata.create_all(self.engine)
        create_state_table(self.engine)
        create_lease_table(self.engine)
        with self.engine.begin() as connection:
            for statement in _HISTORY:
                connection.exec_driver_sql(statement)

    def end_idle_transactions_after(self, timeout_ms: int) -> None:
        """For every session that begins from now on."""
        with self.engine.begin() as connection:
            name = connection.scalar(sa.text("SELECT quote_ident(current_database())"))
            connection.exec_driver_sql(
                f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '{timeout_ms}ms'"
            )

    def terminate_a_backend(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(_TERMINATE)

    def longest_idle_s(self) -> float:
        """For how long a transaction has waited for its client by now."""
        with self.engine.connect() as connection:
            return float(connection.scalar(_LONGEST_IDLE) or 0)

    def stored(self) -> tuple[int, int]:
        """How many blocks are stored because Kafka was away, and their bytes."""
        with self.engine.connect() as connection:
            number, size = connection.execute(_STORED).one()
            return int(number), int(size)

    def is_stored_before(self, at_s: float) -> bool:
        """Whether a block is stored since before that time, in seconds since 1970."""
        with self.engine.connect() as connection:
            return bool(connection.scalar(_STORED_BEFORE, {"before_ms": int(at_s * 1000)}))

    def bodies(self) -> dict[str, int]:
        """Every row, with the database transaction that wrote it."""
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(events.c.body, events.c.xid))
            return {body: xid for body, xid in found}  # noqa: C416 - a result's keys() are its columns

    def rows(self) -> dict[str, str]:
        """The state rows as they stand."""
        table = kafka_transaction_state
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(table.c.transactional_id, table.c.prepared_transaction_state))
            return {each: state for each, state in found}  # noqa: C416 - a result's keys() are its columns

    def decisions(self) -> dict[int, Decision]:
        """Each database transaction's last content of a state row."""
        with self.engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT xid, transactional_id, state, at FROM chaos_history ORDER BY n")
            return {xid: Decision(each, state, str(at)) for xid, each, state, at in found}
