"""The state of a sink in the store and at the brokers: decisions, live attempts, and open transactions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dualwrite.admin import TransactionAdmin
from spark_sink.driver.open_transactions import OpenTransaction, OpenTransactions
from spark_sink.store.attempt_states import LIVE, AttemptStatus
from spark_sink.store.sink_store import OperatedStore
from spark_sink.store.tables import AttemptRow, BatchRow, BatchStatus, OwedBatch, SinkRow

_SHOWN_STATUSES: Final = LIVE | {AttemptStatus.LOST}


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink at one moment. `row` is its row in the store; None if the store does not have the sink."""

    sink_id: str
    row: SinkRow | None
    attempts: tuple[AttemptRow, ...]
    """The live attempts, and the lost ones that are not acknowledged."""
    batches: tuple[BatchRow, ...]
    """All decided batches that the store still has, the newest first."""
    open: Mapping[str, OpenTransaction]
    """Open transactions by transactional id; each has a live attempt, or had one a moment ago."""
    orphans: tuple[OpenTransaction, ...]
    """Open transactions whose id belongs to no attempt: nothing in this store decides them."""
    owed: tuple[OwedBatch, ...]
    """Decided batches that are not yet in their Delta or Iceberg table, in the order of the decisions."""
    now: dt.datetime
    """The time of the store's clock."""

    def age_ms(self, since: dt.datetime) -> int:
        """Return the time since then, at least 0."""
        return max(0, round((self.now - since) / dt.timedelta(milliseconds=1)))

    @property
    def quiet_ms(self) -> int:
        """The time since any row of this sink last changed."""
        changes = [attempt.updated_at for attempt in self.attempts]
        changes += [batch.done_at or batch.decided_at for batch in self.batches[:1]]
        changes += [self.row.updated_at] if self.row is not None else []
        return min(map(self.age_ms, changes), default=0)


class SinkViews:
    """Reads the state of sinks. `unseen` collects sentences about brokers that could not be queried."""

    def __init__(
        self,
        store: OperatedStore,
        admin: TransactionAdmin | None,
        *,
        now_ms: Callable[[], int],
        timeout_ms: int | None = None,
    ) -> None:
        """Without `admin` only the store is read. `timeout_ms` limits each call to Kafka; None: as `admin` does."""
        self._store = store
        self._kafka = None if admin is None else OpenTransactions(admin, now_ms=now_ms, timeout_ms=timeout_ms)

    def all_ids(self) -> list[str]:
        """Return the ids of all sinks in the store."""
        return [row.sink_id for row in self._store.sinks()]

    def look(self, sink_ids: Iterable[str], unseen: list[str]) -> list[SinkView]:
        """Return a view of each sink. Raises the errors of the database and of Kafka, for example KafkaTimeoutError.

        The brokers are queried before the store and again after it. A row exists from before its transaction opens
        until it is completed. So a transaction that was open both times without a row in between has no row at all.
        """
        wanted = list(dict.fromkeys(sink_ids))
        rows = {row.sink_id: row for row in self._store.sinks()}
        before = {sink_id: self._open(sink_id, unseen) for sink_id in wanted}
        return [self._view(sink_id, rows.get(sink_id), before[sink_id], unseen) for sink_id in wanted]

    def _view(
        self, sink_id: str, row: SinkRow | None, before: Mapping[str, OpenTransaction], unseen: list[str]
    ) -> SinkView:
        batches = self._store.batches(sink_id)
        attempts = [a for a in self._store.attempts(sink_id, _SHOWN_STATUSES) if _is_of_interest(a, batches)]
        live = {attempt.transactional_id for attempt in attempts if attempt.status in LIVE}
        strangers = [transactional_id for transactional_id in before if transactional_id not in live]
        after = {} if self._kafka is None else self._kafka.described(strangers, unseen)
        return SinkView(
            sink_id=sink_id,
            row=row,
            attempts=tuple(attempts),
            batches=tuple(batches),
            open={each: found for each, found in before.items() if each in live},
            orphans=tuple(found for each, found in after.items() if found.pair == before[each].pair),
            owed=self._store.lake.owed(sink_id, durably=False),
            now=self._store.now(),
        )

    def _open(self, sink_id: str, unseen: list[str]) -> dict[str, OpenTransaction]:
        return {} if self._kafka is None else self._kafka.of_sink(sink_id, unseen)


def _is_of_interest(attempt: AttemptRow, batches: Iterable[BatchRow]) -> bool:
    """Return False for a lost attempt whose batch was acknowledged."""
    if attempt.status is not AttemptStatus.LOST:
        return True
    key = (attempt.query_id, attempt.batch_id)
    return any((batch.query_id, batch.batch_id) == key and not batch.is_closed for batch in batches)


def lost_batches(view: SinkView) -> list[BatchRow]:
    """Return the lost batches that no operator has acknowledged; they stop the query."""
    return [batch for batch in view.batches if batch.status is BatchStatus.LOST and not batch.is_closed]
