"""Leases of transactional ids in a table, on any database that SQLAlchemy reaches and whose clock we can ask.

A lease is taken by an UPDATE that names what it replaces, which works alike on every database and at every isolation
level, leaves a row that people can look at, and outlives the connection that made it. Advisory locks (PostgreSQL
only, and one connection held for each pool) and SKIP LOCKED (not in SQLite, and a transaction left open for as long as
a lease lasts) would notice a dead process sooner; nothing depends on that.
`pool_schema.sql`, and `pool_schema_mysql.sql` for MySQL and MariaDB, are the same table for people who create tables by
hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from dualwrite.errors import ConfigError, StateRowError
from dualwrite.recipes.database_conflicts import is_conflict
from dualwrite.recipes.isolation import locks_whole_database
from dualwrite.recipes.leases import Lease, slot_of
from dualwrite.recipes.sqlalchemy_transaction import Carry, here
from dualwrite.recipes.state_row import MAX_TRANSACTIONAL_ID_LENGTH
from dualwrite.recipes.state_table import exact_text, kafka_transaction_state

ResultT = TypeVar("ResultT")

metadata = sa.MetaData()

kafka_transaction_lease = sa.Table(
    "kafka_transaction_lease",
    metadata,
    sa.Column("prefix", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", exact_text(64), nullable=True),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    mysql_engine="InnoDB",  # whatever the server's default is: others have no transactions
    mariadb_engine="InnoDB",
)


class _NowMs(FunctionElement[int]):
    """Milliseconds since 1970 by the database's clock, the only one that all processes share."""

    type = sa.BigInteger()
    inherit_cache = True


_NOW_MS: Final = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    # UNIX_TIMESTAMP(NOW()) means two instants in the hour that autumn repeats
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
    "mariadb": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


@compiles(_NowMs)
def _compile_now_ms(element: _NowMs, compiler: Any, **_: Any) -> str:
    return _NOW_MS[compiler.dialect.name]


_T = kafka_transaction_lease
_STATE_ID = kafka_transaction_state.c.transactional_id
_EXPIRED = sa.and_(_T.c.owner.is_not(None), _T.c.expires_at_ms < _NowMs())


def create_lease_table(engine: sa.Engine) -> None:
    """Create `kafka_transaction_lease` where it is missing; safe when several processes do it at once."""
    try:
        metadata.create_all(engine)
    except (IntegrityError, ProgrammingError, OperationalError):
        # Two processes created it in the same instant: the loser sees the winner's table on a second look.
        if not sa.inspect(engine).has_table(kafka_transaction_lease.name):
            raise


