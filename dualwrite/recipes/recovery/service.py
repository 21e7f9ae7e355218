"""`RecoveryService`: complete the transactions that crashed processes left open, for many ids, at any time.

    service = RecoveryService(engine, bootstrap_servers="127.0.0.1:9092", prefix="orders-")
    report = service.recover()            # or service.plan(), which changes nothing
    if report.left:
        ...

`dualwrite.recipes.recovery.plan` has the actions, and why they are safe. They are carried out by the steps of
`DualWriter.recover()`, under the lock of the id's state row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, Unpack

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.admin import TransactionAdmin, TransactionDescription
from dualwrite.config import of_connections
from dualwrite.errors import ConfigError, DualWriteError, IncompleteAnswerError, RowLockTimeoutError
from dualwrite.exact import exact
from dualwrite.hanging import pair_of
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.settings import KafkaSettings
from dualwrite.recipes.recovery.completion import Completion, unnamed_row
from dualwrite.recipes.recovery.hanging_elsewhere import find_hanging, is_decided
from dualwrite.recipes.recovery.log_ends import LogEnds
from dualwrite.recipes.recovery.plan import (
    Action,
    Found,
    RecoveryReport,
    Row,
    TakenOut,
    action_of,
    decide,
    found,
    found_hanging,
)
from dualwrite.recipes.recovery.seen import NO_ROW, Cluster, Decision, Seen, cluster_of
from dualwrite.recipes.recovery.stored_rows import StoredRow, known_database, stored_rows
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.own_statements import for_own_use
from dualwrite.recipes.sqlalchemy.tables import schema_for
from dualwrite.settings import RecoverySettings

__all__ = ["Action", "Found", "RecoveryReport", "RecoveryService"]

DEFAULT_MIN_AGE_MS: Final = 60_000
DEFAULT_LOCK_TIMEOUT_MS: Final = 100

Progress = Callable[[int, int], None]
"""Called after each id with the number of ids done and the number of all."""

_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


class RecoveryService:
    """Finds open transactions that do not match their state rows, and completes each by its row, under its lock.

    `prefix` (empty: all ids) and `transactional_ids` select the ids. A transaction is left to its owner until it has
    been open for `min_age_ms`, by this machine's clock. A row whose lock is not free within `lock_timeout_ms` is in
    use. `acknowledge_lost` names ids whose loss an operator has dealt with: they can be used again. `force_terminate`
    names ids without a row whose open transaction is to be aborted without a decision of any database. `take_out_owed`
    names ids whose owed records are not to be published: `keep`, which it requires, gets them before anything is
    changed; if it raises, nothing is. `publish_again` names outboxes whose last batch is not proven,
    and is not in Kafka, as an operator has found. Transactions of the ids that no coordinator will ever end are looked
    for in the topics of the rows' manifests, and in `topics` besides. Ids may be given with or without the suffix that
    Kafka sees. `schema` is the schema of the state table; by default the unqualified name is looked up. `timeout_ms`
    limits each request to Kafka. The other settings are those of the connections to Kafka.

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
        topics: Iterable[str] = (),
        keep: Callable[[TakenOut], object] | None = None,
        schema: str | None = None,
        timeout_ms: int = 60_000,
        clock: Callable[[], float] = time.time,
        **settings: Unpack[RecoverySettings],
    ) -> None:
        self._prefix = prefix
        self._decided = {
            Decision.LOST: _several("acknowledge_lost", acknowledge_lost),
            Decision.TAKEN_OUT: _several("take_out_owed", take_out_owed),
            Decision.PUBLISHED_AGAIN: _several("publish_again", publish_again),
        }
        self._vouched = _several("force_terminate", force_terminate)
        self._topics = _several("topics", topics)
        self._ids = _several("transactional_ids", transactional_ids).union(*self._decided.values())
        if prefix is None and not self._ids | self._vouched:
            raise ConfigError(
                "no transactional ids are selected, and nothing was recovered: pass prefix (an empty one selects all "
                "ids) or transactional_ids"
            )
        if self._decided[Decision.TAKEN_OUT] and keep is None:
            raise ConfigError("take_out_owed requires keep, which writes the records out: nothing else has them then")
        if min_age_ms < 0:
            raise ConfigError(f"min_age_ms must be at least 0, not {min_age_ms}")
        if "default_api_timeout_ms" in settings:
            raise ConfigError("default_api_timeout_ms cannot be set here: use timeout_ms")
        self._engine = for_own_use(engine)
        watch(self._engine)
        self._schema = schema_for(engine, schema)
        self._min_age_ms = min_age_ms
        self._timeout_ms = timeout_ms
        self._clock = clock
        connection: dict[str, Any] = {"unreachable_timeout_ms": None, **settings, "max_block_ms": timeout_ms}
        KafkaSettings("checked-before-use", connection)
        self._admin = TransactionAdmin(**of_connections(settings), default_api_timeout_ms=timeout_ms)
        self._ends = LogEnds(self._admin, connection, timeout_ms=timeout_ms)
        self._completion = partial(
            Completion,
            self._engine,
            schema=self._schema,
            admin=self._admin,
            ends=self._ends,
            connection=connection,
            min_age_ms=min_age_ms,
            lock_timeout_ms=lock_timeout_ms,
            timeout_ms=timeout_ms,
            keep=keep,
        )

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
        self._ends.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *how: object) -> None:
        self.close()

    # ---- one round ------------------------------------------------------------------------------------------

    def _round(
        self, progress: Progress | None, *, apply: bool, stopped: threading.Event | None = None
    ) -> RecoveryReport:
        unseen: list[str] = []
        cluster = cluster_of(self._admin)
        pinned, identity = known_database(self._engine, self._schema, may_make=apply)

        def kafka_ids(given: Iterable[str]) -> set[str]:
            return {identity.kafka_id(identity.name_as_given(each)) for each in given}

        decided = {decision: kafka_ids(given) for decision, given in self._decided.items()}
        names = {identity.name_as_given(each) for each in self._ids | self._vouched}
        rows = self._stored(pinned, names)
        # a name for which this database has a decision is not taken for another application's id
        others = {each for each in self._vouched if not rows.get(each, NO_ROW).state}
        vouched = decided[Decision.VOUCHED] = kafka_ids(self._vouched) | others
        ids = {*map(identity.kafka_id, rows), *kafka_ids(self._ids)}
        self._check_right(sorted(ids)[:1], unseen)
        descriptions = self._described(sorted({*ids, *vouched, *self._listed(unseen)}), unseen)
        # Rows are read last: compared with a row older than the description, a loss would look like an old abort.
        rows = self._stored(pinned, names)
        completion = self._completion(pinned)
        results: list[Found] = []
        for number, (each, description) in enumerate(descriptions.items(), start=1):
            if stopped is not None and stopped.is_set():
                unseen.append(f"{len(descriptions) - number + 1} ids, because recovery was stopped")
                break
            decisions = frozenset(decision for decision, about in decided.items() if each in about)
            now_ms = int(self._clock() * 1000)
            name = identity.name_of(each)
            row = NO_ROW if name is None else rows.get(name, NO_ROW)
            is_ours = name is not None
            seen = Seen(name or each, each, row, description, cluster, now_ms, decisions, is_ours=is_ours)
            results.append(self._recover_one(seen, completion, apply=apply))
            if progress is not None:
                progress(number, len(descriptions))
        told = tuple(each for each in results if each.action is not Action.NOTHING)
        hanging, searched = self._hanging(rows, identity, cluster, told, unseen, stopped)
        told += hanging
        return RecoveryReport(told, len(results) - len(told), tuple(unseen), apply, completion.taken_out, searched)

    def _check_right(self, kafka_ids: Sequence[str], unseen: list[str]) -> None:
        """Note in `unseen` that this client could complete nothing: an id that is settled does not show it."""
        unseen += [
            f"this client has no WRITE on the transactional id {each!r}: nothing can be written or completed with it"
            for each in kafka_ids
            if not self._admin.may_write_with(each)
        ]

    def _stored(self, pinned: PinnedTables, names: Collection[str]) -> dict[str, StoredRow]:
        return stored_rows(self._engine, pinned, prefix=self._prefix, transactional_ids=names)

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

    def _hanging(
        self,
        rows: Mapping[str, StoredRow],
        identity: DatabaseIdentity,
        cluster: Cluster,
        told: Sequence[Found],
        unseen: list[str],
        stopped: threading.Event | None,
    ) -> tuple[tuple[Found, ...], tuple[str, ...]]:
        """Return what hangs besides the transactions that rows name and that are told of; and the topics searched."""
        by_kafka_id = {identity.kafka_id(name): row for name, row in rows.items()}
        named = {(each.kafka_transactional_id, each.row) for each in told if each.action is Action.HANGS}
        hanging, searched = find_hanging(
            self._admin,
            by_kafka_id,
            self._topics,
            unseen,
            min_age_ms=self._min_age_ms,
            timeout_ms=self._timeout_ms,
            stopped=stopped,
        )
        others = tuple(
            found_hanging(
                identity.name_of(kafka_id) or kafka_id, row.state, each, is_decided=is_decided(each, row, cluster)
            )
            for each in hanging
            if (kafka_id := each.transactional_id) is not None and (kafka_id, str(pair_of(each))) not in named
            for row in [by_kafka_id[kafka_id]]
        )
        return others, tuple(searched)

    # ---- one id ---------------------------------------------------------------------------------------------

    def _recover_one(self, seen: Seen, completion: Completion, *, apply: bool) -> Found:
        """Deal with one id, and return the result or the failure."""
        try:
            # Look first without the lock whether there can be anything to do.
            seen = self._ends.read(seen)
            action = self._decide(seen, unnamed_row(seen))
            is_untouched = seen.row.state is None and (action not in (Action.TERMINATE, Action.PUBLISH) or not apply)
            is_done = action is Action.NOTHING and not (apply and (seen.end is not None or seen.is_to_settle))
            if is_untouched or is_done or action in (Action.OVERDUE, Action.FAILED):
                return found(seen, action)
            return completion.complete(seen, apply=apply)
        except RowLockTimeoutError:
            return found(seen, self._decide(seen, Row.HELD))
        except DualWriteError as error:
            return found(seen, action_of(error) or Action.FAILED, error=first_line(error))
        except (SQLAlchemyError, ValueError) as error:
            return found(seen, Action.FAILED, error=first_line(error))

    def _decide(self, seen: Seen, row: Row) -> Action:
        return decide(seen, row, min_age_ms=self._min_age_ms)


def _partial_if_incomplete(query: Callable[[], Any], unseen: list[str]) -> Any:
    try:
        return query()
    except IncompleteAnswerError as error:
        unseen.extend(dict.fromkeys(map(first_line, error.failures.values())))
        return error.partial


def _several(name: str, given: Iterable[str]) -> frozenset[str]:
    if isinstance(given, str):
        raise ConfigError(f"{name} takes a collection of transactional ids, not the string {given!r}")
    return frozenset(map(exact, given))
