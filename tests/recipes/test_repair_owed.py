"""Blocks under an id that owes records: a failure before the decision loses nothing, and the next use repairs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.errors import AbortableError, FencedError, OutcomeUnknown, RetriableError, StateRowError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.producer import ConsumerGroupMetadata, TopicPartition
from dualwrite.recipes.core.leases import HeldLease
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.steps import DualWriteSteps
from dualwrite.recipes.core.store import DatabaseTransaction
from dualwrite.recipes.core.stored_blocks import BlockStore
from dualwrite.recipes.pool.maintenance import PoolMaintenance
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AnyScenario, AtPoint, Crash, InjectedError
from tests.producer.tiers import TIERS
from tests.recipes.pools import AnyPool, LeaseTable, make_pool, written
from tests.recipes.pools import scenario as scenario
from tests.recipes.pools import write as write_event
from tests.recipes.repairs import Site, Way, let_end, site_of
from tests.recipes.test_repair import UNTIL_DECIDED, every_tier, first, site, store, tier
from tests.recipes.tiers import ROWS, rows, write
from tests.support.conditions import until
from tests.support.databases import Database
from tests.support.kafka_ids import kafka_id_of
from tests.support.topics import read_topic

__all__ = ["site", "store", "tier"]  # fixtures


def raise_injected() -> None:
    raise InjectedError


def leave_owed(site: Site, value: str = "decided") -> None:
    """Leave a decided dual write of a gone process, aborted by Kafka."""
    site.decided(value)
    let_end(site, first(Way.TIMEOUT, site.world.tier))


# ---- one id ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", UNTIL_DECIDED)
@every_tier
def test_a_block_that_fails_at_any_point_forgets_nothing(site: Site, at: PausePoint) -> None:
    site.write("before")
    leave_owed(site)
    with site.writer(AtPoint(at, raise_injected)) as writer:
        with pytest.raises(InjectedError):
            write(writer, "refused")
        write(writer, "later")
        write(writer, "last")
    site.assert_agreed("before", "decided", "later", "last")


def test_an_interruption_while_the_take_over_is_reported_forgets_nothing(store: Database) -> None:
    """The id is READY then, and owes: forgetting the owed records would lose them with the next block."""
    with site_of(Tier.KEEP_PREPARED, store) as site:
        site.write("before")
        leave_owed(site)
        with site.writer() as writer:
            slot = writer.coordinator.owned.slot

            def moved(to: SlotState) -> None:
                if to is SlotState.READY:
                    slot._moved = None
                    raise KeyboardInterrupt

            slot._moved = moved
            with pytest.raises(KeyboardInterrupt):
                write(writer, "struck")
            write(writer, "later")
        site.assert_agreed("before", "decided", "later")


@pytest.mark.parametrize("at", UNTIL_DECIDED)
@every_tier
def test_a_recovery_that_fails_at_any_point_forgets_nothing(site: Site, at: PausePoint) -> None:
    site.write("before")
    leave_owed(site)
    with site.writer(AtPoint(at, raise_injected)) as writer:
        with pytest.raises(InjectedError):
            writer.recover()
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        write(writer, "later")
    site.assert_agreed("before", "decided", "later")


@pytest.mark.parametrize("applied", [True, False])
@every_tier
def test_a_lost_commit_of_a_block_that_repairs(site: Site, store: Database, applied: bool) -> None:
    site.write("before")
    leave_owed(site)
    strike = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lambda: store.lose_commit(applied=applied))
    with site.writer_through_faults(strike) as writer:
        with nullcontext() if applied else pytest.raises(sa.exc.OperationalError):
            write(writer, "lost")
        write(writer, "later")
    lost = ["lost"] if applied else []
    site.assert_agreed("before", "decided", *lost, "later")


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("via", ["write", "recover"])
@pytest.mark.parametrize("applied", [True, False])
@every_tier
def test_an_unknown_outcome_whose_transaction_is_aborted_meanwhile(
    site: Site, store: Database, tier: Tier, applied: bool, via: str
) -> None:
    """The commit got no response, the database was away, and the broker has aborted; no later block hears of a loss."""
    site.write("before")
    leave_owed(site)

    def go_away() -> None:
        store.lose_commit(applied=applied)
        store.refuse_new_connections()

    strike = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, go_away)
    with site.writer_through_faults(strike) as writer:
        with pytest.raises(OutcomeUnknown):
            write(writer, "unknown")
        assert writer.state is SlotState.UNRESOLVED
        let_end(site, first(Way.TIMEOUT, tier))
        store.come_back()
        if via == "recover":
            assert [found.outcome for found in writer.recover()] == [
                Outcome.REPAIRED if applied else Outcome.ROLLED_BACK
            ]
        if applied:
            write(writer, "later")
        elif via == "write":
            with nullcontext() if tier is not Tier.BOUNDED_V1 else pytest.raises(FencedError):
                write(writer, "later")  # on tier 4 the abort that the broker made first looks like another process
    if "later" not in rows(store.aside):
        site.write("later")
    unknown = ["unknown"] if applied else []
    site.assert_agreed("before", "decided", *unknown, "later")


def test_a_block_whose_own_record_is_refused(site: Site) -> None:
    """The fault is the block's; the owed records of its transaction are sent again with the next block."""
    site.emulator.set_config({"max.message.bytes": "500"}, topic="others")
    leave_owed(site)
    with site.writer() as writer:
        with pytest.raises(AbortableError), writer.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value="refused"))
            tx.send("others", "x" * 1_000, partition=0)
        write(writer, "later")
    site.assert_agreed("decided", "later")


