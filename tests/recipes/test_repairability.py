"""On tiers 3 and 4 a dual write that could not be repaired after an abort is refused before it is decided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Acl, AclOperation, Emulator, Fault, PartitionError, ResourceType
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.client.transactions import manifest as manifests
from dualwrite.errors import (
    ConfigError,
    DualWriteError,
    KafkaUnreachableError,
    RetriableError,
    UnsupportedByBrokerError,
)
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.producer import ConsumerGroupMetadata, TopicPartition
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.publishing import Publishing
from dualwrite.recipes.core.settings import KafkaSettings
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.sqlalchemy.tables import create_lease_table
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import Crash, crash_at
from tests.producer.tiers import BOUNDED, TIERS, World
from tests.recipes.repairs import delete_records, leaves_unsettled
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.topics import read_topic

ME: Final = "User:ANONYMOUS"
METADATA: Final = sa.MetaData()
ROWS: Final = sa.Table("rows", METADATA, sa.Column("value", sa.String(20), primary_key=True))
READS_ALL: Final = Acl.allow(ME, AclOperation.READ, ResourceType.TOPIC, "*")
CONFIGS: Final = Acl.allow(ME, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "*")
WRITES: Final = [
    *(Acl.allow(ME, AclOperation.ALL, kind, "*") for kind in (ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP)),
    Acl.allow(ME, AclOperation.WRITE, ResourceType.TOPIC, "*"),
    Acl.allow(ME, AclOperation.CREATE, ResourceType.TOPIC, "*"),
]
"""A writer's rights on tiers 1 and 2."""


bounded = pytest.mark.parametrize("tier", BOUNDED, ids=lambda tier: tier.name)
unbounded = pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR], ids=lambda tier: tier.name)


@dataclass(frozen=True)
class Write:
    """A block with one row, and records or consumed offsets."""

    value: str
    topics: tuple[str, ...] = ("orders",)
    has_offsets: bool = False

    def send(self, tx: Any) -> None:
        for topic in self.topics:
            tx.send(topic, self.value, "k")
        if self.has_offsets:
            tx.send_offsets({TopicPartition("inputs", 0): 1}, ConsumerGroupMetadata("readers"))


Step = Write | Callable[[], object]
"""A block, or an action between two blocks."""


