"""The contract between a dual write and a database: the interface of a backend, and the errors it raises.

The methods are coroutines so that the steps of a dual write are written once (`coordinator.py`). A backend that calls
its database in a blocking way never suspends, and `blocking.run` executes it without an event loop.

The state row of a transactional id holds the prepared state of the last dual write that the database committed under
the id (KIP-939), and a manifest: a text that says where Kafka stored the records of that dual write. The functions at
the end check and describe the row's content, for any database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from dualwrite.errors import (
    NotDurableError,
    RowLockTimeoutError,
    SnapshotTooOldError,
    StateRowError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome, note_outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_identity import DatabaseIdentity

MAX_TRANSACTIONAL_ID_LENGTH: Final = 255
"""In characters; Kafka allows more, but some databases limit the length of a primary key."""


class StoredBlock(NamedTuple):
    """One stored block, by which the outcome of the database transaction that added it is found."""

    seq: int
    stored_at_ms: int
    """When it was added, by the database's clock."""
    content: bytes
    """The records, as they were added, which no other block has: a server that crashed may give the number again."""


class Sent(NamedTuple):
    """How a batch of an outbox was sent: by which transaction, and to which partitions, record by record."""

    state: PreparedTxnState
    partitions: Sequence[int]


class LastBatch(NamedTuple):
    """The last batch of an outbox: the records of its blocks as bytes, and the partition of each record."""

    contents: Sequence[bytes]
    partitions: Sequence[int]


NO_BATCH: Final = LastBatch((), ())


class StoredBlocks(Protocol):
    """The stored blocks of transactional ids (`stored_blocks.py`), inside one database transaction.

    All methods are for an id whose state row this transaction has locked. Their changes become visible exactly when the
    rest of the transaction does. The bodies here are those for an id that publishes no outbox.
    """

    async def append(self, transactional_id: str, content: bytes) -> StoredBlock:
        raise AssertionError(_CANNOT_STORE)

    async def waiting(self, transactional_id: str, *, max_bytes: int) -> tuple[int, Sequence[StoredBlock]]:
        """Return the oldest blocks in order: at least one, and more up to `max_bytes`.

        Before them, return the number of the newest block, or of one that is newer than these; 0 if none is stored.

        Sees all blocks that were committed before the call: the transaction keeps no snapshot (READ COMMITTED), or no
        other one can commit (SQLite). So no block is missed by the holder of a lock that blocks hold while they append.
        """
        return 0, ()

    async def take_out(self, transactional_id: str, block: StoredBlock) -> None:
        """Take the oldest block out, so that it is not published, but keep its row."""
        raise AssertionError(_CANNOT_STORE)

    async def publish(
        self, transactional_id: str, blocks: Sequence[StoredBlock], *, kept_as: Sent | None = None
    ) -> None:
        """Delete the oldest blocks, of those that `waiting` returned, and the rows of the last batch.

        With `kept_as`, for an outbox only: these blocks become the last batch: they no longer wait, but keep their rows
        until the next call.
        """
        assert not blocks, _CANNOT_STORE

    async def last_batch(self, transactional_id: str, state: PreparedTxnState) -> LastBatch:
        """Return the last batch if `state` published it, else NO_BATCH. Raises StateRowError if rows are gone."""
        return NO_BATCH

    async def was_committed(self, transactional_id: str, added: StoredBlock) -> bool | None:
        """Return whether the transaction that has added a block was committed; None if it has not ended.

        This one runs in READ COMMITTED, and must be rolled back. Raises StateRowError if the block was added so long
        ago that the outbox no longer knows.
        """
        raise AssertionError(_CANNOT_STORE)


_CANNOT_STORE: Final = "this id publishes no outbox"


class _NoStoredBlocks(StoredBlocks): ...


NO_STORED_BLOCKS: Final = _NoStoredBlocks()


