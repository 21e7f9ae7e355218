"""COMMIT and ABORT: one transaction decides a batch, or gives it up."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from spark_sink.errors import SinkError
from spark_sink.options import OnNewCheckpoint
from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    AttemptEvent,
    after,
)
from spark_sink.store.sink_store import Last, Steps
from spark_sink.store.store_rows import StoreRows
from spark_sink.store.tables import (
    BatchStatus,
    Decided,
    Decision,
)
from spark_sink.store.transactions import Intact


class DecisionSteps(StoreRows):
    """The steps of a decision."""

    def decide(
        self, decision: Decision, policy: OnNewCheckpoint, inside: Steps | None = None, last: Last | None = None
    ) -> Decided:
        """See `SinkStore.decide`. `inside` and `last` run again if a deadlock undid the transaction."""
        return self._transactions.decide(
            lambda connection, intact: self._decide(connection, decision, policy, _followed_by(intact, inside, last)),
            lambda: self.resolve(decision),
        )

    def _decide(self, connection: sa.Connection, decision: Decision, policy: OnNewCheckpoint, inside: Steps) -> Decided:
        sink = self._locked_sink(connection, decision.sink_id)
        current = None if sink is None else sink.generation
        rules.check_generation(decision.sink_id, current, decision.generation)
        claimed = rules.query_to_claim(
            decision.sink_id, None if sink is None else sink.query_id, decision.query_id, policy
        )
        stands = self._found(connection, decision.sink_id, decision.query_id, decision.batch_id)
        if stands is not None:
            newest = self._newest(connection, decision.sink_id, decision.query_id)
            rules.check_decided(stands, decision, self._named(connection, decision.winners), newest)
            self._transactions.make_durable(connection)
            claims = rules.claims_of(self._live(connection, decision.sink_id))
            return Decided(False, stands.records, claims, stands.content_digest)
        return self._decide_anew(connection, decision, claimed, inside)

    def _decide_anew(
        self, connection: sa.Connection, decision: Decision, claimed: str | None, inside: Steps
    ) -> Decided:
        live = self._live(connection, decision.sink_id)
        losers = rules.losers(decision, live)
        t = self._attempt.c
        if decision.winners:
            self._change(connection, AttemptEvent.CHOOSE, t.attempt_id.in_(decision.winners))
        if losers:
            self._change(connection, AttemptEvent.CONDEMN, t.attempt_id.in_(losers))
        inside(connection)
        if claimed is not None:
            mine = self._sink.c.sink_id == decision.sink_id
            connection.execute(sa.update(self._sink).where(mine).values(query_id=claimed))
        self._insert_decision(connection, decision, nothing_left=not live)
        return Decided(True, decision.records, rules.claims_of(rules.as_decided(decision, live), just_decided=True))

    def _insert_decision(self, connection: sa.Connection, decision: Decision, *, nothing_left: bool) -> None:
        """Insert the decision, as the last statement, only in the transaction that chose the winners.

        `inside` may have lost that transaction silently: the driver begins another one, or Postgres turns COMMIT into
        ROLLBACK. Then this statement finds no chosen winner, or fails.
        """
        t = self._attempt.c
        chosen = sa.select(sa.func.count()).where(
            t.attempt_id.in_(decision.winners), t.status == after(AttemptEvent.CHOOSE)
        )
        values: dict[str, Any] = {
            "sink_id": decision.sink_id,
            "query_id": decision.query_id,
            "batch_id": decision.batch_id,
            "status": BatchStatus.DONE if nothing_left else BatchStatus.COMMIT,
            "n_attempts": len(decision.winners),
            "n_records": decision.records,
            "offsets_digest": decision.offsets_digest,
            "content_digest": decision.content_digest,
        }
        row = [sa.literal(value, self._batch.c[name].type) for name, value in values.items()]
        select = sa.select(*row, self._sink.c.generation, sa.func.now() if nothing_left else sa.null()).where(
            self._sink.c.sink_id == decision.sink_id, chosen.scalar_subquery() == len(decision.winners)
        )
        insert = sa.insert(self._batch).from_select([*values, "generation", "done_at"], select)
        if connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount != 1:
            raise SinkError(
                f"a statement inside the transaction that decides batch {decision.batch_id} of the query "
                f"{decision.query_id} has ended it, and another transaction has begun; nothing was decided: leave "
                "COMMIT and ROLLBACK to the sink"
            )

    def resolve(self, decision: Decision) -> Decided | None:
        """See `SinkStore.resolve`.

        Waits for the lock of the sink's row until the lost transaction is committed or rolled back.
        """

        def steps(connection: sa.Connection) -> Decided | None:
            self._locked_sink(connection, decision.sink_id)
            stands = self._found(connection, decision.sink_id, decision.query_id, decision.batch_id)
            if stands is None:
                return None
            newest = self._newest(connection, decision.sink_id, decision.query_id)
            rules.check_resolved(stands, decision, self._named(connection, decision.winners), newest)
            return Decided(True, stands.records, rules.claims_of(self._live(connection, decision.sink_id)))

        return self._transactions.read_durably(steps)

    def is_decided(self, sink_id: str, query_id: str, batch_id: int) -> bool:
        """See `SinkStore.is_decided`."""

        def steps(connection: sa.Connection) -> bool:
            return self._found(connection, sink_id, query_id, batch_id) is not None

        return self._transactions.read(steps) and self._transactions.read_durably(steps)

    def condemn(self, sink_id: str) -> int:
        """See `OperatedStore.condemn`.

        The attempts of a decision have neither status, so they stay. A running driver is not fenced (only `plan` does
        that): it continues, and finds its attempts condemned.
        """

        def steps(connection: sa.Connection) -> int:
            self._locked_sink(connection, sink_id)
            return self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink_id))

        return self._transactions.write(steps)

    def give_up(self, sink_id: str, *, query_id: str, batch_id: int, generation: int) -> None:
        """See `SinkStore.give_up`.

        Spark gives a batch up while some of its tasks still run. A late task must not open another transaction, which
        would stay open until the query is started again.
        """

        def steps(connection: sa.Connection) -> None:
            sink = self._locked_sink(connection, sink_id)
            if sink is None:
                return
            a = self._attempt.c
            part = (a.query_id == query_id, a.batch_id == batch_id, a.generation == generation)
            self._change(connection, AttemptEvent.CONDEMN, *self._live_in(sink_id), *part)
            if sink.generation == generation and self._found(connection, sink_id, query_id, batch_id) is None:
                self._renew(connection, sink, None)

        self._transactions.write(steps)


def _followed_by(intact: Intact, inside: Steps | None, last: Last | None) -> Steps:
    def steps(connection: sa.Connection) -> None:
        if inside is not None:
            inside(connection)
        if last is not None:
            last()
        intact()

    return steps
