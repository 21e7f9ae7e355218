"""WRITE: the attempt of a task, from the lease of its transactional id until it is prepared."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint
from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    AttemptEvent,
    AttemptStatus,
    Prepared,
    after,
)
from spark_sink.store.sink_store import Last, Steps
from spark_sink.store.store_rows import StoreRows, columns_of
from spark_sink.store.tables import (
    Lease,
)
from spark_sink.store.transactions import locking

_LEASE_TRIES: Final = 50


class AttemptSteps(StoreRows):
    """The steps of a task."""

    def is_decided_for(self, sink_id: str, generation: int | None, task: TaskIdentity, policy: OnNewCheckpoint) -> bool:
        """See `TaskStore.is_decided_for`."""
        decisions = self._decided_from(sink_id, task.query_id, task.batch_id)
        nearest = sa.select(sa.func.min(self._batch.c.batch_id)).where(*decisions).scalar_subquery()
        query = sa.select(self._sink.c.generation, self._sink.c.query_id, nearest).where(
            self._sink.c.sink_id == sink_id
        )
        row = self._transactions.read(lambda connection: connection.execute(query).one_or_none())
        current, known, decided = (None, None, None) if row is None else row
        rules.check_generation(sink_id, current, generation)
        rules.query_to_claim(sink_id, known, task.query_id, policy)
        return rules.is_decided(task.query_id, task.batch_id, decided)

    def lease(self, sink_id: str, generation: int | None, task: TaskIdentity) -> Lease | None:
        """See `TaskStore.lease`."""
        for _ in range(_LEASE_TRIES - 1):
            try:
                return self._transactions.write(lambda connection: self._lease(connection, sink_id, generation, task))
            except IntegrityError:
                continue  # another attempt of the same partition has just taken the slot
        return self._transactions.write(lambda connection: self._lease(connection, sink_id, generation, task))

    def _lease(
        self, connection: sa.Connection, sink_id: str, generation: int | None, task: TaskIdentity
    ) -> Lease | None:
        # The lock makes plans and decisions wait; the next statements see their changes from before it was granted.
        query = sa.select(self._sink.c.generation).where(self._sink.c.sink_id == sink_id)
        rules.check_generation(sink_id, connection.scalar(locking(query, connection, shared=True)), generation)
        nearest, leasable, leased = self._leasable(connection, sink_id, task)
        if rules.is_decided(task.query_id, task.batch_id, nearest):
            return None
        transactional_id = leasable.free(f"{sink_id}-{task.partition_id}-", leased)
        attempt_id = uuid.uuid4().hex
        values = {
            "attempt_id": attempt_id,
            "sink_id": sink_id,
            "query_id": task.query_id,
            "batch_id": task.batch_id,
            "generation": generation,
            "partition_id": task.partition_id,
            "task_attempt_id": task.task_attempt_id,
            "host": task.host,
            "txn_id": transactional_id,
            "live_txn_id": transactional_id,
            "status": AttemptStatus.OPEN,
        }
        connection.execute(sa.insert(self._attempt).values(values))
        return Lease(attempt_id, transactional_id)

    def _leasable(
        self, connection: sa.Connection, sink_id: str, task: TaskIdentity
    ) -> tuple[int | None, rules.Leasable, frozenset[str]]:
        """Return, by one statement, the nearest decided batch, the partition's slots, and its leased ids."""
        decisions = self._decided_from(sink_id, task.query_id, task.batch_id)
        nearest = sa.select(sa.func.min(self._batch.c.batch_id)).where(*decisions)
        first, spare = self._retired.queries(sink_id, task.partition_id)
        of_partition = (*self._live_in(sink_id), self._attempt.c.partition_id == task.partition_id)
        leased = sa.select(sa.literal_column("3"), sa.literal_column("0"), self._attempt.c.live_txn_id)
        query = sa.union_all(
            sa.select(sa.literal_column("0"), nearest.scalar_subquery(), sa.null()),
            sa.select(sa.literal_column("1"), first.scalar_subquery(), sa.null()),
            sa.select(sa.literal_column("2"), spare.scalar_subquery(), sa.null()),
            leased.where(*of_partition),
        )
        rows = connection.execute(query).all()
        numbers = {kind: number for kind, number, _ in rows}
        leasable = rules.Leasable(numbers[1] or 0, numbers[2])
        return numbers[0], leasable, frozenset(leased_id for kind, _, leased_id in rows if kind == 3)

    def is_open(self, attempt_id: str) -> bool:
        """See `TaskStore.is_open`."""
        query = sa.select(self._attempt.c.status).where(self._attempt.c.attempt_id == attempt_id)
        return self._transactions.read(lambda connection: connection.scalar(query)) == AttemptStatus.OPEN

    def stage(self, attempt_id: str, steps: Steps) -> None:
        """See `TaskStore.stage`."""
        query = sa.select(self._attempt.c.status).where(self._attempt.c.attempt_id == attempt_id)

        def locked(connection: sa.Connection) -> None:
            if connection.scalar(locking(query, connection)) != AttemptStatus.OPEN:
                raise rules.condemned(attempt_id)
            steps(connection)

        self._transactions.write(locked)

    def mark_prepared(
        self,
        attempt_id: str,
        prepared: Prepared,
        *,
        records: int,
        inside: Steps | None = None,
        last: Last | None = None,
    ) -> None:
        """See `TaskStore.mark_prepared`."""

        def steps(connection: sa.Connection) -> None:
            if inside is not None:
                inside(connection)
            if last is not None:
                last()
            # Last, because Postgres responds to the COMMIT of a failed transaction with a rollback and no error.
            values = columns_of(prepared) | {"n_records": records}
            if not self._change(connection, AttemptEvent.PREPARE, self._attempt.c.attempt_id == attempt_id, **values):
                raise rules.condemned(attempt_id)

        self._transactions.write(steps)

    def prepared_states(self, attempt_ids: Collection[str]) -> dict[str, PreparedTxnState]:
        """See `SinkStore.prepared_states`."""
        t = self._attempt.c
        query = sa.select(t.txn_id, t.prepared_state).where(
            t.attempt_id.in_(list(attempt_ids)), t.status == after(AttemptEvent.PREPARE)
        )
        rows = self._transactions.read(lambda connection: connection.execute(query).all())
        return {transactional_id: PreparedTxnState(state) for transactional_id, state in rows}