class DatabaseTransaction(Protocol):
    """One database transaction, and the state rows as seen inside it.

    Two promises make the dual write safe.

    First, once `lock` has returned, no other transaction that locked the same id earlier can still commit, so the row
    is final for all of them; and a later `lock` does the same to this transaction. A row lock keeps that promise by
    making later transactions wait until this one has ended, however it ends. A store without such locks keeps it with a
    version that each `lock` changes and each `commit` compares.

    Second, the state and the manifest that `write` wrote become visible exactly when the rest of the transaction does.
    """

    @property
    def commit_was_sent(self) -> bool:
        """Whether COMMIT may have reached the database; as long as it has not, a rollback is certain."""

    @property
    def was_ended_past(self) -> bool:
        """Whether other code ended the block's transaction, maybe by COMMIT. Known once it is rolled back."""

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        """Return the table of the stored blocks of an id, as seen inside this transaction."""

    def doom(self, error: BaseException) -> None:
        """Allow only a rollback from now on, even if the block swallows `error`."""

    async def flush(self) -> None:
        """Send the statements that are held back, once the block has ended.

        Raises the database's own errors; a RecipeError or IllegalStateError if this transaction cannot be the decision,
        before the flush or after it.
        """

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        """Lock the row until the end of the transaction and return its state.

        Waits at most `timeout_ms` (None: as long as the database is configured to). Raises RowLockTimeoutError, and
        StateRowError if there is no row.
        """

    async def read(self, transactional_id: str) -> PreparedTxnState:
        """Read the locked row again, as it is now. Fails if the transaction that locked it has ended."""

    async def read_manifest(self, transactional_id: str) -> str:
        """Return the manifest in the locked row, as it was written; empty if there is none.

        It may name another pair than the row: then it was left by an earlier dual write, and says nothing. Fails as
        `read` does.
        """

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        """Replace `previous` with `new`, and the manifest with `manifest`; an empty one leaves none.

        Call it once, right before `commit`. Raises StateRowError if the row does not hold `previous`, or if this
        transaction did not lock it. It may be sent with COMMIT; then `commit` raises the error, and COMMIT was not
        reached.
        """

    async def commit(self) -> None:
        """Send COMMIT. An error after `commit_was_sent` leaves an unknown outcome, to be read from the row."""

    async def rollback(self) -> None:
        """Roll back, by dropping the connection if necessary. Raises no database error."""

    async def close(self) -> None:
        """Release the resources that this transaction acquired."""

    def close_at_once(self) -> bool:
        """Close without waiting. Return False, and do nothing, if closing would have to wait."""


class Database(Protocol):
    """The database that holds the state rows."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The types of error that it raises when it is unreachable or refuses a statement."""

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        """Create an empty row in a separate transaction; do nothing if it exists.

        Return the identity that gives this database's transactional ids their suffix; it is queried once. Raises
        DatabaseMovedError if the rows were created in another database.
        """

    async def begin(self) -> DatabaseTransaction:
        """Begin a new transaction on a separate connection."""

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        """Return once the row, which was read as `row`, survives everything the database promises to survive.

        Visible is not always durable: a COMMIT whose wait for a synchronous standby was cancelled, or whose server was
        restarted meanwhile, is visible on the primary only. If that can happen, this commits a separate change
        after it has seen `row`, on a connection that takes no locks others hold, and relies on that commit alone.

        Raises NotDurableError if that does not succeed within `timeout_ms`, and the database's own errors.
        """


class Way(NamedTuple):
    """Where the blocks of a pool go."""

    is_diverted: bool
    """Whether they go to its outbox."""
    ending: int = 0
    """The number under which the publisher asks blocks to wait for the end of the diversion; 0 if it does not."""


class Diversion(Protocol):
    """Whether the blocks of a pool go to its outbox, because Kafka was away, as seen inside one transaction.

    It begins in the commit of the first such block. It ends when the outbox has nothing left to publish, under a lock
    that no block holds. So a block that has locked all its rows, and then sees no diversion, follows no block whose
    records still wait.
    """

    async def way_now(self) -> Way | None:
        """Return where blocks go now; None if this transaction may see only an older row."""

    async def way(self) -> Way:
        """Return where blocks go, as this transaction sees it."""

    async def begin(self, now_ms: int) -> bool:
        """Begin the diversion with this transaction's commit. Return False, and change nothing, if there is one."""

    async def hold(self) -> bool:
        """Let no diversion begin or end before the end of this transaction. Return whether there is one."""

    async def lock(self) -> bool:
        """Wait until no other transaction holds the diversion, and lock it. Return whether there is one."""

    async def ask(self, number: int) -> None:
        """Ask blocks, from the commit of this transaction on, to wait for the end, if the database supports that."""

    async def end(self) -> None:
        """End the diversion with the commit of this transaction, which has locked it."""


class OutboxTransaction(DatabaseTransaction, Protocol):
    """A transaction of a database with an outbox."""

    def diversion(self, name: str, timeout_ms: int | None = None) -> Diversion:
        """Return the diversion of a pool, whose methods raise RowLockTimeoutError after `timeout_ms`."""

    async def add_to_outbox(self, transactional_id: str, content: bytes) -> StoredBlock:
        """Add the records of this block, as the last statement before `commit`, which is durable then.

        Raises TransactionEndedInsideError, then or in `commit`, if this is no longer the transaction in which the block
        began, and IllegalStateError if it runs in another database.
        """


class OutboxDatabase(Database, Protocol):
    """A database with an outbox, to which blocks add their records in their own transactions, without a lock."""

    async def begin(self) -> OutboxTransaction: ...

    async def prepare_diversion(self, name: str) -> None:
        """Create the row of a pool's diversion, in a separate transaction. May be repeated."""

    async def prepare_outbox(self) -> None:
        """Create the outbox's table, separately and once. Raises StateRowError if it may not be created."""

    async def has_waiting(self, transactional_id: str) -> bool:
        """Return whether any blocks wait in the outbox, without a lock."""

    async def backlog(self, transactional_id: str) -> Backlog:
        """Return the backlog of the outbox, without a lock. Reads all of it."""

    async def vacuum_outbox(self) -> None:
        """Vacuum the deleted rows out of the outbox's table, if the role may. Raises the database's errors."""


