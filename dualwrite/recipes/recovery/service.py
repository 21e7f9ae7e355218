"""`RecoveryService`: complete the transactions that crashed processes left open, for many ids, at any time.

    service = RecoveryService(engine, bootstrap_servers="127.0.0.1:9092", prefix="orders-")
    report = service.recover()            # or service.plan(), which changes nothing
    if report.left:
        ...

`dualwrite.recipes.recovery.plan` has the actions, and why they are safe. They are carried out by the steps of
`DualWriter.recover()`, under the lock of the id's state row.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self, Unpack

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.admin import BrokerFeatures, TransactionAdmin, TransactionDescription, TwoPhaseCommit
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import Finding, commits_later
from dualwrite.config import of_connections
from dualwrite.errors import (
    AuthorizationError,
    ConfigError,
    DualWriteError,
    IncompleteAnswerError,
    NoMarkerError,
    OutcomeUnknown,
    RetriableError,
    RowLockTimeoutError,
)
from dualwrite.exact import exact
from dualwrite.outcome import Outcome
from dualwrite.participant import ParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.hanging import log_hanging
from dualwrite.recipes.core.judge import refusal_by_row
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.last_batch import kept
from dualwrite.recipes.core.leases import is_outbox
from dualwrite.recipes.core.metrics import Counted, TornEnd, count
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.proof import Verdict, manifest_of, noted_text
from dualwrite.recipes.core.refused import OWED
from dualwrite.recipes.core.repair import log_evidence_gone, log_unreadable, to_send
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.settings import STORES_NOTHING, KafkaSettings
from dualwrite.recipes.core.store import DatabaseTransaction
from dualwrite.recipes.recovery.plan import (
    CHANGES,
    PROVEN_BY_LOG,
    Action,
    Facts,
    Found,
    RecoveryReport,
    Row,
    TakenOut,
    action_of,
    age_ms_of,
    decide,
)
from dualwrite.recipes.recovery.seen import DatabaseInRound, Seen
from dualwrite.recipes.recovery.stored_rows import (
    NOTHING_WAITS,
    StoredRow,
    has_outbox_table,
    known_database,
    stored_rows,
)
from dualwrite.recipes.sql.database_identity import AS_GIVEN, DatabaseIdentity, foreign_suffix_of
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.own_statements import for_own_use
from dualwrite.recipes.sqlalchemy.tables import schema_for
from dualwrite.settings import RecoverySettings

__all__ = ["Action", "Found", "RecoveryReport", "RecoveryService"]

_log = logging.getLogger(__name__)

DEFAULT_MIN_AGE_MS: Final = 60_000
DEFAULT_LOCK_TIMEOUT_MS: Final = 100
_WITH_LOCK_MS: Final = 5_000
"""How long a row stays locked while a coordinator does not respond to the query that precedes any change."""

_DURABLE_MS: Final = 10_000
"""How long a decision that was read may take to become durable, before it is sent to Kafka."""

Progress = Callable[[int, int], None]
"""Called after each id with the number of ids done and the number of all."""

_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class _LeftAlone(Exception):  # noqa: N818 - it ends an examination, and is no error
    """Ends the examination of an id under its lock, if the id is not taken over."""

    def __init__(self, found: Found) -> None:
        super().__init__(found)
        self.found = found


class _PublishAgain(Exception):  # noqa: N818 - it ends an examination, and is no error
    """Ends the examination of an outbox whose last batch is to be published again, as its caller says."""


class RecoveryService:
    """Finds open transactions that do not match their state rows, and completes each by its row, under its lock.

    `prefix` (empty: all ids) and `transactional_ids` select the ids. A transaction is left to its owner until it has
    been open for `min_age_ms`, by this machine's clock. A row whose lock is not free within `lock_timeout_ms` is in
    use. `acknowledge_lost` names ids whose loss an operator has dealt with: they can be used again. `force_terminate`
    names ids without a row whose open transaction is to be aborted without a decision of any database. `take_out_owed`
    names ids whose owed records are not to be published: they are in `RecoveryReport.taken_out`, and `keep` gets them
    before anything is changed; if it raises, nothing is. `publish_again` names outboxes whose last batch is not proven,
    and is not in Kafka, as an operator has found. Ids may be given with or without the suffix that Kafka sees.
    `schema` is the schema of the state table; by default the unqualified name is looked up. `timeout_ms` limits each
    request to Kafka. The other settings are those of the connections to Kafka.

    Any number of services, writers and other processes may run at the same time. A live owner that has nothing open
    is not disturbed. Not thread-safe.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        prefix: str | None = None,
        transactional_ids: Iterable[str] = (),
        min_age_ms: int = DEFAULT_MIN_AGE_MS,
        lock_timeout_ms: int = DEFAULT_LOCK_TIMEOUT_MS,
        acknowledge_lost: Iterable[str] = (),
        force_terminate: Iterable[str] = (),
        take_out_owed: Iterable[str] = (),
        publish_again: Iterable[str] = (),
        keep: Callable[[TakenOut], object] | None = None,
        schema: str | None = None,
        timeout_ms: int = 60_000,
        clock: Callable[[], float] = time.time,
        **settings: Unpack[RecoverySettings],
    ) -> None:
        self._prefix = prefix
        self._lost_as_given = frozenset(_several("acknowledge_lost", acknowledge_lost))
        self._vouched_as_given = frozenset(_several("force_terminate", force_terminate))
        self._taken_as_given = frozenset(_several("take_out_owed", take_out_owed))
        self._again_as_given = frozenset(_several("publish_again", publish_again))
        self._ids_as_given = (
            frozenset(_several("transactional_ids", transactional_ids)) | self._taken_as_given | self._again_as_given
        )
        self._keep = keep
        self._taken_out: list[TakenOut] = []
        if prefix is None and not (self._ids_as_given | self._lost_as_given | self._vouched_as_given):
            raise ConfigError(
                "no transactional ids are selected, and nothing was recovered: pass prefix (an empty one selects all "
                "ids) or transactional_ids"
            )
        if min_age_ms < 0:
            raise ConfigError(f"min_age_ms must be at least 0, not {min_age_ms}")
        self._engine = for_own_use(engine)
        watch(self._engine)
        self._schema = schema_for(engine, schema)
        self._min_age_ms = min_age_ms
        self._lock_timeout_ms = lock_timeout_ms
        self._timeout_ms = timeout_ms
        self._clock = clock
        if "default_api_timeout_ms" in settings:
            raise ConfigError("default_api_timeout_ms cannot be set here: use timeout_ms")
        self._connection: dict[str, Any] = {"unreachable_timeout_ms": None, **settings, "max_block_ms": timeout_ms}
        self._policy = replace(
            STORES_NOTHING, partitioner=KafkaSettings("checked-before-use", self._connection).config.partitioner
        )
        self._log_reader: ParticipantProducer | None = None
        self._admin = TransactionAdmin(**of_connections(settings), default_api_timeout_ms=timeout_ms)

    def plan(self, progress: Progress | None = None) -> RecoveryReport:
        """Report what `recover()` would do now, and change nothing. Briefly locks rows, as `recover()` does."""
        return self._round(progress, apply=False)

    def recover(self, progress: Progress | None = None) -> RecoveryReport:
        """Complete everything that can be completed now.

        An id that cannot be completed is reported with its error, and does not affect the others. Raises the errors
        that prevent the whole round: StateRowError for a missing table, the database's own errors, and Kafka's.
        """
        return self._round(progress, apply=True)

    def run(
        self,
        interval_s: float,
        *,
        stopped: threading.Event,
        heard: Callable[[RecoveryReport], None],
        failed: Callable[[Exception], None],
        apply: bool = True,
    ) -> None:
        """Recover (or plan) every `interval_s` seconds until `stopped` is set.

        Calls `heard` with the report of each round, and `failed` with the error of a failed one, which is repeated
        after the interval. A round that is running when `stopped` is set ends with its current id; its report names the
        number of the remaining ids in `unseen`.
        """
        while not stopped.is_set():
            try:
                report = self._round(None, apply=apply, stopped=stopped)
            except (DualWriteError, SQLAlchemyError) as error:
                failed(error)
            else:
                if report.found or not stopped.is_set():
                    heard(report)
            stopped.wait(interval_s)

    def close(self) -> None:
        """Close the connections to Kafka; idempotent."""
        self._admin.close()
        if self._log_reader is not None:
            self._log_reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- one round ------------------------------------------------------------------------------------------

    def _round(
        self, progress: Progress | None, *, apply: bool, stopped: threading.Event | None = None
    ) -> RecoveryReport:
        unseen: list[str] = []
        version = transaction_version(self._admin.describe_features())
        cluster_id = self._admin.describe_cluster().cluster_id or ""
        database = DatabaseInRound(*known_database(self._engine, self._schema, may_make=apply), cluster_id)
        names = database.names(self._ids_as_given | self._lost_as_given)
        self._lost = database.names(self._lost_as_given)
        self._to_take = database.names(self._taken_as_given)
        self._to_publish_again = database.names(self._again_as_given)
        self._taken_out.clear()
        self._pinned = database.pinned
        vouched_names = database.names(self._vouched_as_given)
        rows = self._stored(database, names | vouched_names)
        self._vouched = database.kafka_ids_to_terminate(self._vouched_as_given, rows)
        ids = {database.kafka_id(name) for name in (*rows, *names)}
        self._check_right(sorted(ids)[:1], unseen)
        found = []
        settled = 0
        descriptions = self._described(sorted({*ids, *self._vouched, *self._listed(unseen)}), unseen)
        # Rows are read last: compared with a row older than the description, a loss would look like an old abort.
        rows = self._stored(database, names | vouched_names)
        for number, (each, description) in enumerate(descriptions.items(), start=1):
            if stopped is not None and stopped.is_set():
                unseen.append(f"{len(descriptions) - number + 1} ids, because recovery was stopped")
                break
            result = self._recover_one(database.seen(each, rows, description, version), apply=apply)
            if result is None or result.action is Action.NOTHING:
                settled += 1
            else:
                found.append(result)
            if progress is not None:
                progress(number, len(descriptions))
        return RecoveryReport(tuple(found), settled, tuple(unseen), apply, tuple(self._taken_out))

    def _check_right(self, kafka_ids: Sequence[str], unseen: list[str]) -> None:
        """Note in `unseen` that this client could complete nothing: an id that is settled does not show it."""
        unseen += [
            f"this client has no WRITE on the transactional id {each!r}: nothing can be written or completed with it"
            for each in kafka_ids
            if not self._admin.may_write_with(each)
        ]

    def _stored(self, database: DatabaseInRound, names: Collection[str]) -> dict[str, StoredRow]:
        return stored_rows(self._engine, database.pinned, prefix=self._prefix, transactional_ids=names)

    def _listed(self, unseen: list[str]) -> list[str]:
        """Return the ids of the prefix with an open transaction, as Kafka knows them."""
        if self._prefix is None:
            return []
        listed = _partial_if_incomplete(lambda: self._admin.transactions_of_prefix(self._prefix or ""), unseen)
        return [row.transactional_id for row in listed if row.state in _OPEN_STATES]

    def _described(self, ids: list[str], unseen: list[str]) -> dict[str, TransactionDescription | None]:
        if not ids:
            return {}
        described: dict[str, TransactionDescription | None] = _partial_if_incomplete(
            lambda: self._admin.describe_transactions(ids), unseen
        )
        return described

    # ---- one id ---------------------------------------------------------------------------------------------

    def _recover_one(self, seen: Seen, *, apply: bool) -> Found | None:
        """Deal with one id, and return the result or the failure; None if there is nothing to do."""
        try:
            # Look first without the lock whether there can be anything to do.
            seen = self._with_end(seen)
            action = self._decide(seen, Row.MISSING if seen.text is None else Row.FREE)
            if action is Action.NOTHING and seen.transactional_id in self._to_take:
                return self._found(seen, Action.FAILED, error=_NOTHING_OWED)
            if action is Action.NOTHING and seen.transactional_id in self._to_publish_again:
                return self._found(seen, Action.FAILED, error=_NOTHING_IN_QUESTION)
            if action is Action.NOTHING and not (apply and (seen.end is not None or seen.is_to_settle)):
                return None
            if action is Action.OVERDUE:
                return self._found(seen, action, error=self._waits_for_publisher(seen))
            return self._resolve(seen, apply=apply)
        except _LeftAlone as left:
            return left.found
        except RowLockTimeoutError:
            return self._found(seen, self._decide(seen, Row.HELD))
        except DualWriteError as error:
            return self._found(seen, action_of(error) or Action.FAILED, error=first_line(error))
        except (SQLAlchemyError, ValueError) as error:
            return self._found(seen, Action.FAILED, error=first_line(error))

    def _with_end(self, seen: Seen) -> Seen:
        """Read from the log how the row's transaction ended, if only the log can tell. It has ended for good."""
        manifest = self._manifest_to_read(seen)
        if manifest is None:
            return seen
        if self._log_reader is None:
            self._log_reader = ParticipantProducer(**self._connection)
        timeout_ms = min(self._timeout_ms, _DURABLE_MS)
        try:
            end = self._log_reader.end_of(manifest, timeout_ms, is_over=not seen.described.is_ending)
            return replace(seen, end=end)
        except AuthorizationError as error:
            if not seen.is_committed:
                log_unreadable(seen.transactional_id, seen.stored, error)
            return seen
        except NoMarkerError as error:
            return self._without_marker(seen, error)
        except OutcomeUnknown:
            if seen.transactional_id not in self._lost or seen.described.is_ending:
                raise
            return replace(seen, is_given_up=True)

    def _manifest_to_read(self, seen: Seen) -> Manifest | None:
        """Return the manifest if the log is to be read: for a commit, not before its markers are written."""
        if seen.in_cluster.elsewhere is not None:
            return None
        if seen.finding not in PROVEN_BY_LOG and not self._is_decided(seen):
            return None
        if seen.is_committed and seen.described.is_ending:
            return None
        manifest = manifest_of(seen.stored, seen.manifest)
        proves_nothing = manifest is not None and not manifest.partitions
        return None if seen.is_committed and proves_nothing else manifest

    def _was_read(self, seen: Seen, now: Seen) -> bool:
        """Return whether a read of the log was tried for the transaction that is in the row now."""
        return now.stored == seen.stored and (seen.finding in PROVEN_BY_LOG or self._is_decided(seen))

    def _is_decided(self, seen: Seen) -> bool:
        """Return whether the caller has decided about a batch whose end another open transaction hides."""
        is_named = seen.transactional_id in self._to_publish_again | self._to_take
        return is_named and seen.finding is Finding.OTHER_OPEN

    def _without_marker(self, seen: Seen, error: NoMarkerError) -> Seen:
        """Return the facts about a transaction without a marker. Raises TransactionHangsError if none is to come.

        The description may be older than the row: then it is of an earlier transaction of a living owner.
        """
        again = replace(seen, description=self._admin.describe_transactions([seen.kafka_id])[seen.kafka_id])
        if again.finding is Finding.ABORTED and again.description != seen.description:
            raise _not_read_yet(again)  # the log was read before the abort
        if again.finding is Finding.OPEN or again.described.is_ending:
            return again
        if seen.transactional_id in self._lost:
            return replace(seen, is_given_up=True)
        if again.finding is Finding.OTHER_OPEN:
            return again  # it is ended first
        count(Counted.TORN, outcome=TornEnd.HANGING)
        raise log_hanging(seen.transactional_id, seen.stored, error) from error

    def _resolve(self, seen: Seen, *, apply: bool) -> Found:
        if seen.text is None:
            action = self._decide(seen, self._without_row(seen))
            if action not in (Action.TERMINATE, Action.PUBLISH) or not apply:
                return self._found(seen, action)
        return self._complete(seen, apply=apply)

    def _without_row(self, seen: Seen) -> Row:
        return Row.VOUCHED if seen.kafka_id in self._vouched else Row.MISSING

    def _complete(self, seen: Seen, *, apply: bool) -> Found:
        """Complete the transaction by the steps of a dual write, under the lock of the row, created if it is missing.

        Raises _LeftAlone if the facts under the lock require leaving the id alone.
        """
        unnamed = Row.FREE if seen.text is not None else self._without_row(seen)
        writes = self._writes(seen)
        now, action = seen, Action.NOTHING

        def examine(row: PreparedTxnState) -> bool:
            nonlocal now, action
            if seen.is_to_settle and row == seen.stored and seen.waiting.since_ms is None:
                return False  # a commit is final, so the coordinator is not asked again under the lock
            now = self._look_again(seen, row)
            action = self._decide(now, unnamed if row.is_empty else Row.FREE)
            if action in (Action.LOST, Action.ACKNOWLEDGE) and _is_newly_aborted(seen, now):
                raise _not_read_yet(now)
            if action in _NEEDS_READING and not self._was_read(seen, now):
                raise _not_read_yet(now)
            is_proven = action is Action.NOTHING and now.end is not None
            if action is Action.TAKE_OUT:
                self._take_out(now, apply=apply)
            if not apply or (action not in CHANGES and not is_proven):
                raise _LeftAlone(self._found(now, action))
            if action is Action.PUBLISH_AGAIN:
                raise _PublishAgain
            if action in _WITHOUT_REPAIR:
                self._acknowledge(now)
            elif is_proven and now.end is not None and not (now.end.committed or now.is_committed):
                log_evidence_gone(now.transactional_id, row, now.end)
            return action not in _WITHOUT_REPAIR and not is_proven

        try:
            with writes.exclusively():
                try:
                    outcome = blocking.run(writes.recover(examine)).outcome
                except _PublishAgain:
                    blocking.run(self._note_aborted(now))
                    outcome = blocking.run(writes.recover()).outcome
        finally:
            blocking.run(writes.close())
        if action in _WITHOUT_REPAIR:
            self._taken_out = [
                replace(each, changed=True) if each.transactional_id == now.transactional_id else each
                for each in self._taken_out
            ]
            return self._found(now, action, changed=True)
        if action is Action.PUBLISH_AGAIN and outcome is Outcome.REPAIRED:
            return self._found(now, action, changed=True)
        return self._found(now, _DONE[unnamed, outcome], changed=outcome is not Outcome.NOTHING)

    async def _note_aborted(self, now: Seen) -> None:
        """Note in the row that its transaction was aborted, as the caller says. Raises if it has changed meanwhile."""

        async def note(database: DatabaseTransaction) -> None:
            row = await database.lock(now.transactional_id, timeout_ms=self._lock_timeout_ms)
            text = await database.read_manifest(now.transactional_id)
            if (row, text) != (now.stored, now.manifest):
                raise _not_read_yet(now)
            noted = noted_text(row, Verdict.ABORTED, text)
            await database.write(now.transactional_id, previous=row, new=row, manifest=noted)
            await database.commit()

        await in_own_transaction(self._begin, note)

    def _begin(self) -> Awaitable[DatabaseTransaction]:
        database = SqlAlchemyDatabase(self._engine, create_table=False, schema=self._schema, only_recovers=True)
        return database.begin()

    def _take_out(self, now: Seen, *, apply: bool) -> None:
        """Read the owed records, and hand them over if they are to be taken out."""
        taken = TakenOut(now.transactional_id, OWED, 0, tuple(self._owed_records(now)))
        if apply and self._keep is not None:
            self._keep(taken)
        self._taken_out.append(taken)

    def _owed_records(self, now: Seen) -> Iterable[BufferedRecord]:
        """Return the records of the aborted partitions, from the log if it has them all, else from the outbox."""
        manifest, end = manifest_of(now.stored, now.manifest), now.end
        if manifest is None or end is None or end.gone or not end.aborted:
            return blocking.run(self._kept(now))
        assert self._log_reader is not None, "it has read how the transaction ended"
        found = self._log_reader.records_of(manifest, end.aborted, min(self._timeout_ms, _DURABLE_MS))
        return map(to_send, found)

    async def _kept(self, now: Seen) -> Sequence[BufferedRecord]:
        return await in_own_transaction(self._begin, lambda database: kept(database, now.transactional_id, now.stored))

    def _look_again(self, seen: Seen, row: PreparedTxnState) -> Seen:
        """Return the facts as they are under the lock."""
        described = self._admin.describe_transactions([seen.kafka_id], timeout_ms=min(self._timeout_ms, _WITH_LOCK_MS))
        again = replace(seen, text=str(row), description=described[seen.kafka_id])
        if row == seen.stored:
            return again
        # the next round looks at it
        return replace(again, manifest="", end=None, is_given_up=False, waiting=NOTHING_WAITS)

    def _acknowledge(self, seen: Seen) -> None:
        """Acknowledge a loss, or owed records that are taken out: overwrite the trace at the coordinator.

        The row keeps the decision, as dealt with.
        """
        refuses = seen.finding is Finding.ABORTED or commits_later(seen.stored, seen.described)
        if seen.description is not None and refuses:
            self._admin.overwrite_end(seen.description)
        _log.warning(
            "transactional id %s: %s is marked as dealt with, and will not be published; the coordinator reported %s "
            "for %s",
            *(seen.transactional_id, seen.text, seen.state, seen.pair),
        )

    def _writes(self, seen: Seen) -> DualWriteCoordinator:
        kind = SqlAlchemyDatabase if seen.is_ours else _WithoutSuffix
        publishes_outbox = is_outbox(seen.transactional_id) and has_outbox_table(self._engine, self._pinned)
        owned = OwnedId(
            seen.transactional_id,
            database=kind(self._engine, create_table=False, schema=self._schema, only_recovers=True),
            kafka=KafkaParticipant(KafkaSettings(seen.transactional_id, self._connection).producer),
            lock_timeout_ms=self._lock_timeout_ms,
            resolve_timeout_ms=_DURABLE_MS,
            policy=self._policy.of_outbox if publishes_outbox else self._policy,
        )
        repairability = Repairability(keeps_records=publishes_outbox)
        return DualWriteCoordinator(owned, sleep=blocking.sleep, repairability=repairability)

    def _decide(self, seen: Seen, row: Row) -> Action:
        if seen.is_given_up and row is not Row.HELD:
            return Action.ACKNOWLEDGE
        refusal = self._refusal(seen)
        return decide(
            Facts(
                row,
                seen.stored,
                seen.described,
                self._age_ms(seen),
                seen.transaction_version,
                end=seen.end,
                is_repairable=not seen.has_offsets,
                is_kept=seen.text is not None and seen.waiting.kept_as == seen.text,
                verdict=None if seen.text is None else seen.verdict,
                is_settled=seen.text is not None and seen.is_settled,
                stored_age_ms=self._stored_age_ms(seen),
                has_publisher=seen.waiting.has_publisher,
                refusal=None if refusal is None else action_of(refusal),
            ),
            min_age_ms=self._min_age_ms,
            lost_is_acknowledged=seen.transactional_id in self._lost,
            owed_is_taken_out=seen.transactional_id in self._to_take,
            is_published_again=seen.transactional_id in self._to_publish_again,
        )

    def _refusal(self, seen: Seen) -> DualWriteError | None:
        """Return the error with which a writer refuses the id because of its row, by the judge."""
        if seen.text is None:
            return None
        return refusal_by_row(seen.in_cluster, lambda: keeps_prepared(self._admin, seen.kafka_id))

    def _stored_age_ms(self, seen: Seen) -> int | None:
        since_ms = seen.waiting.since_ms
        return None if since_ms is None else max(int(self._clock() * 1000) - since_ms, 0)

    def _waits_for_publisher(self, seen: Seen) -> str:
        waits_ms = self._stored_age_ms(seen)
        return f"a living process holds the lease of this outbox; its oldest block has waited for {waits_ms} ms"

    def _age_ms(self, seen: Seen) -> int | None:
        return age_ms_of(seen.state, seen.start_ms, int(self._clock() * 1000))

    def _found(self, seen: Seen, action: Action, *, changed: bool = False, error: str | None = None) -> Found:
        return Found(
            transactional_id=seen.transactional_id,
            kafka_transactional_id=seen.kafka_id,
            action=action,
            changed=changed,
            row=seen.text,
            state=seen.state,
            pair=str(seen.pair),
            age_ms=self._age_ms(seen),
            topic_partitions=seen.topic_partitions,
            error=self._why(seen, action) if error is None else error,
        )

    def _why(self, seen: Seen, action: Action) -> str | None:
        if action is Action.NO_ROW:
            return _why_no_row(seen)
        refusal = self._refusal(seen) if action in (Action.ANOTHER_CLUSTER, Action.WENT_BACK) else None
        return None if refusal is None else first_line(refusal)


