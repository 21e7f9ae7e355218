"""The calm phase of the chaos test: everything comes right without anybody's help, or a loss is said again and again.

A row without its record is accepted where it was written by the very database transaction that the state row of its id
names, and each recovery of that id reports PreparedTransactionLost with that prepared state. Everything else is a
failure: a record without a row, a record twice, a loss that nobody hears of or hears of only once, a caller who was not
told the truth, an id that cannot be used, a transaction that stays open, a lease that stays held.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import PreparedTransactionLost
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.leases import transactional_id_of
from dualwrite.recipes.recovery.service import Action, Found, RecoveryReport, RecoveryService
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_lease
from dualwrite.recipes.sqlalchemy.writer import DualWriter, DualWriterPool
from tests.crash.chaos_database import ChaosDatabase, Decision
from tests.crash.chaos_job import BEGUN, COMMITTED, LOST, MISTAKE, ROLLED_BACK, UNKNOWN, Job, bodies_of
from tests.crash.chaos_servers import DEADLINE_S
from tests.crash.pool_worker import pool_settings
from tests.support.conditions import until
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_topic

OVER: Final = {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}
TOLD: Final = (COMMITTED, ROLLED_BACK, LOST, UNKNOWN)
LOUD: Final = (Action.LOST, Action.FORGOTTEN)
MOST_SHOWN: Final = 6


def wire_id(database: ChaosDatabase, transactional_id: str) -> str:
    """What Kafka knows a transactional id as. The one place that knows how the two differ."""
    return kafka_id_of(database.engine, transactional_id)


@dataclass
class Findings:
    """What the calm phase met."""

    told: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    loud: int = 0
    """Ids whose loss every recovery reported."""
    lost_rows: int = 0
    """Rows whose records Kafka lost, all of them loudly."""
    slots: int = 0
    early: list[str] = field(default_factory=list)
    """Loud losses that Kafka's bound does not explain: their report came sooner after the block began."""
    problems: list[str] = field(default_factory=list)


