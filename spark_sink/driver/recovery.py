"""`SinkRecovery`: complete the transactions that a Spark application has left open, without the application.

    recovery = SinkRecovery(CommitStore(engine), completion, admin, sink_ids=["orders"])
    report = recovery.recover()  # or recovery.plan(), which changes nothing

An open transaction blocks read_committed consumers until it is completed; with two-phase commit no timeout ends it. If
the application can be started again, recovery is not needed: the first plan does all of this and more.

The store's row decides, as it does for the sink itself: recovery commits COMMITTING attempts and aborts ABORTING ones,
which any number of processes may do at once, and repeatedly. Ages do not matter for that; they only keep recovery from
doing the work of a process that is about to do it. An undecided attempt (OPEN, PREPARED) belongs to its application:
recovery aborts it only if an operator has named the sink as one whose application is gone, and no fact contradicts.
A decided transaction that Kafka has aborted is published again, and decided batches are added to their Delta or Iceberg
table, both as the sink does itself. A transaction without a row is aborted only if an operator has named its sink for
that (`orphans.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, TypeVar

from dualwrite.admin import TransactionAdmin
from dualwrite.decisions.republish import Fate, Judgement
from dualwrite.errors import AnotherClusterError, DualWriteError
from spark_sink import commands
from spark_sink.driver.completion import elsewhere
from spark_sink.driver.finisher import StoredClaims, advice_if_elsewhere, advice_if_it_went_back, advice_if_lost
from spark_sink.driver.hanging import hanging_of
from spark_sink.driver.open_transactions import OpenTransaction, OpenTransactions
from spark_sink.driver.orphans import Orphan, Orphans
from spark_sink.driver.sink_view import SinkView, SinkViews
from spark_sink.errors import StoreWentBackError
from spark_sink.handoff import BatchName
from spark_sink.lake.files import library_missing
from spark_sink.lake.janitor import Janitor
from spark_sink.lake.place import LakePlace
from spark_sink.store.attempt_states import AttemptStatus, Claim, ClaimRows, Ended, Ending, Prepared
from spark_sink.store.sink_store import OperatedStore
from spark_sink.store.tables import AttemptRow, OwedBatch

__all__ = ["Action", "Found", "RecoveryReport", "SinkRecovery"]

_log = logging.getLogger("spark_sink")

DEFAULT_MIN_AGE_MS: Final = 60_000


# ---- choosing actions: pure ---------------------------------------------------------------------------------------


class Action(StrEnum):
    """The action of recovery for an attempt, or the reason for none."""

    COMMIT = "commit"
    REPAIR = "repair"
    """It is to be committed, but Kafka has aborted it: its records are published again from the log."""
    ABORT = "abort"
    PUBLISH = "publish"
    """Its files are to be added to the Delta or Iceberg table."""
    CONDEMN = "condemn"
    YOUNG = "young"
    IN_USE = "in-use"
    UNDECIDED = "undecided"
    NO_ROW = "no-row"
    LOST = "lost"
    FAILED = "failed"


CHANGES: Final = frozenset({Action.COMMIT, Action.REPAIR, Action.ABORT, Action.PUBLISH, Action.CONDEMN})
"""The actions that make changes."""

NEEDS_OPERATOR: Final = frozenset({Action.UNDECIDED, Action.NO_ROW, Action.LOST, Action.FAILED})
"""The actions that change nothing and need an operator."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one live attempt. Ages in milliseconds, by the database's clock."""

    status: AttemptStatus
    age_ms: int
    """Time since its row last changed."""
    quiet_ms: int
    """Time since any row of its sink last changed."""
    is_named: bool
    """Whether an operator has named the sink as one whose application is gone."""


def decide(facts: Facts, *, min_age_ms: int) -> Action:
    """Choose the action for a live attempt."""
    decided = _BY_ROW.get(facts.status)
    if decided is not None:
        return Action.YOUNG if facts.age_ms < min_age_ms else decided
    if facts.quiet_ms < min_age_ms:
        return Action.YOUNG
    return Action.CONDEMN if facts.is_named else Action.UNDECIDED


_BY_ROW: Final = {AttemptStatus.COMMITTING: Action.COMMIT, AttemptStatus.ABORTING: Action.ABORT}

AFTERWARDS: Final = {Ending.LEFT: Action.IN_USE, Ending.LOST: Action.LOST, Ending.FAILED: Action.FAILED}
"""The action to report instead of a change that failed or was not needed."""


