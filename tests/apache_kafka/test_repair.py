"""A decided transaction that real brokers abort is published again, once; a committed one never is.

A process dies between its database's commit and Kafka's. Its transaction is aborted by the broker's timeout, where
prepared transactions have one, or by hand, with or without a trace at the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
import sqlalchemy as sa
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.admin import TransactionAdmin
from dualwrite.errors import DatabaseWentBackError, FencedError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer
from dualwrite.producer import TopicPartition as Partition
from dualwrite.recipes.core.leases import transactional_id_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.recovery.service import Action, RecoveryService
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from tests.crash.scenario import AtPoint, event_texts
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, event_bodies
from tests.support.kafka_ids import kafka_id_of
from tests.support.real_kafkas import OLDER, RELEASED, real_kafka
from tests.support.servers.apache_kafka import ApacheKafka
from tests.support.threads import in_threads

from . import worker
from .backends import BACKENDS, SQL
from .clusters import Cluster, killed
from .conftest import NewName, running
from .reading import create_topics, read_committed
from .test_cli import call

TIMEOUT_MS: Final = 2_000
DECIDED: Final = PausePoint.AFTER_DATABASE_COMMIT
BOUNDED: Final = pytest.mark.parametrize(
    "cluster", [Tier.BOUNDED, Tier.BOUNDED_V1], indirect=True, ids=["tier 3", "tier 4"]
)
FOREIGN: Final = "of another program"


class World:
    """One id, one topic and one database, and a cluster."""

    def __init__(self, cluster: Cluster, database: PostgresDatabase, name: str, topic: str) -> None:
        self.cluster = cluster
        self.database = database
        self.url = database.url.render_as_string(hide_password=False)
        self.transactional_id = name
        self.topic = topic
        self.settings = cluster.settings_of_writer(name)

    def time_out_soon(self) -> None:
        """Let prepared transactions time out from now on, if they have a timeout here."""
        if self.cluster.is_bounded:
            self.settings["transaction_timeout_ms"] = TIMEOUT_MS

    @property
    def pool_settings(self) -> dict[str, Any]:
        """Settings of a pool whose first id is this world's."""
        prefix = self.transactional_id.removesuffix(transactional_id_of("", 0))
        settings = self.settings | {"prefix": prefix, "max_writers": 1, "lease_ms": 1_000}
        del settings["transactional_id"]
        return settings

    @property
    def kafka_id(self) -> str:
        return kafka_id_of(self.database.engine, self.transactional_id)

    def writer(self, backend: str = SQL, pause: Callable[[PausePoint], None] | None = None) -> Any:
        return BACKENDS[backend].make(self.url, self.settings, pause)

    def decide_and_die(self, backend: str = SQL, point: PausePoint = DECIDED) -> None:
        killed(worker.dual_write, point, self.url, self.settings, self.topic, backend)

    def published(self) -> list[str]:
        """The values that a consumer with read_committed gets, in order, without those of other programs."""
        values = read_committed({"bootstrap.servers": self.cluster.bootstrap_servers}, self.topic)
        return [text for value in values if (text := value.decode()) != FOREIGN]

    def assert_equal(self, *numbers: int) -> None:
        """Both sides have these events, once and in order."""
        expected = [text for number in numbers for text in event_texts(str(number))]
        self.cluster.wait_until_settled(self.kafka_id)
        assert (event_bodies(self.database), self.published()) == (expected, expected)

    def service(self, **settings: Any) -> RecoveryService:
        return RecoveryService(
            self.database.engine,
            transactional_ids=[self.transactional_id],
            min_age_ms=0,
            bootstrap_servers=self.cluster.bootstrap_servers,
            **settings,
        )


@pytest.fixture
def world(cluster: Cluster, postgres: PostgresDatabase, new_name: NewName) -> World:
    topic = new_name("topic")
    create_topics(cluster.bootstrap_servers, topic)
    return World(cluster, postgres, transactional_id_of(new_name("writer"), 0), topic)


