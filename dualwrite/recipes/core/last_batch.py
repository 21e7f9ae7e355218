"""The batch that an outbox has published last, where a broker may abort it (tiers 3 and 4).

The decision keeps the batch's blocks in the database, and the next one deletes them. They are published again if the
batch was aborted. Where nothing proves how the batch ended, the outbox publishes nothing more, and they stay until a
person has decided: the batch counts neither as committed nor as aborted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dualwrite.errors import NotProvenError, PreparedTransactionLost, StateRowError
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.metrics import Counted, count
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.proof import IS_OVER, NOT_PROVEN, Proof, Verdict, is_settled, noted_text, verdict_in
from dualwrite.recipes.core.record_block import decode
from dualwrite.recipes.core.refused import OWED
from dualwrite.recipes.core.store import DatabaseTransaction

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write


async def kept(database: DatabaseTransaction, transactional_id: str, row: PreparedTxnState) -> Sequence[BufferedRecord]:
    """Return the records that the database keeps of the row's transaction, placed. Raises StateRowError."""
    try:
        contents, partitions = await database.stored_blocks(transactional_id).last_batch(transactional_id, row)
        records = [record for content in contents for record in decode(content).records]
        if len(records) != len(partitions):
            raise ValueError(f"it has {len(records)} records, and partitions of {len(partitions)}")
        for record, partition in zip(records, partitions, strict=True):
            record.partition = partition
    except ValueError as error:
        raise _unreadable(transactional_id, row, error) from error
    return records


async def without_log(
    owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState, text: str, why: str
) -> Proof:
    """Return the proof that the row notes, else the coordinator's, where the log has none because of `why`.

    Before transaction.version 2 a coordinator proves no abort: a transaction ends at its own epoch there. A late
    AddPartitionsToTxn can then open an empty one under the same pair, which the broker aborts (KIP-890).
    """
    verdict = verdict_in(row, text)
    if verdict is Verdict.COMMITTED:
        return IS_OVER
    records = await kept(database, owned.transactional_id, row)
    if not records:
        return NOT_PROVEN
    is_v2 = owned.kafka.guarantee.tier is not Tier.BOUNDED_V1
    if verdict is Verdict.ABORTED or (is_v2 and owned.kafka.memory.aborted(row)):
        log_kept(owned.transactional_id, row)
        return Proof(is_over=True, owed=records, verdict=Verdict.ABORTED)
    return Proof(is_over=False, not_proven=_not_proven(owned.transactional_id, row, why))


async def instead_of_loss(
    owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState, lost: PreparedTransactionLost
) -> NotProvenError | None:
    """Return the error to raise in place of a loss if the records are kept in the database; else None."""
    if not await kept(database, owned.transactional_id, row):
        return None
    return _not_proven(owned.transactional_id, row, str(lost).partition(". ")[0].partition("; ")[0])


async def note_verdict(owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState, proof: Proof) -> bool:
    """Note the verdict on an outbox's last batch in the row, by a commit of its own. Return whether it was noted.

    The next request makes the coordinator forget it, and the log may lose it before another transaction is decided.
    """
    is_wanted = owned.is_outbox and owned.kafka.bounded_ms is not None and not row.is_empty
    if proof.verdict is None or not is_wanted:
        return False
    text = await database.read_manifest(owned.transactional_id)
    if verdict_in(row, text) is not None or is_settled(row, text):
        return False
    noted = noted_text(row, proof.verdict, text)
    await database.write(owned.transactional_id, previous=row, new=row, manifest=noted)
    await database.commit()
    return True


def log_kept(transactional_id: str, row: PreparedTxnState) -> None:
    """Log that an aborted batch is published again from the database."""
    _log.warning(
        "transactional id %s: Kafka aborted %s, which the database has decided, and the records cannot be read from "
        "the log: publishing them again from the outbox, which has kept them",
        transactional_id,
        row,
    )


def _not_proven(transactional_id: str, row: PreparedTxnState, why: str) -> NotProvenError:
    count(Counted.UNPROVEN)
    return NotProvenError(
        f"cannot prove whether Kafka committed {row} of the outbox {transactional_id!r}, which the database has "
        f"decided: {why}. Nothing was changed: the database keeps the records, and blocks still add theirs, but "
        "nothing more is published. Grant READ on the topics if it is missing; otherwise check the topics for the "
        f"records. If they are missing, run `dualwrite recover --publish-again {transactional_id} --apply`; if they "
        f"are there, `dualwrite recover --take-out {transactional_id}:{OWED} --apply`",
        transactional_id=transactional_id,
        prepared_state=str(row),
    )


def _unreadable(transactional_id: str, row: PreparedTxnState, why: ValueError) -> StateRowError:
    return StateRowError(
        f"the last batch of the outbox {transactional_id!r}, which it published as {row}, cannot be read from "
        f"kafka_transaction_outbox: {why}. Nothing was published again: restore the block from a backup, publish it "
        "with the version of dualwrite that stored it, or give the batch up by emptying prepared_transaction_state of "
        "the row with seq 0"
    )
