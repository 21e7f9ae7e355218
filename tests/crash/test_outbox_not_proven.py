"""Publishers of an outbox are killed, and then the log cannot be read: an unproven end stops the outbox.

Its records are in the database until they are known to be in Kafka, or a person has decided. The coordinator's
knowledge is noted before it forgets, so that a second crash does not stop the outbox.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Acl, AclOperation, Emulator, ResourceType
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.delivery import Outbox
from dualwrite.errors import (
    NotProvenError,
    OwedRecordsRefusedError,
    RecordsRefusedError,
    RetriableError,
    StateRowError,
    StoredBlockRefusedError,
)
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import TopicPartition
from dualwrite.recipes.core.completion import LostCommits
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import Verdict, is_settled, verdict_in
from dualwrite.recipes.pool import outbox_publisher
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.recovery.plan import Action, RecoveryReport
from dualwrite.recipes.recovery.taking_out import take_out
from dualwrite.testing.postgres import PostgresServer
from tests.crash.outbox_worker import is_publisher
from tests.crash.psycopg_scenario import PsycopgScenario, conninfo_of
from tests.crash.test_outbox_kills import recover, run_and_kill
from tests.producer.tiers import BOUNDED, TIERS, World
from tests.recipes.outboxes import assert_published, in_order, outbox_pool, scenario_of, settings_for, waiting
from tests.recipes.pools import QUIET_LEASE_MS, write
from tests.recipes.repairs import delete_records
from tests.recipes.test_repair_evidence import ALLOWED, DENIALS
from tests.recovery.world import service
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, event_bodies, state_row

bounded = pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: tier.name)


class Site(World):
    """A broker of one tier, an outbox, and publishers without READ on its topic."""

    def __init__(self, emulator: Emulator, tier: Tier, scenario: PsycopgScenario) -> None:
        super().__init__(emulator, tier)
        self.scenario = scenario

    def deny_reading(self, topic: str | None = None) -> None:
        topic = topic or self.scenario.topic
        self.emulator.add_acls(Acl.deny("User:ANONYMOUS", AclOperation.READ, ResourceType.TOPIC, topic))

    def grant_reading(self) -> None:
        self.emulator.remove_acls(DENIALS)

    def published(self) -> list[str]:
        return [str(record.value.decode()) for record in self.emulator.records(self.scenario.topic) if record.value]

    def row(self) -> tuple[PreparedTxnState, str]:
        """Return the content of the outbox's state row, and its manifest."""
        query = sa.text("SELECT manifest FROM kafka_transaction_state WHERE transactional_id = :id")
        with self.scenario.database.aside.connect() as connection:
            text: str | None = connection.scalar(query, {"id": self.scenario.transactional_id})
        return PreparedTxnState(state_row(self.scenario.database, self.scenario.transactional_id)), text or ""

    def is_settled(self) -> bool:
        row, text = self.row()
        return is_settled(row, text)

    def round(self, *, apply: bool = True, **settings: Any) -> RecoveryReport:
        with service(self.scenario, **settings) as recovery:
            return recovery.recover() if apply else recovery.plan()

    def abort_decided(self) -> None:
        """Let a publisher die after the database has decided a batch; the broker then aborts it."""
        run_and_kill(self.scenario, PausePoint.AFTER_DATABASE_COMMIT, "--publisher")
        self.abort_by_timeout()

    def assert_all_is_published_by_the_next(self) -> None:
        """Let another publisher recover before the log can be read again."""
        with outbox_pool(self.scenario) as pool:
            recover(self.scenario, pool)
            self.grant_reading()
            assert_published(self.scenario, *event_bodies(self.scenario.database))


@contextmanager
def site_on(tier: Tier, server: PostgresServer) -> Iterator[Site]:
    database = PostgresDatabase(server)
    with Emulator(config=TIERS[tier], clock=VirtualClock(), acls=ALLOWED) as emulator:
        scenario = scenario_of(database, emulator)
        emulator.set_config({"retention.ms": "-1"}, topic=scenario.topic)
        yield Site(emulator, tier, scenario)
    database.close()


@pytest.fixture
def stopped(postgres_server: PostgresServer) -> Iterator[Site]:
    """The coordinator proves no abort, and the log may not be read."""
    with site_on(Tier.BOUNDED_V1, postgres_server) as site:
        site.abort_decided()
        site.deny_reading()
        yield site


