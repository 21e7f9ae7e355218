"""`SinkRecovery`: end what a Spark application has left open, without the application.

    recovery = SinkRecovery(CommitStore(engine), completion, admin, sink_ids=["orders"])
    report = recovery.recover()  # or recovery.plan(), which changes nothing

An open transaction holds readers of committed records back until somebody ends it; on a broker with two-phase commit
for ever. Whoever starts the application again need not do anything: its first plan does this and more. What is done
about an attempt and why it is safe: `spark_sink.driver.recovery_plan`. How: FINISH of the protocol, which any number of
processes may carry out at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from sqlalchemy.exc import SQLAlchemyError

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import DualWriteError
from spark_sink.attempt.states import AttemptStatus
from spark_sink.driver.recovery_plan import AFTERWARDS, CHANGES, NEEDS_SOMEBODY, Action, Facts, decide
from spark_sink.driver.sink_view import OpenTransaction, SinkView, SinkViews
from spark_sink.sink_kafka import Claim, Ended
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.rows import AttemptRow

__all__ = ["Action", "Found", "RecoveryReport", "SinkRecovery"]

_log = logging.getLogger("spark_sink")

DEFAULT_MIN_AGE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Found:
    """One transaction that recovery met.

    `changed`: what `action` names was carried out. `attempt` is None for a transaction without a row. `open` is what
    the coordinator says of it, None where nothing is open. `age_ms`: since the row changed, or since the transaction
    began where there is no row.
    """

    sink_id: str
    transactional_id: str
    action: Action
    changed: bool
    attempt: AttemptRow | None
    open: OpenTransaction | None
    age_ms: int
    error: str | None = None

    @property
    def is_left(self) -> bool:
        """Whether somebody has to look, or a later round has to do something."""
        return self.action in NEEDS_SOMEBODY or (self.action in CHANGES and not self.changed)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What one round met, in `sinks` sinks. `unseen` says what could not be asked."""

    found: tuple[Found, ...]
    sinks: int
    unseen: tuple[str, ...]
    applied: bool

    @property
    def left(self) -> tuple[Found, ...]:
        return tuple(found for found in self.found if found.is_left)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left and everything was seen."""
        return not self.left and not self.unseen


class EndsTransactions(Protocol):
    """The half of `SinkKafka` that is needed here; `Completion` is one."""

    def end(
        self, claims: Sequence[Claim], still_wanted: Callable[[Collection[str]], Collection[str]]
    ) -> Mapping[str, Ended]:
        """See `SinkKafka.end`."""


class SinkRecovery:
    """Finds what is open of some sinks, or of all in the store, and ends it as the store has decided.

    `condemn`: sinks whose application is gone for certain; what it has left undecided is aborted, unless something has
    changed in the rows of that sink within `min_age_ms`. Should the application live after all, its batch fails, and it
    goes on when it is started again: nothing is lost or doubled by it. `min_age_ms` keeps recovery out of the way of
    who is about to do the same. Not for use by several threads at once.
    """

    def __init__(
        self,
        store: CommitStore,
        kafka: EndsTransactions,
        admin: TransactionAdmin,
        *,
        sink_ids: Iterable[str] = (),
        condemn: Iterable[str] = (),
        min_age_ms: int = DEFAULT_MIN_AGE_MS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._kafka = kafka
        self._admin = admin
        self._condemn = frozenset(condemn)
        self._sink_ids = tuple(dict.fromkeys([*sink_ids, *self._condemn]))
        self._min_age_ms = min_age_ms
        self._views = SinkViews(store, admin, now_ms=lambda: int(clock() * 1000))

    def plan(self) -> RecoveryReport:
        """What `recover()` would do now. Changes nothing, and takes no lock."""
        return self._round(apply=False)

    def recover(self) -> RecoveryReport:
        """End what can be ended now; what cannot is reported with its error, and keeps nothing else from it.

        Raises where nothing can be done: SinkError for a database without a commit store, the database's own errors,
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
        """Recover (or plan) every `interval_s` seconds until `stopped` is set; what fails is told and repeated."""
        while not stopped.is_set():
            try:
                report = self._round(apply=apply)
            except (DualWriteError, SQLAlchemyError) as error:
                failed(error)
            else:
                heard(report)
            stopped.wait(interval_s)

    # ---- one round ------------------------------------------------------------------------------------------

    def _round(self, *, apply: bool) -> RecoveryReport:
        unseen: list[str] = []
        views = self._views.look(self._sink_ids or self._views.all_ids(), unseen)
        unseen += [f"the commit store has no sink {view.sink_id!r}" for view in views if view.row is None]
        found = [found for view in views for found in self._of_sink(view, apply=apply)]
        return RecoveryReport(tuple(found), len(views), tuple(unseen), apply)

    def _of_sink(self, view: SinkView, *, apply: bool) -> list[Found]:
        actions = {attempt.attempt_id: self._action(view, attempt) for attempt in view.attempts}
        ended = self._carried_out(view, actions) if apply else {}
        found = [
            _found(view, attempt, actions[attempt.attempt_id], ended.get(attempt.attempt_id))
            for attempt in view.attempts
        ]
        return [*found, *(_orphan(view, each) for each in view.orphans)]

    def _action(self, view: SinkView, attempt: AttemptRow) -> Action:
        if attempt.status is AttemptStatus.LOST:
            return Action.LOST
        named = view.sink_id in self._condemn
        facts = Facts(attempt.status, view.age_ms(attempt.updated_at), view.quiet_ms, named)
        return decide(facts, min_age_ms=self._min_age_ms)

    def _carried_out(self, view: SinkView, actions: Mapping[str, Action]) -> Mapping[str, Ended]:
        """What Kafka answered, by attempt id."""
        if Action.CONDEMN in actions.values():
            count = self._store.condemn(view.sink_id)
            _log.warning("sink %s: %d undecided attempts were condemned by an operator", view.sink_id, count)
        chosen = {attempt_id for attempt_id, action in actions.items() if action in CHANGES}
        claims = [claim for claim in self._store.claims(view.sink_id) if claim.attempt_id in chosen]
        if not claims:
            return {}
        wanted = {claim.attempt_id: claim.verdict for claim in claims}
        ended = self._kafka.end(claims, partial(self._store.still_wanted, wanted))
        self._store.record(view.sink_id, ended)
        return ended


def _found(view: SinkView, attempt: AttemptRow, action: Action, ended: Ended | None) -> Found:
    """`ended` is None where nothing was tried."""
    actual = action if ended is None else AFTERWARDS.get(ended.ending, action)
    error = attempt.detail if ended is None or ended.error is None else " ".join(str(ended.error).split())
    return Found(
        sink_id=view.sink_id,
        transactional_id=attempt.transactional_id,
        action=actual,
        changed=ended is not None and actual is action,
        attempt=attempt,
        open=view.open.get(attempt.transactional_id),
        age_ms=view.age_ms(attempt.updated_at),
        error=error,
    )


def _orphan(view: SinkView, found: OpenTransaction) -> Found:
    return Found(view.sink_id, found.transactional_id, Action.NO_ROW, False, None, found, found.age_ms)