def _why_no_row(seen: Seen) -> str | None:
    """Return why an id has no row in this database, or None if that is not known."""
    if seen.is_ours:
        return None
    suffix = foreign_suffix_of(seen.kafka_id)
    if suffix is None:
        return "not an id of this database, which adds a suffix to each of its ids"
    return f"an id of another database, whose suffix is {suffix}: recover it there"


def _is_newly_aborted(seen: Seen, now: Seen) -> bool:
    """Return whether the row's transaction was not known to be aborted when the log was read without the lock."""
    return now.finding is Finding.ABORTED and (now.stored != seen.stored or seen.finding is not Finding.ABORTED)


def _not_read_yet(now: Seen) -> RetriableError:
    return RetriableError(
        f"{now.stored} of transactional id {now.transactional_id!r}, which the database has decided, has ended in "
        "Kafka since recovery first looked at it; nothing was changed: the next round reads from the log how it "
        "ended, and whether it can be published again"
    )


class _WithoutSuffix(SqlAlchemyDatabase):
    """The database without its suffix, to lock a row for an id that is not of this database."""

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        await super().ensure_row(transactional_id)
        return AS_GIVEN


_NEEDS_READING: Final = (Action.NOT_PROVEN, Action.PUBLISH_AGAIN, Action.TAKE_OUT)
_WITHOUT_REPAIR: Final = (Action.ACKNOWLEDGE, Action.TAKE_OUT)

