"""`RecoveryService`: completes what crashed processes left open, for many transactional ids, at any time.

    service = RecoveryService(engine, bootstrap_servers="127.0.0.1:9092", prefix="orders-")
    report = service.recover()            # or service.plan(), which changes nothing
    if report.left:
        ...

What is done about an id and why it is safe: `dualwrite.recipes.recovery.plan`. How it is done: the steps of
`DualWriter.recover()`, under the lock of the id's row.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.admin import BrokerFeatures, TransactionAdmin, TransactionDescription
from dualwrite.client.transactions.recovery import Described, DescribedState
from dualwrite.errors import (
    ConfigError,
    DualWriteError,
    IncompleteAnswerError,
    PreparedTransactionLost,
    RowLockTimeoutError,
)
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.kafka_participant import BlockingKafkaParticipant
from dualwrite.recipes.core.lost_connections import first_line
from dualwrite.recipes.core.settings import KafkaSettings
from dualwrite.recipes.core.store import Database, DatabaseTransaction
from dualwrite.recipes.recovery.plan import CHANGES, NEEDS_SOMEBODY, Action, Facts, Row, age_ms_of, decide
from dualwrite.recipes.recovery.rows import known_database, stored_texts
from dualwrite.recipes.sql.database_identity import AS_GIVEN, DatabaseIdentity, foreign_suffix_of
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.tables import schema_for

__all__ = ["Action", "Found", "RecoveryReport", "RecoveryService"]

_log = logging.getLogger(__name__)

DEFAULT_MIN_AGE_MS: Final = 60_000
DEFAULT_LOCK_TIMEOUT_MS: Final = 100
_WITH_LOCK_MS: Final = 5_000
"""How long a row stays locked for a coordinator that does not answer what is asked before anything is changed."""

_DURABLE_MS: Final = 10_000
"""How long a row that was read may take to become durable, before Kafka is told what it says."""

Progress = Callable[[int, int], None]
"""Hears after each id: how many were looked at, of how many."""

_OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_ADMIN_ONLY: Final = "default_api_timeout_ms"


@dataclass(frozen=True, slots=True)
class Found:
    """One transactional id that recovery met.

    `changed`: what `action` names was carried out; False where it was only planned, does not change anything, or
    failed, which `error` tells. `kafka_transactional_id` is what Kafka sees of the id; where that is not of this
    database, `transactional_id` is the same. `row` is what the database holds, None where there is no row. `state` and
    `pair` are what the coordinator said, with `age_ms` for how long a transaction has been open, None where none is.
    """

    transactional_id: str
    kafka_transactional_id: str
    action: Action
    changed: bool
    row: str | None
    state: str
    pair: str
    age_ms: int | None
    topic_partitions: tuple[str, ...]
    error: str | None = None

    @property
    def is_left(self) -> bool:
        """Whether this is in doubt, or wrong, and not because of a living owner."""
        return self.action in NEEDS_SOMEBODY or (self.action in CHANGES and not self.changed)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What one round met. `settled`: how many ids were looked at that had nothing open and nothing missing.

    `unseen` says what could not be asked.
    """

    found: tuple[Found, ...]
    settled: int
    unseen: tuple[str, ...]
    applied: bool

    @property
    def left(self) -> tuple[Found, ...]:
        """What somebody has to see to, or a later round."""
        return tuple(found for found in self.found if found.is_left)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left and everything was seen."""
        return not self.left and not self.unseen


class _Left(Exception):  # noqa: N818 - it ends an examination, and is no error
    """What an examination under the lock came to, where the id is not taken over."""

    def __init__(self, found: Found) -> None:
        super().__init__(found)
        self.found = found


class RecoveryService:
    """Finds rows and open transactions that do not match, and resolves each by its row, under its lock.

    `prefix` (an empty one: all ids) and `transactional_ids` say which ids are looked at. A transaction is left to its
    owner until it has been open for `min_age_ms`, by this machine's clock. A row that is not free within
    `lock_timeout_ms` is in use. `acknowledge_lost` are ids whose loss somebody has seen to: they can be used again.
    `force_terminate` are ids without a row whose open transaction is to be aborted: no database is asked about them.
    An id may be given by its name or as Kafka sees it. `schema` is where the state table is, which without it is where
    an unqualified name leads to. `timeout_ms` bounds each request to Kafka. The other settings are those of the way to
    the cluster.

    Any number of services, writers and other processes may be at it at the same time. An owner that lives and has
    nothing open is not disturbed. Not for use by several threads at once.
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
        schema: str | None = None,
        timeout_ms: int = 60_000,
        clock: Callable[[], float] = time.time,
        **settings: Any,
    ) -> None:
        self._prefix = prefix
        self._lost_as_given = frozenset(_several("acknowledge_lost", acknowledge_lost))
        self._vouched_as_given = frozenset(_several("force_terminate", force_terminate))
        self._ids_as_given = frozenset(_several("transactional_ids", transactional_ids))
        if prefix is None and not (self._ids_as_given | self._lost_as_given | self._vouched_as_given):
            raise ConfigError("which ids? give a prefix (an empty one means all of them) or transactional_ids")
        if min_age_ms < 0:
            raise ConfigError(f"min_age_ms is at least 0, not {min_age_ms}")
        self._engine = engine
        self._schema = schema_for(engine, schema)
        self._min_age_ms = min_age_ms
        self._lock_timeout_ms = lock_timeout_ms
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._settings = _without(_ADMIN_ONLY, settings) | {
            "accept_bounded_guarantee": True,  # what is found was left under it; nothing new is prepared here
            "max_block_ms": timeout_ms,
        }
        KafkaSettings("checked-before-use", self._settings)
        self._admin = TransactionAdmin(**settings, default_api_timeout_ms=timeout_ms)

    def plan(self, progress: Progress | None = None) -> RecoveryReport:
        """What `recover()` would do now; changes nothing. Takes the locks of rows for a moment, as that does."""
        return self._round(progress, apply=False)

    def recover(self, progress: Progress | None = None) -> RecoveryReport:
        """Resolve what can be resolved now.

        An id that cannot be resolved is reported with its error and keeps none of the others from it. Raises where
        nothing can be resolved: StateRowError for a table that is missing, the database's own errors, and Kafka's.
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
        """Recover (or plan) every `interval_s` seconds until `stopped` is set; what fails is told and repeated.

        A round that is under way then ends with the id that it is at. What it has met by then is told, with the others
        in `unseen`.
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
        """Let go of the connections to Kafka; idempotent."""
        self._admin.close()

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
        version = _transaction_version(self._admin.describe_features())
        database = _Known(*known_database(self._engine, self._schema, may_make=apply))
        names = database.names(self._ids_as_given | self._lost_as_given)
        self._lost = database.names(self._lost_as_given)
        vouched_names = database.names(self._vouched_as_given)
        texts = self._stored(database, names | vouched_names)
        self._vouched = database.kafka_ids_to_terminate(self._vouched_as_given, texts)
        ids = {database.kafka_id(name) for name in (*texts, *names)}
        found = []
        settled = 0
        descriptions = self._described(sorted({*ids, *self._vouched, *self._listed(unseen)}), unseen)
        # Rows are read last: beside one that is older than the description, a loss looks like an abort of long ago.
        texts = self._stored(database, names | vouched_names)
        for number, (each, description) in enumerate(descriptions.items(), start=1):
            if stopped is not None and stopped.is_set():
                unseen.append(f"{len(descriptions) - number + 1} ids, because this was told to stop")
                break
            met = self._one(database.seen(each, texts, description, version), apply=apply)
            if met is None or met.action is Action.NOTHING:
                settled += 1
            else:
                found.append(met)
            if progress is not None:
                progress(number, len(descriptions))
        return RecoveryReport(tuple(found), settled, tuple(unseen), apply)

    def _stored(self, database: _Known, names: Collection[str]) -> dict[str, str]:
        return stored_texts(self._engine, database.pinned, prefix=self._prefix, transactional_ids=names)

    def _listed(self, unseen: list[str]) -> list[str]:
        """The ids of the prefix that have something open, as Kafka sees them."""
        if self._prefix is None:
            return []
        listed = _as_far_as_seen(lambda: self._admin.transactions_of_prefix(self._prefix or ""), unseen)
        return [row.transactional_id for row in listed if row.state in _OPEN_STATES]

    def _described(self, ids: list[str], unseen: list[str]) -> dict[str, TransactionDescription | None]:
        if not ids:
            return {}
        described: dict[str, TransactionDescription | None] = _as_far_as_seen(
            lambda: self._admin.describe_transactions(ids), unseen
        )
        return described

    # ---- one id ---------------------------------------------------------------------------------------------

    def _one(self, seen: _Seen, *, apply: bool) -> Found | None:
        """What becomes of one id, with whatever befalls it; None where there is nothing to do."""
        try:
            # A first look, without a lock: whether there can be anything to do.
            if self._decide(seen, Row.MISSING if seen.text is None else Row.FREE) is Action.NOTHING:
                return None
            return self._resolve(seen, apply=apply)
        except _Left as left:
            return left.found
        except RowLockTimeoutError:
            return self._found(seen, self._decide(seen, Row.HELD))
        except PreparedTransactionLost as lost:
            return self._found(seen, Action.LOST, error=first_line(lost))
        except (DualWriteError, SQLAlchemyError, ValueError) as error:
            return self._found(seen, Action.FAILED, error=first_line(error))

    def _resolve(self, seen: _Seen, *, apply: bool) -> Found:
        if seen.text is None:
            vouched = seen.kafka_id in self._vouched
            action = self._decide(seen, Row.VOUCHED if vouched else Row.MISSING)
            if action is not Action.TERMINATE or not apply:
                return self._found(seen, action)
        return self._completed(seen, apply=apply)

    def _completed(self, seen: _Seen, *, apply: bool) -> Found:
        """By the steps of a dual write, under the lock of the row; one that is missing is made for that.

        Raises _Left where the facts under the lock are against it.
        """
        unnamed = Row.FREE if seen.text is not None else Row.VOUCHED
        writes = self._writes(seen)
        now = seen

        def examine(row: PreparedTxnState) -> None:
            nonlocal now
            now = self._look_again(seen, row)
            action = self._decide(now, unnamed if row.is_empty else Row.FREE)
            if action is Action.ACKNOWLEDGE and apply:
                raise _Left(self._acknowledged(now))
            if action not in CHANGES or not apply:
                raise _Left(self._found(now, action))

        try:
            with writes.exclusively():
                outcome = blocking.run(writes.recover(examine)).outcome
        finally:
            blocking.run(writes.close())
        return self._found(now, _DONE[unnamed, outcome], changed=outcome is not Outcome.NOTHING)

    def _look_again(self, seen: _Seen, row: PreparedTxnState) -> _Seen:
        """The facts under the lock."""
        described = self._admin.describe_transactions([seen.kafka_id], timeout_ms=min(self._timeout_ms, _WITH_LOCK_MS))
        return replace(seen, text=str(row), description=described[seen.kafka_id])

    def _acknowledged(self, seen: _Seen) -> Found:
        """What shows the loss is overwritten at the coordinator; the row stays as it was decided."""
        assert seen.description is not None, "a loss is what the coordinator describes"
        self._admin._overwrite_end(seen.description)
        _log.warning(
            "transactional id %s: the loss of %s was acknowledged; Kafka said %s at %s",
            *(seen.transactional_id, seen.text, seen.state, seen.pair),
        )
        return self._found(seen, Action.ACKNOWLEDGE, changed=True)

    def _writes(self, seen: _Seen) -> DualWriteCoordinator:
        database = SqlAlchemyDatabase(self._engine, create_table=False, schema=self._schema, only_recovers=True)
        return DualWriteCoordinator(
            seen.transactional_id,
            database=database if seen.is_ours else _OfAnother(database),
            kafka=BlockingKafkaParticipant(KafkaSettings(seen.transactional_id, self._settings).producer),
            sleep=blocking.sleep,
            lock_timeout_ms=self._lock_timeout_ms,
            resolve_timeout_ms=_DURABLE_MS,
            pause=None,
        )

    def _decide(self, seen: _Seen, row: Row) -> Action:
        return decide(
            Facts(row, seen.stored, seen.described, self._age_ms(seen), seen.transaction_version),
            min_age_ms=self._min_age_ms,
            lost_is_acknowledged=seen.transactional_id in self._lost,
        )

    def _age_ms(self, seen: _Seen) -> int | None:
        return age_ms_of(seen.state, seen.start_ms, int(self._clock() * 1000))

    def _found(self, seen: _Seen, action: Action, *, changed: bool = False, error: str | None = None) -> Found:
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
            error=_whose(seen) if action is Action.NO_ROW and error is None else error,
        )


