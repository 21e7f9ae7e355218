"""Orphans: open transactions with an id of the sink that belongs to no live attempt in the commit store.

They come from a store that was lost, replaced or restored to an older state, or from another program that uses such an
id. Nothing ends them, and they hold read_committed readers back: with two-phase commit, for ever.

An orphan whose pair the store knows is ended as it was decided. For the others only the lost rows knew the decision, so
an operator has to order their abort. `end` first retires the ids of the orphans, under the lock of the sink's row. So
no task leases one of them afterwards and ends the transaction it finds there; and a task that leased one before has a
live attempt, so its transaction is no orphan. A transaction is ended by its own pair, which ends no other one.
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from dualwrite.errors import KafkaError
from spark_sink.options import OnOrphans
from spark_sink.store.attempt_states import AttemptStatus
from spark_sink.store.sink_store import OrphanStore

if TYPE_CHECKING:
    from spark_sink.driver.open_transactions import OpenTransaction

_log = logging.getLogger(__name__)

ORPHAN_MIN_AGE_MS: Final = 60_000
"""A younger transaction may belong to a running producer."""

_SHOWN: Final = 20


class OrphanEnd(StrEnum):
    """How an orphan is treated."""

    COMMIT = "commit"
    ABORT = "abort"
    YOUNG = "young"
    LOST = "lost"
    NO_ROW = "no-row"


def decide(
    known: AttemptStatus | None, *, is_undecided: bool, age_ms: int, may_abort: bool, min_age_ms: int
) -> OrphanEnd:
    """Choose how to treat an orphan.

    `known`: status of the attempt with its id and its pair; None if there is none. `is_undecided`: the coordinator has
    not been told the end. `may_abort`: an operator has ordered the abort of unknown orphans.
    """
    if not is_undecided:
        return OrphanEnd.YOUNG  # the coordinator is ending it
    if known is not None:
        return _AS_KNOWN[known]
    if not may_abort:
        return OrphanEnd.NO_ROW
    return OrphanEnd.YOUNG if age_ms < min_age_ms else OrphanEnd.ABORT


_AS_KNOWN: Final[Mapping[AttemptStatus, OrphanEnd]] = {
    AttemptStatus.OPEN: OrphanEnd.NO_ROW,
    AttemptStatus.PREPARED: OrphanEnd.NO_ROW,
    AttemptStatus.COMMITTING: OrphanEnd.COMMIT,
    AttemptStatus.COMMITTED: OrphanEnd.COMMIT,
    AttemptStatus.ABORTING: OrphanEnd.ABORT,
    AttemptStatus.ABORTED: OrphanEnd.ABORT,
    AttemptStatus.LOST: OrphanEnd.LOST,
}


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphan, and its planned or finished treatment."""

    found: OpenTransaction
    end: OrphanEnd
    changed: bool = False
    error: str | None = None


class OrphanKafka(Protocol):
    """The Kafka side; `OpenTransactions` implements it."""

    def cluster_id(self) -> str:
        """See `OpenTransactions.cluster_id`."""

    def of_sink(self, sink_id: str, unseen: list[str]) -> dict[str, OpenTransaction]:
        """See `OpenTransactions.of_sink`."""

    def described(self, ids: Collection[str], unseen: list[str]) -> dict[str, OpenTransaction]:
        """See `OpenTransactions.described`."""

    def end(self, pairs: Mapping[str, str], *, commit: bool) -> set[str]:
        """See `OpenTransactions.end`."""


class Orphans:
    """Judges and ends the orphans of sinks."""

    def __init__(self, store: OrphanStore, kafka: OrphanKafka, *, min_age_ms: int = ORPHAN_MIN_AGE_MS) -> None:
        self._store = store
        self._kafka = kafka
        self._min_age_ms = min_age_ms

    def judge(self, sink_id: str, found: Sequence[OpenTransaction], *, may_abort: bool) -> list[Orphan]:
        """Return the planned treatment of the orphans among these transactions. Changes nothing."""
        known = self._store.orphans(sink_id, *self._named(found))
        return [
            self._judged(each, known[each.transactional_id], may_abort=may_abort)
            for each in found
            if each.transactional_id in known
        ]

    def end(
        self, sink_id: str, found: Sequence[OpenTransaction], unseen: list[str], *, may_abort: bool
    ) -> list[Orphan]:
        """Retire the ids of the orphans among these open transactions, and end the orphans whose decision is known.

        Ends the others only if `may_abort`, and if they are old enough. Raises SinkError for a sink that the store does
        not have, and the errors of Kafka and of the database.
        """
        known = self._store.retire_orphans(sink_id, *self._named(found))
        # A row exists until its transaction is completed. So a transaction that was open before the store was read, and
        # is open with the same pair now, had no live attempt in between.
        still = self._kafka.described(list(known), unseen)
        orphans = [
            self._judged(still[each.transactional_id], known[each.transactional_id], may_abort=may_abort)
            for each in found
            if each.transactional_id in still and still[each.transactional_id].pair == each.pair
        ]
        ended = {
            end: self._kafka.end(
                {each.found.transactional_id: each.found.pair for each in orphans if each.end is end},
                commit=end is OrphanEnd.COMMIT,
            )
            for end in _CHANGES
        }
        return [_ended(each, ended) for each in orphans]

    def _named(self, found: Sequence[OpenTransaction]) -> tuple[dict[str, str], str]:
        """Return the pairs of open transactions by id, and the id of their cluster."""
        pairs = {each.transactional_id: each.pair for each in found}
        return pairs, self._kafka.cluster_id() if pairs else ""

    def _judged(self, found: OpenTransaction, known: AttemptStatus | None, *, may_abort: bool) -> Orphan:
        end = decide(
            known,
            is_undecided=found.is_undecided,
            age_ms=found.age_ms,
            may_abort=may_abort,
            min_age_ms=self._min_age_ms,
        )
        return Orphan(found, end)