_NOTHING_OWED: Final = "nothing is owed under this id, so nothing was taken out"
_NOTHING_IN_QUESTION: Final = "this id has no batch with an unproven end, so nothing was published again"

_DONE: Final = {
    (Row.FREE, Outcome.COMMITTED): Action.COMMIT,
    (Row.FREE, Outcome.ROLLED_BACK): Action.ABORT,
    (Row.FREE, Outcome.NOTHING): Action.NOTHING,
    (Row.FREE, Outcome.REPAIRED): Action.REPAIR,
    (Row.FREE, Outcome.PUBLISHED): Action.PUBLISH,
    (Row.VOUCHED, Outcome.COMMITTED): Action.COMMIT,
    (Row.VOUCHED, Outcome.ROLLED_BACK): Action.TERMINATE,
    (Row.VOUCHED, Outcome.NOTHING): Action.NOTHING,
    (Row.VOUCHED, Outcome.PUBLISHED): Action.PUBLISH,
    (Row.MISSING, Outcome.PUBLISHED): Action.PUBLISH,
    (Row.MISSING, Outcome.NOTHING): Action.NOTHING,
}
"""The action that was carried out, by the row and the outcome of the take-over."""


def transaction_version(features: Mapping[int, BrokerFeatures]) -> int:
    """Return the cluster's `transaction.version`, from the broker with the latest finalized features."""
    newest = max(features.values(), key=lambda each: each.finalized_features_epoch)
    return newest.finalized_features.get("transaction.version", (0, 0))[1]


def keeps_prepared(admin: TransactionAdmin, kafka_id: str) -> bool:
    """Return whether a broker supports KeepPreparedTxn, after which a later epoch proves no later transaction."""
    return TwoPhaseCommit.KEEPS_PREPARED in admin.describe_two_phase_commit(kafka_id).values()


def _partial_if_incomplete(query: Callable[[], Any], unseen: list[str]) -> Any:
    try:
        return query()
    except IncompleteAnswerError as error:
        unseen.extend(dict.fromkeys(map(first_line, error.failures.values())))
        return error.partial


def _several(name: str, given: Iterable[str]) -> Collection[str]:
    if isinstance(given, str):
        raise ConfigError(f"{name} takes a collection of transactional ids, not the string {given!r}")
    return tuple(map(exact, given))