# ---- how Kafka aborts ----------------------------------------------------------------------------------------


def by_timeout(world: World) -> None:
    world.cluster.wait_for_state(world.kafka_id, "CompleteAbort")


def by_operator(world: World) -> None:
    with TransactionAdmin(bootstrap_servers=world.cluster.bootstrap_servers) as admin:
        admin.force_terminate_transaction(world.kafka_id)
    world.cluster.wait_for_state(world.kafka_id, "CompleteAbort")


def by_initialising(world: World) -> None:
    """Another program uses the same id: no trace is left of how the transaction ended."""
    with foreign_producer(world):
        world.cluster.wait_for_state(world.kafka_id, "Empty")


def foreign_producer(world: World, **settings: Any) -> Producer:
    producer = Producer(
        bootstrap_servers=world.cluster.bootstrap_servers,
        transactional_id=world.kafka_id,
        max_block_ms=60_000,
        **settings,
    )
    producer.init_transactions()
    return producer


ABORTS: Final[Mapping[str, Callable[[World], None]]] = {
    "timeout": by_timeout,
    "operator": by_operator,
    "initialised": by_initialising,
}

# ---- publishing again ----------------------------------------------------------------------------------------


def by_next_use(world: World, backend: str) -> None:
    with world.writer(backend) as writer:
        assert BACKENDS[backend].write(writer, world.topic, 2).error is None
        assert writer.recover() == []
    world.assert_equal(1, 2)


def by_recover(world: World, backend: str) -> None:
    with world.writer(backend) as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        assert writer.recover() == []
    world.assert_equal(1)


def by_service(world: World, backend: str) -> None:
    with world.service() as service:
        planned = service.plan().found
        assert [(each.action, each.changed) for each in planned] == [(Action.REPAIR, False)]
        assert world.published() == []
        done = service.recover().found
        assert [(each.action, each.changed) for each in done] == [(Action.REPAIR, True)], done
        assert service.recover().found == ()
    world.assert_equal(1)


def by_command(world: World, backend: str) -> None:
    command = (
        *("recover", "--bootstrap-server", world.cluster.bootstrap_servers, "--database", world.url),
        *("--transactional-id", world.transactional_id, "--min-age", 0),
    )
    code, planned = call(*command)
    assert (code, [each["action"] for each in planned["found"]]) == (1, ["repair"])
    code, done = call(*command, "--apply")
    assert (code, [(each["action"], each["changed"]) for each in done["found"]]) == (0, [("repair", True)])
    assert call(*command, "--apply")[1]["found"] == []
    world.assert_equal(1)


REPAIRS: Final[Mapping[str, Callable[[World, str], None]]] = {
    "next use": by_next_use,
    "recover": by_recover,
    "service": by_service,
    "command": by_command,
}


# ---- aborted although decided --------------------------------------------------------------------------------


@BOUNDED
@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_transaction_aborted_by_its_timeout(backend: str, repair: str, world: World) -> None:
    world.time_out_soon()
    world.decide_and_die(backend)
    by_timeout(world)
    REPAIRS[repair](world, backend)