class Verdict:
    """One look at what a run has left."""

    def __init__(self, job: Job, database: ChaosDatabase) -> None:
        self._job = job
        self._database = database
        self._found = Findings()
        self._problems = self._found.problems

    def reach(self) -> Findings:
        self._let_the_pool_recover()
        loud = self._settle()
        self._expect_loud_again(loud)
        self._expect_loud_to_a_new_writer(loud)
        self._expect_nothing_hangs()
        self._compare(loud)
        self._expect_callers_were_told_the_truth(loud)
        self._acknowledge(loud)
        self._expect_no_id_is_blocked()
        self._expect_no_lease_is_held()
        self._expect_nothing_open()
        return self._found

    # ---- recovery -------------------------------------------------------------------------------------------

    def _pool(self) -> DualWriterPool:
        return DualWriterPool(self._database.engine, **pool_settings(self._job, writers=1))

    def _let_the_pool_recover(self) -> None:
        """It resolves what it can, and raises a loss."""
        with self._pool() as pool:
            try:
                pool.recover()
            except PreparedTransactionLost:
                return
            until(lambda: self._is_settled(pool) or _tells_a_loss(pool), DEADLINE_S)
            assert pool.status.in_use == 0

    def _is_settled(self, pool: DualWriterPool) -> bool:
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

    def _settle(self) -> dict[str, Found]:
        """Recover until nothing is left but what cannot be recovered."""
        deadline_s = time.monotonic() + DEADLINE_S
        with self._service() as service:
            while True:
                report = service.recover()
                if report.unseen == () and all(found.action in LOUD for found in report.found):
                    return _by_id(report)
                if time.monotonic() > deadline_s:
                    rest = [found for found in report.found if found.action not in LOUD]
                    self._problems.append(f"recovery comes to no end: {rest}, not seen: {report.unseen}")
                    return _by_id(report)
                time.sleep(0.2)

    def _expect_loud_again(self, loud: dict[str, Found]) -> None:
        self._found.loud = len(loud)
        with self._service() as service:
            again = _by_id(service.recover())
            planned = _by_id(service.plan())
        for named, second in (("recovery", again), ("plan", planned)):
            for each in sorted(loud.keys() ^ second.keys()):
                self._problems.append(
                    f"loud once only: {each} was {loud.get(each)}, and the next {named} says {second.get(each)}"
                )

    def _expect_loud_to_a_new_writer(self, loud: dict[str, Found]) -> None:
        for each, found in loud.items():
            with self._writer(each) as writer:
                try:
                    said = repr(writer.recover())
                except PreparedTransactionLost as lost:
                    said = lost.prepared_state
            if said != found.row:
                self._problems.append(f"{found} was reported, and a new writer's recover() said {said}")

    def _writer(self, transactional_id: str) -> DualWriter:
        return DualWriter(self._database.engine, transactional_id=transactional_id, **self._job.producer)

    def _acknowledge(self, loud: dict[str, Found]) -> None:
        if loud:
            with self._service(acknowledge_lost=loud) as service:
                report = service.recover()
            if not report.is_clean:
                self._problems.append(f"acknowledged losses are still there: {report.left}")

    # ---- both sides -----------------------------------------------------------------------------------------

    def _expect_nothing_hangs(self) -> None:
        """A transaction without an end marker hides all that follows it, or is ended by the marker of a later one.

        Apache Kafka 4.4.0 leaves such when it comes back: a coordinator that is to write the markers of a partition
        without a leader takes the topic for deleted, and completes the transaction (KAFKA-20734).
        """
        with TransactionAdmin(bootstrap_servers=self._job.bootstrap_servers) as admin:
            for hanging in admin.find_hanging(self._job.topic, max_transaction_timeout_ms=0):
                self._problems.append(f"Kafka ended a transaction without its marker (KAFKA-20734): {hanging}")

    def _compare(self, loud: dict[str, Found]) -> None:
        in_table = self._database.bodies()
        in_topic = Counter(value for _, value in read_topic(self._job.bootstrap_servers, self._job.topic))
        decisions = self._database.decisions()
        self._found.rows = len(in_table)
        self._complain("in the topic more than once", [body for body, times in in_topic.items() if times > 1])
        self._complain("in the topic, not in the table", list(in_topic.keys() - in_table.keys()))
        missing = {body: decisions.get(in_table[body]) for body in in_table.keys() - in_topic.keys()}
        said = {body for body, decision in missing.items() if decision and _is_said(decision, loud)}
        self._found.lost_rows = len(said)
        self._complain("in the table, not in the topic, and no recovery says so", sorted(missing.keys() - said))
        for each, found in loud.items():
            lost = [body for body, decision in missing.items() if decision and decision.transactional_id == each]
            if not lost:
                self._problems.append(f"a loss is reported of which nothing is missing: {found}")
            elif self._is_early(found, lost):
                self._found.early.append("\n".join([str(found), self._story(min(lost)), *self._first_reports(found)]))

    def _is_early(self, found: Found, bodies: list[str]) -> bool:
        """Whether somebody heard of the loss before `transaction.timeout.ms` can have been over."""
        bound_ms = self._job.kafka.get("transaction_timeout_ms")
        if bound_ms is None:
            return True
        names = {body.rpartition(":")[0] for body in bodies}
        lines = [line.split(" ", 3) for line in self._journal_lines()]
        begun_s = min(float(at) for name, told, at, _ in lines if told == BEGUN and name in names)
        heard_s = [float(line.split(" ", 3)[2]) for line in self._first_reports(found)]
        return bool(heard_s) and min(heard_s) - begun_s < bound_ms / 1000

    def _first_reports(self, found: Found) -> list[str]:
        """Who heard of it first, while everything was restless."""
        words = (f"prepared transaction {found.row} ", f"row='{found.row}'")
        lines = [
            line
            for line in self._journal_lines()
            if any(word in line for word in words) and ("PreparedTransactionLost" in line or "Action.LOST" in line)
        ]
        return sorted(lines, key=lambda line: float(line.split(" ", 3)[2]))[:2]

    def _complain(self, what: str, bodies: list[str]) -> None:
        if bodies:
            shown = "\n".join(self._story(body) for body in sorted(bodies)[:MOST_SHOWN])
            self._problems.append(f"{len(bodies)} {what}:\n{shown}")

    def _story(self, body: str) -> str:
        """All that is known of one row or record."""
        name = body.rpartition(":")[0]
        lines = [f"  {body}"]
        lines += [f"    journal: {line}" for line in self._journal_lines() if line.startswith(f"{name} ")]
        xid = self._database.bodies().get(body)
        decisions = self._database.decisions()
        decision = None if xid is None else decisions.get(xid)
        if decision is not None:
            each = decision.transactional_id
            same = [other for other in decisions.values() if other.transactional_id == each]
            place = same.index(decision)
            lines.append(f"    decided: {decision} (database transaction {xid})")
            lines += [f"    then:    {later}" for later in same[place + 1 : place + 4]]
            lines.append(f"    row now: {self._database.rows().get(each)}; coordinator now: {self._description(each)}")
        return "\n".join(lines)

    def _description(self, transactional_id: str) -> Any:
        with TransactionAdmin(bootstrap_servers=self._job.bootstrap_servers) as admin:
            named = wire_id(self._database, transactional_id)
            return admin.describe_transactions([named])[named]

    def _journal_lines(self) -> list[str]:
        return [
            line for journal in self._job.journals.glob("*.txt") for line in journal.read_text().splitlines() if line
        ]

    def _expect_callers_were_told_the_truth(self, loud: dict[str, Found]) -> None:
        in_table = self._database.bodies()
        decisions = self._database.decisions()
        for line in self._journal_lines():
            name, told, *_ = line.split(" ", 2)
            if told == MISTAKE:
                self._problems.append(f"a mistake: {line}")
                continue
            if told not in (BEGUN, *TOLD):
                continue  # what the recovery service met
            there = [body for body in bodies_of(name) if body in in_table]
            if there not in ([], bodies_of(name)):
                self._problems.append(f"half of {name} is in the table: {there}")
            if told == BEGUN:
                continue
            self._found.told[told] += 1
            if told == UNKNOWN:
                continue
            if (told != ROLLED_BACK) is not bool(there):
                self._problems.append(f"told what is not so, as {there} is in the table: {line}")
            if told == LOST and there:
                decision = decisions.get(in_table[there[0]])
                if decision is None or not _is_said(decision, loud):
                    self._problems.append(f"the caller alone heard of a loss: {line}; {decision}")

    # ---- at rest --------------------------------------------------------------------------------------------

    def _held_leases(self) -> list[int]:
        table = kafka_transaction_lease
        held = sa.select(table.c.slot).where(table.c.prefix == self._job.prefix, table.c.owner.is_not(None))
        with self._database.engine.connect() as connection:
            return list(connection.scalars(held))

    def _expect_no_lease_is_held(self) -> None:
        """Those of lost slots are given back by the next pool, once the loss is acknowledged."""
        with self._pool() as pool:
            pool.recover()
            try:
                until(lambda: not self._held_leases() and not pool.status.set_aside, DEADLINE_S)
            except AssertionError:
                self._problems.append(f"leases stay held: {self._held_leases()}, set aside: {pool.status.set_aside}")

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
        with self._writer(transactional_id) as writer:
            outcome = writer.recover().outcome
            if outcome is not Outcome.NOTHING:
                self._problems.append(f"{transactional_id} had something open after recovery: {outcome}")
            with writer.transaction() as tx:
                tx.send(self._job.topic, value="unstuck", key="unstuck")


def _tells_a_loss(pool: DualWriterPool) -> bool:
    """Whether its background has met a lost write, which no repetition settles."""
    return "was not committed: Kafka says" in (pool.status.last_background_error or "")


def _by_id(report: RecoveryReport) -> dict[str, Found]:
    return {found.transactional_id: found for found in report.found if found.action in LOUD}


def _is_said(decision: Decision, loud: dict[str, Found]) -> bool:
    """Whether recovery names the prepared state of this decision as lost."""
    found = loud.get(decision.transactional_id)
    return found is not None and found.row == decision.state