# ---- recovery -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """One transaction that recovery found.

    `changed`: recovery has carried out `action`. `attempt` is None for a transaction without a row. `open` is the
    coordinator's description, None if nothing is open. `age_ms`: time since the row changed, or, without a row, since
    the transaction began.
    """

    sink_id: str
    transactional_id: str
    action: Action
    changed: bool
    attempt: AttemptRow | None
    open: OpenTransaction | None
    age_ms: int
    error: str | None = None
    advice: str | None = None
    """An operator's next steps, where no retry helps."""

    @property
    def is_left(self) -> bool:
        """Whether an operator or a later round has to act."""
        return self.action in NEEDS_OPERATOR or (self.action in CHANGES and not self.changed)


@dataclass(frozen=True, slots=True)
class FoundOwed:
    """A decided batch that a table of files lacked. `changed`: recovery has added it."""

    batch: OwedBatch
    action: Action
    changed: bool
    age_ms: int
    error: str | None = None
    advice: str | None = None
    """An operator's next steps, where no retry helps."""

    @property
    def is_left(self) -> bool:
        """Whether an operator or a later round has to act."""
        return self.action in NEEDS_OPERATOR or (self.action in CHANGES and not self.changed)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of one round over `sinks` sinks.

    `unseen` has sentences about sinks and brokers that it could not query, and about commits that nothing proves.
    """

    found: tuple[Found, ...]
    sinks: int
    unseen: tuple[str, ...]
    applied: bool
    owed: tuple[FoundOwed, ...] = ()
    hanging: tuple[str, ...] = ()
    """Sentences about transactions without a marker, with the command that ends each; only an operator can."""

    @property
    def all(self) -> tuple[Found | FoundOwed, ...]:
        """Transactions, and batches owed to tables of files."""
        return self.found + self.owed

    @property
    def left(self) -> tuple[Found | FoundOwed, ...]:
        return tuple(found for found in self.all if found.is_left)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left or hangs, and everything could be queried."""
        return not (self.left or self.unseen or self.hanging)


FoundT = TypeVar("FoundT")


class EndsTransactions(Protocol):
    """The Kafka side of recovery; `Completion` implements it."""

    def end(self, claims: Sequence[Claim], rows: ClaimRows) -> Mapping[str, Ended]:
        """See `SinkKafka.end`."""

    def foresee(self, claim: Claim, row: Prepared) -> Judgement:
        """See `Completion.foresee`."""