@pytest.mark.parametrize("repair", REPAIRS)
@pytest.mark.parametrize("abort", ["operator", "initialised"])
def test_aborted_by_hand(abort: str, repair: str, world: World) -> None:
    world.decide_and_die()
    ABORTS[abort](world)
    REPAIRS[repair](world, SQL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_background_of_a_pool_repairs(backend: str, world: World) -> None:
    world.time_out_soon()
    killed(worker.dual_write, DECIDED, world.url, world.pool_settings, world.topic, backend)
    ABORTS["timeout" if world.cluster.is_bounded else "operator"](world)
    with BACKENDS[backend].make(world.url, world.pool_settings, None) as pool:
        pool.recover()  # begins the background; the lease of the dead process may not have expired yet
        until(lambda: len(world.published()) > 0)
        world.assert_equal(1)
        assert BACKENDS[backend].write(pool, world.topic, 2).error is None
    world.assert_equal(1, 2)


SECOND_WRITE: Final[Mapping[str, type[FencedError] | None]] = {
    "timeout": None,
    "operator": None,
    "initialised": FencedError,  # another producer had the id: it is for the next writer
}
"""The next write of its own process ends so. If the abort left a trace, that process has repaired by then."""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("abort", ABORTS)
def test_the_owner_itself_finds_the_abort_and_repairs(abort: str, backend: str, world: World) -> None:
    """The process was stopped after its decision; its caller sees no error."""
    if abort == "timeout" and not world.cluster.is_bounded:
        pytest.skip("a prepared transaction has no timeout here")
    if abort == "timeout":
        world.time_out_soon()
    with world.writer(backend, AtPoint(DECIDED, lambda: ABORTS[abort](world))) as writer:
        seen = BACKENDS[backend].write(writer, world.topic, 1)
        assert (seen.error, seen.outcome) == (None, Outcome.COMMITTED)
        second = BACKENDS[backend].write(writer, world.topic, 2)
    expected = SECOND_WRITE[abort]
    assert (second.error and type(second.error)) is expected
    if expected is None:
        world.assert_equal(1, 2)
    else:
        by_next_use(world, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_process_wakes_after_another_has_repaired(backend: str, world: World) -> None:
    world.time_out_soon()

    def repair() -> None:
        ABORTS["timeout" if world.cluster.is_bounded else "operator"](world)
        by_recover(world, backend)

    with world.writer(backend, AtPoint(DECIDED, repair)) as writer:
        seen = BACKENDS[backend].write(writer, world.topic, 1)
        assert (seen.error, seen.outcome) == (None, Outcome.COMMITTED)
    world.assert_equal(1)
    by_next_use(world, backend)


@BOUNDED
@pytest.mark.parametrize(
    "point", [PausePoint.AFTER_TAKEOVER, PausePoint.AFTER_PREPARE, PausePoint.BEFORE_DATABASE_COMMIT, DECIDED]
)
def test_the_repair_dies_and_times_out_too(point: PausePoint, world: World) -> None:
    world.time_out_soon()
    world.decide_and_die()
    by_timeout(world)
    killed(worker.recover, point, world.url, world.settings, SQL)
    if point is not PausePoint.AFTER_TAKEOVER:
        by_timeout(world)
    assert world.published() == []
    by_next_use(world, SQL)


def test_several_repair_at_once(world: World) -> None:
    world.decide_and_die()
    by_operator(world)

    def recover() -> list[Outcome]:
        with world.writer() as writer:
            return [found.outcome for found in writer.recover()]

    outcomes = [outcome for of_one in in_threads(*[recover] * 3) for outcome in of_one]
    assert outcomes.count(Outcome.REPAIRED) == 1  # the others find it done, or finish it between its two commits
    world.assert_equal(1)


# ---- another end in one partition -----------------------------------------------------------------------------


@pytest.fixture
def torn(world: World, new_name: NewName) -> TornWorld:
    """A dual write that is decided and prepared, with a record in each of two partitions."""
    topic = new_name("topic")
    admin = AdminClient({"bootstrap.servers": world.cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    records = [{"topic": topic, "value": f"{partition}", "partition": partition} for partition in (0, 1)]
    killed(worker.send_records, DECIDED, world.url, world.settings, records)
    return TornWorld(world, topic)


class TornWorld:
    """A torn dual write as readers see it, and an operator's actions in its second partition."""

    def __init__(self, world: World, topic: str) -> None:
        self.world = world
        self._topic = topic
        self._second = Partition(topic, 1)

    @property
    def row(self) -> PreparedTxnState:
        with self.world.database.engine.connect() as connection:
            return PreparedTxnState(connection.scalar(sa.select(kafka_transaction_state.c.prepared_transaction_state)))

    def abort_there(self) -> None:
        with TransactionAdmin(bootstrap_servers=self.world.cluster.bootstrap_servers) as admin:
            admin.abort_transaction(self._second, start_offset=0)

    def commit_there(self) -> None:
        with TransactionAdmin(bootstrap_servers=self.world.cluster.bootstrap_servers) as admin:
            admin.commit_transaction(self._second, self.row)

    def commit(self) -> None:
        """Commit as its own process would have, had it lived."""
        with Producer(**self.world.cluster.settings(self.world.kafka_id)) as producer:
            producer.init_transactions(keep_prepared_txn=True)
            producer.complete_transaction(self.row, take_over=False)
        self.world.cluster.wait_for_state(self.world.kafka_id, "CompleteCommit")

    def seen(self) -> list[list[bytes]]:
        settings = {"bootstrap.servers": self.world.cluster.bootstrap_servers}
        return [read_committed(settings, self._topic, partition) for partition in (0, 1)]


@pytest.mark.parametrize("is_open", [True, False], ids=["open", "committed"])
def test_a_transaction_aborted_in_one_partition(is_open: bool, torn: TornWorld) -> None:
    """By an operator's marker. The coordinator commits it afterwards, which the other partition shows."""
    torn.abort_there()
    if not is_open:
        torn.commit()
        assert torn.seen() == [[b"0"], []]
    with torn.world.writer() as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        assert writer.recover() == []
    torn.world.cluster.wait_until_settled(torn.world.kafka_id)
    assert torn.seen() == [[b"0"], [b"1"]]


def test_a_transaction_committed_by_hand_in_one_partition(torn: TornWorld) -> None:
    """As an operator does where a transaction hangs; its coordinator's own marker changes nothing after that."""
    torn.commit_there()
    assert torn.seen() == [[], [b"1"]]
    with torn.world.writer() as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED]
        assert writer.recover() == []
    torn.world.cluster.wait_until_settled(torn.world.kafka_id)
    assert torn.seen() == [[b"0"], [b"1"]]


# ---- the row that must never fail ----------------------------------------------------------------------------


def _initialise(world: World) -> None:
    with foreign_producer(world):
        pass


def _commit(world: World) -> None:
    with foreign_producer(world) as producer, producer.transaction():
        producer.send(world.topic, value=FOREIGN)


def _abort(world: World) -> None:
    with foreign_producer(world) as producer:
        _open(world, producer)
        producer.abort_transaction()


def _be_terminated(world: World) -> None:
    with foreign_producer(world) as producer:
        _open(world, producer)
        by_operator(world)
        producer.close(timeout_s=0)


def _time_out(world: World) -> None:
    with foreign_producer(world, transaction_timeout_ms=500) as producer:
        _open(world, producer)
        by_timeout(world)
        producer.close(timeout_s=0)


def _open(world: World, producer: Producer) -> None:
    producer.begin_transaction()
    producer.send(world.topic, value=FOREIGN)
    producer.flush()


FOREIGN_USES: Final[Mapping[str, Callable[[World], None]]] = {
    "initialises": _initialise,
    "aborts": _abort,
    "is terminated": _be_terminated,
    "times out": _time_out,
}


@pytest.mark.parametrize("foreign_use", FOREIGN_USES)
def test_committed_records_are_never_published_again(foreign_use: str, world: World) -> None:
    """For any later use of the id, and any response of its coordinator, which is an abort in some cases."""
    world.decide_and_die(point=PausePoint.AFTER_KAFKA_COMMIT)
    world.assert_equal(1)
    FOREIGN_USES[foreign_use](world)
    with world.service() as service:
        assert service.plan().found == ()
    with world.writer() as writer:
        assert writer.recover() == []
    world.assert_equal(1)
    FOREIGN_USES[foreign_use](world)
    by_next_use(world, SQL)
    FOREIGN_USES[foreign_use](world)
    with world.service() as service:
        assert service.recover().found == ()
    world.assert_equal(1, 2)


@pytest.mark.parametrize("foreign_use", FOREIGN_USES)
def test_aborted_records_are_published_again(foreign_use: str, world: World) -> None:
    world.decide_and_die()
    by_operator(world)
    FOREIGN_USES[foreign_use](world)
    by_recover(world, SQL)
    FOREIGN_USES[foreign_use](world)
    by_next_use(world, SQL)


def test_a_foreign_commit_is_taken_for_a_database_that_went_back(world: World) -> None:
    """The two look alike, so a person has to decide. Nothing is published again either way.

    On tier 4 the pair of a plain producer is the next one, at which an upgraded cluster would have committed the row's
    own transaction. Writers of this library raise the epoch twice there.
    """
    world.decide_and_die(point=PausePoint.AFTER_KAFKA_COMMIT)
    _commit(world)
    if world.cluster.tier is Tier.BOUNDED_V1:
        with world.writer() as writer:
            assert writer.recover() == []
        by_next_use(world, SQL)
        return
    with world.writer() as writer, pytest.raises(DatabaseWentBackError, match="another program uses the id"):
        writer.recover()
    world.assert_equal(1)
    with world.service(acknowledge_lost=[world.transactional_id]) as service:
        (found,) = service.recover().found
    assert (found.action, found.changed) == (Action.ACKNOWLEDGE, True)
    by_next_use(world, SQL)


def test_records_aborted_before_a_foreign_commit_are_published_again(world: World) -> None:
    world.decide_and_die()
    by_operator(world)
    _commit(world)
    by_recover(world, SQL)


@pytest.fixture(params=[OLDER, RELEASED], ids=["tier 4", "tier 3"], scope="module")
def forgetful(request: pytest.FixtureRequest) -> Iterator[ApacheKafka]:
    """A broker that forgets idle ids after a moment."""
    kafka = real_kafka(
        request.param,
        properties={
            "transactional.id.expiration.ms": "3000",
            "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
        },
    )
    yield from running(kafka)


@pytest.fixture
def forgotten(forgetful: ApacheKafka, postgres: PostgresDatabase, new_name: NewName) -> World:
    """A world whose broker forgets ids."""
    topic = new_name("topic")
    create_topics(forgetful.bootstrap_servers, topic)
    tier = Tier.BOUNDED_V1 if forgetful.version == OLDER.version else Tier.BOUNDED
    return World(Cluster(forgetful, tier), postgres, transactional_id_of(new_name("writer"), 0), topic)


def wait_until_forgotten(world: World) -> None:
    with TransactionAdmin(bootstrap_servers=world.cluster.bootstrap_servers) as admin:
        until(lambda: admin.describe_transactions([world.kafka_id])[world.kafka_id] is None, 30)


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
def test_the_id_has_expired(is_committed: bool, forgotten: World) -> None:
    world = forgotten
    world.decide_and_die(point=PausePoint.AFTER_KAFKA_COMMIT if is_committed else DECIDED)
    if not is_committed:
        with TransactionAdmin(bootstrap_servers=world.cluster.bootstrap_servers) as admin:
            admin.force_terminate_transaction(world.kafka_id)
    wait_until_forgotten(world)
    with world.service() as service:
        assert [each.action for each in service.recover().found] == ([] if is_committed else [Action.REPAIR])
    assert world.published() == event_bodies(world.database) == event_texts("1")
    with world.writer() as writer:
        assert BACKENDS[SQL].write(writer, world.topic, 2).error is None
    assert world.published() == event_bodies(world.database) == [*event_texts("1"), *event_texts("2")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_writer_whose_id_expired_while_idle_continues(backend: str, forgotten: World) -> None:
    world = forgotten
    with world.writer(backend) as writer:
        for number in (1, 2):
            assert BACKENDS[backend].write(writer, world.topic, number).error is None
        wait_until_forgotten(world)
        assert BACKENDS[backend].write(writer, world.topic, 3).error is None
    expected = [text for number in "123" for text in event_texts(number)]
    assert world.published() == event_bodies(world.database) == expected
