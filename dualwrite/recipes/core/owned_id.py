"""A transactional id as this process knows it, and the completion of Kafka's side of a dual write.

The state machine is `slot.py`; this adds the state row and the in-doubt transaction. All steps of a dual write share
one `OwnedId`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from dualwrite.errors import (
    DualWriteError,
    FencedError,
    IllegalStateError,
    KafkaUnreachableError,
    PreparedTransactionLost,
)
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.partitioners import Partitioner
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.availability import NEVER_AWAY, Availability
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.dual_write import NOTHING_PREPARED, said_of_block
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.leases import HeldLease
from dualwrite.recipes.core.metrics import Counted, Tally, count
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.slot import Slot, SlotState
from dualwrite.recipes.core.store import Database, DatabaseTransaction
from dualwrite.recipes.core.telemetry import telemetry_of
from dualwrite.recipes.core.waiting import Uninterrupted, direct

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write

_WHY_FENCED: Final = (
    "another process has taken it over, or the broker has aborted its transaction after transaction.timeout.ms"
)
"""The two reasons for which brokers raise an epoch; the error code is the same."""


class OwnedId:
    """One transactional id of this process: its state, its row, and its producer."""

    def __init__(
        self,
        transactional_id: str,
        *,
        database: Database,
        kafka: KafkaParticipant,
        lock_timeout_ms: int | None,
        resolve_timeout_ms: int,
        pause: PauseHook | None = None,
        uninterrupted: Uninterrupted = direct,
        availability: Availability = NEVER_AWAY,
        partitioner: str | Partitioner = "default",
        is_outbox: bool = False,
        lease: HeldLease | None = None,
        tally: Tally | None = None,
    ) -> None:
        """`lease`: that of an id of a pool; a single id has none. `tally` is shared by all ids of a pool.

        `partitioner`: that of stored records, which the blocks name; if it is a function, it is needed to publish them.
        """
        self.transactional_id: Final = transactional_id
        self.database: Final = database
        self.kafka: Final = kafka
        self.uninterrupted: Final = uninterrupted
        self.availability: Final = availability
        self.telemetry: Final = telemetry_of(transactional_id, pause)
        self.slot: Final = Slot(transactional_id, self.telemetry.moved)
        self.kafka_id: str | None = None
        """The transactional id as Kafka knows it; None before the database was first queried for the suffix."""
        self.manifest = ""
        """Where the records of the last prepared transaction are stored; empty if that is not known."""
        self.tally: Final = Tally() if tally is None else tally
        self.has_stored = False
        """Whether blocks may wait in the outbox that the id publishes."""
        self.confirmed: PreparedTxnState | None = None
        """The last dual write whose commit Kafka has confirmed to this process."""
        self.inherited = NOTHING_PREPARED
        """The row at the last take-over after another owner."""
        self.inherited_from = ""
        """The id of the cluster in which that was prepared; "" if unknown."""
        self.first_decided: PreparedTxnState | None = None
        """The first dual write since then that was decided: none between the two was."""
        self.settled: PreparedTxnState | None = None
        """The state beside which this process has noted last that it is settled, or has found that note."""
        self.taken_over_in: object = None
        """The process and the event loop in which the id was taken over: the producer is bound to them."""
        self.partitioner: Final = partitioner
        self.is_outbox: Final = is_outbox
        """Whether the id publishes an outbox, whose database keeps the records of the last batch where brokers abort
        prepared transactions after a time (tiers 3 and 4)."""
        self._lease = lease
        self.is_lease_known = lease is None
        """Whether the lease was held at a moment after the id was taken over."""
        self.lock_timeout_ms = lock_timeout_ms
        self.resolve_timeout_ms = resolve_timeout_ms

    @property
    def row(self) -> PreparedTxnState:
        return self.slot.known.row

    @property
    def in_doubt(self) -> PreparedTxnState:
        return self.slot.known.in_doubt

    @property
    def owed(self) -> Sequence[BufferedRecord]:
        return self.slot.known.owed

    def note_inherited(self, row: PreparedTxnState, prepared_in: str) -> None:
        """Note the row of a take-over, unless it is this process's own last one."""
        if self.first_decided is None or row != self.confirmed:
            self.inherited, self.inherited_from, self.first_decided = row, prepared_in, None

    def limit_waits(self, timeout_ms: int) -> None:
        """Limit each wait for the row lock, for an outcome and for Kafka to `timeout_ms`."""
        self.lock_timeout_ms = timeout_ms if self.lock_timeout_ms is None else min(self.lock_timeout_ms, timeout_ms)
        self.resolve_timeout_ms = min(self.resolve_timeout_ms, timeout_ms)
        self.kafka.limit_waits(timeout_ms)

    def assert_usable(self) -> None:
        """Raise IllegalStateError if the id was closed, FencedError if Kafka has refused this writer's epoch."""
        state = self.slot.known.state
        if state is SlotState.CLOSED:
            raise IllegalStateError("this DualWriter is closed; make a new one")
        if state is SlotState.FENCED:
            raise self.fenced()

    def fenced(self) -> FencedError:
        is_decided = not self.in_doubt.is_empty
        return FencedError(
            f"this writer has lost transactional id {self.transactional_id!r}: {_WHY_FENCED}; "
            + (f"the next owner of the id commits {self.in_doubt}: " if is_decided else "nothing was written: ")
            + (
                "make a new DualWriter to take it back, or give each process its own id"
                if self._lease is None
                else "repeat the block, which gets another id of its pool"
            )
        )

    async def ensure_row(self) -> None:
        """Create the state row unless it is known to exist. Costs nothing when repeated."""
        if self.kafka_id is None:
            identity = await self.database.ensure_row(self.transactional_id)
            self.kafka_id = identity.kafka_id(self.transactional_id)

    async def make_durable(self, row: PreparedTxnState, ongoing: PreparedTxnState = NOTHING_PREPARED) -> None:
        """Make sure that the row that was read survives the loss of this server, before Kafka receives the decision.

        Its COMMIT may still be waiting for a standby, possibly forever. This applies before aborting an open
        transaction too: a primary that is cut off from its standbys still locks rows, and may show outdated ones.
        """
        if not (row.is_empty and ongoing.is_empty):
            await self.database.make_durable(self.transactional_id, row, timeout_ms=self.resolve_timeout_ms)

    async def assert_leased(self, database: DatabaseTransaction) -> None:
        """Raise LeaseLostError if the id is a pool's, and this process no longer has its lease.

        Leaves the id then, and if the lease cannot be read: an id that is READY, and not begun, may owe records.
        """
        try:
            if self._lease is not None:
                await self._lease.assert_held(self.transactional_id, database)
        except BaseException:
            if self.slot.state is SlotState.READY:
                self.slot.move(SlotState.NEW)
                await self.give_up()
            raise
        self.is_lease_known = True

    async def give_up(self) -> None:
        """Close the producer without ending its transaction, even if the caller is interrupted."""
        await self.uninterrupted(self.kafka.give_up())

    async def leave_in_doubt(self, state: PreparedTxnState) -> None:
        """Give the producer up while Kafka has not confirmed a decided dual write."""
        self.slot.move(SlotState.IN_DOUBT, in_doubt=state)
        await self.give_up()

    async def leave_kafka(self) -> None:
        """Give the producer up. No row names its transaction, so the next take-over aborts that."""
        state = self.slot.state
        if state is SlotState.OPEN and self.owed:
            await self.leave_in_doubt(self.row)  # the row stays as it is, and so do the owed records
        elif state in (SlotState.OPEN, SlotState.READY):
            self.slot.move(SlotState.NEW)
            await self.give_up()

    # -- Kafka's side, once the outcome is certain -------------------------------------------------------------

    async def complete_kafka(self, state: PreparedTxnState, outcome: Outcome, *, keeps_id: bool = False) -> None:
        """Commit or abort the open Kafka transaction. `keeps_id`: an abort does not lead to a take-over.

        Raises PreparedTransactionLost if that transaction can no longer be completed, and no other Kafka error,
        because the decision has been made. A producer that cannot confirm is given up, and the next take-over completes
        the transaction by the row.
        """
        self.telemetry.decided(state, outcome)
        if outcome is Outcome.COMMITTED and self.slot.known.owed:
            self._note_repair(state)
        try:
            if outcome is Outcome.COMMITTED:
                await self.kafka.commit()
            else:
                await self.kafka.abort()
        except FencedError as error:
            _log.warning(
                "transactional id %s: Kafka fences this writer, because %s; the next owner of the id %s: %s",
                self.transactional_id,
                _WHY_FENCED,
                _completion_by_successor(state, outcome),
                error,
            )
            self.slot.move(SlotState.FENCED, in_doubt=state if outcome is Outcome.COMMITTED else None)
            await self.give_up()
        except PreparedTransactionLost:
            await self.leave_in_doubt(state)  # the next take-over publishes it again, or reports it again
            raise
        except DualWriteError as error:
            if isinstance(error, KafkaUnreachableError):
                self.availability.note(error)
            _log.warning(
                "transactional id %s: the %s of %s is not confirmed by Kafka (%s); the next use of the id completes it",
                self.transactional_id,
                "commit" if outcome is Outcome.COMMITTED else "abort",
                state if outcome is Outcome.COMMITTED else "the open transaction",
                said_of_block(error, outcome),
            )
            await self._leave_unconfirmed(state, outcome)
        except BaseException:  # interrupted
            await self._leave_unconfirmed(state, outcome)
            raise
        else:
            self.telemetry.confirmed(outcome)
            if outcome is Outcome.ROLLED_BACK and self.owed:
                await self.leave_in_doubt(self.row)  # the row stays as it is, and so do the owed records
                return
            row = state if outcome is Outcome.COMMITTED else None
            if row is not None:
                self.confirmed = row
                self.first_decided = self.first_decided or row
            is_left = outcome is Outcome.ROLLED_BACK and self._is_left_by_abort and not keeps_id
            if self.kafka.has_failed or is_left:  # another process has the id, or may have it
                self.slot.move(SlotState.NEW, row=row, in_doubt=NOTHING_PREPARED)
                await self.give_up()
            else:
                self.slot.move(SlotState.READY, row=row, in_doubt=NOTHING_PREPARED)

    @property
    def _is_left_by_abort(self) -> bool:
        """Whether the id must be taken over after an abort, except on tier 1.

        Transaction.version 2 takes an abort by the pair before the current one for a repetition, and returns the
        current one, which may be the pair of a process that has ended this transaction and taken the id over (KIP-890).
        Before, the abort also ends the dual write in the row where its marker is missing, if the partition was added
        to the transaction before its leader was known to have been away (KAFKA-20734): a take-over notices that.
        """
        return self.kafka.guarantee.tier is not Tier.KEEP_PREPARED

    def _note_repair(self, state: PreparedTxnState) -> None:
        """Note that the owed records are published by `state`, which the row names now."""
        published = len(self.owed)
        self.slot.note(owed=())
        _log.warning(
            "transactional id %s: %s, which Kafka had aborted, is published again as %s (%s)",
            self.transactional_id,
            self.row,
            state,
            self.manifest,
        )
        count(Counted.REPAIRED)
        count(Counted.REPUBLISHED, published)

    async def _leave_unconfirmed(self, state: PreparedTxnState, outcome: Outcome) -> None:
        if outcome is Outcome.COMMITTED:
            await self.leave_in_doubt(state)
        else:
            self.slot.move(SlotState.NEW)
            await self.give_up()


def _completion_by_successor(state: PreparedTxnState, outcome: Outcome) -> str:
    """Describe how the next owner of an id completes a transaction whose completion was in progress here."""
    if outcome is Outcome.ROLLED_BACK:
        return "aborts what is open"
    return f"commits {state}"
