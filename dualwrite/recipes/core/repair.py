"""Prove from Kafka's log how the transaction in the state row ended, and find the records to publish again.

The coordinator remembers only the last transaction of a transactional id, and forgets it when the id is initialised,
expires or is ended by hand. The log does not forget: the manifest beside the prepared state says where the records are,
and the markers behind them say whether consumers with `read_committed` see them. Records of a decided transaction that
Kafka aborted are *owed*: they are sent again, as part of the next transaction of the id, whose prepared state and
manifest replace the row in one database commit. So every crash of a repair is one of an ordinary dual write.

A transaction that the coordinator has committed may have another end in one partition: a marker was never written there
(KAFKA-20734), or an operator wrote another one. `prove` comes before anything is completed, where the coordinator
cannot tell; `verify` comes after it, where the coordinator can. A marker is for ever, so both stay true however long
this process sleeps afterwards. A missing marker proves nothing, and leads only to an error.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dualwrite.client.transactions.manifest import Manifest
from dualwrite.errors import (
    AnotherClusterError,
    AuthorizationError,
    KafkaTimeoutError,
    NoMarkerError,
    OutcomeUnknown,
    PreparedTransactionLost,
    StateRowError,
    TransactionHangsError,
)
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.last_batch import instead_of_loss, kept, log_kept, without_log
from dualwrite.recipes.core.metrics import Counted, TornEnd, count
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.proof import (
    IS_COMMITTED,
    IS_OVER,
    KNOWN,
    NO_EVIDENCE,
    NOT_PROVEN,
    TOLD,
    Proof,
    Verdict,
    is_forgotten,
    is_settled,
    manifest_of,
    verdict_in,
)
from dualwrite.recipes.core.store import DatabaseTransaction

if TYPE_CHECKING:
    from dualwrite.client.log.transaction_end import TransactionEnd
    from dualwrite.client.records.batch_reading import StoredRecord

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write


async def is_of_another_cluster(owned: OwnedId, row: PreparedTxnState, text: str, ongoing: PreparedTxnState) -> bool:
    """Return whether the open transaction only has the pair of the locked row's, which ended in another cluster.

    Each cluster assigns the same pairs. The row of such a transaction says that it is settled, or given up; where it
    says neither, AnotherClusterError is raised, because the coordinator knows nothing of that cluster's decision.
    """
    if not owned.kafka.memory.knows(row):
        return False  # the log is read, which tells the cluster
    if is_settled(row, text):
        return ongoing == row
    manifest = _manifest(owned, row, text) if is_forgotten(row, text) else _readable(row, text)
    if manifest is None:
        return False
    cluster_id = await owned.kafka.cluster_id(owned.resolve_timeout_ms)
    if not manifest.is_elsewhere(cluster_id):
        return False
    if not is_forgotten(row, text):
        raise manifest.elsewhere(cluster_id, owned.kafka_id)
    return ongoing == row


def _readable(row: PreparedTxnState, text: str) -> Manifest | None:
    try:
        return manifest_of(row, text)
    except ValueError:
        return None  # taken for this cluster's, and `verify` logs it


async def prove(
    owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState, text: str, ongoing: PreparedTxnState
) -> Proof:
    """Return how the transaction in the locked row and its text ended; read the log where the coordinator cannot tell.

    For an outbox's last batch, the row may note the end, or it may stay unproven (`last_batch.py`).

    `ongoing` is open under the id. Nothing is changed. Raises PreparedTransactionLost if Kafka aborted the transaction
    and its records cannot be published again (NotProvenError if an outbox has kept them, and some are visible),
    DatabaseWentBackError if they have been published again, KafkaTimeoutError if its end cannot be read now
    (TransactionHangsError if it has none), and StateRowError for an unreadable manifest.
    """
    if owned.kafka.memory.knows(row):
        return TOLD
    if is_settled(row, text):
        return IS_OVER
    manifest = _manifest(owned, row, text)
    if manifest is None:
        return await without_log(owned, database, row, text, "its state row has no manifest")
    count(Counted.PROOFS)
    try:
        end = await owned.kafka.end_of(manifest, owned.resolve_timeout_ms, is_over=not owned.kafka.memory.is_ending)
        if end.aborted:
            await _assert_not_repaired(owned, database, manifest, end, ongoing)
    except AuthorizationError as error:
        proof = await without_log(
            owned, database, row, text, f"this client may not read its topic ({first_line(error)})"
        )
        if proof is NOT_PROVEN:
            log_unreadable(owned.transactional_id, row, error)
            return NO_EVIDENCE
        return proof
    except AnotherClusterError as error:
        if not is_forgotten(row, text):
            raise
        _log.info("transactional id %s: %s", owned.transactional_id, error)
        return IS_OVER
    except NoMarkerError as error:
        if not ongoing.is_empty:
            # It is undecided and of the same producer id: its abort comes next, which may end both in a partition.
            return KNOWN
        if owned.kafka.memory.is_ending:
            raise _not_yet(owned, error) from error
        raise _hangs(owned, row, error) from error
    except OutcomeUnknown as error:  # not the outcome of a dual write: that one is decided
        raise _not_yet(owned, error) from error
    if end.aborted:
        return await _aborted(owned, database, manifest, end)
    if end.committed:
        _log.info("transactional id %s: the log shows that Kafka committed %s", owned.transactional_id, row)
        return IS_COMMITTED
    proof = await without_log(owned, database, row, text, f"its records are no longer in the log ({_places(end)})")
    if end.gone and proof is NOT_PROVEN:
        owned.tally.unproven += 1
        count(Counted.UNPROVEN)
        _log.error(_EVIDENCE_GONE, owned.transactional_id, row, _places(end))
        return NO_EVIDENCE
    return proof


def _manifest(owned: OwnedId, row: PreparedTxnState, text: str) -> Manifest | None:
    try:
        return manifest_of(row, text)
    except ValueError as error:
        raise StateRowError(
            f"the manifest of {row} in the state row of transactional id {owned.transactional_id!r} cannot be parsed: "
            f"{error}; neither database nor Kafka was changed, and the transaction stays in doubt: another program "
            "writes to kafka_transaction_state, or a newer dualwrite wrote the manifest. Restore its previous text, "
            "or use that version"
        ) from error


async def verify(owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState) -> Proof:
    """Return how readers see the transaction in the locked row, whose commit its coordinator has confirmed.

    Call it when this process owns the id: then its markers are written, so one look at the log is enough, or they never
    will be. Where the log has no evidence left, or may not be read, the coordinator is believed. Changes nothing.
    Raises PreparedTransactionLost, NotProvenError, KafkaTimeoutError and TransactionHangsError as `prove` does.
    """
    manifest = await _manifest_to_verify(owned, database, row)
    if manifest is None:
        return KNOWN
    count(Counted.PROOFS)
    try:
        end = await _final_end(owned, manifest)
    except AuthorizationError as error:
        is_usual = owned.is_outbox  # an outbox takes any topic
        _log.log(logging.DEBUG if is_usual else logging.INFO, _NOT_VERIFIED, owned.transactional_id, row, error)
        return KNOWN
    except AnotherClusterError:
        if not is_forgotten(row, await database.read_manifest(owned.transactional_id)):
            raise
        return KNOWN
    except NoMarkerError as error:
        raise _hangs(owned, row, error) from error
    except OutcomeUnknown as error:
        raise _not_yet(owned, error) from error
    return await _aborted(owned, database, manifest, end) if end.aborted else KNOWN


async def _manifest_to_verify(owned: OwnedId, database: DatabaseTransaction, row: PreparedTxnState) -> Manifest | None:
    if row.is_empty:
        return None
    try:
        manifest = manifest_of(row, await database.read_manifest(owned.transactional_id))
    except ValueError as error:
        _log.warning(_NOT_VERIFIED, owned.transactional_id, row, error)
        return None
    return manifest if manifest is not None and manifest.partitions else None


async def _final_end(owned: OwnedId, manifest: Manifest) -> TransactionEnd:
    """Read the end of a decided transaction; ask for markers in progress. Raises NoMarkerError."""
    try:
        return await owned.kafka.end_of(manifest, owned.resolve_timeout_ms, is_over=True)
    except NoMarkerError:
        await owned.kafka.is_current()
    return await owned.kafka.end_of(manifest, owned.resolve_timeout_ms, is_over=True)


async def _aborted(owned: OwnedId, database: DatabaseTransaction, manifest: Manifest, end: TransactionEnd) -> Proof:
    """Return the proof, with the owed records, for a transaction that was aborted in at least one partition."""
    if end.is_visible:
        count(Counted.TORN, outcome=TornEnd.ABORTED)
    verdict = None if end.is_visible else Verdict.ABORTED
    return Proof(is_over=True, owed=await _owed(owned, database, manifest, end), verdict=verdict)


def _not_yet(owned: OwnedId, error: OutcomeUnknown) -> KafkaTimeoutError:
    return KafkaTimeoutError(f"transactional id {owned.transactional_id!r} cannot be used yet: {error}")


def _hangs(owned: OwnedId, row: PreparedTxnState, error: NoMarkerError) -> TransactionHangsError:
    from dualwrite.recipes.core.hanging import log_hanging

    count(Counted.TORN, outcome=TornEnd.HANGING)
    return log_hanging(owned.transactional_id, row, error)


async def _assert_not_repaired(
    owned: OwnedId, database: DatabaseTransaction, manifest: Manifest, end: TransactionEnd, ongoing: PreparedTxnState
) -> None:
    """Raise DatabaseWentBackError if the aborted records have been published again, by a dual write of a later row.

    They were not if the coordinator says that the abort was the last end under the id. Otherwise the log is read from
    the aborted records to its end: a repair has records in each partition. The row is read once more, which fails if
    its lock is gone: then another process may have repaired the transaction, and have changed the row.
    """
    if owned.kafka.memory.aborted(manifest.prepared_state):
        return
    repair = await owned.kafka.repair_of(manifest, end.aborted, ongoing, owned.resolve_timeout_ms)
    if repair is None:
        return
    await database.read(owned.transactional_id)
    from dualwrite.recipes.core.judge import went_back  # a writer that is refused nothing does not load it

    place = f"behind {_places(end)}"
    shows = f"Kafka aborted that transaction, and the log shows that {str(repair)!r} has published its records again"
    raise went_back(owned.transactional_id, manifest.prepared_state, f"{shows} ({place})")


def log_unreadable(transactional_id: str, row: PreparedTxnState, error: AuthorizationError) -> None:
    _log.error(_NOT_READABLE, transactional_id, row, error)


async def _owed(
    owned: OwnedId, database: DatabaseTransaction, manifest: Manifest, end: TransactionEnd
) -> Sequence[BufferedRecord]:
    """Read the owed records from the log, or all from the outbox. Raises PreparedTransactionLost, and as `_kept`."""
    if manifest.has_offsets:
        raise _lost(
            owned,
            manifest,
            "it contained consumed offsets, and their consumer group may have advanced since: publishing the records "
            "again could duplicate results derived from them",
        )
    try:
        if end.gone:
            raise _lost(owned, manifest, f"some of its records are no longer in the log ({_places(end)})")
        in_log = await owned.kafka.records_of(manifest, end.aborted, owned.resolve_timeout_ms)
        records: Sequence[BufferedRecord] = [to_send(record) for record in in_log]
    except PreparedTransactionLost as lost:
        records = await _kept(owned, database, manifest.prepared_state, lost, is_torn=end.is_visible)
    _log.warning(
        "transactional id %s: Kafka aborted %s, which the database has decided; its %d records (%s) are published "
        "again with the next transaction of the id",
        owned.transactional_id,
        manifest.prepared_state,
        len(records),
        _places(end),
    )
    return records


async def _kept(
    owned: OwnedId,
    database: DatabaseTransaction,
    row: PreparedTxnState,
    lost: PreparedTransactionLost,
    *,
    is_torn: bool,
) -> Sequence[BufferedRecord]:
    """Return the records that are kept. Raises `lost` if they are not, and NotProvenError if some are visible.

    Publishing all would double those: that is for a person to decide, whose decision the row notes.
    """
    text = await database.read_manifest(owned.transactional_id)
    if is_torn and verdict_in(row, text) is not Verdict.ABORTED:
        not_proven = await instead_of_loss(owned, database, row, lost)
        raise lost if not_proven is None else not_proven
    records = await kept(database, owned.transactional_id, row)
    if not records:
        raise lost
    log_kept(owned.transactional_id, row)
    return records


def to_send(record: StoredRecord) -> BufferedRecord:
    """Return the record of the log in the form in which it is sent again."""
    return BufferedRecord(
        record.topic, record.value, record.key, list(record.headers), record.partition, record.timestamp_ms
    )


def _places(end: TransactionEnd) -> str:
    return ", ".join(
        f"{each.topic}-{each.partition}: {each.first_offset} to {each.last_offset}"
        for each in (*end.aborted, *end.gone)
    )


def _lost(owned: OwnedId, manifest: Manifest, why: str) -> PreparedTransactionLost:
    pair = manifest.prepared_state
    return PreparedTransactionLost(
        f"the prepared transaction {pair} of transactional id {owned.transactional_id!r} was aborted, as the log "
        f"shows, although the database has decided it, and it cannot be published again: {why}. Nothing was changed "
        f"on either side; repair the data, then run `dualwrite recover --acknowledge-lost {owned.transactional_id} "
        "--apply`",
        transactional_id=owned.transactional_id,
        prepared_state=str(pair),
        described_state="aborted, by the log",
        described_producer_id=pair.producer_id,
        described_producer_epoch=pair.producer_epoch,
        described_start_ms=-1,
    )


_EVIDENCE_GONE: Final = (
    "transactional id %s: can no longer prove that Kafka committed %s: the log no longer shows it (%s), and the "
    "coordinator has forgotten it; assuming that it is committed, which is wrong only if an operator, another "
    "program or the broker's timeout aborted it"
)
_NOT_READABLE: Final = (
    "transactional id %s: cannot read from the log whether Kafka committed %s (%s); grant READ on the topic to the "
    "writer, so that a transaction aborted by a broker can be proven and published again"
)
_NOT_VERIFIED: Final = (
    "transactional id %s: cannot verify that Kafka committed %s in each partition (%s); trusting its coordinator, "
    "which reports the commit"
)