class Backlog(NamedTuple):
    """The blocks that wait in an outbox."""

    blocks: int
    size_bytes: int
    since_ms: int
    """When the oldest block was added, in milliseconds since 1970; 0 if there is none."""


# ---- the state row --------------------------------------------------------------------------------------------------


def owner_of(transactional_id: str | None) -> str:
    """Return the name of a database transaction's owner for log lines; None means that it has locked no row yet."""
    return "a dual write before its lock" if transactional_id is None else f"transactional id {transactional_id}"


def state_in(transactional_id: str, text: str | None) -> PreparedTxnState:
    """Return the state in a locked row. Raises StateRowError if there is no row (None) or no valid state in it."""
    if text is None:
        raise _no_row(transactional_id)
    try:
        return PreparedTxnState(text)
    except ValueError as error:
        raise StateRowError(
            f"the state row of transactional id {transactional_id!r} cannot be parsed: {error}; neither database nor "
            "Kafka was changed: another program writes to kafka_transaction_state. Restore the previous text, or an "
            "empty one if `dualwrite top` shows nothing in doubt under this id"
        ) from error


def manifest_in(transactional_id: str, text: str | None) -> str:
    """Return the manifest that was read from a locked row. Raises StateRowError if there is no row (None)."""
    if text is None:
        raise _no_row(transactional_id)
    return text


def _no_row(transactional_id: str) -> StateRowError:
    return StateRowError(
        f"kafka_transaction_state has no row for transactional id {transactional_id!r}; neither database nor Kafka "
        "was changed: the row was deleted after this writer had created it. Restore it from a backup, or, if "
        "`dualwrite top` shows nothing in doubt under this id, create a new writer, which adds the row again"
    )


def newer_than_snapshot(transactional_id: str) -> SnapshotTooOldError:
    return SnapshotTooOldError(
        f"the state row of transactional id {transactional_id!r} was created after this database transaction took its "
        "snapshot, so it cannot be locked; neither side was changed: repeat the block"
    )


def not_exact(transactional_id: str, found: str) -> StateRowError:
    return StateRowError(
        f"the collation of kafka_transaction_state makes transactional id {transactional_id!r} equal to {found!r}, so "
        "both would share a row; neither database nor Kafka was changed: give the column transactional_id a collation "
        "that compares exactly (MySQL: utf8mb4_bin)"
    )


_INIT_OPTIONS: Final = {"kafka_transaction_outbox": " --outbox", "kafka_consumed_offset": " --consumed-offsets"}
"""The options of `dualwrite init-db` that create tables."""


def missing_table(table: str, *, otherwise: str) -> StateRowError:
    """Return the error for a missing table; `otherwise` is how to create it without the command line."""
    option = _INIT_OPTIONS.get(table, "")
    return StateRowError(
        f"the table {table} does not exist in this database; neither database nor Kafka was changed: create it with "
        f"`dualwrite init-db{option}` or {otherwise}"
    )


def stayed_locked(name: str, timeout_ms: int | None, row: str = "state row of transactional id") -> RowLockTimeoutError:
    return RowLockTimeoutError(
        f"the {row} {name!r} stayed locked for {timeout_ms} ms by another database transaction; nothing was decided or "
        "written: try again when its owner has finished or died"
    )


def not_durable(transactional_id: str, row: PreparedTxnState, why: str) -> NotDurableError:
    return NotDurableError(
        f"transactional id {transactional_id!r}: the database shows the decision {row}, but it may not be durable yet "
        f"({why}); nothing was sent to Kafka, nothing else was written, and the transaction stays in doubt until the "
        "id is next used or recovered: bring the synchronous standby back, or remove it from synchronous_standby_names"
    )


def wait_given_up(transactional_id: str | None) -> NotDurableError:
    """Return the error for a COMMIT that took effect on the primary before a synchronous standby confirmed it."""
    return NotDurableError(
        f"{owner_of(transactional_id)}: the wait of COMMIT for a synchronous standby was cancelled, so the commit is "
        "in effect on the primary but a failover may lose it; nothing is sent to Kafka before it is durable"
    )


def not_as_locked(transactional_id: str, previous: PreparedTxnState, *, past: str) -> StateRowError:
    """Return the error for a row that changed under the lock, by a statement that `past` would have refused."""
    error = StateRowError(
        f"the state row of transactional id {transactional_id!r} no longer holds {str(previous)!r}, although this "
        "transaction locked it: another program writes to kafka_transaction_state, or a COMMIT or ROLLBACK bypassed "
        f"{past}. The dual write was given up, and Kafka has none of its records; statements before such a COMMIT "
        "stay in the database: compare both sides"
    )
    note_outcome(error, Outcome.UNKNOWN)
    return error


def ended_past(sentence: str) -> TransactionEndedInsideError:
    """Return the error for a transaction that ended unseen by the dual write, maybe by a COMMIT."""
    error = TransactionEndedInsideError(sentence)
    note_outcome(error, Outcome.UNKNOWN)
    return error