_CHANGES: Final = (OrphanEnd.COMMIT, OrphanEnd.ABORT)


def _ended(orphan: Orphan, ended: Mapping[OrphanEnd, set[str]]) -> Orphan:
    if orphan.end not in ended:
        return orphan
    if orphan.found.transactional_id in ended[orphan.end]:
        return Orphan(orphan.found, orphan.end, changed=True)
    return Orphan(orphan.found, orphan.end, error="Kafka has not confirmed it; it may be repeated")


# ---- at PLAN ------------------------------------------------------------------------------------------------------


class OrphanWatch:
    """Looks for orphans at PLAN: when a driver begins, after a failure, and while some are too young to be aborted."""

    def __init__(
        self,
        sink_id: str,
        store: OrphanStore,
        kafka: Callable[[], AbstractContextManager[OrphanKafka]],
        on_orphans: OnOrphans,
        *,
        min_age_ms: int = ORPHAN_MIN_AGE_MS,
    ) -> None:
        self._sink_id = sink_id
        self._store = store
        self._kafka = kafka
        self._may_abort = on_orphans is OnOrphans.ABORT
        self._min_age_ms = min_age_ms
        self._last_generation: int | None = None
        self._is_left = False
        self._warned: set[str] = set()

    def look(self, generation: int | None) -> None:
        """Warn of orphans, and end those that may be ended, before the first task of this generation leases an id.

        Looks once for a driver that plans one generation after the other. A gap shows that a batch was given up, that
        another driver has planned, or that the store went back. Raises the errors of the database. An error of Kafka
        does not hinder the batch: it is only logged, once.
        """
        if generation is None:
            return
        is_next = self._last_generation is not None and generation == self._last_generation + 1
        if not is_next:
            self._is_left = True  # if the database fails, the next plan looks again
        self._last_generation = generation
        if not self._is_left:
            return
        unseen: list[str] = []
        try:
            self._look(unseen)
        except KafkaError as error:
            self._is_left = False
            unseen.append(" ".join(str(error).split()))
        for each in unseen:
            self._warn_once(each, _NOT_SEEN, self._sink_id, each, self._sink_id)

    def _look(self, unseen: list[str]) -> None:
        with self._kafka() as kafka:
            found = list(kafka.of_sink(self._sink_id, unseen).values())
            orphans = (
                Orphans(self._store, kafka, min_age_ms=self._min_age_ms).end(
                    self._sink_id, found, unseen, may_abort=self._may_abort
                )
                if found
                else []
            )
        self._is_left = any(each.end is OrphanEnd.YOUNG and each.found.is_undecided for each in orphans)
        ended = [each for each in orphans if each.changed]
        left = [each for each in orphans if not each.changed and each.found.is_undecided]
        if ended:
            _log.warning(
                "sink %s: open transactions without a live attempt were ended: %s", self._sink_id, _named(ended)
            )
        if left:
            ids = ",".join(sorted(each.found.pair for each in left))
            self._warn_once(ids, _LEFT, self._sink_id, len(left), _named(left), self._sink_id)

    def _warn_once(self, key: str, message: str, *values: object) -> None:
        if key not in self._warned:
            self._warned.add(key)
            _log.warning(message, *values)


def _named(orphans: Sequence[Orphan]) -> str:
    named = [
        f"{each.found.transactional_id} ({each.end}, {each.found.pair}, since {_since(each.found)}, on "
        f"{', '.join(each.found.topic_partitions) or 'no partition yet'})"
        for each in orphans[:_SHOWN]
    ]
    more = len(orphans) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _since(found: OpenTransaction) -> str:
    began = dt.datetime.fromtimestamp(time.time() - found.age_ms / 1000, dt.UTC)
    return began.isoformat(timespec="seconds").replace("+00:00", "Z")


_NOT_SEEN: Final = (
    "sink %s: cannot find out whether transactions are open without an attempt in the commit store (%s). This batch "
    "continues. Grant the client of the sink DESCRIBE on the transactional ids with the prefix %s-, and on the topics"
)
_LEFT: Final = (
    "sink %s: %d transactions are open in Kafka under ids of this sink without a live attempt in the commit store: "
    "%s. They block read_committed readers of these partitions, forever on brokers with two-phase commit. The store "
    "is new, was lost or was restored to an older state, or another program uses these ids. Only the lost rows showed "
    "whether they are decided: aborting one that is decided loses its records. They were not touched, and this sink "
    "no longer uses their ids. Compare table and topic, then end them: `dualwrite spark recover --abort-orphans %s`, "
    "which changes nothing without --apply"
)