def test_a_block_without_records_repairs_nothing_and_hinders_nothing(site: Site) -> None:
    leave_owed(site)
    with site.writer() as writer:
        with writer.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value="database only"))
        assert site.committed() == []
        write(writer, "later")
    assert site.committed() == ["decided", "later"]


@pytest.mark.usefixtures("nothing_refused")
def test_a_block_with_consumed_offsets_does_not_carry_owed_records(site: Site) -> None:
    """Together they could not be published again; apart they can, or need not."""

    def consume(writer: DualWriter, value: str) -> None:
        with writer.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value=value))
            tx.send("orders", value, partition=0)
            tx.send_offsets({TopicPartition("others", 0): 1}, ConsumerGroupMetadata("group"))

    leave_owed(site)
    with site.writer() as writer:
        for _ in range(2):
            with pytest.raises(RetriableError, match=r"call recover\(\), then repeat"):
                consume(writer, "refused")
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        consume(writer, "consumed")
    site.assert_agreed("decided", "consumed")


def test_an_application_that_fails_its_block_repairs_nothing(site: Site) -> None:
    leave_owed(site)
    with site.writer() as writer:
        with pytest.raises(sa.exc.IntegrityError):
            write(writer, "decided")  # the key is there
        assert site.committed() == []
        write(writer, "later")
    site.assert_agreed("decided", "later")


# ---- pools ----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=Tier, ids=[tier.name for tier in Tier])
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A broker of each tier, in place of the usual one."""
    config: BrokerConfig = TIERS[request.param]
    with Emulator(config=config) as running:
        yield running


def operator_aborts(scenario: AnyScenario) -> None:
    """Abort the open transaction of the pool's first id."""
    with TransactionAdmin(bootstrap_servers=scenario.emulator.bootstrap_servers) as admin:
        admin.force_terminate_transaction(kafka_id_of(scenario.database.aside, scenario.transactional_id))


def lose_in_doubt(scenario: AnyScenario, pool: AnyPool, strike: AtPoint, number: int) -> None:
    """Decide a dual write of the pool, and fail before Kafka's commit; `strike` is called then."""
    with pytest.raises(InjectedError):
        write_event(pool, scenario, number)
    assert strike.struck


def test_the_background_of_a_pool_repairs(scenario: AnyScenario) -> None:
    def abort_and_fail() -> None:
        operator_aborts(scenario)
        raise InjectedError

    strike = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, abort_and_fail)
    with make_pool(scenario, pause=strike) as pool:
        lose_in_doubt(scenario, pool, strike, 1)
        until(lambda: not pool.status.set_aside)
        assert written(scenario) == {"1"}
        write_event(pool, scenario, 2)
    assert written(scenario) == {"1", "2"}
    scenario.assert_nothing_open()


def test_a_pool_repairs_transactions_of_a_dead_pool(scenario: AnyScenario) -> None:
    def crash() -> None:
        operator_aborts(scenario)
        raise Crash

    strike = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, crash)
    with make_pool(scenario) as heir:
        dead = make_pool(scenario, pause=strike)
        dead.pool.maintenance.begin_no_more()
        with pytest.raises(Crash):
            write_event(dead, scenario, 1)
        LeaseTable(scenario).expire()
        (resolution,) = heir.recover()
        assert resolution.outcome is Outcome.REPAIRED
        write_event(heir, scenario, 2)
        assert written(scenario) == {"1", "2"}