class SqlAlchemyLeases:
    """`Leases` in the table, on an engine. Raises ConfigError for a database whose clock it does not know to ask."""

    errors: tuple[type[Exception], ...] = (SQLAlchemyError,)

    def __init__(
        self,
        engine: sa.Engine,
        *,
        prefix: str,
        owner: str,
        lease_ms: int,
        create_table: bool,
        carry: Carry = here,
    ) -> None:
        if engine.dialect.name not in _NOW_MS:
            raise ConfigError(
                f"leases of transactional ids need a database whose clock can be asked ({', '.join(_NOW_MS)}), "
                f"not {engine.dialect.name}; use one DualWriter per transactional id there"
            )
        self._engine = engine
        self._prefix = prefix
        self._owner = owner
        self._lease_ms = lease_ms
        self._create_table = create_table
        self._carry = carry

    async def every_lease(self) -> list[Lease]:
        return await self._in_transaction(self._every_lease)

    async def add(self, slot: int) -> bool:
        return await self._won(lambda connection: self._insert(connection, slot, self._owner, self._end_of_lease()))

    async def claim(self, lease: Lease) -> bool:
        was = _T.c.owner.is_(None) if lease.free else _EXPIRED
        mine = {"owner": self._owner, "expires_at_ms": self._end_of_lease()}
        return await self._won(lambda connection: self._update(connection, self._row(lease.slot), was, **mine) == 1)

    async def renew(self, slots: set[int]) -> set[int]:
        return await self._in_transaction(lambda connection: self._renew(connection, slots)) if slots else set()

    async def release(self, slot: int) -> None:
        nobodys = {"owner": None, "expires_at_ms": 0}
        await self._in_transaction(lambda connection: self._update(connection, self._own_row(slot), **nobodys))

    async def abandon(self, slot: int) -> None:
        await self._in_transaction(lambda connection: self._update(connection, self._own_row(slot), expires_at_ms=0))

    async def adopt(self) -> None:
        await self._won(self._adopt)

    # ---- inside a transaction -------------------------------------------------------------------------------

    def _every_lease(self, connection: sa.Connection) -> list[Lease]:
        query = sa.select(_T.c.slot, _T.c.owner.is_(None), _EXPIRED).where(self._of_prefix()).order_by(_T.c.slot)
        return [Lease(slot, bool(free), bool(expired)) for slot, free, expired in connection.execute(query)]

    def _insert(self, connection: sa.Connection, slot: int, owner: str, expires_at_ms: Any) -> bool:
        values = {"prefix": self._prefix, "slot": slot, "owner": owner, "expires_at_ms": expires_at_ms}
        connection.execute(sa.insert(_T).values(values))
        return True

    def _update(self, connection: sa.Connection, *where: sa.ColumnElement[bool], **values: Any) -> int:
        return connection.execute(sa.update(_T).where(*where).values(values)).rowcount

    def _renew(self, connection: sa.Connection, slots: set[int]) -> set[int]:
        ours = sa.and_(self._of_prefix(), _T.c.owner == self._owner, _T.c.slot.in_(sorted(slots)))
        self._update(connection, ours, expires_at_ms=self._end_of_lease())
        return set(connection.scalars(sa.select(_T.c.slot).where(ours)))

    def _adopt(self, connection: sa.Connection) -> bool:
        if not sa.inspect(connection).has_table(kafka_transaction_state.name):
            return False
        ids = connection.scalars(sa.select(_STATE_ID).where(_STATE_ID.startswith(f"{self._prefix}-", autoescape=True)))
        slots = {slot_of(self._prefix, transactional_id) for transactional_id in ids} - {None}
        known = set(connection.scalars(sa.select(_T.c.slot).where(self._of_prefix())))
        for slot in sorted(slot for slot in slots if slot is not None and slot not in known):
            self._insert(connection, slot, owner="", expires_at_ms=0)
        return True

    def _end_of_lease(self) -> sa.ColumnElement[int]:
        return _NowMs() + self._lease_ms

    def _of_prefix(self) -> sa.ColumnElement[bool]:
        return _T.c.prefix == self._prefix

    def _row(self, slot: int) -> sa.ColumnElement[bool]:
        return sa.and_(self._of_prefix(), _T.c.slot == slot)

    def _own_row(self, slot: int) -> sa.ColumnElement[bool]:
        return sa.and_(self._row(slot), _T.c.owner == self._owner)

    async def _won(self, steps: Callable[[sa.Connection], bool]) -> bool:
        """Whether `steps` took effect; not where another process did something to the same rows in this instant."""
        try:
            return await self._in_transaction(steps)
        except IntegrityError:
            return False
        except DBAPIError as error:
            if locks_whole_database(self._engine.dialect) or not is_conflict(error):
                raise  # SQLite's only conflict is that its lock was not free in time
            return False

    async def _in_transaction(self, steps: Callable[[sa.Connection], ResultT]) -> ResultT:
        return await self._carry(lambda: self._run(steps))

    def _run(self, steps: Callable[[sa.Connection], ResultT]) -> ResultT:
        if self._create_table:
            create_lease_table(self._engine)
            self._create_table = False
        try:
            with self._engine.begin() as connection:
                return steps(connection)
        except (OperationalError, ProgrammingError) as error:
            if sa.inspect(self._engine).has_table(_T.name):
                raise
            raise StateRowError(
                "the table kafka_transaction_lease does not exist in this database; nothing was written: "
                "create it with dualwrite.recipes.lease_table.create_lease_table(engine)"
            ) from error
