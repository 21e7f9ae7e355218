"""The database of the chaos test: its tables, how impatient it is, and a history of all decisions that it took."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from dualwrite.recipes.sql.outbox_statements import OF_POSTGRES
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sqlalchemy.outbox_table import create_outbox_table
from dualwrite.recipes.sqlalchemy.state_table import create_state_table, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import create_lease_table
from tests.crash.chaos_job import events, locked_rows
from tests.crash.chaos_ways import locked_keys, way_of_key

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

_STORED = sa.text(f"SELECT count(*) FROM {OUTBOX_TABLE} WHERE {OF_POSTGRES.is_waiting}")


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
        create_outbox_table(self.engine)
        with self.engine.begin() as connection:
            connection.execute(sa.insert(locked_rows), [{"key": key} for key in locked_keys()])
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

    def stored(self) -> int:
        """How many blocks wait to be published."""
        with self.engine.connect() as connection:
            return int(connection.scalar(_STORED) or 0)

    def xids(self) -> dict[str, int]:
        """Every row, with the database transaction that wrote it."""
        return self._events(events.c.xid)

    def versions(self) -> dict[str, int]:
        """Every row, with the version of the row that its block has locked; without one, its transaction's number."""
        return self._events(sa.func.coalesce(events.c.version, events.c.xid))

    def _events(self, column: sa.ColumnElement[int]) -> dict[str, int]:
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(events.c.body, column))
            return {body: number for body, number in found}  # noqa: C416 - a result's keys() are its columns

    def ways_that_locked(self) -> set[str]:
        """Return the ways in which a block that has locked a row was committed."""
        with self.engine.connect() as connection:
            found = connection.scalars(sa.select(locked_rows.c.key).where(locked_rows.c.version > 0))
            return {way_of_key(key) for key in found}

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
