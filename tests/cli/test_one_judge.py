"""A writer, `doctor`, `recover`, `top` and the status of a pool say the same of a state in which blocks are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Acl, AclOperation, BrokerConfig, Emulator, Error, Fault, Profile, ResourceType
from dualwrite.cli.output import NONE_SEARCHED
from dualwrite.delivery import Direct, Outbox
from dualwrite.errors import (
    AbortableError,
    AnotherClusterError,
    AuthorizationError,
    DatabaseMovedError,
    DatabaseWentBackError,
    DualWriteError,
)
from dualwrite.recipes.core.judge import refusal_of
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.cli.conftest import Call, Ended
from tests.support.calls import Calls
from tests.support.conditions import until
from tests.support.databases import Database, PostgresDatabase, SqliteDatabase

PROFILES: Final = (Profile.KIP_939, Profile.KAFKA_4_4, Profile.KAFKA_3_9)
ME: Final = "User:ANONYMOUS"
ID, TOPIC = "orders-1", "orders"
EVERY_ID: Final = Acl.allow(ME, AclOperation.ALL, ResourceType.TRANSACTIONAL_ID, "*")
ON_CLUSTER: Final = Acl.allow(ME, AclOperation.DESCRIBE, ResourceType.CLUSTER)

every_profile = pytest.mark.parametrize("profile", PROFILES)


@contextmanager
def cluster(profile: Profile, *acls: Acl) -> Iterator[Emulator]:
    with Emulator(config=BrokerConfig(profile=profile), topics={TOPIC: 1}, acls=acls or None) as broker:
        yield broker


class Broker(Protocol):
    """An emulator, or a real cluster."""

    @property
    def bootstrap_servers(self) -> str: ...


def write(store: Database, broker: Broker, times: int = 1, topic: str = TOPIC) -> None:
    where: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "max_block_ms": 60_000}
    with DualWriter(store.aside, transactional_id=ID, **where) as writer:
        block(writer, times, topic)


def block(writer: DualWriter, times: int = 1, topic: str = TOPIC) -> None:
    for _ in range(times):
        with writer.transaction() as tx:
            tx.send(topic, value="x")


def row_of(store: Database) -> tuple[str, str | None]:
    with store.aside.connect() as connection:
        selected = "SELECT prepared_transaction_state, manifest FROM kafka_transaction_state"
        state, manifest = connection.execute(sa.text(selected)).one()
    return state, manifest


def restore(store: Database, row: tuple[str, str | None]) -> None:
    """Restore the row of a backup."""
    changed = "UPDATE kafka_transaction_state SET prepared_transaction_state = :state, manifest = :manifest"
    with store.aside.begin() as connection:
        connection.execute(sa.text(changed), {"state": row[0], "manifest": row[1]})


def unsettled(store: Database, broker: Broker, topic: str = TOPIC) -> tuple[str, str | None]:
    """Write, and leave the row as a process leaves it that is killed after Kafka has confirmed."""
    where: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "max_block_ms": 60_000}
    with DualWriter(store.aside, transactional_id=ID, **where) as writer:
        block(writer, topic=topic)
        row = row_of(store)
    restore(store, row)
    return row


class Heard:
    """The answers of the tools about one state."""

    def __init__(self, call: Call, store: Database, broker: Broker, topic: str = TOPIC) -> None:
        self._call, self._store, self._broker, self._topic = call, store, broker, topic
        self.options = (
            *("--bootstrap-server", broker.bootstrap_servers),
            *("--database", store.url.render_as_string(hide_password=False)),
        )

    def doctor(self) -> set[str]:
        """Return what doctor finds wrong."""
        done = self._call("doctor", *self.options, "--transactional-id", ID, "--topic", self._topic, "--json")
        failed = {each["what"] for each in done.document["checks"] if each["verdict"] == "fail"}
        assert done.code == (1 if failed else 0)
        assert all(each["remedy"] for each in done.document["checks"] if each["verdict"] == "fail")
        return failed

    def doctor_told(self) -> tuple[set[str], str]:
        """Return what doctor checks, and its text."""
        options = ("doctor", *self.options, "--transactional-id", ID)
        checks = self._call(*options, "--json").document["checks"]
        return {each["what"] for each in checks}, self._call(*options).out

    def recover(self, *more: str) -> Ended:
        return self._call("recover", *self.options, "--all", "--min-age", 0, *more)

    def actions(self) -> list[str]:
        """Return the actions of a plan, after asserting that it agrees with a round that applies it."""
        plan, done = self.recover("--json"), self.recover("--json", "--apply")
        assert [each["action"] for each in plan.document["found"]] == [
            each["action"] for each in done.document["found"]
        ]
        assert (plan.code, done.code) == ((1, 1) if done.document["found"] else (0, 0))
        return [each["action"] for each in done.document["found"]]

    def top(self) -> tuple[int, list[Any]]:
        done = self._call("top", *self.options, "--json")
        return done.code, [each["database"] for each in done.document]

    def refusals(self) -> set[type[DualWriteError]]:
        """Return the error with which a writer refuses a block."""
        where: dict[str, Any] = {"bootstrap_servers": self._broker.bootstrap_servers, "max_block_ms": 60_000}
        with (
            DualWriter(self._store.aside, transactional_id=ID, **where) as writer,
            pytest.raises(DualWriteError) as refused,
        ):
            block(writer, topic=self._topic)
        return {refused.type}

    def assert_a_pool_says(self, name: str, error: type[DualWriteError]) -> None:
        servers = self._broker.bootstrap_servers
        with DualWriter(self._store.aside, prefix="pooled", bootstrap_servers=servers) as pool:
            with pytest.raises(error):
                block(pool, topic=self._topic)
            assert str(pool.status.problem).startswith(f"{name}: {error.__name__}: ")

    def assert_by_row(self, name: str, error: type[DualWriteError]) -> None:
        for _ in range(2):
            assert self.doctor() == {f"{name}: {ID}"}
            assert self.actions() == [name]
            assert self.top() == (1, [name])
            assert self.refusals() == {error}
        assert refusal_of(error("x")).name == name

    def assert_sound(self) -> None:
        assert self.doctor() == set()
        assert self.actions() == []
        assert self.top() == (0, [])


def finds_another_cluster(call: Call, store: Database, first: Broker, second: Broker, topic: str = TOPIC) -> None:
    unsettled(store, first, topic)
    Heard(call, store, second, topic).assert_by_row("another-cluster", AnotherClusterError)
    Heard(call, store, first, topic).assert_sound()
    write(store, first, topic=topic)


def finds_that_it_went_back(call: Call, store: Database, broker: Broker, topic: str = TOPIC) -> None:
    heard = Heard(call, store, broker, topic)
    row = unsettled(store, broker, topic)
    write(store, broker, 2, topic)
    heard.assert_sound()
    restore(store, row)
    heard.assert_by_row("went-back", DatabaseWentBackError)
    assert heard.recover("--acknowledge-lost", ID, "--apply").code == 0
    heard.assert_sound()
    write(store, broker, topic=topic)


def finds_a_copy(call: Call, store: PostgresDatabase, broker: Broker, topic: str = TOPIC) -> None:
    heard = Heard(call, store, broker, topic)
    write(store, broker, topic=topic)
    with store.aside.begin() as connection:
        connection.execute(sa.text("UPDATE kafka_transaction_database SET made_in_database = '1'"))
    assert heard.doctor() == {"moved-database"}
    assert heard.recover().code == 1
    assert heard.refusals() == {DatabaseMovedError}
    heard.assert_a_pool_says("moved-database", DatabaseMovedError)


@every_profile
def test_another_cluster(call: Call, database: Database, profile: Profile) -> None:
    with cluster(profile) as first, cluster(profile) as second:
        finds_another_cluster(call, database, first, second)


@pytest.mark.parametrize("profile", PROFILES[1:])
def test_a_database_that_went_back(call: Call, database: Database, profile: Profile) -> None:
    with cluster(profile) as broker:
        finds_that_it_went_back(call, database, broker)


def test_a_later_epoch_proves_nothing_where_recoveries_raise_it(call: Call, database: Database) -> None:
    """On tier 1 neither a writer nor a tool takes a row for one that went back."""
    with cluster(Profile.KIP_939) as broker:
        row = unsettled(database, broker)
        write(database, broker, 2)
        restore(database, row)
        Heard(call, database, broker).assert_sound()
        write(database, broker)


def test_what_hangs_beside_a_settled_row(call: Call, sqlite: SqliteDatabase) -> None:
    config = BrokerConfig(profile=Profile.KAFKA_4_4)
    lost = Fault(api="WriteTxnMarkers", action=Error("unsupported_version"), topic=TOPIC, partition=0)
    with Emulator(config=config, topics={TOPIC: 2}) as broker:
        broker.faults.add(lost)
        with DualWriter(sqlite.aside, transactional_id=ID, bootstrap_servers=broker.bootstrap_servers) as writer:
            for partition in (0, 1):
                with writer.transaction() as tx:
                    tx.send(TOPIC, value="x", partition=partition, timestamp_ms=1)
        heard = Heard(call, sqlite, broker)
        assert heard.doctor() == {f"hangs: {ID}"}
        assert heard.actions() == ["hangs"]
        assert heard.top() == (1, ["hangs"])
        state, _ = row_of(sqlite)
        restore(sqlite, (state, ""))
        assert heard.doctor() == {f"hangs: {ID}"}
        assert NONE_SEARCHED in heard.recover().out
        unknown = heard.recover("--topic", "unknown").out
        assert "topic 'unknown' was not searched" in unknown
        assert NONE_SEARCHED not in unknown
        assert heard.recover("--json").document["searched"] == []
        assert call("top", *heard.options).err == f"{NONE_SEARCHED}\n"


def test_a_copied_database(call: Call, postgres: PostgresDatabase, emulator: Emulator) -> None:
    finds_a_copy(call, postgres, emulator)


@every_profile
def test_no_write_on_the_id(call: Call, sqlite: SqliteDatabase, profile: Profile) -> None:
    rights = [
        ON_CLUSTER,
        Acl.allow(ME, AclOperation.ALL, ResourceType.TOPIC, TOPIC),
        Acl.allow(ME, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "*"),
    ]
    with cluster(profile, *rights) as broker:
        heard = Heard(call, sqlite, broker)
        assert heard.refusals() == {AuthorizationError}
        assert heard.doctor() == {"right to write"}
        checks, told = heard.doctor_told()
        depends_on_rights = profile is Profile.KIP_939  # the others offer no two-phase commit to anyone
        assert ("tier" not in checks) is depends_on_rights
        unknown = "guarantee: not known without WRITE on the ids: grant it and ask again\n"
        assert (unknown in told) is depends_on_rights
        done = heard.recover("--json", "--apply")
        assert done.code == 1
        assert "this client has no WRITE on the transactional id" in done.document["unseen"][0]
        heard.assert_a_pool_says("right", AuthorizationError)


@every_profile
def test_no_write_on_the_topic(call: Call, sqlite: SqliteDatabase, profile: Profile) -> None:
    operations = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    on_topic = [Acl.allow(ME, each, ResourceType.TOPIC, TOPIC) for each in operations]
    with cluster(profile, ON_CLUSTER, EVERY_ID, *on_topic) as broker:
        heard = Heard(call, sqlite, broker)
        (refused,) = heard.refusals()
        assert issubclass(refused, AbortableError)
        assert heard.doctor() == {"right to write"}


def test_a_pool_is_sound_again_after_a_block(database: Database, emulator: Emulator) -> None:
    where: dict[str, Any] = {"bootstrap_servers": emulator.bootstrap_servers}
    with DualWriter(database.aside, prefix="pooled", **where) as pool:
        problems = [pool.status.problem]
        pool.pool.counts.judge(AnotherClusterError("x"))
        problems.append(pool.status.problem)
        pool.pool.counts.judge(AbortableError("only of its topic"))
        problems.append(pool.status.problem)
        with pool.transaction() as tx:
            tx.send(TOPIC, value="x")
        problems.append(pool.status.problem)
    assert problems == [None, *["another-cluster: AnotherClusterError: x"] * 2, None]


@pytest.mark.parametrize("delivery", [Direct(), Outbox(), Direct(when_kafka_is_away="store")], ids=str)
def test_a_pool_stays_refused_until_its_database_is_adopted(
    call: Call, postgres: PostgresDatabase, emulator: Emulator, delivery: Direct | Outbox
) -> None:
    where: dict[str, Any] = {"bootstrap_servers": emulator.bootstrap_servers, "delivery": delivery, "lease_ms": 300}
    with DualWriter(postgres.aside, prefix="pooled", **where) as pool:
        block(pool)
        until(lambda: len(emulator.records(TOPIC)) == 1)
    with postgres.aside.begin() as connection:
        made_in = connection.scalar(sa.text("SELECT made_in_database FROM kafka_transaction_database"))
        connection.execute(sa.text("UPDATE kafka_transaction_database SET made_in_database = '1'"))
    with DualWriter(postgres.aside, prefix="pooled", **where) as pool:
        rounds = Calls(pool.pool.maintenance, "resolve_once")
        with pytest.raises(DatabaseMovedError), pool.transaction() as tx:
            tx.send(TOPIC, value="x")
        pool.pool.start()
        for number in range(1, 4):
            until(lambda: rounds.count > number)  # noqa: B023 - it is called in this round
            assert str(pool.status.problem).startswith("moved-database: DatabaseMovedError: ")
        with postgres.aside.begin() as connection:
            connection.execute(sa.text("UPDATE kafka_transaction_database SET made_in_database = :it"), {"it": made_in})
        until(lambda: pool.status.problem is None)
        block(pool)
