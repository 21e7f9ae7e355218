"""Refuse, before the decision, dual writes that could be lost on brokers that abort prepared transactions.

Decided records that such a broker (tiers 3 and 4) aborts after its timeout are published again from the log
(`repair.py`). That needs the right to read the topic, a log that still has the records, and a manifest that says where.
Where it cannot work, the dual write is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from dualwrite.client.records.late import ORIGINAL_TIMESTAMP
from dualwrite.client.transactions.manifest import MAX_MANIFEST_BYTES, Manifest
from dualwrite.decisions.obstacles import OR_OUTBOX, Obstacle, obstacle_of
from dualwrite.errors import DualWriteError, RetriableError, UnsupportedByBrokerError
from dualwrite.guarantee import Guarantee
from dualwrite.recipes.core.buffer import BufferedOffsets, BufferedRecord
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.metrics import Counted, NoManifest, count
from dualwrite.recipes.core.owned_id import OwnedId

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write


def obstacle_of_offsets(offsets: BufferedOffsets) -> Obstacle:
    return Obstacle(
        f"with consumed offsets of group {offsets.group_metadata.group_id!r}",
        "the group may have advanced since, and publishing the records again could duplicate results derived from them",
        "keep the consumed offsets in the database (OffsetsInDatabase), where the same commit decides them",
    )


def obstacle_of_length(manifest: Manifest) -> Obstacle:
    return Obstacle(
        f"in {len(manifest.partitions)} partitions at once",
        f"the manifest (the places of the records) would exceed the {MAX_MANIFEST_BYTES} bytes that the state row "
        "holds",
        f"write to fewer partitions in one block{OR_OUTBOX}",
    )


class Repairability:
    """Checks each topic once for all dual writes of a writer or pool. Used only on tiers 3 and 4.

    The records of an outbox are in its database, so that the log need not have them.
    """

    def __init__(self) -> None:
        self._checked: set[str] = set()
        self._tell: dict[str, bool] = {}
        """Whether the log of a topic shows how a transaction ended, by topic, as an outbox has found it."""
        self._warned: set[str] = set()

    async def check(self, entries: Iterable[BufferedRecord | BufferedOffsets], owned: OwnedId) -> Collection[str]:
        """Raise UnsupportedByBrokerError if a dual write with these entries could not be repaired.

        Return the topics that do not exist yet, which cannot be checked: pass them to `check_created` once the records
        are sent. Raises KafkaTimeoutError if no broker responds.
        """
        new = self._new_topics(entries, owned)
        return await self._look_up(new, owned.kafka) if new else ()

    def _new_topics(self, entries: Iterable[BufferedRecord | BufferedOffsets], owned: OwnedId) -> Collection[str]:
        """Return the topics that have not been checked yet. Raises UnsupportedByBrokerError for consumed offsets."""
        new: dict[str, None] = {}
        checked = self._checked
        for entry in entries:
            if isinstance(entry, BufferedOffsets):
                raise _refused(owned.kafka.guarantee, obstacle_of_offsets(entry))
            if entry.topic not in checked and not owned.is_outbox:
                new[entry.topic] = None
        return new

    async def check_created(self, topics: Collection[str], kafka: KafkaParticipant) -> None:
        """Check topics that sending has created. Raises as `check` does."""
        for topic in await self._look_up(topics, kafka):
            self._warn_once(topic, _NOT_SEEN, topic)

    async def _look_up(self, topics: Collection[str], kafka: KafkaParticipant) -> list[str]:
        """Look the topics up; return those that cannot be seen. A refused topic is looked up again at its next use."""
        described = await kafka.describe_topics(topics)
        for topic, found in described.items():
            obstacle = obstacle_of(topic, found)
            if obstacle is not None:
                raise _refused(kafka.guarantee, obstacle)
        for topic, found in described.items():
            if found.is_readable and found.is_compacted is None:
                self._warn_once(topic, _POLICY_NOT_KNOWN, topic, found.why_not_known)
            if found.most_age_ms is not None:
                self._warn_once(topic, _TAKES_NO_OLD_ONES, topic, found.most_age_ms, ORIGINAL_TIMESTAMP)
        self._checked.update(topic for topic, found in described.items() if found.is_readable)
        return [topic for topic, found in described.items() if found.is_readable is None]

    def note_no_text(self, manifest: Manifest | None, write: DualWriteProgress, owned: OwnedId) -> None:
        """Note a prepared dual write whose row gets no manifest, because there is none, or it is too long.

        Raises RetriableError or UnsupportedByBrokerError where such a dual write could not be repaired.
        """
        if write.bounded_ms is not None and not owned.is_outbox:
            self._refuse_without_text(manifest, write, owned)
            _log.warning(_NO_MANIFEST, owned.transactional_id, write.prepared_state, _reason(manifest))
        owned.tally.no_manifest += 1
        count(Counted.NO_MANIFEST, reason=_reason(manifest))

    def _refuse_without_text(self, manifest: Manifest | None, write: DualWriteProgress, owned: OwnedId) -> None:
        """Raise the error, except for records that were decided before, which another attempt would not help."""
        if manifest is None:
            raise RetriableError(
                f"a broker acknowledged records of the dual write {write.prepared_state} of transactional id "
                f"{owned.transactional_id!r} without their offsets (DUPLICATE_SEQUENCE_NUMBER). This cluster "
                f"{_aborts(owned.kafka.guarantee)}, and then they could not be published again; neither side was "
                "changed: repeat the dual write"
            )
        if write.records:
            raise _refused(owned.kafka.guarantee, obstacle_of_length(manifest))

    async def log_will_tell(self, text: str, kafka: KafkaParticipant) -> bool:
        """Return whether the topics of a manifest can be read, and keep records. Looks each up once."""
        manifest = Manifest.parse(text)
        if manifest is None:
            return False
        topics = {part.topic for part in manifest.partitions}
        new = [topic for topic in topics if topic not in self._tell]
        if new:
            try:
                described = await kafka.describe_topics(new)
            except DualWriteError:
                return False
            self._tell |= {
                name: bool(found.is_readable) and found.is_compacted is False for name, found in described.items()
            }
        return all(self._tell.get(topic, False) for topic in topics)

    def _warn_once(self, about: str, warning: str, *arguments: object) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _log.warning(warning, *arguments)


def _reason(manifest: Manifest | None) -> NoManifest:
    return NoManifest.NOT_KNOWN if manifest is None else NoManifest.TOO_LONG


def _aborts(guarantee: Guarantee) -> str:
    tier = 0 if guarantee.tier is None else int(guarantee.tier)
    return (
        f"is tier {tier}: it aborts a prepared transaction {guarantee.bounded_ms} ms after its first record "
        "(transaction.timeout.ms)"
    )


def _refused(guarantee: Guarantee, obstacle: Obstacle) -> UnsupportedByBrokerError:
    return UnsupportedByBrokerError(
        f"this cluster {_aborts(guarantee)}, and a dual write decided by then is published again from the log. "
        f"{obstacle.where[0].upper()}{obstacle.where[1:]} that cannot work: {obstacle.why}. Neither side was changed: "
        f"{obstacle.remedy}"
    )


_POLICY_NOT_KNOWN: Final = (
    "topic %r: cannot find out whether it is compacted (%s); compaction would remove the records of aborted "
    "transactions, and then they could not be published again"
)
_TAKES_NO_OLD_ONES: Final = (
    "topic %r refuses records older than %d ms (message.timestamp.before.max.ms): a record that is published again "
    "after that time gets a new timestamp and keeps its own in the header %s"
)
_NO_MANIFEST: Final = (
    "transactional id %s: the dual write %s is written without a manifest, because it is %s: if the broker aborts it "
    "against the decision, it cannot be published again"
)
_NOT_SEEN: Final = (
    "topic %r: cannot find out whether this client may read it and whether it is compacted; records that a broker "
    "aborts can be published again only from a readable topic without compaction"
)
