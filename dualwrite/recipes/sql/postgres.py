"""PostgreSQL's row lock on the state row, and the durability of its commit; parameters are written `:name`.

The durability of a commit depends on two things. `synchronous_commit` controls whether COMMIT waits for the disk, and
for the standbys in `synchronous_standby_names`; any user may lower it, for a role, a database, a session or one
transaction. And the wait for a standby can be cancelled after the commit took effect, so that it is visible, and lost
in a failover.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final, NamedTuple

from dualwrite.recipes.sql.pinned_tables import OID, PinnedTables, Query, assert_still_there

# ---- the row lock ---------------------------------------------------------------------------------------------------
SAME_TABLE: Final = f"kafka_transaction_state.tableoid = {OID}"
"""False for the rows of a table that replaced the pinned one."""

SELECT: Final = (
    f"SELECT prepared_transaction_state FROM kafka_transaction_state WHERE transactional_id = :id AND {SAME_TABLE}"
)
SELECT_LOCKED: Final = f"{SELECT} FOR UPDATE"

SELECT_MANIFEST: Final = (
    "SELECT coalesce(manifest, '') FROM kafka_transaction_state"
    f" WHERE transactional_id = :id AND {SAME_TABLE} FOR UPDATE"
)

STILL_HELD: Final = (
    "CASE WHEN kafka_transaction_state.xmax = CAST(pg_current_xact_id() AS xid) THEN true ELSE EXISTS ("
    "SELECT 1 FROM pg_lock_status() AS held WHERE held.locktype = 'transactionid' AND held.pid = pg_backend_pid()"
    " AND held.granted AND held.transactionid = kafka_transaction_state.xmax) END"
)
"""True for the row if the current transaction has locked it.

A locked row has the id of its locker in `xmax`. So the last statement of a dual write can prove that the transaction
that locked the row is still running, even if ROLLBACK was sent as text or through a forked process. After a savepoint
that was not released, the locker is a subtransaction, and only this server process holds a lock on its id. The view
`pg_locks` selects from the same function, and takes the server half as long again to plan.
"""

MARK: Final = "dualwrite.transaction"
"""A setting that ends with the transaction that set it, and that rolling back to an earlier savepoint undoes.

So the last statement can prove that the transaction is still the one in which the block began, by whichever way a
statement that ended it reached the server.
"""

_marks: Final = itertools.count(int.from_bytes(os.urandom(4)))


def new_mark() -> str:
    """Return another value for MARK than for any transaction of this process before.

    `os.urandom` would release the GIL, which a waiting thread takes: each block would cost a change of threads.
    """
    return f"{next(_marks):x}"


MARK_ATTRIBUTE: Final = "_dualwrite_mark"
"""The attribute of a driver's connection that holds the mark of its latest transaction, if it has a mark."""

IS_MARKED: Final = f"(:mark = '' OR current_setting('{MARK}', true) = :mark)"
"""True in the transaction that set `:mark`, and for an empty `:mark`, which means that no mark could be set."""

LOCK_NOT_AVAILABLE: Final = "55P03"
"""The SQLSTATE for a lock that was not free in time."""

SERIALIZATION_FAILURE: Final = "40001"
"""The SQLSTATE for a statement that is impossible in the transaction's snapshot."""

UNDEFINED_TABLE: Final = "42P01"
"""The SQLSTATE for a table that does not exist, or no longer exists."""

SELECT_FREE: Final = f"{SELECT_LOCKED} SKIP LOCKED"
"""Neither waits nor fails the transaction if another one has locked the row: it returns no row then."""

LOCK_TIMEOUT: Final = "SELECT current_setting('lock_timeout')"
SET_LOCK_TIMEOUT: Final = "SELECT set_config('lock_timeout', :value, true)"

ISOLATION: Final = "SELECT current_setting('transaction_isolation')"
_INSERT_UNLESS_HIDDEN: Final = (
    "INSERT INTO kafka_transaction_state (transactional_id) VALUES (CAST(:id AS varchar))"
    " ON CONFLICT DO NOTHING RETURNING transactional_id"
)
"""Fails with SERIALIZATION_FAILURE if the row exists and is not in the transaction's snapshot."""


_SEES_NOW: Final = frozenset({"READ COMMITTED", "READ UNCOMMITTED"})


@cache
def sees_now(level: str | None) -> bool:
    """Return whether each statement at an isolation level, of any database, sees everything committed before it."""
    return level is not None and level.upper() in _SEES_NOW


def assert_no_row(pinned: PinnedTables, transactional_id: str) -> Query[None]:
    """Check that a row that was not found does not exist. Raises StateTableError if the table was replaced.

    Fails with SERIALIZATION_FAILURE if the row exists, and is hidden by the transaction's snapshot. The caller must
    roll back in any case: if there is no row, this inserts it.
    """
    yield from assert_still_there(pinned)
    ((level,),) = yield ISOLATION, {}
    if not sees_now(level):
        yield _INSERT_UNLESS_HIDDEN, {"id": transactional_id}


