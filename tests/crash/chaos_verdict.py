"""The calm phase of the chaos test: everything comes right without help, and its history has no anomaly.

Every row has its record once, even after aborts by Kafka: a decided transaction is published again. A row without its
record, a record without a row or twice, a reported loss, a caller with a false result, an id that cannot be used, a
transaction that stays open, a lease that stays held: each is a failure.

Apache Kafka 4.4.0 leaves transactions without an end marker when it comes back: a coordinator that is to write the
markers of a partition without a leader takes the topic for deleted, and completes the transaction (KAFKA-20734). Only
an operator can end them, so they are ended here by hand, and counted: decided ones by a commit marker, the others by an
abort marker. Where the two stand in one partition, a marker ends both; the aborted part of a decided one is lost if its
row has been replaced since, and reported by that name.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.admin import HangingTransaction, TransactionAdmin
from dualwrite.delivery import Outbox
from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.leases import is_outbox, transactional_id_of
from dualwrite.recipes.recovery.service import RecoveryService
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_lease
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.verify.anomalies import Anomaly, Finding
from dualwrite.verify.checker import check
from dualwrite.verify.history import Poll
from tests.crash.chaos_database import ChaosDatabase, Decision
from tests.crash.chaos_history import history_of
from tests.crash.chaos_job import COMMITTED, LOST, MISTAKE, ROLLED_BACK, UNKNOWN, Job, bodies_of
from tests.crash.chaos_reader import AlongReader
from tests.crash.chaos_servers import DEADLINE_S
from tests.crash.pool_worker import pool_settings
from tests.support.conditions import until
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_log

OVER: Final = {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}
ENDING: Final = ("PrepareCommit", "PrepareAbort")
TOLD: Final = (COMMITTED, ROLLED_BACK, LOST, UNKNOWN)
MOST_SHOWN: Final = 6
PROVEN: Final = "the log shows that Kafka committed"
ABORTED: Final = "which the database has decided; its "
REPAIRED: Final = "is published again as"
"""The log messages of a commit seen in the log, of an abort, and of records stored again."""


def wire_id(database: ChaosDatabase, transactional_id: str) -> str:
    """Return a transactional id as Kafka knows it. Only this function knows how the two differ."""
    return kafka_id_of(database.engine, transactional_id)


@dataclass
class Findings:
    """The findings of the calm phase."""

    told: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    records: int = 0
    read: int = 0
    """Records that a reader got while it raged."""
    proofs: int = 0
    """How often the log was read to prove the end of a transaction, by log message."""
    repairs: int = 0
    """Decided transactions, aborted by Kafka and published again, by log message."""
    slots: int = 0
    hanging: list[HangingTransaction] = field(default_factory=list)
    """Transactions that Kafka left without an end marker (KAFKA-20734), ended by hand."""
    problems: list[str] = field(default_factory=list)


class Verdict:
    """The checks after a run."""

    def __init__(self, job: Job, database: ChaosDatabase, found: Findings | None = None) -> None:
        self._job = job
        self._database = database
        self._found = Findings() if found is None else found
        self._problems = self._found.problems
        self._polls: list[Poll] = []

    def hear(self, reader: AlongReader) -> None:
        """Judge also a reader's records while it raged."""
        self._polls += reader.polls
        self._problems += reader.problems

    def reach(self) -> Findings:
        self._end_what_hangs()
        self._let_the_pool_recover()
        self._settle()
        self._compare()
        self._count_what_was_told()
        self._expect_no_id_is_blocked()
        self._expect_no_lease_is_held()
        self._expect_nothing_open()
        self._count_repairs()
        return self._found

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

    def _pool(self) -> DualWriter:
        return DualWriter(self._database.engine, **pool_settings(self._job, writers=1))

    def _let_the_pool_recover(self) -> None:
        """It resolves all of its own ids; its background repeats failed attempts."""
        with self._pool() as pool:
            with suppress(DualWriteError):
                pool.recover()
            try:
                until(lambda: self._is_settled(pool), DEADLINE_S)
            except AssertionError:
                self._problems.append(f"the pool comes to no end: {pool.status}, held: {self._held_leases()}")

    def _is_settled(self, pool: DualWriter) -> bool:
        return not self._held_leases() and not pool.status.set_aside

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
        in_table = self._database.bodies()
        in_topic = read_log(self._job.bootstrap_servers, self._job.topic)
        self._found.rows = len(in_table)
        self._found.records = len(in_topic)
        report = check([*history_of(self._journal_lines(), in_table, in_topic), *self._polls])
        self._found.read = report.read
        shown: Counter[Anomaly] = Counter()
        for finding in report.findings:
            shown[finding.anomaly] += 1
            if shown[finding.anomaly] <= MOST_SHOWN:
                self._problems.append("\n".join([str(finding), *map(self._story, self._bodies_of(finding, in_table))]))
        self._problems += [f"{count - MOST_SHOWN} more: {what}" for what, count in shown.items() if count > MOST_SHOWN]

    def _bodies_of(self, finding: Finding, in_table: Mapping[str, int]) -> list[str]:
        """The first row of each dual write, or the expected one if it is missing."""
        bodies = [bodies_of(name) for name in finding.dual_writes]
        return [next((body for body in each if body in in_table), each[0]) for each in bodies]

    def _story(self, body: str) -> str:
        """The known events of one row or record."""
        name = body.rpartition(":")[0]
        lines = [f"  {body}"]
        lines += [f"    journal: {line}" for line in self._journal_lines() if line.startswith(f"{name} ")]
        xid = self._database.bodies().get(body)
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
        return [
            line for journal in self._job.journals.glob("*.txt") for line in journal.read_text().splitlines() if line
        ]

    def _count_what_was_told(self) -> None:
        for line in self._journal_lines():
            _, told, *_ = line.split(" ", 2)
            if told in (MISTAKE, LOST):
                self._problems.append(f"a mistake: {line}")
            if told in TOLD:
                self._found.told[told] += 1

    def _count_repairs(self) -> None:
        """Count in the logs of all processes that ever ran, this one included."""
        directory = self._job.journals
        for log in (*directory.glob("*.log"), *directory.parent.glob("calm.log")):
            text = log.read_text()
            self._found.repairs += text.count(REPAIRED)
            self._found.proofs += text.count(PROVEN) + text.count(ABORTED)

    # ---- at rest --------------------------------------------------------------------------------------------

    def _held_leases(self) -> list[int]:
        table = kafka_transaction_lease
        held = sa.select(table.c.slot).where(table.c.prefix == self._job.prefix, table.c.owner.is_not(None))
        with self._database.engine.connect() as connection:
            return list(connection.scalars(held))

    def _expect_no_lease_is_held(self) -> None:
        with self._pool() as pool:
            try:
                pool.recover()
                until(lambda: not self._held_leases() and not pool.status.set_aside, DEADLINE_S)
            except (AssertionError, DualWriteError) as error:
                self._problems.append(
                    f"leases stay held: {self._held_leases()}, set aside: {pool.status.set_aside}: {error!r}"
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
        table = kafka_transaction_lease
        with self._database.engine.connect() as connection:
            slots = list(connection.scalars(sa.select(table.c.slot).where(table.c.prefix == self._job.prefix)))
        self._found.slots = len(slots)
        ids = {transactional_id_of(self._job.prefix, slot) for slot in slots} | set(self._database.rows())
        for each in sorted(ids):
            try:
                self._use(each)
            except Exception as error:
                self._problems.append(f"{each} is blocked: {error!r}")

    def _use(self, transactional_id: str) -> None:
        if is_outbox(transactional_id):
            self._use_outbox()
            return
        with self._writer(transactional_id) as writer:
            for found in writer.recover():
                self._problems.append(f"{transactional_id} had something open after recovery: {found.outcome}")
            with writer.transaction() as tx:
                tx.send(self._job.topic, value="unstuck", key="unstuck")

    def _use_outbox(self) -> None:
        settings = {**pool_settings(self._job, writers=1), "delivery": Outbox()}
        with DualWriter(self._database.engine, **settings) as pool:
            until(lambda: (pool.status.publishes_outbox, pool.recover()) == (True, []), DEADLINE_S)
            with pool.transaction() as tx:
                tx.send(self._job.topic, value="unstuck", key="unstuck")