def test_an_unproven_batch_stops_the_outbox_until_the_log_can_be_read(
    stopped: Site, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = stopped.scenario
    row = stopped.row()
    with outbox_pool(scenario) as pool:
        with pytest.raises(NotProvenError, match="may not read its topic") as raised:
            recover(scenario, pool)
        assert (raised.value.transactional_id, raised.value.prepared_state) == (
            scenario.transactional_id,
            str(row[0]),
        )
        assert write(pool, scenario, 9).outcome is Outcome.STORED
        assert waiting(scenario) > 0
        assert stopped.published() == []
        assert stopped.row() == row
        assert "cannot prove" in str(pool.status.last_background_error)
        assert any(record.levelname == "ERROR" for record in caplog.records)
        stopped.grant_reading()
        recover(scenario, pool)
        assert_published(scenario, *event_bodies(scenario.database))


def found_in(report: RecoveryReport) -> list[tuple[Action, bool]]:
    return [(found.action, found.changed) for found in report.found]


def test_an_operator_found_the_records_missing(stopped: Site) -> None:
    scenario = stopped.scenario
    named: Any = {"publish_again": [scenario.transactional_id]}
    assert found_in(stopped.round()) == [(Action.NOT_PROVEN, False)]
    assert found_in(stopped.round(**named, apply=False)) == [(Action.PUBLISH_AGAIN, False)]
    assert stopped.published() == []
    assert found_in(stopped.round(**named)) == [(Action.PUBLISH_AGAIN, True)]
    assert stopped.published() == event_bodies(scenario.database)
    (found,) = stopped.round(**named).found
    assert (found.action, "nothing was published again" in str(found.error)) == (Action.FAILED, True)
    stopped.grant_reading()
    with outbox_pool(scenario) as pool:
        write(pool, scenario, 9)
        assert_published(scenario, *event_bodies(scenario.database))


def test_an_operator_takes_the_batch_out(stopped: Site) -> None:
    scenario = stopped.scenario
    kept: list[object] = []
    report = stopped.round(take_out_owed=[scenario.transactional_id], keep=kept.append)
    assert found_in(report) == [(Action.TAKE_OUT, True)]
    (taken,) = report.taken_out
    assert len(kept) == 1
    values = [record.value.decode() for record in taken.records if record.value]
    assert values
    assert stopped.is_settled()
    stopped.grant_reading()
    with outbox_pool(scenario) as pool:
        write(pool, scenario, 9)
        until(lambda: values + stopped.published() == event_bodies(scenario.database))
        assert waiting(scenario) == 0


def test_a_batch_that_is_torn_stops_the_outbox(postgres_server: PostgresServer) -> None:
    """One partition shows it; in another it was aborted, and its records are gone."""
    with site_on(Tier.BOUNDED, postgres_server) as site:
        store_in_three_partitions(site)

        def tear(point: PausePoint) -> None:
            if point is PausePoint.AFTER_DATABASE_COMMIT and is_publisher():
                abort_in(site, 1)
            elif point is PausePoint.AFTER_KAFKA_COMMIT and is_publisher():
                until(lambda: [record.value for record in site.emulator.records("torn")] == [b"0", b"2"])
                delete_records(site.emulator.bootstrap_servers, "torn", 2)

        with outbox_pool(site.scenario, pause=tear, lease_ms=QUIET_LEASE_MS) as pool:
            for _ in range(2):
                with pytest.raises(NotProvenError, match="some of its records"):
                    pool.recover()
        assert found_in(site.round()) == [(Action.NOT_PROVEN, False)]
        assert found_in(site.round(publish_again=[site.scenario.transactional_id])) == [(Action.PUBLISH_AGAIN, True)]
        assert sorted(record.value or b"" for record in site.emulator.records("torn")) == [b"0", b"0", b"1", b"2"]


def test_records_that_are_published_again_are_kept_again(postgres_server: PostgresServer) -> None:
    """Their publication is aborted too, and no log can be read."""
    with site_on(Tier.BOUNDED, postgres_server) as site:
        site.abort_decided()
        site.deny_reading()
        run_and_kill(site.scenario, PausePoint.AFTER_DATABASE_COMMIT, "--publisher", "--first=11")
        site.abort_by_timeout()
        assert site.published() == []
        site.assert_all_is_published_by_the_next()


def test_of_a_torn_batch_only_the_records_that_are_owed_are_kept(postgres_server: PostgresServer) -> None:
    """Their publication is aborted too, and the rest of the batch was committed."""
    with site_on(Tier.BOUNDED, postgres_server) as site:
        store_in_three_partitions(site)
        decisions: list[None] = []

        def tear(point: PausePoint) -> None:
            if point is not PausePoint.AFTER_DATABASE_COMMIT or not is_publisher():
                return
            decisions.append(None)
            if len(decisions) == 1:
                abort_in(site, 1)
            elif len(decisions) == 2:
                site.deny_reading("torn")
                site.abort_by_timeout()

        with outbox_pool(site.scenario, pause=tear, lease_ms=QUIET_LEASE_MS) as pool:
            until(lambda: recovers(pool) and len(decisions) >= 3)
        assert sorted(record.value or b"" for record in site.emulator.records("torn")) == [b"0", b"1", b"2"]


@pytest.fixture
def owing(postgres_server: PostgresServer) -> Iterator[Site]:
    """The last batch is owed, because it was aborted, and a block for `others` waits behind it."""
    with site_on(Tier.BOUNDED, postgres_server) as site:
        site.abort_decided()
        with outbox_pool(site.scenario, Outbox(publishes=False)) as pool, pool.transaction() as tx:
            tx.send("others", "y" * 200, partition=0)
        yield site


def refusal(pool: PsycopgDualWriter) -> RecordsRefusedError:
    """Recover until the lease of the dead publisher has expired, and return the refusal."""
    found: list[RecordsRefusedError] = []

    def is_refused() -> bool:
        try:
            pool.recover()
        except RecordsRefusedError as error:
            found.append(error)
        return bool(found)

    until(is_refused)
    return found[0]


def test_owed_records_are_published_before_a_refused_block(owing: Site) -> None:
    owing.emulator.create_topic("others", 1)
    owing.emulator.set_config({"max.message.bytes": "100"}, topic="others")
    with outbox_pool(owing.scenario, lease_ms=QUIET_LEASE_MS) as pool:
        refused = refusal(pool)
        assert (type(refused), refused.topic) == (StoredBlockRefusedError, "others")
        assert owing.published() == event_bodies(owing.scenario.database)
        of = owing.scenario.transactional_id
        assert take_out(owing.scenario.database.aside, of, refused.seq, apply=True).changed
        pool.recover()
    assert waiting(owing.scenario) == 0
    assert owing.emulator.records("others") == []


def test_no_block_is_blamed_for_owed_records(owing: Site) -> None:
    owing.emulator.set_config({"max.message.bytes": "10"}, topic=owing.scenario.topic)
    with outbox_pool(owing.scenario, lease_ms=QUIET_LEASE_MS) as pool:
        assert f"for {owing.scenario.topic}-0 were refused" in str(refusal(pool))
        with pytest.raises(OwedRecordsRefusedError):
            pool.recover()
        (refused,) = pool.status.refused
        assert refused[:3] == (owing.scenario.transactional_id, 0, owing.scenario.topic)
        owing.emulator.set_config({"max.message.bytes": None}, topic=owing.scenario.topic)
        pool.recover()
    assert owing.published() == event_bodies(owing.scenario.database)
    assert [record.value for record in owing.emulator.records("others")] == [b"y" * 200]


def recovers(pool: PsycopgDualWriter) -> bool:
    with suppress(RetriableError):
        pool.recover()
        return True
    return False


OF_BATCH = "WHERE seq IN (SELECT unnest(published) FROM kafka_transaction_outbox WHERE seq = 0)"


@pytest.mark.parametrize(
    "change",
    [
        f"DELETE FROM kafka_transaction_outbox {OF_BATCH}",
        f"UPDATE kafka_transaction_outbox SET records = '1' {OF_BATCH}",
        "UPDATE kafka_transaction_outbox SET records = 'x' WHERE seq = 0",
    ],
    ids=["deleted", "altered", "partitions altered"],
)
def test_a_row_of_the_last_batch_was_changed_by_hand(postgres_server: PostgresServer, change: str) -> None:
    with site_on(Tier.BOUNDED, postgres_server) as site:
        scenario = site.scenario
        site.abort_decided()
        site.deny_reading()
        with scenario.database.aside.connect() as connection:
            size = connection.scalar(
                sa.text("SELECT cardinality(published) FROM kafka_transaction_outbox WHERE seq = 0")
            )
        behind_batch = event_bodies(scenario.database)[size:]
        execute(scenario, change)
        with (
            outbox_pool(scenario) as pool,
            pytest.raises(StateRowError, match=r"restore the block from a backup, .*or give the batch up"),
        ):
            recover(scenario, pool)
        execute(scenario, "UPDATE kafka_transaction_outbox SET prepared_transaction_state = NULL WHERE seq = 0")
        assert found_in(site.round()) == [(Action.LOST, False)]
        assert found_in(site.round(acknowledge_lost=[scenario.transactional_id])) == [(Action.ACKNOWLEDGE, True)]
        with outbox_pool(scenario) as pool:
            write(pool, scenario, 9)
            until(lambda: site.published() == [*behind_batch, "9"])


def execute(scenario: PsycopgScenario, sql: str) -> None:
    with scenario.database.aside.begin() as connection:
        connection.execute(sa.text(sql))


def store_in_three_partitions(site: Site) -> None:
    site.emulator.create_topic("torn", 3)
    with outbox_pool(site.scenario, Outbox(publishes=False)) as pool, pool.transaction() as tx:
        for partition in range(3):
            tx.send("torn", str(partition), partition=partition)


def abort_in(site: Site, partition: int) -> None:
    """Abort the open transaction in a partition, as an operator can."""
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        admin.abort_transaction(TopicPartition("torn", partition), start_offset=0)


# ---- notes of the coordinator's knowledge --------------------------------------------------------------------------


@pytest.mark.parametrize("point", [PausePoint.AFTER_COMPLETION, PausePoint.AFTER_TAKEOVER])
@pytest.mark.parametrize(
    ("tier", "verdict"), [*((tier, Verdict.COMMITTED) for tier in BOUNDED), (Tier.BOUNDED, Verdict.ABORTED)]
)
def test_an_end_is_noted_before_the_coordinator_forgets_it(
    postgres_server: PostgresServer, tier: Tier, verdict: Verdict, point: PausePoint
) -> None:
    with site_on(tier, postgres_server) as site:
        if verdict is Verdict.ABORTED:
            site.abort_decided()
        else:
            run_and_kill(site.scenario, PausePoint.AFTER_DATABASE_COMMIT, "--publisher")
        site.deny_reading()
        run_and_kill(site.scenario, point, "--publisher", "--first=11")
        if verdict is Verdict.COMMITTED:  # the first has committed what it found
            run_and_kill(site.scenario, point, "--publisher", "--first=21")
        row, text = site.row()
        assert verdict_in(row, text) is verdict
        site.assert_all_is_published_by_the_next()


@bounded
def test_an_id_is_taken_over_under_the_lock_of_its_row(postgres_server: PostgresServer, tier: Tier) -> None:
    """The commit that notes an end releases the lock."""
    with site_on(tier, postgres_server) as site:
        run_and_kill(site.scenario, PausePoint.AFTER_DATABASE_COMMIT, "--publisher")
        were_locked: list[bool] = []

        def look(point: PausePoint) -> None:
            if point is PausePoint.AFTER_TAKEOVER:
                were_locked.append(is_row_locked(site.scenario))

        with outbox_pool(site.scenario, pause=look) as pool:
            recover(site.scenario, pool)
            assert_published(site.scenario, *event_bodies(site.scenario.database))
        assert set(were_locked) == {True}


def is_row_locked(scenario: PsycopgScenario) -> bool:
    try:
        execute(
            scenario,
            f"SELECT 1 FROM kafka_transaction_state WHERE transactional_id = '{scenario.transactional_id}' "
            "FOR UPDATE NOWAIT",
        )
    except sa.exc.OperationalError:
        return True
    return False


@bounded
@pytest.mark.parametrize("point", [PausePoint.AFTER_BEGIN, PausePoint.AFTER_SEND, PausePoint.AFTER_PREPARE])
@pytest.mark.parametrize("why", ["unreadable", "compacted"])
def test_a_batch_is_settled_before_the_next_one_hides_its_end(
    postgres_server: PostgresServer, tier: Tier, point: PausePoint, why: str
) -> None:
    with site_on(tier, postgres_server) as site:
        if why == "unreadable":
            site.deny_reading()
        else:
            site.emulator.set_config({"cleanup.policy": "compact"}, topic=site.scenario.topic)
        run_and_kill(site.scenario, point, "--publisher", "--later")
        assert site.is_settled()
        site.assert_all_is_published_by_the_next()


@bounded
@pytest.mark.parametrize("way", ["idle", "close"])
def test_the_last_batch_is_settled_while_its_end_can_be_seen(
    postgres_server: PostgresServer, tier: Tier, way: str
) -> None:
    with site_on(tier, postgres_server) as site:
        with outbox_pool(site.scenario, Outbox(linger_ms=0)) as pool:
            write(pool, site.scenario, 1)
            until(lambda: site.published() == ["1"])
            if way == "idle":
                until(site.is_settled)
        assert site.is_settled()
        assert found_in(site.round()) == []


@bounded
def test_a_batch_whose_commit_got_no_response_is_settled_too(
    postgres_server: PostgresServer, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site_on(tier, postgres_server) as site:
        site.deny_reading()
        database = site.scenario.database
        read_locked, is_away = LostCommits._read_locked, threading.Event()

        def lose(point: PausePoint) -> None:
            if point is PausePoint.BEFORE_DATABASE_COMMIT and is_publisher() and not is_away.is_set():
                is_away.set()
                database.lose_commit(applied=True)

        async def read(lost_commits: LostCommits, timeout_ms: int) -> PreparedTxnState:
            if not pool.pool.counts.background_failures:
                raise psycopg.OperationalError("the database restarts")
            return await read_locked(lost_commits, timeout_ms)

        monkeypatch.setattr(LostCommits, "_read_locked", read)
        with outbox_pool(site.scenario, Outbox(publishes=False)) as other:
            write(other, site.scenario, 1)
        with PsycopgDualWriter(
            conninfo_of(database.engine.url), **settings_for(site.scenario, pause=lose, resolve_timeout_ms=100)
        ) as pool:
            pool.pool.start()
            until(site.is_settled)
        assert site.published() == ["1"]


def test_a_batch_stays_unsettled_if_the_next_one_is_not_committed(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the brokers abort no batch any more, since an upgrade, they may have aborted the one before."""
    monkeypatch.setattr(outbox_publisher, "_IDLE_S_TO_SETTLE", 3_600.0)
    with site_on(Tier.BOUNDED_V1, postgres_server) as site:
        database = site.scenario.database
        read_locked, is_first, is_lost = LostCommits._read_locked, threading.Event(), threading.Event()
        is_first.set()

        def lose(point: PausePoint) -> None:
            if point is PausePoint.BEFORE_DATABASE_COMMIT and is_publisher() and not is_first.is_set():
                is_lost.set()
                database.lose_commit(applied=False)

        async def read(lost_commits: LostCommits, timeout_ms: int) -> PreparedTxnState:
            if not pool.pool.counts.background_failures:
                raise psycopg.OperationalError("the database restarts")
            with database.aside.begin() as connection:
                connection.execute(sa.text("DELETE FROM kafka_transaction_outbox"))
            monkeypatch.setattr(outbox_publisher, "_IDLE_S_TO_SETTLE", 0.0)
            return await read_locked(lost_commits, timeout_ms)

        monkeypatch.setattr(LostCommits, "_read_locked", read)
        with (
            outbox_pool(site.scenario, Outbox(publishes=False)) as other,
            PsycopgDualWriter(
                conninfo_of(database.engine.url), **settings_for(site.scenario, pause=lose, resolve_timeout_ms=100)
            ) as pool,
        ):
            pool.pool.start()
            for number in (0, 1):  # the first one is settled at once, by the recovery that publishes it
                write(other, site.scenario, number)
                assert_published(site.scenario, *range(number + 1))
            assert not site.is_settled()
            monkeypatch.setattr(KafkaParticipant, "bounded_ms", None)
            is_first.clear()
            write(other, site.scenario, 2)
            until(is_lost.is_set)
            until(site.is_settled)
        assert in_order(site.scenario) == ["0", "1"]