def _whose(seen: _Seen) -> str | None:
    """Why an id has no row here; None where that is not known."""
    if seen.is_ours:
        return None
    suffix = foreign_suffix_of(seen.kafka_id)
    if suffix is None:
        return "not an id of this database, which adds a suffix to each of its own"
    return f"an id of another database, whose suffix is {suffix}: recover it there"


@dataclass(frozen=True, slots=True)
class _Known:
    """The database as it is in this round."""

    pinned: PinnedTables
    identity: DatabaseIdentity

    def names(self, given: Iterable[str]) -> frozenset[str]:
        """Of ids that are given by their names, or as Kafka sees them."""
        return frozenset(self.identity.name_as_given(each) for each in given)

    def kafka_id(self, name: str) -> str:
        return self.identity.kafka_id(name)

    def kafka_ids_to_terminate(self, given: Iterable[str], texts: Mapping[str, str]) -> frozenset[str]:
        """Of ids of this database, and of others that are given as Kafka sees them.

        A name for which this database has decided something is not taken for another application's id.
        """
        ours = {self.kafka_id(self.identity.name_as_given(each)) for each in given}
        return frozenset(ours | {each for each in given if not texts.get(each)})

    def seen(
        self, kafka_id: str, texts: Mapping[str, str], description: TransactionDescription | None, version: int
    ) -> _Seen:
        name = self.identity.name_of(kafka_id)
        if name is None:
            return _Seen(kafka_id, kafka_id, None, description, version, is_ours=False)
        return _Seen(name, kafka_id, texts.get(name), description, version)


