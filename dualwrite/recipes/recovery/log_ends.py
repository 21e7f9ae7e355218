"""How the transaction in a row ended, read from the log: the evidence if the coordinator proves nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from dualwrite.admin import TransactionAdmin
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import Finding
from dualwrite.errors import AuthorizationError, NoMarkerError, OutcomeUnknown, RetriableError
from dualwrite.participant import ParticipantProducer
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.hanging import log_hanging
from dualwrite.recipes.core.metrics import Counted, TornEnd, count
from dualwrite.recipes.core.repair import log_unreadable, to_send
from dualwrite.recipes.recovery.plan import PROVEN_BY_LOG
from dualwrite.recipes.recovery.seen import Decision, Seen

DURABLE_MS: Final = 10_000
"""How long a decision that was read may take to become durable, before it is sent to Kafka."""


class LogEnds:
    """Reads ends of transactions over one connection, which is made for the first one."""

    def __init__(self, admin: TransactionAdmin, connection: dict[str, Any], *, timeout_ms: int) -> None:
        self._admin = admin
        self._connection = connection
        self._timeout_ms = min(timeout_ms, DURABLE_MS)

    @cached_property
    def _reader(self) -> ParticipantProducer:
        return ParticipantProducer(**self._connection)

    def close(self) -> None:
        if "_reader" in vars(self):
            self._reader.close()

    def read(self, seen: Seen) -> Seen:
        """Read from the log how the row's transaction ended, if only the log can tell. It has ended for good."""
        manifest = _manifest_to_read(seen)
        if manifest is None:
            return seen
        try:
            end = self._reader.end_of(manifest, self._timeout_ms, is_over=not seen.described.is_ending)
            return replace(seen, end=end)
        except AuthorizationError as error:
            if not seen.is_committed:
                log_unreadable(seen.transactional_id, seen.stored, error)
            return replace(seen, unread=first_line(error))
        except NoMarkerError as error:
            return self._without_marker(seen, error)
        except OutcomeUnknown:
            if Decision.LOST not in seen.decisions or seen.described.is_ending:
                raise
            return replace(seen, is_given_up=True)

    def _without_marker(self, seen: Seen, error: NoMarkerError) -> Seen:
        """Return the facts about a transaction without a marker. Raises TransactionHangsError if none is to come.

        The description may be older than the row: then it is of an earlier transaction of a living owner.
        """
        again = replace(seen, description=self._admin.describe_transactions([seen.kafka_id])[seen.kafka_id])
        if again.finding is Finding.ABORTED and again.description != seen.description:
            raise not_read_yet(again)  # the log was read before the abort
        if again.finding is Finding.OPEN or again.described.is_ending:
            return again
        if Decision.LOST in seen.decisions:
            return replace(seen, is_given_up=True)
        if again.finding is Finding.OTHER_OPEN:
            return again  # it is ended first
        count(Counted.TORN, outcome=TornEnd.HANGING)
        raise log_hanging(seen.transactional_id, seen.stored, error) from error

    def aborted_records(self, seen: Seen) -> Iterable[BufferedRecord] | None:
        """Return the records of the aborted partitions, or None if the log does not have them all."""
        manifest, end = seen.manifest, seen.end
        if manifest is None or end is None or end.gone or not end.aborted:
            return None
        return map(to_send, self._reader.records_of(manifest, end.aborted, self._timeout_ms))


def _manifest_to_read(seen: Seen) -> Manifest | None:
    """Return the manifest if the log is to be read: for a commit, not before its markers are written."""
    if seen.in_cluster.elsewhere is not None or not _is_to_read(seen):
        return None
    if seen.is_committed and seen.described.is_ending:
        return None
    proves_nothing = seen.manifest is not None and not seen.manifest.partitions
    return None if seen.is_committed and proves_nothing else seen.manifest


def _is_to_read(seen: Seen) -> bool:
    """Return whether the log may show more, also of a questionable batch whose end another open transaction hides."""
    return seen.finding in PROVEN_BY_LOG or (seen.decides_batch and seen.finding is Finding.OTHER_OPEN)


def was_read(seen: Seen, now: Seen) -> bool:
    """Return whether a read of the log was tried for the transaction that is in the row now."""
    return now.stored == seen.stored and _is_to_read(seen)


def is_newly_aborted(seen: Seen, now: Seen) -> bool:
    """Return whether the row's transaction was not known to be aborted when the log was read without the lock."""
    return now.finding is Finding.ABORTED and (now.stored != seen.stored or seen.finding is not Finding.ABORTED)


def not_read_yet(now: Seen) -> RetriableError:
    return RetriableError(
        f"{now.stored} of transactional id {now.transactional_id!r}, which the database has decided, has ended in "
        "Kafka since recovery first looked at it; nothing was changed: the next round reads from the log how it "
        "ended, and whether it can be published again"
    )
