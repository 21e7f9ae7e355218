"""FINISH: record how the decided and condemned transactions ended in Kafka, and those that no row names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import sqlalchemy as sa

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import SinkError, StoreWentBackError
from spark_sink.store import rules
from spark_sink.store.attempt_states import (
    EVENTS,
    VERDICTS,
    AttemptEvent,
    AttemptStatus,
    Claim,
    Ended,
    Ending,
    Prepared,
    Verdict,
    after,
)
from spark_sink.store.store_rows import StoreRows, columns_of
from spark_sink.store.tables import (
    DETAIL_LENGTH,
)
from spark_sink.store.transactions import Intact

_NAMES_ITS_PAIR: Final = frozenset({Ending.COMMITTED, Ending.LOST})


class FinishSteps(StoreRows):
    """The steps after a decision."""

    def claims(
        self, sink_id: str, verdicts: Collection[Verdict] = tuple(Verdict), *, durably: bool = True
    ) -> tuple[Claim, ...]:
        """See `ClaimStore.claims`. Raises NotDurableError if they might still be lost."""

        def steps(connection: sa.Connection) -> tuple[Claim, ...]:
            return tuple(
                claim for claim in rules.claims_of(self._live(connection, sink_id)) if claim.verdict in verdicts
            )

        shown = self._transactions.read(steps)
        return self._transactions.read_durably(steps) if shown and durably else shown

    def still_wanted(
        self, wanted: Mapping[str, Verdict], attempt_ids: Collection[str], *, durably: bool = False
    ) -> dict[str, Prepared]:
        """See `ClaimStore.still_wanted`. `durably` raises NotDurableError if a prepared state might still be lost."""
        t = self._attempt.c
        query = sa.select(t.attempt_id, t.status, t.prepared_state, t.manifest).where(
            t.attempt_id.in_(list(attempt_ids))
        )
        read = self._transactions.read_durably if durably else self._transactions.read
        rows = read(lambda connection: connection.execute(query).all())
        return {
            attempt_id: Prepared(PreparedTxnState(state), manifest or "")
            for attempt_id, status, state, manifest in rows
            if VERDICTS.get(AttemptStatus(status)) is wanted[attempt_id]
        }

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        """See `ClaimStore.named`."""
        t = self._attempt.c
        query = sa.select(t.prepared_state, t.manifest).where(t.prepared_state.in_(list(map(str, states))))
        found = self._transactions.read(lambda connection: connection.execute(query).all())
        rows = [Prepared(PreparedTxnState(state), manifest or "") for state, manifest in found]
        return frozenset(row.state for row in rows if not row.is_elsewhere(cluster_id))

    def replace(self, sink_id: str, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        """See `ClaimStore.replace`."""
        named = self._attempt.c.attempt_id == attempt_id
        committing = self._attempt.c.status == after(AttemptEvent.CHOOSE)
        update = sa.update(self._attempt).where(named, committing, self._attempt.c.prepared_state == str(old))
        values = columns_of(new) | {"updated_at": sa.func.now()}

        def steps(connection: sa.Connection, intact: Intact) -> bool:
            self._locked_sink(connection, sink_id)
            changed = connection.execute(update.values(values)).rowcount == 1
            if changed:
                self._retired.retire(connection, sink_id, [attempt_id])
            elif is_there := has(connection):
                self._transactions.make_durable(connection)
            intact()
            return changed or is_there

        def has(connection: sa.Connection) -> bool:
            found = sa.select(sa.func.count()).where(
                named, committing, self._attempt.c.prepared_state == str(new.state)
            )
            return connection.scalar(found) == 1

        def resolve(connection: sa.Connection) -> bool:
            self._locked_sink(connection, sink_id)  # waits until the lost transaction is committed or rolled back
            return has(connection)

        return self._transactions.decide(steps, lambda: self._transactions.read_durably(resolve))

    def record(self, sink_id: str, ended: Mapping[str, Ended]) -> dict[str, Ended]:
        """See `ClaimStore.record`.

        A batch with no transaction left becomes DONE, one that lost a transaction becomes LOST. The ids of aborted and
        lost attempts are retired.
        """
        judged = {attempt_id: end for attempt_id, end in ended.items() if end.ending in _NAMES_ITS_PAIR}
        aborted = [attempt_id for attempt_id, end in ended.items() if end.ending is Ending.ABORTED]

        def steps(connection: sa.Connection) -> set[str]:
            self._locked_sink(connection, sink_id)
            current = self._committing(connection, judged)
            right = {each: end for each, end in judged.items() if current.get(each) == str(end.judged)}
            if committed := [each for each, end in right.items() if end.ending is Ending.COMMITTED]:
                self._change(connection, EVENTS[Ending.COMMITTED], self._attempt.c.attempt_id.in_(committed))
            if aborted:
                self._change(connection, EVENTS[Ending.ABORTED], self._attempt.c.attempt_id.in_(aborted))
                self._retired.retire(connection, sink_id, aborted)
            for attempt_id, end in ended.items():
                if isinstance(end.error, StoreWentBackError):
                    self._note_went_back(connection, attempt_id, str(end.error))
            lost = {each: end for each, end in right.items() if end.ending is Ending.LOST}
            for attempt_id, end in lost.items():
                self._lose(connection, sink_id, attempt_id, str(end.error))
            self._close_batches(connection, sink_id, lost=bool(lost))
            return set(current) - set(right)

        outdated = self._transactions.write(steps)
        return {each: Ended(Ending.LEFT, end.error) if each in outdated else end for each, end in ended.items()}

    def _note_went_back(self, connection: sa.Connection, attempt_id: str, detail: str) -> None:
        """Note why the transactional id of an attempt is left alone; only such an attempt can be acknowledged."""
        a = self._attempt.c
        update = sa.update(self._attempt).where(a.attempt_id == attempt_id, a.status.in_(list(VERDICTS)))
        connection.execute(update.values(detail=detail[:DETAIL_LENGTH], updated_at=sa.func.now()))

    def orphans(self, sink_id: str, pairs: Mapping[str, str], cluster_id: str) -> dict[str, AttemptStatus | None]:
        """See `OrphanStore.orphans`."""
        if not pairs:
            return {}
        return self._transactions.read(lambda connection: self._orphans(connection, sink_id, pairs, cluster_id))

    def retire_orphans(
        self, sink_id: str, pairs: Mapping[str, str], cluster_id: str
    ) -> dict[str, AttemptStatus | None]:
        """See `OrphanStore.retire_orphans`."""

        def steps(connection: sa.Connection) -> dict[str, AttemptStatus | None]:
            if self._locked_sink(connection, sink_id) is None:
                raise SinkError(
                    f"the commit store has no sink {sink_id!r}, so its orphans cannot be recognised; nothing was "
                    "changed. If this is the right database, start the application once, which creates the sink"
                )
            found = self._orphans(connection, sink_id, pairs, cluster_id)
            self._retired.retire_orphans(connection, sink_id, found)
            return found

        return self._transactions.read_durably(steps) if pairs else {}

    def _orphans(
        self, connection: sa.Connection, sink_id: str, pairs: Mapping[str, str], cluster_id: str
    ) -> dict[str, AttemptStatus | None]:
        live = {attempt.transactional_id for attempt in self._live(connection, sink_id)}
        strangers = {each: pair for each, pair in pairs.items() if each not in live}
        t = self._attempt.c
        query = sa.select(t.txn_id, t.prepared_state, t.manifest, t.status).where(
            t.sink_id == sink_id, t.txn_id.in_(list(strangers)), t.prepared_state.in_(list(strangers.values()))
        )
        rows = connection.execute(query).all() if strangers else ()
        known = {
            each: AttemptStatus(status)
            for each, pair, manifest, status in rows
            if strangers[each] == pair and not Prepared(PreparedTxnState(pair), manifest or "").is_elsewhere(cluster_id)
        }
        return {each: known.get(each) for each in strangers}
