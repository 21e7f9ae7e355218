"""Complete the transaction of one id under the lock of its row, by the steps of a dual write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.client.transactions.recovery import Finding
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.database_identity import AS_GIVEN, DatabaseIdentity
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.last_batch import kept
from dualwrite.recipes.core.leases import is_outbox
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.proof import Verdict, noted_text
from dualwrite.recipes.core.refused import OWED
from dualwrite.recipes.core.settings import KafkaSettings
from dualwrite.recipes.recovery.log_ends import DURABLE_MS, LogEnds, is_newly_aborted, not_read_yet, was_read
from dualwrite.recipes.recovery.plan import CHANGES, Action, Found, Row, TakenOut, decide, found
from dualwrite.recipes.recovery.seen import Decision, Seen
from dualwrite.recipes.recovery.stored_rows import StoredRow, has_outbox_table, note
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase

_log = logging.getLogger(__name__)

_WITH_LOCK_MS: Final = 5_000
"""How long a row stays locked while a coordinator does not respond to the query that precedes any change."""


class _LeftAlone(Exception):  # noqa: N818 - it ends an examination, and is no error
    """Ends the examination of an id under its lock, if the id is not taken over."""


class _PublishAgain(Exception):  # noqa: N818 - it ends an examination, and is no error
    """Ends the examination of an outbox whose last batch is to be published again, as its caller says."""


@dataclass
class Completion:
    """Completes the ids of one round, one after the other: decides again under the lock, and carries it out."""

    engine: sa.Engine
    pinned: PinnedTables
    schema: str | None
    admin: TransactionAdmin
    ends: LogEnds
    connection: dict[str, Any]
    min_age_ms: int
    lock_timeout_ms: int
    timeout_ms: int
    keep: Callable[[TakenOut], object] | None
    _taken_out: dict[str, TakenOut] = field(default_factory=dict)

    @property
    def taken_out(self) -> tuple[TakenOut, ...]:
        return tuple(self._taken_out.values())

    def complete(self, seen: Seen, *, apply: bool) -> Found:
        """Complete the transaction by the steps of a dual write, if the facts under the row's lock allow it."""
        unnamed = unnamed_row(seen)
        now, action = seen, Action.NOTHING

        def examine(row: PreparedTxnState) -> bool:
            nonlocal now, action
            if apply and seen.is_to_settle and row == seen.stored and seen.row.waiting.since_ms is None:
                return False  # a commit is final, so the coordinator is not asked again under the lock
            now = self._look_again(seen, row)
            action = decide(now, unnamed if row.is_empty else Row.FREE, min_age_ms=self.min_age_ms)
            return self._examine(seen, now, action, apply=apply)

        writes = self._writes(seen)
        try:
            with writes.exclusively():
                try:
                    outcome = blocking.run(writes.recover(examine)).outcome
                except _PublishAgain:
                    noted = noted_text(now.stored, Verdict.ABORTED, now.row.manifest)
                    blocking.run(note(self._database(), now.transactional_id, now.row, noted, self.lock_timeout_ms))
                    outcome = blocking.run(writes.recover()).outcome
        except _LeftAlone:
            return found(now, action)
        finally:
            blocking.run(writes.close())
        if action is Action.TAKE_OUT:
            name = now.transactional_id
            self._taken_out[name] = replace(self._taken_out[name], changed=True)
        if action in _WITHOUT_REPAIR or (action is Action.PUBLISH_AGAIN and outcome is Outcome.REPAIRED):
            return found(now, action, changed=True)
        is_terminated = unnamed is Row.VOUCHED and outcome is Outcome.ROLLED_BACK
        done = Action.TERMINATE if is_terminated else _DONE[outcome]
        return found(now, done, changed=outcome is not Outcome.NOTHING)

    def _examine(self, seen: Seen, now: Seen, action: Action, *, apply: bool) -> bool:
        """Prepare the action; return whether to publish aborted records. Raises _LeftAlone or _PublishAgain."""
        if action in (Action.LOST, Action.ACKNOWLEDGE) and is_newly_aborted(seen, now):
            raise not_read_yet(now)
        if action in _NEEDS_READING and not was_read(seen, now):
            raise not_read_yet(now)
        is_to_settle = action is Action.NOTHING and now.end is not None and (now.end.committed or now.is_committed)
        if action is Action.TAKE_OUT:
            self._take_out(now, apply=apply)
        if not apply or (action not in CHANGES and not is_to_settle):
            raise _LeftAlone
        if action is Action.PUBLISH_AGAIN:
            raise _PublishAgain
        if action in _WITHOUT_REPAIR:
            self._acknowledge(now)
        return action not in _WITHOUT_REPAIR and not is_to_settle

    def _database(self, kind: type[SqlAlchemyDatabase] = SqlAlchemyDatabase) -> SqlAlchemyDatabase:
        return kind(self.engine, self.schema, only_recovers=True)

    def _take_out(self, now: Seen, *, apply: bool) -> None:
        """Read the owed records, and hand them over if they are to be taken out."""
        records = self.ends.aborted_records(now)
        name = now.transactional_id
        if records is None:  # the database has them
            in_database = in_own_transaction(self._database().begin, lambda found: kept(found, name, now.stored))
            records = blocking.run(in_database)
        taken = TakenOut(name, OWED, 0, tuple(records))
        if apply and self.keep is not None:
            self.keep(taken)
        self._taken_out[name] = taken

    def _look_again(self, seen: Seen, row: PreparedTxnState) -> Seen:
        """Return the facts as they are under the lock."""
        described = self.admin.describe_transactions([seen.kafka_id], timeout_ms=min(self.timeout_ms, _WITH_LOCK_MS))
        again = replace(seen, row=seen.row._replace(state=str(row)), description=described[seen.kafka_id])
        if row == seen.stored:
            return again
        return replace(again, row=StoredRow(str(row), ""), end=None, is_given_up=False)  # the next round looks at it

    def _acknowledge(self, seen: Seen) -> None:
        """Overwrite the coordinator's trace of a loss, or of records taken out; the row keeps the decision."""
        refuses = seen.finding is Finding.ABORTED or seen.is_behind
        if seen.description is not None and refuses:
            self.admin.overwrite_end(seen.description)
        _log.warning(
            "transactional id %s: %s is marked as dealt with, and will not be published; the coordinator reported %s "
            "for %s",
            *(seen.transactional_id, seen.row.state, seen.state, seen.pair),
        )

    def _writes(self, seen: Seen) -> DualWriteCoordinator:
        kind = SqlAlchemyDatabase if seen.is_ours else _WithoutSuffix
        settings = KafkaSettings(seen.transactional_id, self.connection)
        owned = OwnedId(
            seen.transactional_id,
            database=self._database(kind),
            kafka=KafkaParticipant(settings.producer),
            lock_timeout_ms=self.lock_timeout_ms,
            resolve_timeout_ms=DURABLE_MS,
            partitioner=settings.config.partitioner,
            is_outbox=is_outbox(seen.transactional_id) and has_outbox_table(self.engine, self.pinned),
        )
        return DualWriteCoordinator(owned, sleep=blocking.sleep)


class _WithoutSuffix(SqlAlchemyDatabase):
    """The database without its suffix, to lock a row for an id that is not of this database."""

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        await super().ensure_row(transactional_id)
        return AS_GIVEN


_NEEDS_READING: Final = (Action.NOT_PROVEN, Action.PUBLISH_AGAIN, Action.TAKE_OUT)
_WITHOUT_REPAIR: Final = (Action.ACKNOWLEDGE, Action.TAKE_OUT)

_DONE: Final = {
    Outcome.COMMITTED: Action.COMMIT,
    Outcome.ROLLED_BACK: Action.ABORT,
    Outcome.NOTHING: Action.NOTHING,
    Outcome.REPAIRED: Action.REPAIR,
    Outcome.PUBLISHED: Action.PUBLISH,
}
"""The action that was carried out, by the outcome of the take-over."""


def unnamed_row(seen: Seen) -> Row:
    """Return the state of the row while it names no transaction."""
    if seen.row.state is not None:
        return Row.FREE
    return Row.VOUCHED if Decision.VOUCHED in seen.decisions else Row.MISSING