class SinkRecovery:
    """Finds the open transactions of some sinks, or of all in the store, and completes them as the store has decided.

    `abort_orphans` names sinks whose open transactions without a row are aborted if they are older than `min_age_ms`,
    although the lost part of the store's history may have decided to commit them.

    `condemn` names sinks whose application is certainly gone; their undecided attempts are aborted, unless a row of the
    sink has changed within `min_age_ms`. If the application is running after all, its batch fails and its next start
    continues; nothing is lost or duplicated. `min_age_ms` keeps recovery out of the way of a process that is about to
    do the same. Only one thread at a time may use it.
    """

    def __init__(
        self,
        store: OperatedStore,
        kafka: EndsTransactions,
        admin: TransactionAdmin,
        *,
        sink_ids: Iterable[str] = (),
        condemn: Iterable[str] = (),
        abort_orphans: Iterable[str] = (),
        min_age_ms: int = DEFAULT_MIN_AGE_MS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._failures: tuple[type[Exception], ...] = (DualWriteError, *store.errors)
        self._kafka = kafka
        self._admin = admin
        self._condemn = frozenset(condemn)
        self._abort_orphans = frozenset(abort_orphans)
        self._sink_ids = tuple(dict.fromkeys([*sink_ids, *self._condemn, *self._abort_orphans]))
        self._min_age_ms = min_age_ms
        self._views = SinkViews(store, admin, now_ms=lambda: int(clock() * 1000))
        self._transactions = OpenTransactions(admin, now_ms=lambda: int(clock() * 1000))
        self._orphans = Orphans(store, self._transactions, min_age_ms=min_age_ms)

    def plan(self) -> RecoveryReport:
        """Report the actions that `recover()` would take now. Changes nothing, and takes no lock."""
        return self._round(apply=False)

    def recover(self) -> RecoveryReport:
        """Complete all that is possible now; report the rest with its error. One failure does not stop the others.

        Raises if no sink can be looked at: SinkError for a database without a commit store, the database's own errors,
        and Kafka's.
        """
        return self._round(apply=True)

    def run(
        self,
        interval_s: float,
        *,
        stopped: threading.Event,
        heard: Callable[[RecoveryReport], None],
        failed: Callable[[Exception], None],
        apply: bool = True,
    ) -> None:
        """Recover (or plan) every `interval_s` seconds until `stopped` is set. Pass failures to `failed`, and retry."""
        while not stopped.is_set():
            try:
                report = self._round(apply=apply)
            except self._failures as error:
                failed(error)
            else:
                heard(report)
            stopped.wait(interval_s)

    # ---- one round ------------------------------------------------------------------------------------------

    def _round(self, *, apply: bool) -> RecoveryReport:
        unseen: list[str] = []
        views = self._views.look(self._sink_ids or self._views.all_ids(), unseen)
        unseen += [f"the commit store has no sink {view.sink_id!r}" for view in views if view.row is None]
        found = self._of_each(views, unseen, lambda view: self._ended_attempts(view, unseen, apply=apply))
        found += self._of_each(views, unseen, lambda view: self._ended_orphans(view, unseen, apply=apply))
        owed = self._of_each(views, unseen, lambda view: self._owed(view, unseen, apply=apply))
        hanging = self._of_each(views, unseen, lambda view: self._hanging(view, unseen))
        return RecoveryReport(tuple(found), len(views), tuple(unseen), apply, tuple(owed), tuple(hanging))

    def _of_each(
        self, views: Sequence[SinkView], unseen: list[str], of_sink: Callable[[SinkView], Sequence[FoundT]]
    ) -> list[FoundT]:
        """Return the findings of all sinks, and a sentence in `unseen` for each sink whose round has failed."""
        found: list[FoundT] = []
        for view in views:
            try:
                found += of_sink(view)
            except self._failures as error:
                unseen.append(f"the sink {view.sink_id!r}: {_one_line(error)}")
        return found

    def _ended_attempts(self, view: SinkView, unseen: list[str], *, apply: bool) -> list[Found]:
        actions = {attempt.attempt_id: self._action(view, attempt) for attempt in view.attempts}
        ended = self._carried_out(view, actions) if apply else self._foreseen(view, actions)
        unseen += [_one_line(each.error) for each in ended.values() if each.ending is Ending.COMMITTED and each.error]
        return [
            self._found(view, attempt, actions[attempt.attempt_id], ended.get(attempt.attempt_id))
            for attempt in view.attempts
        ]

    def _hanging(self, view: SinkView, unseen: list[str]) -> list[str]:
        return hanging_of(self._store, self._admin, view.sink_id, unseen, min_age_ms=self._min_age_ms)

    def _owed(self, view: SinkView, unseen: list[str], *, apply: bool) -> list[FoundOwed]:
        """Judge the batches owed to a table of files. If `apply`, publish them and delete the condemned files."""
        judged = [(batch, self._action_for(view, batch)) for batch in view.owed]
        error: Exception | None = None
        if apply and any(action is not Action.YOUNG for _, action in judged):
            try:
                self._publish(view.sink_id, judged[0][0].location)
            except self._failures as raised:
                error = raised
        if apply:
            self._clean(view.sink_id, unseen)
        still = self._store.lake.owed(view.sink_id, durably=False) if judged else ()
        left = {batch.generation: batch for batch in still}
        return [self._found_owed(view, batch, action, left, error) for batch, action in judged]

    def _clean(self, sink_id: str, unseen: list[str]) -> None:
        try:
            Janitor(sink_id, self._store.lake, schema=self._store.schema).clean()
        except self._failures as error:
            unseen.append(f"files of given up attempts of the sink {sink_id!r}: {_one_line(error)}")

    def _action_for(self, view: SinkView, batch: OwedBatch) -> Action:
        if batch.detail is not None:
            return Action.LOST
        return Action.YOUNG if view.age_ms(batch.decided_at) < self._min_age_ms else Action.PUBLISH

    def _publish(self, sink_id: str, location: str) -> None:
        try:
            from spark_sink.lake.publishing import Publisher
        except ImportError as error:
            raise library_missing(LakePlace.of(location)) from error
        Publisher(sink_id, self._store.lake, schema=self._store.schema).publish()

    def _found_owed(
        self,
        view: SinkView,
        batch: OwedBatch,
        action: Action,
        left: Mapping[int, OwedBatch],
        error: Exception | None,
    ) -> FoundOwed:
        age_ms, now = view.age_ms(batch.decided_at), left.get(batch.generation)
        if now is None:
            return FoundOwed(batch, Action.PUBLISH, True, age_ms)
        if now.detail is not None:
            advice = commands.after_lost_files(batch.sink_id, batch.query_id, batch.batch_id, schema=self._store.schema)
            return FoundOwed(batch, Action.LOST, False, age_ms, now.detail, advice)
        if error is None:
            return FoundOwed(batch, action, False, age_ms)
        return FoundOwed(batch, Action.FAILED, False, age_ms, _one_line(error))

    def _ended_orphans(self, view: SinkView, unseen: list[str], *, apply: bool) -> list[Found]:
        """Judge the orphans. End them if `apply`, unless the store lacks the sink: it may be the wrong store."""
        is_known = view.row is not None
        may_abort = is_known and view.sink_id in self._abort_orphans
        if apply and is_known:
            orphans = self._orphans.end(view.sink_id, view.orphans, unseen, may_abort=may_abort)
        else:
            orphans = self._orphans.judge(view.sink_id, view.orphans, may_abort=may_abort)
        return [_orphan(view, each) for each in orphans]

    def _action(self, view: SinkView, attempt: AttemptRow) -> Action:
        if attempt.status is AttemptStatus.LOST:
            return Action.LOST
        named = view.sink_id in self._condemn
        facts = Facts(attempt.status, view.age_ms(attempt.updated_at), view.quiet_ms, named)
        return decide(facts, min_age_ms=self._min_age_ms)

    def _carried_out(self, view: SinkView, actions: Mapping[str, Action]) -> Mapping[str, Ended]:
        """Carry the actions out; return the endings by attempt id."""
        if Action.CONDEMN in actions.values():
            count = self._store.condemn(view.sink_id)
            _log.warning("sink %s: %d undecided attempts were condemned by an operator", view.sink_id, count)
        chosen = {attempt_id for attempt_id, action in actions.items() if action in CHANGES}
        claims = [claim for claim in self._store.claims(view.sink_id) if claim.attempt_id in chosen]
        if not claims:
            return {}
        ended = self._kafka.end(claims, StoredClaims(self._store, view.sink_id, claims))
        return self._store.record(view.sink_id, ended)

    def _found(self, view: SinkView, attempt: AttemptRow, planned: Action, ended: Ended | None) -> Found:
        """Report an attempt; `ended` is None if nothing was tried."""
        action = Action.REPAIR if ended is not None and ended.repaired else planned
        actual = action if ended is None else AFTERWARDS.get(ended.ending, action)
        error = None if ended is None else ended.error
        return Found(
            sink_id=view.sink_id,
            transactional_id=attempt.transactional_id,
            action=actual,
            changed=ended is not None and actual is action,
            attempt=attempt,
            open=view.open.get(attempt.transactional_id),
            age_ms=view.age_ms(attempt.updated_at),
            error=attempt.detail if error is None else _one_line(error),
            advice=self._advice(view, attempt, actual, error),
        )

    def _advice(self, view: SinkView, attempt: AttemptRow, action: Action, error: Exception | None) -> str | None:
        batch = BatchName(attempt.query_id, attempt.batch_id)
        if action is Action.LOST:
            return advice_if_lost(self._store, attempt.sink_id, batch)
        if isinstance(error, StoreWentBackError):
            return advice_if_it_went_back(self._store, attempt.sink_id, batch)
        if isinstance(error, AnotherClusterError):
            committing = [each for each in view.attempts if each.status is AttemptStatus.COMMITTING]
            decided = any(BatchName(each.query_id, each.batch_id) == batch for each in committing)
            return advice_if_elsewhere(self._store, attempt.sink_id, batch, error, decided=decided)
        return None

    def _foreseen(self, view: SinkView, actions: dict[str, Action]) -> Mapping[str, Ended]:
        """Return the endings of transactions of another Kafka cluster, and replace commits by repairs in `actions`.

        By the log, the transactions to be repaired would be published again.
        """
        chosen = {attempt_id for attempt_id, action in actions.items() if action in CHANGES}
        shown = self._store.claims(view.sink_id, durably=False)
        claims = [claim for claim in shown if claim.attempt_id in chosen]
        if not claims:
            return {}
        rows = StoredClaims(self._store, view.sink_id, claims).still_wanted([each.attempt_id for each in claims])
        wanted = {claim: rows[claim.attempt_id] for claim in claims if claim.attempt_id in rows}
        failed = elsewhere(wanted, self._transactions.cluster_id())
        opened = {attempt.attempt_id for attempt in view.attempts if _is_open(view, attempt)}
        for claim, row in wanted.items():
            may_be_owed = actions[claim.attempt_id] is Action.COMMIT and claim.attempt_id not in opened | failed.keys()
            if may_be_owed and self._is_owed(claim, row):
                actions[claim.attempt_id] = Action.REPAIR
        return failed

    def _is_owed(self, claim: Claim, row: Prepared) -> bool:
        try:
            return self._kafka.foresee(claim, row).fate is Fate.ABORTED
        except (DualWriteError, ValueError) as error:
            _log.info("the end of %s of %s is unknown: %s", row.state, claim.transactional_id, error)
            return False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _is_open(view: SinkView, attempt: AttemptRow) -> bool:
    """Return whether the coordinator describes the transaction in the row as open or being ended."""
    opened = view.open.get(attempt.transactional_id)
    return opened is not None and opened.pair == attempt.prepared_state


def _orphan(view: SinkView, orphan: Orphan) -> Found:
    found, error = orphan.found, orphan.error
    action = Action(orphan.end.value) if error is None else Action.FAILED
    return Found(view.sink_id, found.transactional_id, action, orphan.changed, None, found, found.age_ms, error)