BY_INDEX: Final = (
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),"
    " set_config('enable_sort', 'off', true)"
)
"""Makes this transaction find and order rows by an index only, regardless of the planner's statistics.

Stored blocks come and go faster than statistics follow: VACUUM may have seen the table empty, or full of rows that an
old snapshot keeps. The planner would then read the whole table for each batch, or sort all waiting blocks.
"""

LOCATION: Final = (
    "concat_ws('/', current_database(), CAST(date_part('epoch', pg_postmaster_start_time()) * 1000000 AS bigint))"
)
"""Where a transaction runs: the database, and the server by its start time."""

SELECT_FREE_AND_LOCATION: Final = SELECT_FREE.replace(" FROM ", f", {LOCATION} FROM ", 1)


# ---- durability -----------------------------------------------------------------------------------------------------

RAISE: Final = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'remote_apply'"
    " THEN 'remote_apply' ELSE 'on' END, true)"
)
"""Makes COMMIT of this transaction wait for disk and standbys; a stricter setting is kept."""

WITNESS_MESSAGE: Final = "CAST(pg_logical_emit_message(true, 'dualwrite', '') AS text)"
"""Writes only a message to the log in this transaction."""

WITNESS: Final = (
    f"SELECT prepared_transaction_state, {RAISE}, {WITNESS_MESSAGE}"
    " FROM kafka_transaction_state WHERE transactional_id = :id"
)
"""Reads the row without its lock, and writes a message to the log in this transaction.

The log is one sequence: a commit in it comes after everything its transaction has seen, so a server that has this
commit has the others. The message has no recipient. Any role may write one; it takes no lock and leaves nothing behind.
"""

GIVEN_UP_IN: Final = "SyncRepWaitForLSN"
"""The server's function that warns of a cancelled wait; the message is translated and its SQLSTATE is not unique."""


# ---- statements in the notation of a driver, and without parameters -------------------------------------------------

PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")


@lru_cache(maxsize=1024)
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `$1`, `$2` and so on in place of `:name`, and the names in that order."""
    names: dict[str, int] = {}
    text = PARAMETER.sub(lambda found: f"${names.setdefault(found[1], len(names) + 1)}", sql)
    return text, tuple(names)


# Only a statement without parameters can be part of a message of several statements.

_pieces: Final = cache(PARAMETER.split)


def with_literals(sql: str, values: Mapping[str, str | None]) -> str:
    """Return a statement with literals in place of its parameters; None stands for NULL."""
    literals = {name: _literal(value) for name, value in values.items()}
    pieces = list(_pieces(sql))  # the text before a parameter, its name, the text behind it, and so on
    pieces[1::2] = map(literals.__getitem__, pieces[1::2])
    return "".join(pieces)


def _literal(text: str | None) -> str:
    """Return a string literal in ASCII, which means the same in every client encoding and at every setting."""
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    if not (escaped.isascii() and escaped.isprintable()):
        escaped = "".join(c if " " <= c <= "~" else f"\\U{ord(c):08x}" for c in escaped)
    return f"E'{escaped}'"


# ---- the message of COMMIT ------------------------------------------------------------------------------------------

NOT_AS_LOCKED: Final = "not as locked"
"""Quoted in the server's error if `WRITE` found the row changed, or its lock gone."""

ANOTHER_TRANSACTION: Final = "another transaction"
"""Quoted if the message reached another transaction than the one that set the mark."""

WRITE: Final = (
    "WITH written AS (UPDATE kafka_transaction_state SET prepared_transaction_state = :new, manifest = :manifest,"
    " updated_at = CURRENT_TIMESTAMP WHERE transactional_id = :id AND prepared_transaction_state = :previous"
    f" AND {SAME_TABLE} AND {STILL_HELD} AND {IS_MARKED} RETURNING 1)"
    f" SELECT CAST(CASE WHEN count(*) = 1 THEN '1' WHEN {IS_MARKED} THEN '{NOT_AS_LOCKED} ' || :token"
    f" ELSE '{ANOTHER_TRANSACTION} ' || :token END AS integer), {RAISE} FROM written"
)
"""Writes the locked row, and makes the COMMIT that follows durable.

Fails if it does not write exactly one row, under the lock and in the transaction of `:mark` (empty: no mark): by
casting a text that names the reason and ends with `:token`.
"""


class BeforeCommit(NamedTuple):
    """The statement in front of COMMIT in one message; if it fails, the server does not reach COMMIT."""

    sql: str
    values: Mapping[str, str | None] = {}

    @property
    def script(self) -> str:
        return f"{with_literals(self.sql, self.values)}; COMMIT"


MAKE_DURABLE: Final = BeforeCommit(f"SELECT {RAISE}")
"""Right in front of COMMIT, so that no other statement can lower the durability setting."""