def test_a_pool_moves_a_block_to_another_id_when_owed_records_are_refused(scenario: AnyScenario) -> None:
    """The block succeeds; the owed records stay owed, until the topic accepts them again."""
    if not isinstance(scenario, PsycopgScenario) and scenario.database.engine.dialect.name == "sqlite":
        pytest.skip("no lease can be taken while the block holds the lock of the whole file")

    def refuse_and_fail() -> None:
        operator_aborts(scenario)
        scenario.emulator.set_config({"max.message.bytes": "60"}, topic=scenario.topic)
        raise InjectedError

    other = f"{scenario.topic}-other"
    scenario.emulator.create_topic(other)
    with make_pool(scenario) as pool:
        with pool.transaction() as tx:
            tx.send(other, value="before")
        with scenario.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, refuse_and_fail)) as rival:
            assert isinstance(scenario.write(rival, 1).error, InjectedError)
        with pool.transaction() as tx:
            tx.send(other, value="moved")
        assert tx.transactional_id != scenario.transactional_id
        assert pool.status.moved_total == 1
        assert [value for _, value in read_topic(scenario.emulator.bootstrap_servers, other)] == ["before", "moved"]
        assert pool.status.set_aside == (scenario.transactional_id,)
        scenario.emulator.set_config({"max.message.bytes": None}, topic=scenario.topic)
        pool.recover()  # at once: the background tries it once a minute if it has met the refusal
        until(lambda: not pool.status.set_aside)
    scenario.assert_both_sides_agree()


def test_an_id_that_owes_is_never_ready_between_two_uses(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool takes a READY id for idle, and would leave it so."""

    async def unreadable(*_: object) -> None:
        raise StateRowError("the stored blocks cannot be read")

    site.decided()
    let_end(site, Way.OPERATOR)
    with site.writer() as writer:
        with monkeypatch.context() as patched, pytest.raises(StateRowError):
            patched.setattr(BlockStore, "oldest", unreadable)
            writer.recover()
        assert writer.state is SlotState.NEW
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
    site.assert_agreed("decided")


def test_a_pool_that_cannot_read_its_lease_forgets_nothing_owed(
    scenario: AnyScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id is taken over by then, and knows its owed records; it must not be given back as if it had none."""
    monkeypatch.setattr(PoolMaintenance, "start", lambda self, *, swept=False: None)
    strike = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, raise_injected)
    with make_pool(scenario, pause=strike) as dead:
        lose_in_doubt(scenario, dead, strike, 1)
    operator_aborts(scenario)
    LeaseTable(scenario).empty()
    look, failures = HeldLease.assert_held, iter([InjectedError()])

    async def fail_once(lease: HeldLease, transactional_id: str, block: DatabaseTransaction) -> None:
        for failure in failures:
            raise failure
        await look(lease, transactional_id, block)

    monkeypatch.setattr(HeldLease, "assert_held", fail_once)
    with make_pool(scenario) as pool, pytest.raises(InjectedError):
        write_event(pool, scenario, 2)
    with make_pool(scenario) as heir:
        (resolution,) = heir.recover()
        assert resolution.outcome is Outcome.REPAIRED
    assert written(scenario) == {"1"}
    scenario.assert_nothing_open()


def test_a_pool_does_not_give_an_id_that_owes_records_back_as_complete(
    scenario: AnyScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block that took it over is interrupted before it begins a transaction: the id is READY."""

    async def interrupted(*_: object) -> None:
        raise InjectedError

    monkeypatch.setattr(PoolMaintenance, "start", lambda self, *, swept=False: None)
    strike = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, raise_injected)
    with make_pool(scenario, pause=strike) as dead:
        lose_in_doubt(scenario, dead, strike, 1)
    operator_aborts(scenario)
    LeaseTable(scenario).free()  # as if the last owner had left nothing open
    with make_pool(scenario) as pool:
        with monkeypatch.context() as patched, pytest.raises(InjectedError):
            patched.setattr(DualWriteSteps, "send", interrupted)
            write_event(pool, scenario, 2)
        assert pool.status.set_aside == (scenario.transactional_id,)
    with make_pool(scenario) as heir:
        (resolution,) = heir.recover()
        assert resolution.outcome is Outcome.REPAIRED
    assert written(scenario) == {"1"}
