"""Judge by the log a decided transaction that no state row keeps, and publish it again if Kafka aborted it.

The Spark sink's commit store has a prepared state and a manifest for each attempt, as a state row has. A dual write
is repaired as part of the next one; here the repair is a transaction of its own. It is prepared under a new
pair, and the caller's next change of its row decides whether it is committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from dualwrite.client.records.late import INVALID_TIMESTAMP, Stamp, renewed
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.errors import AuthorizationError, KafkaError, KafkaTimeoutError, NoMarkerError, OutcomeUnknown
from dualwrite.participant_async import AsyncParticipantProducer
from dualwrite.prepared_state import PreparedTxnState

_log = logging.getLogger(__name__)


class Fate(Enum):
    """The end of a decided transaction, as far as it is known."""

    KNOWN = "its coordinator describes it as open, or as committed and the log has no evidence against it"
    COMMITTED = "the log shows that it was committed, or that a transaction with its records was"
    ABORTED = "the log shows that it was aborted, and where its records are"
    LOST = "the log shows that it was aborted, and that some of its records are gone"
    NOT_PROVEN = "there is no manifest, or the log has lost the evidence: only its coordinator can tell"
    UNREADABLE = "the log may not be read"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The fate of the transaction of `row`, which is the prepared state that was judged."""

    row: PreparedTxnState
    fate: Fate
    owed: tuple[PartitionManifest, ...] = ()
    """The places of the aborted records."""
    gone: tuple[PartitionManifest, ...] = ()
    """The places where no evidence of the end is left."""
    manifest: Manifest | None = None
    error: AuthorizationError | None = None
    """Why the log may not be read."""
    repair: PreparedTxnState | None = None
    """The committed transaction that has published its records again, as it seems by the log."""

    @property
    def places(self) -> str:
        """The partitions and offsets of the records that were aborted or are gone, for sentences."""
        return _places((*self.owed, *self.gone))


@dataclass(frozen=True, slots=True)
class Republished:
    """A transaction with the records of another one: prepared, and not decided."""

    state: PreparedTxnState
    manifest: str
    """Empty if it would be too long to be stored."""
    records: int
    places: str


async def judge(
    producer: AsyncParticipantProducer,
    row: PreparedTxnState,
    text: str,
    timeout_ms: int,
    others: Collection[PreparedTxnState] = (),
) -> Judgement:
    """Return the fate of `row`'s transaction; `text` is its manifest. The producer must have taken its id over.

    `others` are transactions that are no repair of it. Changes nothing.
    Raises KafkaTimeoutError if the end cannot be read now, and the errors of `judge_by_log`.
    """
    if not producer.memory.knows(row):
        judgement = await judge_by_log(producer, row, text, timeout_ms)
    elif producer.prepared_txn_state.is_empty:
        judgement = await _verify(producer, row, text, timeout_ms)
    else:
        return Judgement(row, Fate.KNOWN)
    if judgement.owed and not producer.memory.aborted(row):
        return await _unless_repaired(producer, judgement, timeout_ms, others)
    return judgement


def cluster_of(row: PreparedTxnState, text: str) -> str:
    """Return the id of the Kafka cluster that `text`, the manifest of `row`, names; "" if it names none."""
    try:
        manifest = Manifest.beside(row, text)
    except ValueError:
        return ""
    return "" if manifest is None else manifest.cluster_id


def topics_of(row: PreparedTxnState, text: str) -> set[str]:
    """Return the topics that `text`, the manifest of `row`, names; none if it cannot be read."""
    try:
        manifest = Manifest.beside(row, text)
    except ValueError:
        return set()
    return set() if manifest is None else {part.topic for part in manifest.partitions}


async def _unless_repaired(
    producer: AsyncParticipantProducer, judgement: Judgement, timeout_ms: int, others: Collection[PreparedTxnState]
) -> Judgement:
    """Return COMMITTED if the records have been published again, by a row that a restore has lost; else `judgement`.

    For a dual write the application's changes are lost with such a row; here the decision stands.
    """
    assert judgement.manifest is not None, "owed records are found by their manifest"
    undecided = producer.prepared_txn_state
    repair = await producer.repair_of(judgement.manifest, judgement.owed, undecided, timeout_ms, others)
    if repair is None:
        return judgement
    _log.warning("%s was aborted, and the log shows that %s has published its records again", judgement.row, repair)
    return Judgement(judgement.row, Fate.COMMITTED, manifest=judgement.manifest, repair=repair)