@dataclass
class Site:
    """A cluster with access control, and a database."""

    world: World
    path: Path
    engine: sa.Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(f"sqlite:///{self.path}")
        METADATA.create_all(self.engine)

    @property
    def emulator(self) -> Emulator:
        return self.world.emulator

    def where(self, **settings: Any) -> dict[str, Any]:
        """Settings of a writer for this cluster."""
        own = {"bootstrap_servers": self.emulator.bootstrap_servers, "max_block_ms": 60_000, "retry_backoff_ms": 5}
        return own | {"linger_ms": 0} | settings

    def grant(self, *acls: Acl) -> None:
        self.emulator.add_acls(*acls)

    def requests(self, name: str = "DescribeConfigs") -> int:
        return sum(row.requests for row in self.emulator.metrics().apis if row.api == name)

    def run(self, *steps: Step, **settings: Any) -> list[DualWriteError | None]:
        """Carry the steps out with one writer; return why each block failed."""
        errors: list[DualWriteError | None] = []
        with DualWriter(self.engine, **self.where(transactional_id="tid", **settings)) as writer:
            for step in steps:
                if not isinstance(step, Write):
                    step()
                    continue
                try:
                    with writer.transaction() as tx:
                        tx.connection.execute(ROWS.insert().values(value=step.value))
                        step.send(tx)
                except DualWriteError as error:
                    errors.append(error)
                else:
                    errors.append(None)
        return errors

    def rows(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(connection.scalars(sa.select(ROWS.c.value)))

    def records(self, topic: str = "orders") -> list[str]:
        self.grant(READS_ALL)
        self.world.settle()
        return sorted(value for _, value in read_topic(self.emulator.bootstrap_servers, topic))

    def assert_both_have(self, *values: str) -> None:
        assert (self.rows(), self.records()) == ([*values], [*values])


@pytest.fixture
def site(tier: Tier, tmp_path: Path) -> Iterator[Site]:
    topics = {"orders": 1, "others": 1, "inputs": 1}
    with Emulator(topics=topics, config=TIERS[tier], clock=VirtualClock(), acls=WRITES) as emulator:
        made = Site(World(emulator, tier), tmp_path / "db")
        yield made
        made.engine.dispose()


def refusal(found: DualWriteError | None) -> str:
    assert type(found) is UnsupportedByBrokerError, repr(found)
    return str(found)


# ---- checks ---------------------------------------------------------------------------------------------------------


@bounded
def test_topics_that_can_be_repaired_are_checked_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.grant(READS_ALL, CONFIGS)
    with caplog.at_level(logging.WARNING, "dualwrite.recipes"):
        assert site.run(Write("a"), Write("b"), Write("c", ("orders", "others")), Write("d")) == [None] * 4
    assert site.requests() == 2  # one when each topic is first used
    assert site.records("others") == ["c"]
    assert caplog.messages == []
    site.assert_both_have("a", "b", "c", "d")


@bounded
def test_without_read_a_block_is_refused_until_the_right_is_granted(site: Site, tier: Tier) -> None:
    site.grant(CONFIGS)
    refused = Write("refused", ("others", "orders"))
    errors = site.run(refused, Write("again", ("others", "orders")), lambda: site.grant(READS_ALL), Write("granted"))
    for error in errors[:2]:
        text = refusal(error)
        assert f"this cluster is tier {int(tier)}: it aborts a prepared transaction 900000 ms" in text
        assert "In topic 'others' that cannot work: this client has no READ on it" in text
        assert "Neither side was changed: grant READ on the topic to this client" in text
        assert "delivery=Outbox()" in text
    assert errors[2:] == [None]
    assert site.records("others") == []
    site.assert_both_have("granted")


@bounded
@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
def test_a_compacted_topic_is_refused(site: Site, tier: Tier, policy: str) -> None:
    site.grant(READS_ALL, CONFIGS)
    site.emulator.set_config({"cleanup.policy": policy}, topic="orders")

    def delete_only() -> None:
        site.emulator.set_config({"cleanup.policy": "delete"}, topic="orders")

    refused, later = site.run(Write("refused"), delete_only, Write("later"))
    text = refusal(refused)
    assert f"tier {int(tier)}" in text
    assert f"In topic 'orders' that cannot work: its cleanup.policy is '{policy}'" in text
    assert "take 'compact' out of its cleanup.policy, or let a pool with delivery=Outbox() publish" in text
    assert later is None
    site.assert_both_have("later")


@bounded
def test_an_unreadable_topic_policy_is_warned_of_once_for_each_topic(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.grant(READS_ALL)
    with caplog.at_level(logging.WARNING, "dualwrite.recipes"):
        assert site.run(Write("a"), Write("b"), Write("c", ("others",))) == [None] * 3
    assert [message.partition(":")[0] for message in caplog.messages] == ["topic 'orders'", "topic 'others'"]
    assert "the right that is missing is DESCRIBE_CONFIGS on the topic 'orders'" in caplog.messages[0]


@bounded
def test_a_topic_that_takes_no_old_records_is_warned_of_once(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    limit = 2**62  # the clock of the broker stands still, years ago
    site.grant(READS_ALL, CONFIGS)
    site.emulator.set_config({"message.timestamp.before.max.ms": str(limit)}, topic="orders")
    with caplog.at_level(logging.WARNING, "dualwrite.recipes"):
        assert site.run(Write("a"), Write("b")) == [None] * 2
    (warning,) = caplog.messages
    assert f"topic 'orders' refuses records older than {limit} ms" in warning


@bounded
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_topic_that_sending_creates_is_checked_before_the_decision(site: Site, policy: str) -> None:
    site.grant(READS_ALL, CONFIGS)
    site.emulator.set_config({"log.cleanup.policy": policy}, node_id=0)
    (found,) = site.run(Write("v", ("new",)))
    if policy == "compact":
        assert "In topic 'new' that cannot work: its cleanup.policy is 'compact'" in refusal(found)
    else:
        assert found is None
    expected = [] if policy == "compact" else ["v"]
    assert (site.rows(), site.records("new")) == (expected, expected)


@bounded
def test_consumed_offsets_belong_in_the_database(site: Site, tier: Tier) -> None:
    site.grant(READS_ALL, CONFIGS)
    refused, alone, later = site.run(
        Write("refused", has_offsets=True), Write("alone", (), has_offsets=True), Write("later")
    )
    for error in (refused, alone):
        text = refusal(error)
        assert f"tier {int(tier)}" in text
        assert "With consumed offsets of group 'readers' that cannot work" in text
        assert "(OffsetsInDatabase)" in text
        assert "Outbox()" not in text
    assert later is None
    site.assert_both_have("later")


# ---- manifests -----------------------------------------------------------------------------------------------------

DUPLICATE: Final = PartitionError(46)  # DUPLICATE_SEQUENCE_NUMBER, without an offset


def ready(site: Site) -> None:
    site.grant(READS_ALL, CONFIGS)


@bounded
def test_an_unknown_manifest_refuses_the_block_before_the_decision(site: Site, tier: Tier) -> None:
    ready(site)

    def forget_where() -> None:
        site.emulator.faults.add(Fault(api="Produce", action=DUPLICATE, topic="orders"))

    before, refused, repeated = site.run(Write("before"), forget_where, Write("refused"), Write("repeated"))
    assert before is None
    assert type(refused) is RetriableError
    assert f"This cluster is tier {int(tier)}: it aborts a prepared transaction 900000 ms" in str(refused)
    assert "neither side was changed: repeat the dual write" in str(refused)
    assert repeated is None
    site.assert_both_have("before", "repeated")


@bounded
def test_a_manifest_that_is_too_long_refuses_the_block_before_the_decision(
    site: Site, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready(site)

    def leave_no_room_for_another_topic() -> None:
        with site.engine.connect() as connection:
            text = connection.scalar(sa.text("SELECT manifest FROM kafka_transaction_state"))
        monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", len(text) + 8)

    before, refused, later = site.run(
        Write("before"),
        leave_no_room_for_another_topic,
        Write("refused", ("orders", "others")),
        Write("later"),
    )
    assert (before, later) == (None, None)
    text = refusal(refused)
    assert f"this cluster is tier {int(tier)}: it aborts a prepared transaction 900000 ms" in text
    assert "In 2 partitions at once that cannot work: the manifest" in text
    assert "Neither side was changed: write to fewer partitions in one block, or let a pool" in text
    assert "delivery=Outbox()" in text
    assert site.records("others") == []
    site.assert_both_have("before", "later")


@pytest.mark.parametrize("tier", [Tier.STORED_PAIR])
def test_a_pool_counts_unprovable_ids(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Publishing, "settle_before_leaving", leaves_unsettled)
    ready(site)
    create_lease_table(site.engine)
    where = site.where()
    with DualWriter(site.engine, prefix="pool", lease_ms=600_000, **where) as pool:
        with pool.transaction() as tx:
            Write("known").send(tx)
        assert (pool.status.no_manifest_total, pool.status.unproven_total) == (0, 0)
        with monkeypatch.context() as patched:
            patched.setattr(manifests, "MAX_MANIFEST_BYTES", 20)
            with pool.transaction() as tx:
                Write("unknown").send(tx)
        assert (pool.status.no_manifest_total, pool.status.unproven_total) == (1, 0)
        with pool.transaction() as tx:
            Write("gone").send(tx)
        slots = pool.pool.registry.all_slots()
    assert len(slots) == 1
    site.world.ready(transactional_id=str(slots[0].coordinator.owned.kafka_id)).close()  # erases the trace
    site.grant(Acl.allow(ME, AclOperation.DELETE, ResourceType.TOPIC, "*"))
    delete_records(site.emulator.bootstrap_servers, "orders")
    with DualWriter(site.engine, prefix="pool", lease_ms=600_000, **where) as pool:
        pool.recover()
        with pool.transaction() as tx:
            Write("later").send(tx)
        assert (pool.status.no_manifest_total, pool.status.unproven_total) == (0, 1)


@bounded
@pytest.mark.parametrize("is_known", [True, False])
def test_owed_records_wait_for_a_manifest_that_can_be_known(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_known: bool
) -> None:
    """It was decided. Another attempt may tell the places of the records; it does not make a manifest shorter."""
    ready(site)
    where = site.where(transactional_id="tid")
    with (
        DualWriter(site.engine, pause=crash_at(PausePoint.AFTER_DATABASE_COMMIT), **where) as writer,
        pytest.raises(Crash),
        writer.transaction() as tx,
    ):
        Write("owed").send(tx)
        tx.connection.execute(ROWS.insert().values(value="owed"))
    site.world.abort_by_timeout()
    with DualWriter(site.engine, **where) as writer:
        if is_known:
            monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", 20)
        else:
            site.emulator.faults.add(Fault(api="Produce", action=DUPLICATE, topic="orders"))
            with pytest.raises(RetriableError, match="neither side was changed"):
                writer.recover()
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
    assert is_known is any("without a manifest" in message for message in caplog.messages)
    site.assert_both_have("owed")


@unbounded
def test_without_a_bound_nothing_is_checked(site: Site) -> None:
    site.emulator.set_config({"cleanup.policy": "compact"}, topic="orders")
    site.grant(Acl.allow(ME, AclOperation.READ, ResourceType.TOPIC, "inputs"))
    assert site.run(Write("a"), Write("b", has_offsets=True)) == [None, None]
    assert site.requests() == 0
    assert site.rows() == ["a", "b"]


def test_the_time_of_a_prepared_transaction_needs_no_acceptance_which_cannot_be_given() -> None:
    where = {"bootstrap_servers": "127.0.0.1:1", "transaction_timeout_ms": 1000}
    assert KafkaSettings("tid", where).producer["transaction_timeout_ms"] == 1000
    for name in ("accept_bounded_guarantee", "accept.bounded.guarantee"):
        with pytest.raises(ConfigError, match="accept_bounded_guarantee cannot be set here"):
            KafkaSettings("tid", where | {name: True})


# ---- pools, other backends, and changes of the cluster ---------------------------------------------------------------


@pytest.mark.parametrize("tier", [Tier.BOUNDED])
def test_a_pool_checks_a_topic_once_for_all_its_ids(site: Site) -> None:
    site.grant(READS_ALL, CONFIGS)
    create_lease_table(site.engine)
    where = site.where()
    with DualWriter(site.engine, prefix="pool", lease_ms=600_000, **where) as pool:
        with pool.transaction() as outer:
            outer.send("orders", "first id")
            with pool.transaction() as inner:
                inner.send("orders", "second id")
        assert outer.transactional_id != inner.transactional_id
    assert site.requests() == 1
    assert site.records() == ["first id", "second id"]


@pytest.mark.parametrize("tier", [Tier.BOUNDED])
def test_a_pool_does_not_try_other_ids_for_a_refused_topic(site: Site) -> None:
    site.grant(CONFIGS)
    create_lease_table(site.engine)
    where = site.where()
    with DualWriter(site.engine, prefix="pool", lease_ms=600_000, **where) as pool:
        with pytest.raises(UnsupportedByBrokerError, match="no READ"), pool.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value="refused"))
            tx.send("orders", "refused")
        assert tx.outcome is Outcome.ROLLED_BACK
        assert site.requests() == 1
    site.assert_both_have()


@pytest.mark.parametrize("tier", [Tier.BOUNDED])
def test_a_row_that_was_written_ahead_is_rolled_back_with_a_refused_block(
    site: Site, postgres: PostgresDatabase
) -> None:
    """With psycopg a ready writer writes its row before the records go out."""
    site.grant(READS_ALL, CONFIGS)
    site.emulator.set_config({"cleanup.policy": "compact"}, topic="others")
    where = site.where(transactional_id="tid")
    with PsycopgDualWriter(conninfo_of(postgres.url), create_table=True, **where) as writer:
        for topic, value in (("orders", "a"), ("orders", "b")):
            with writer.transaction() as tx:
                tx.send(topic, value)
        with pytest.raises(UnsupportedByBrokerError, match="In topic 'others'"), writer.transaction() as tx:
            tx.send("others", "refused")
        with writer.transaction() as tx:
            tx.send("orders", "c")
    assert (site.records(), site.records("others")) == (["a", "b", "c"], [])


@pytest.mark.parametrize("tier", [Tier.STORED_PAIR])
def test_a_cluster_that_falls_to_a_bounded_tier_is_checked_from_then_on(site: Site) -> None:
    site.grant(CONFIGS)
    where = site.where(transactional_id="tid")
    with DualWriter(site.engine, metadata_max_age_ms=1, **where) as writer:
        with writer.transaction() as tx:
            tx.send("orders", "before")
        site.emulator.set_transaction_version(1)
        errors: list[DualWriteError] = []

        def refused() -> bool:
            try:
                with writer.transaction() as tx:
                    tx.send("orders", "on the way")
            except UnsupportedByBrokerError as error:
                errors.append(error)
            return bool(errors)

        until(refused)
        assert "this cluster is tier 4" in str(errors[0])
        assert "no READ" in str(errors[0])


@bounded
def test_kafka_goes_away_before_a_topic_is_checked(site: Site) -> None:
    site.grant(READS_ALL, CONFIGS)

    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_BEGIN:
            site.emulator.crash_node(0)

    (error,) = site.run(Write("refused"), pause=pause, max_block_ms=600_000)
    assert type(error) is KafkaUnreachableError, repr(error)
    assert str(error).startswith("neither side was changed: ")
    site.emulator.start_node(0)
    assert site.run(Write("later")) == [None]
    site.assert_both_have("later")


@bounded
def test_owed_records_are_published_although_their_topic_has_changed(site: Site) -> None:
    """The owed dual write was decided; a block that is refused meanwhile does not lose its records."""
    site.grant(READS_ALL, CONFIGS)
    where = site.where(transactional_id="tid")
    dies = crash_at(PausePoint.AFTER_DATABASE_COMMIT)
    with DualWriter(site.engine, pause=dies, **where) as writer, pytest.raises(Crash), writer.transaction() as tx:
        tx.connection.execute(ROWS.insert().values(value="owed"))
        tx.send("orders", "owed", "k")
    site.world.abort_by_timeout()
    assert site.records() == []
    site.emulator.set_config({"cleanup.policy": "compact"}, topic="orders")
    with DualWriter(site.engine, **where) as writer:
        for _ in range(2):
            with pytest.raises(UnsupportedByBrokerError, match="cleanup"), writer.transaction() as tx:
                tx.send("orders", "refused")
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
    site.assert_both_have("owed")
