"""Take-overs of dual writes on real brokers: sleeping owners, late requests, and operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import MAX_PRODUCER_ID
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import Crash
from tests.interop.wire import Code, Described, Identity, Wire
from tests.recipes.tiers import METADATA, rows
from tests.support.kafka_ids import kafka_id_of

from .clusters import Cluster
from .conftest import NewName
from .reading import create_topics, read_committed

ROWS = METADATA.tables["rows"]


class Site:
    """One transactional id on one cluster, its database, and processes that come and go."""

    def __init__(self, cluster: Cluster, engine: sa.Engine, new_name: NewName) -> None:
        self.cluster = cluster
        self.engine = engine
        self.topic = new_name("topic")
        self.name = new_name("txn")
        self.transactional_id = kafka_id_of(engine, self.name)
        """As Kafka sees it."""
        create_topics(cluster.bootstrap_servers, self.topic)

    @contextmanager
    def writer(self, pause: Callable[[PausePoint], None] | None = None) -> Iterator[DualWriter]:
        with DualWriter(self.engine, pause=pause, **self.cluster.settings_of_writer(self.name)) as writer:
            yield writer

    def write(self, writer: DualWriter, value: str) -> None:
        with writer.transaction() as tx:
            tx.connection.execute(ROWS.insert().values(value=value))
            tx.send(self.topic, value)

    def decide_and_die(self, value: str) -> None:
        """A process between its two commits."""

        def pause(point: PausePoint) -> None:
            if point is PausePoint.AFTER_DATABASE_COMMIT:
                raise Crash

        with self.writer(pause) as writer, pytest.raises(Crash):
            self.write(writer, value)

    def recovered(self) -> Outcome:
        with self.writer() as writer:
            return next((found.outcome for found in writer.recover()), Outcome.NOTHING)

    def described(self) -> Described:
        return self.cluster.wait_until_settled(self.transactional_id)

    def assert_both_sides_agree(self, *values: str) -> None:
        self.cluster.wait_until_settled(self.transactional_id)
        records = read_committed({"bootstrap.servers": self.cluster.bootstrap_servers}, self.topic)
        assert sorted(value.decode() for value in records) == rows(self.engine) == sorted(values)


@pytest.fixture
def site(cluster: Cluster, new_name: NewName, tmp_path: Path) -> Iterator[Site]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'db'}")
    METADATA.create_all(engine)
    yield Site(cluster, engine, new_name)
    engine.dispose()


only_by_exact_end = pytest.mark.parametrize(
    "cluster", [Tier.STORED_PAIR, Tier.BOUNDED], indirect=True, ids=["tier 2", "tier 3"]
)
only_by_claim = pytest.mark.parametrize("cluster", [Tier.BOUNDED_V1], indirect=True, ids=["tier 4"])


def test_an_idle_owner_commits_the_decision_of_its_successor(site: Site) -> None:
    with site.writer() as older:
        site.write(older, "1")
        site.decide_and_die("2")
        site.write(older, "3")
        assert older.state is SlotState.READY
    site.assert_both_sides_agree("1", "2", "3")


@only_by_exact_end
def test_a_late_end_touches_nothing_of_a_successor(site: Site) -> None:
    """A frozen taker's late request: EndTxn(abort) with the pair that it found, and with the next one."""
    with site.writer() as writer:
        site.write(writer, "before")
    found = site.described().identity
    site.decide_and_die("of the successor")
    with Wire(site.cluster.bootstrap_servers) as wire:
        for ahead in (0, 1):
            late = Identity(found.producer_id, found.producer_epoch + ahead)
            assert wire.end(site.transactional_id, late, commit=False).error is Code.PRODUCER_FENCED
        assert wire.describe(site.transactional_id).state == "Ongoing"
    assert site.recovered() is Outcome.COMMITTED
    site.assert_both_sides_agree("before", "of the successor")


@only_by_exact_end
def test_records_aborted_by_a_late_end_of_the_old_owner_are_published_again(site: Site) -> None:
    """The old owner was not fenced, so its next transaction has the very pair that was found."""
    late: list[Identity] = []

    def pause(point: PausePoint) -> None:
        if late and point is PausePoint.AFTER_DATABASE_COMMIT:
            with Wire(site.cluster.bootstrap_servers) as wire:
                assert wire.end(site.transactional_id, late.pop(), commit=False).error is Code.NONE
            site.cluster.wait_for_state(site.transactional_id, "CompleteAbort")

    with site.writer(pause) as older:
        site.write(older, "before")
        late.append(site.described().identity)
        site.write(older, "aborted")
    site.assert_both_sides_agree("before", "aborted")


@only_by_claim
def test_records_aborted_by_a_late_claim_are_published_again(site: Site) -> None:
    """InitProducerId aborts an open transaction, whichever pair it names."""
    with site.writer() as writer:
        site.write(writer, "before")
    found = site.described().identity
    site.decide_and_die("aborted")
    with Wire(site.cluster.bootstrap_servers) as wire:
        assert wire.init(site.transactional_id, found, version=4).error is Code.CONCURRENT_TRANSACTIONS
    site.cluster.wait_for_state(site.transactional_id, "CompleteAbort")
    with Wire(site.cluster.bootstrap_servers) as wire:
        assert wire.init(site.transactional_id, found, version=4).error is Code.PRODUCER_FENCED
    assert site.recovered() is Outcome.REPAIRED
    site.assert_both_sides_agree("before", "aborted")


def test_an_unused_pair_creates_an_id_and_changes_no_other_id(site: Site) -> None:
    nobody = Identity(MAX_PRODUCER_ID, 0)
    with Wire(site.cluster.bootstrap_servers) as wire:
        assert wire.init_ok(site.transactional_id, nobody, version=4).producer_epoch == 0
        assert wire.init(site.transactional_id, nobody, version=4).error is Code.PRODUCER_FENCED
    site.decide_and_die("open")
    with Wire(site.cluster.bootstrap_servers) as wire:
        assert wire.init(site.transactional_id, nobody, version=4).error is Code.PRODUCER_FENCED
        assert wire.describe(site.transactional_id).state == "Ongoing"
    assert site.recovered() is Outcome.COMMITTED
    site.assert_both_sides_agree("open")


def test_owners_that_take_turns_on_one_id(site: Site) -> None:
    with site.writer() as one, site.writer() as other:
        for number in range(3):
            site.write(one, f"{number}a")
            site.write(other, f"{number}b")
    site.assert_both_sides_agree(*(f"{number}{who}" for number in range(3) for who in "ab"))
