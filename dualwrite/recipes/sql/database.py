"""A database with our tables, by whichever way its statements reach the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from dualwrite.recipes.core.database_errors import is_conflict
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.store import Backlog, not_exact, stayed_locked
from dualwrite.recipes.sql import state_statements
from dualwrite.recipes.sql.identity_table import found_identity, identity_is_missing, make_identity
from dualwrite.recipes.sql.lease_statements import NOW_MS
from dualwrite.recipes.sql.outbox_elsewhere import OUTBOX_SQL
from dualwrite.recipes.sql.outbox_statements import MAY_VACUUM, VACUUM
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE, OutboxSql
from dualwrite.recipes.sql.pinned_tables import Pin, PinnedTables

ResultT = TypeVar("ResultT")

Steps = Callable[[Any], Coroutine[Any, Any, ResultT]]
"""Steps in one transaction, which is `OnTables` with `within` and `diversion`."""

_MOST_ATTEMPTS: Final = 5
"""Attempts to insert the identity row while other processes insert it at the same time."""


class SqlDatabase(ABC):
    """`OutboxDatabase` but for what needs a driver."""

    errors: tuple[type[Exception], ...]
    dialect = "postgresql"
    """The name of the dialect in SQLAlchemy."""
    insert_timeout_ms: int | None = None
    """How long the row of a new id may wait for locks of what is not there, if the database has such locks."""

    def __init__(self, *, schema: str | None) -> None:
        self._schema = schema
        self.pin: Final = Pin()
        """The location of the tables, as far as it was queried."""
        self._identity: DatabaseIdentity | None = None

    # ---- implemented for each driver --------------------------------------------------------------------------------

    @abstractmethod
    async def in_transaction(self, steps: Steps[ResultT], pin: Pin | None = None) -> ResultT:
        """Carry out steps in a transaction of their own, and commit it; `pin` locates tables that are elsewhere."""

    @abstractmethod
    async def _pin_tables(self) -> None:
        """Examine the database, and find our tables, or create them. Raises StateRowError, and StateTableError."""

    @abstractmethod
    async def ensure_table(self, table: str, pinned: PinnedTables | None = None) -> PinnedTables:
        """Create one of our tables where it is missing, if it may be created, and return its location.

        By default it is located without the state table. Raises StateRowError.
        """

    @abstractmethod
    def was_inserted_by_others(self, error: Exception) -> bool:
        """Return whether another process inserted the same row at the same moment."""

    @abstractmethod
    async def _outside_transactions(self, sql: str) -> None:
        """Execute a statement that is not allowed in a transaction."""

    # ---- rows and tables --------------------------------------------------------------------------------------------

    @property
    def locks_whole(self) -> bool:
        """Whether a writer excludes all others."""
        return self.dialect == "sqlite"

    @property
    def now_ms(self) -> str:
        """The SQL for the clock."""
        return NOW_MS[self.dialect]

    @property
    def _outbox_sql(self) -> OutboxSql:
        return OUTBOX_SQL[self.dialect]

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        """Create an empty row unless it exists. Return the database's identity.

        Raises StateRowError if a table is missing, or if its collation makes two different transactional ids equal,
        RowLockTimeoutError if another transaction holds a lock on the place of the new row, StateTableError, and
        DatabaseMovedError.
        """
        await self._pin_tables()
        identity = await self._known_identity()
        await self._insert(lambda database: self._make_row(database, transactional_id))
        return identity

    async def _make_row(self, database: Any, transactional_id: str) -> None:
        values = {"id": transactional_id}
        found = await database.rows(state_statements.SELECT_ID, values)
        if found and found[0][0] != transactional_id:
            raise not_exact(transactional_id, found[0][0])
        if found:
            return
        insert, timeout_ms = partial(database.changed, state_statements.INSERT, values), self.insert_timeout_ms
        if timeout_ms is None:
            await insert()
        else:
            await database.within(timeout_ms, stayed_locked(transactional_id, timeout_ms), insert)

    async def _known_identity(self) -> DatabaseIdentity:
        """Return the identity that this database adds to its transactional ids; inserted if missing, queried once."""
        if self._identity is None:
            self._identity = await self._found_or_made()
        return self._identity

    async def _found_or_made(self) -> DatabaseIdentity:
        for _ in range(_MOST_ATTEMPTS):
            found = await self.in_transaction(found_identity)
            if found is not None:
                return found
            try:
                await self._insert(make_identity)
            except self.errors as error:
                if not is_conflict(error):
                    raise  # otherwise, another process inserted it at the same moment
        raise identity_is_missing()

    async def _insert(self, steps: Steps[None]) -> None:
        """Carry out steps that insert rows, unless another process does so at the same moment."""
        try:
            await self.in_transaction(steps)
        except self.errors as error:
            if not self.was_inserted_by_others(error):
                raise

    # ---- the outbox -------------------------------------------------------------------------------------------------

    async def prepare_outbox(self) -> None:
        await self._pin_tables()
        if not self.pin.has_outbox_table:
            await self.ensure_table(OUTBOX_TABLE, self.pin.tables)
            self.pin.has_outbox_table = True

    async def prepare_diversion(self, name: str) -> None:
        await self._insert(lambda database: database.diversion(name).create())

    async def has_waiting(self, transactional_id: str) -> bool:
        (found,) = await self._one_row(self._outbox_sql.has_waiting, {"id": transactional_id})
        return bool(found)

    async def backlog(self, transactional_id: str) -> Backlog:
        return Backlog(*await self._one_row(self._outbox_sql.backlog, {"id": transactional_id}))

    async def _one_row(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
        rows: Sequence[Sequence[Any]] = await self.in_transaction(lambda database: database.rows(sql, values))
        (row,) = rows
        return row

    async def vacuum_outbox(self) -> None:
        if not self._outbox_sql.is_vacuumed:
            return
        (may,) = await self._one_row(MAY_VACUUM, {"name": self.pin.sql(OUTBOX_TABLE)})
        if may:
            await self._outside_transactions(self.pin.sql(VACUUM))
