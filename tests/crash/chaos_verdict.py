"""The calm phase of the chaos test: everything comes right without help, and its history has no anomaly.

Every row has its record once, even after aborts by Kafka: a decided transaction is published again. The records of a
key stand in the order in which blocks locked its row. A row without its record, a record without a row or twice, a
record behind a later one, a reported loss, a caller with a false result, an id that cannot be used, a transaction that
stays open, a block that stays stored, a lease that stays held: each is a failure.

Apache Kafka 4.4.0 leaves transactions without an end marker when it comes back: a coordinator that is to write the
markers of a partition without a leader takes the topic for deleted, and completes the transaction (KAFKA-20734). Only
an operator can end them, so they are ended here by hand, and counted: decided ones by a commit marker, the others by an
abort marker. Where the two stand in one partition, a marker ends both; the aborted part of a decided one is lost if its
row has been replaced since, and reported by that name.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.delivery import Outbox
from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.leases import is_outbox, outbox_id_of, transactional_id_of
from dualwrite.recipes.recovery.service import RecoveryService
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_lease
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.verify.anomalies import Anomaly, Finding
from dualwrite.verify.checker import check
from dualwrite.verify.history import Poll
from tests.crash.chaos_absences import Absence
from tests.crash.chaos_database import ChaosDatabase, Decision
from tests.crash.chaos_history import history_of
from tests.crash.chaos_job import COMMITTED, LOST, MISTAKE, ROLLED_BACK, UNKNOWN, Job, bodies_of, journal_lines
from tests.crash.chaos_reader import AlongReader
from tests.crash.chaos_servers import DEADLINE_S
from tests.crash.chaos_tally import Tally
from tests.crash.chaos_ways import DELIVERIES, locked_keys, prefix_of, way_of
from tests.crash.chaos_worker import pool_settings
from tests.support.conditions import until
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_log

OVER: Final = {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}
ENDING: Final = ("PrepareCommit", "PrepareAbort")
TOLD: Final = (COMMITTED, ROLLED_BACK, LOST, UNKNOWN)
MOST_SHOWN: Final = 6
PROVEN: Final = "the log shows that Kafka committed"
_ABORTED: Final = re.compile(r"transactional id (\S+): Kafka aborted (\S+), which the database has decided; its ")
REPAIRED: Final = "is published again as"
"""The log messages of a commit seen in the log, of an abort, and of records stored again."""


def wire_id(database: ChaosDatabase, transactional_id: str) -> str:
    """Return a transactional id as Kafka knows it. Only this function knows how the two differ."""
    return kafka_id_of(database.engine, transactional_id)


class Verdict:
    """The checks after a run."""

    def __init__(self, job: Job, database: ChaosDatabase, absences: Sequence[Absence], found: Tally) -> None:
        self._job = job
        self._database = database
        self._absences = absences
        self._found = found
        self._problems = self._found.problems
        self._polls: list[Poll] = []
        self._locked_keys: Final = frozenset(locked_keys())

    def hear(self, reader: AlongReader) -> None:
        """Judge also a reader's records while it raged."""
        self._polls += reader.polls
        self._problems += reader.problems

    def reach(self) -> None:
        self._end_what_hangs()
        self._let_the_pools_recover()
        self._settle()
        self._compare()
        self._count_what_was_told()
        self._judge_absences()
        self._expect_nothing_is_stored()
        self._expect_no_id_is_blocked()
        for way in DELIVERIES:
            self._expect_no_lease_is_held(way)
        self._expect_nothing_open()
        self._count_repairs()

    def _end_what_hangs(self) -> None:
        """Do an operator's work where Kafka leaves a completed transaction without markers (KAFKA-20734)."""
        decided = {decision.state for decision in self._database.decisions().values()}
        with TransactionAdmin(bootstrap_servers=self._job.bootstrap_servers) as admin:
            until(lambda: not admin.list_transactions(states=ENDING), DEADLINE_S)
            for hanging in admin.find_hanging(self._job.topic, max_transaction_timeout_ms=0):
                pair = PreparedTxnState.of(producer_id=hanging.producer_id, producer_epoch=hanging.producer_epoch)
                if str(pair) in decided:
                    admin.commit_transaction(hanging.topic_partition, pair)
                else:
                    admin.abort_transaction(hanging.topic_partition, start_offset=hanging.start_offset)
                self._found.hanging.append(hanging)

    # ---- recovery -------------------------------------------------------------------------------------------

    def _pool(self, way: str) -> DualWriter:
        return DualWriter(self._database.engine, **pool_settings(self._job, way, writers=1))

    def _let_the_pools_recover(self) -> None:
        """They resolve their ids and publish what is stored; their background repeats failed attempts."""
        with ExitStack() as stack:
            pools = {way: stack.enter_context(self._pool(way)) for way in DELIVERIES}
            for pool in pools.values():
                with suppress(DualWriteError):
                    pool.recover()
            try:
                until(
                    lambda: not self._database.stored() and all(map(self._is_settled, pools, pools.values())),
                    DEADLINE_S,
                )
            except AssertionError:
                for way, pool in pools.items():
                    self._problems.append(f"the pool comes to no end: {pool.status}, held: {self._held_leases(way)}")

    def _is_settled(self, way: str, pool: DualWriter) -> bool:
        return not self._held_leases(way) and not pool.status.set_aside

    def _service(self, **settings: Any) -> RecoveryService:
        return RecoveryService(
            self._database.engine,
            prefix=self._job.prefix,
            min_age_ms=0,
            lock_timeout_ms=5_000,
            timeout_ms=20_000,
            bootstrap_servers=self._job.bootstrap_servers,
            **settings,
        )

    def _settle(self) -> None:
        """Recover all ids until no transaction is left."""
        deadline_s = time.monotonic() + DEADLINE_S
        with self._service() as service:
            while (report := service.recover()).found or report.unseen:
                if time.monotonic() > deadline_s:
                    self._problems.append(f"recovery comes to no end: {report.found}, not seen: {report.unseen}")
                    return
                time.sleep(0.2)

    def _writer(self, transactional_id: str) -> DualWriter:
        return DualWriter(self._database.engine, transactional_id=transactional_id, **self._job.producer)

    # ---- both sides -----------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Let the checker judge the callers' results, and the contents of the table and the topic."""
        in_table = self._database.versions()
        in_topic = read_log(self._job.bootstrap_servers, self._job.topic)
        self._found.rows = len(in_table)
        self._found.records = len(in_topic)
        self._found.ordered = Counter(way_of(each.value) for each in in_topic if each.key in self._locked_keys)
        repaired = self._published_again()
        self._found.out_of_place = len(repaired)
        report = check([*history_of(self._journal_lines(), in_table, in_topic, repaired), *self._polls])
        self._found.read = report.read
        self._found.anomalies = report.counts
        shown: Counter[Anomaly] = Counter()
        for finding in report.findings:
            shown[finding.anomaly] += 1
            if shown[finding.anomaly] <= MOST_SHOWN:
                self._problems.append("\n".join([str(finding), *map(self._story, self._bodies_of(finding, in_table))]))
        self._problems += [f"{count - MOST_SHOWN} more: {what}" for what, count in shown.items() if count > MOST_SHOWN]

    def _published_again(self) -> set[str]:
        """Return the direct blocks that Kafka has aborted. The records of an outbox keep their order even then."""
        states = {state for text in self._logs() for each, state in _ABORTED.findall(text) if not is_outbox(each)}
        decisions = self._database.decisions()
        xids = {xid for xid, decision in decisions.items() if decision.state in states}
        return {body.rpartition(":")[0] for body, xid in self._database.xids().items() if xid in xids}

    def _bodies_of(self, finding: Finding, in_table: Mapping[str, int]) -> list[str]:
        """The first row of each dual write, or the expected one if it is missing."""
        bodies = [bodies_of(name) for name in finding.dual_writes]
        return [next((body for body in each if body in in_table), each[0]) for each in bodies]

    def _story(self, body: str) -> str:
        """The known events of one row or record."""
        name = body.rpartition(":")[0]
        lines = [f"  {body}"]
        lines += [f"    journal: {line}" for line in self._journal_lines() if line.startswith(f"{name} ")]
        xid = self._database.xids().get(body)
        decisions = self._database.decisions()
        decision = None if xid is None else decisions.get(xid)
        if decision is not None:
            if self._has_hung(decision):
                lines.append("    it was committed by Kafka without a marker (KAFKA-20734), and ended by hand")
            each = decision.transactional_id
            same = [other for other in decisions.values() if other.transactional_id == each]
            place = same.index(decision)
            lines.append(f"    decided: {decision} (database transaction {xid})")
            lines += [f"    then:    {later}" for later in same[place + 1 : place + 4]]
            lines.append(f"    row now: {self._database.rows().get(each)}; coordinator now: {self._description(each)}")
        return "\n".join(lines)

    def _has_hung(self, decision: Decision) -> bool:
        return decision.state in {f"{each.producer_id}:{each.producer_epoch}" for each in self._found.hanging}

    def _description(self, transactional_id: str) -> Any:
        with TransactionAdmin(bootstrap_servers=self._job.bootstrap_servers) as admin:
            named = wire_id(self._database, transactional_id)
            return admin.describe_transactions([named])[named]

    def _journal_lines(self) -> list[str]:
        return journal_lines(self._job)

    def _count_what_was_told(self) -> None:
        for line in self._journal_lines():
            name, told, *_ = line.split(" ", 2)
            if told in (MISTAKE, LOST):
                self._problems.append(f"a mistake: {line}")
            if told in TOLD:
                self._found.told[way_of(name), told] += 1

    def _judge_absences(self) -> None:
        for absence in self._absences:
            told = absence.told(self._job)
            self._found.absences.append((absence, told))
            self._problems += absence.problems(told)

    def _expect_nothing_is_stored(self) -> None:
        if left := self._database.stored():
            self._problems.append(f"the database still stores {left} blocks")

    def _count_repairs(self) -> None:
        for text in self._logs():
            self._found.repairs += text.count(REPAIRED)
            self._found.proofs += text.count(PROVEN) + len(_ABORTED.findall(text))

    def _logs(self) -> Iterator[str]:
        """Yield the logs of all processes that ever ran, this one included."""
        directory = self._job.journals
        for log in (*directory.glob("*.log"), *directory.parent.glob("calm.log")):
            yield log.read_text()

    # ---- at rest --------------------------------------------------------------------------------------------

    def _held_leases(self, way: str) -> list[int]:
        return self._leases(way, kafka_transaction_lease.c.owner.is_not(None))

    def _leases(self, way: str, *which: sa.ColumnElement[bool]) -> list[int]:
        table = kafka_transaction_lease
        with self._database.engine.connect() as connection:
            found = sa.select(table.c.slot).where(table.c.prefix == prefix_of(self._job, way), *which)
            return list(connection.scalars(found))

    def _expect_no_lease_is_held(self, way: str) -> None:
        with self._pool(way) as pool:
            try:
                pool.recover()
                until(lambda: self._is_settled(way, pool), DEADLINE_S)
            except (AssertionError, DualWriteError) as error:
                self._problems.append(
                    f"leases stay held: {self._held_leases(way)}, set aside: {pool.status.set_aside}: {error!r}"
                )

    def _expect_nothing_open(self) -> None:
        def still_open() -> list[str]:
            with TransactionAdmin(bootstrap_servers=self._job.bootstrap_servers) as admin:
                return [str(each) for each in admin.list_transactions() if str(each.state) not in OVER]

        try:
            until(lambda: not still_open(), DEADLINE_S)
        except AssertionError:
            self._problems.append(f"open transactions: {still_open()}")

    def _expect_no_id_is_blocked(self) -> None:
        slots = {
            transactional_id_of(prefix_of(self._job, way), each) for way in DELIVERIES for each in self._leases(way)
        }
        self._found.slots = len(slots)
        for each in sorted(slots | set(self._database.rows())):
            try:
                self._use(each)
            except Exception as error:
                self._problems.append(f"{each} is blocked: {error!r}")

    def _use(self, transactional_id: str) -> None:
        if is_outbox(transactional_id):
            self._use_outbox(transactional_id)
            return
        with self._writer(transactional_id) as writer:
            for found in writer.recover():
                self._problems.append(f"{transactional_id} had something open after recovery: {found.outcome}")
            with writer.transaction() as tx:
                tx.send(self._job.topic, value="unstuck", key="unstuck")

    def _use_outbox(self, transactional_id: str) -> None:
        (way,) = (each for each in DELIVERIES if outbox_id_of(prefix_of(self._job, each)) == transactional_id)
        settings = {**pool_settings(self._job, way, writers=1), "delivery": Outbox()}
        with DualWriter(self._database.engine, **settings) as pool:
            until(lambda: (pool.status.publishes_outbox, pool.recover()) == (True, []), DEADLINE_S)
            with pool.transaction() as tx:
                tx.send(self._job.topic, value="unstuck", key="unstuck")