class _OfAnother:
    """A database that locks for an id of others, whose name is what Kafka sees."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return self._database.errors

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        await self._database.ensure_row(transactional_id)
        return AS_GIVEN

    async def begin(self) -> DatabaseTransaction:
        return await self._database.begin()

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        await self._database.make_durable(transactional_id, row, timeout_ms=timeout_ms)


@dataclass(frozen=True, slots=True)
class _Seen:
    """One id as it was seen at one moment; `text` is what its row holds, None where there is none."""

    transactional_id: str
    kafka_id: str
    text: str | None
    description: TransactionDescription | None
    transaction_version: int
    is_ours: bool = True

    @property
    def stored(self) -> PreparedTxnState:
        """Raises ValueError where the row holds something else than a prepared state."""
        return PreparedTxnState(self.text)

    @property
    def described(self) -> Described:
        """Raises ValueError for a state that this version of the package has not heard of."""
        try:
            state = DescribedState(self.state)
        except ValueError:
            raise ValueError(
                f"the coordinator calls the state of this id {self.state!r}, which is not known here; nothing was "
                "changed: the next round looks again, and a newer dualwrite may know it"
            ) from None
        return Described(state, self.pair, -1 if self.start_ms is None else self.start_ms)

    @property
    def state(self) -> str:
        return DescribedState.NOT_FOUND.value if self.description is None else self.description.state

    @property
    def start_ms(self) -> int | None:
        return None if self.description is None else self.description.transaction_start_time_ms

    @property
    def pair(self) -> PreparedTxnState:
        found = self.description
        if found is None or found.producer_id < 0 or found.producer_epoch < 0:
            return PreparedTxnState()
        return PreparedTxnState.of(producer_id=found.producer_id, producer_epoch=found.producer_epoch)

    @property
    def topic_partitions(self) -> tuple[str, ...]:
        held = () if self.description is None else sorted(self.description.topic_partitions)
        return tuple(f"{topic}-{partition}" for topic, partition in held)


_DONE: Final = {
    (Row.FREE, Outcome.COMMITTED): Action.COMMIT,
    (Row.FREE, Outcome.ROLLED_BACK): Action.ABORT,
    (Row.FREE, Outcome.NOTHING): Action.NOTHING,
    (Row.VOUCHED, Outcome.COMMITTED): Action.COMMIT,
    (Row.VOUCHED, Outcome.ROLLED_BACK): Action.TERMINATE,
    (Row.VOUCHED, Outcome.NOTHING): Action.NOTHING,
}
"""What was carried out, by what the coordinator and the row told at last."""


def _transaction_version(features: Mapping[int, BrokerFeatures]) -> int:
    """The level of the cluster, by the broker that has heard of its features last."""
    newest = max(features.values(), key=lambda each: each.finalized_features_epoch)
    return newest.finalized_features.get("transaction.version", (0, 0))[1]


def _as_far_as_seen(ask: Callable[[], Any], unseen: list[str]) -> Any:
    try:
        return ask()
    except IncompleteAnswerError as error:
        unseen.extend(dict.fromkeys(map(first_line, error.failures.values())))
        return error.partial


def _several(name: str, given: Iterable[str]) -> Collection[str]:
    if isinstance(given, str):
        raise ConfigError(f"{name} takes several transactional ids, not the text {given!r}")
    return tuple(given)


def _without(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    if name in settings:
        raise ConfigError(f"{name} is called timeout_ms here")
    return dict(settings)