async def _verify(producer: AsyncParticipantProducer, row: PreparedTxnState, text: str, timeout_ms: int) -> Judgement:
    """Return the fate of a transaction whose commit its coordinator has confirmed; KNOWN without evidence against it.

    An operator may have aborted it in a partition before. A marker that is missing proves nothing.
    """
    try:
        judgement = await judge_by_log(producer, row, text, timeout_ms, is_over=not producer.memory.is_ending)
    except ValueError as error:
        _log.warning("the coordinator has committed %s, and its log was not read: %s", row, error)
        return Judgement(row, Fate.KNOWN)
    except KafkaTimeoutError as error:
        if not isinstance(error.__cause__, NoMarkerError):
            raise
        _log.error("the coordinator has committed %s, and `dualwrite spark recover` shows if it hangs: %s", row, error)
        return Judgement(row, Fate.KNOWN)
    return judgement if judgement.owed else Judgement(row, Fate.KNOWN)


async def judge_by_log(
    producer: AsyncParticipantProducer, row: PreparedTxnState, text: str, timeout_ms: int, *, is_over: bool = False
) -> Judgement:
    """Return the fate of the transaction of `row` by the log alone, with a producer in any state.

    `is_over`: the coordinator writes no more markers. Changes nothing. Raises KafkaTimeoutError if the end cannot be
    read now, AnotherClusterError, and ValueError for an unreadable manifest.
    """
    manifest = Manifest.beside(row, text)
    if manifest is None:
        return Judgement(row, Fate.NOT_PROVEN)
    try:
        end = await producer.end_of(manifest, timeout_ms, is_over=is_over)
    except AuthorizationError as error:
        return Judgement(row, Fate.UNREADABLE, manifest=manifest, error=error)
    except OutcomeUnknown as error:  # not the outcome of the decision: that one is known
        raise KafkaTimeoutError(str(error)) from error
    if end.aborted:
        fate = Fate.LOST if end.gone or manifest.has_offsets else Fate.ABORTED
    else:
        fate = Fate.COMMITTED if end.committed else Fate.NOT_PROVEN
    return Judgement(row, fate, end.aborted, end.gone, manifest)


async def publish_again(producer: AsyncParticipantProducer, judgement: Judgement, timeout_ms: int) -> Republished:
    """Send the owed records in a new transaction, byte for byte, and prepare it. The producer must own its id.

    Where a topic no longer takes their timestamps, the records get new ones, with the old ones in a header.

    Only one partition at a time is in memory, besides the producer's own buffer. If this raises, the transaction may be
    open: abort it. Raises PreparedTransactionLost if some records are gone, KafkaTimeoutError if a broker cannot tell
    where it stored them, and the errors of a producer.
    """
    try:
        return await _publish_again(producer, judgement, timeout_ms)
    except KafkaError as error:
        if error.error_code != INVALID_TIMESTAMP:
            raise
        _log.warning("%s is published again with new timestamps: %s", judgement.row, error)
    await producer.abort_transaction()
    return await _publish_again(producer, judgement, timeout_ms, renews_timestamps=True)


async def _publish_again(
    producer: AsyncParticipantProducer, judgement: Judgement, timeout_ms: int, *, renews_timestamps: bool = False
) -> Republished:
    manifest = judgement.manifest
    assert manifest is not None, "owed records are found by their manifest"
    await producer.begin_transaction()
    count = 0
    for part in judgement.owed:
        for topic, partition, key, value, headers, timestamp_ms, _ in await producer.records_of(
            manifest, [part], timeout_ms
        ):
            stamp = Stamp(list(headers), timestamp_ms)
            if renews_timestamps:
                stamp = renewed(*stamp, int(time.time() * 1000))
            with producer.any_size():
                await producer.send_checked(topic, value, key, stamp.headers, partition, stamp.timestamp_ms)
            count += 1
    state = await producer.prepare_transaction()
    stored = producer.manifest
    if stored is None:
        raise KafkaTimeoutError(
            f"a response was lost, so the offsets of the records of {judgement.row} that were sent again are unknown; "
            "none of them is visible: repeat the call"
        )
    return Republished(state, str(stored), count, _places(stored.partitions))


def _places(parts: Sequence[PartitionManifest]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}: {each.first_offset} to {each.last_offset}" for each in parts)
