"""Topics of real brokers change their rules under decided writes: none is lost without an error.

Processes die between the two commits, and the broker aborts their transactions. By the time these are published again
the topic refuses old timestamps, or large records, or records without keys, or the right to write is gone.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

import pytest
from confluent_kafka import admin as kafka

from dualwrite.delivery import Outbox
from dualwrite.errors import DualWriteError, OwedRecordsRefusedError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import AtPoint
from tests.interop.wire import wait_for
from tests.support.databases import PostgresDatabase, event_bodies
from tests.support.kafka_ids import kafka_id_of
from tests.support.names import next_name
from tests.support.real_kafkas import real_kafka
from tests.support.servers.apache_kafka import ApacheKafka

from .clusters import KINDS, Cluster
from .conftest import running
from .reading import DEADLINE_S, create_topics, read_committed

DURATION_S: Final = float(os.environ.get("DUALWRITE_CHAOS_S", "20"))
SEED: Final = int(os.environ.get("DUALWRITE_SEED", time.time_ns()))
TIMEOUT_MS: Final = 2_000
OLDEST_MS: Final = 5_000
VALUE: Final = "x" * 200
"""Fills the records, so that a topic with a small max.message.bytes refuses them."""

SETTINGS: Final = {
    "aged": {"message.timestamp.before.max.ms": str(OLDEST_MS)},
    "small": {"max.message.bytes": "200"},
    "keyed": {"cleanup.policy": "compact"},
    "forbidden": {},
}
"""The topics, each with the setting that refuses its records; WRITE is revoked for the last one."""

REMEDIES: Final = {
    "small": "raise max.message.bytes of the topic",
    "keyed": "take 'compact' out of cleanup.policy of the topic",
    "forbidden": "grant this client WRITE on the topic",
}

INSERT: Final = "INSERT INTO events (id, event_key, body) VALUES (%s, 'k', %s)"


class Died(BaseException):
    """The process is gone."""


def die() -> None:
    raise Died


class Rules:
    """The rules of the topics of one cluster, which allow everything at first."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.topics = {name: next_name(name) for name in SETTINGS}
        self._admin = kafka.AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        create_topics(cluster.bootstrap_servers, *self.topics.values())
        self._acl(self.topics["forbidden"], kafka.AclOperation.ALL, kafka.AclPermissionType.ALLOW, is_set=True)

    def set(self, name: str, *, refuses: bool) -> None:
        """Let a topic refuse its records, or take them again; return when the broker does so."""
        if name == "forbidden":
            self._acl(self.topics[name], kafka.AclOperation.WRITE, kafka.AclPermissionType.DENY, is_set=refuses)
            return
        operation = kafka.AlterConfigOpType.SET if refuses else kafka.AlterConfigOpType.DELETE
        entries = [
            kafka.ConfigEntry(key, value, incremental_operation=operation) for key, value in SETTINGS[name].items()
        ]
        resource = kafka.ConfigResource(kafka.ResourceType.TOPIC, self.topics[name], incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(DEADLINE_S)

    def _acl(self, topic: str, operation: Any, permission: Any, *, is_set: bool) -> None:
        of = (kafka.ResourceType.TOPIC, topic, kafka.ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
        if is_set:
            done: Any = self._admin.create_acls([kafka.AclBinding(*of, operation, permission)])
        else:
            done = self._admin.delete_acls([kafka.AclBindingFilter(*of, operation, permission)])
        for future in done.values():
            future.result(DEADLINE_S)

    def published(self) -> Counter[str]:
        """The numbers of the records that consumers with read_committed see."""
        settings = {"bootstrap.servers": self.cluster.bootstrap_servers}
        values = [value for topic in self.topics.values() for value in read_committed(settings, topic)]
        return Counter(value.decode().removesuffix(VALUE) for value in values)


class Application:
    """Processes that write to both sides, each by one id, and by one outbox."""

    def __init__(self, rules: Rules, database: PostgresDatabase) -> None:
        self.rules = rules
        self.database = database
        self.prefix = next_name("outbox")
        self._numbers = iter(range(1, 1_000_000))
        self._lock = threading.Lock()
        self.errors: Counter[str] = Counter()
        self.bare: list[BaseException] = []
        """Errors that are not of this package's types."""

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.rules.cluster.bootstrap_servers,
            "transaction_timeout_ms": TIMEOUT_MS,
            "max_block_ms": 20_000,
        }

    def writer(self, name: str, *, dies: bool = False) -> PsycopgDualWriter:
        pause = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, die) if dies else None
        return PsycopgDualWriter(conninfo_of(self.database.url), transactional_id=name, pause=pause, **self.settings)

    def pool(self) -> PsycopgDualWriter:
        return PsycopgDualWriter(
            conninfo_of(self.database.url), prefix=self.prefix, delivery=Outbox(), lease_ms=1_000, **self.settings
        )

    def write(self, writer: Any, topic: str) -> None:
        with self._lock:
            number = next(self._numbers)
        with writer.transaction() as tx:
            tx.connection.execute(INSERT, (number, str(number)))
            tx.send(self.rules.topics[topic], f"{number}{VALUE}", partition=0)

    def leave_owed(self, name: str, topic: str) -> None:
        """Decide a write of a process that is gone, and let the broker abort it."""
        writer = self.writer(name, dies=True)
        with pytest.raises(Died):
            self.write(writer, topic)
        writer.close()

    def noting(self, call: Any, *arguments: Any) -> None:
        """Call, and note the error."""
        try:
            call(*arguments)
        except DualWriteError as error:
            self.errors[type(error).__name__] += 1
        except Died:
            pass
        except BaseException as error:
            self.bare.append(error)

    def use_id(self, name: str, chance: random.Random, until_s: float) -> None:
        while time.monotonic() < until_s:
            with suppress(DualWriteError), self.writer(name, dies=chance.random() < 0.4) as writer:
                for _ in range(chance.randint(1, 5)):
                    self.noting(self.write, writer, chance.choice(list(SETTINGS)))
                    if chance.random() < 0.2:
                        self.noting(writer.recover)
            time.sleep(chance.choice((0.0, 0.2, TIMEOUT_MS / 1_000 + 0.5)))

    def use_outbox(self, chance: random.Random, until_s: float) -> None:
        while time.monotonic() < until_s:
            with self.pool() as pool:
                for _ in range(chance.randint(1, 30)):
                    self.noting(self.write, pool, chance.choice(list(SETTINGS)))
                    time.sleep(chance.random() * 0.2)
                if chance.random() < 0.5:
                    self.noting(pool.recover)

    def change_rules(self, chance: random.Random, until_s: float) -> None:
        while time.monotonic() < until_s:
            self.rules.set(chance.choice(list(SETTINGS)), refuses=chance.random() < 0.5)
            time.sleep(chance.random() * 2)


@pytest.fixture(scope="module", params=[Tier.BOUNDED, Tier.BOUNDED_V1], ids=["tier 3", "tier 4"])
def controlled(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster on which every user may do everything, unless an ACL says otherwise."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    made: ApacheKafka
    for made in running(real_kafka(KINDS[request.param], properties=properties)):
        yield Cluster(made, request.param)


@pytest.fixture
def application(controlled: Cluster, postgres: PostgresDatabase) -> Application:
    return Application(Rules(controlled), postgres)


def assert_agreed(application: Application, names: list[str]) -> None:
    """Once the topics take everything again, all decided records are published, once."""
    for name in SETTINGS:
        application.rules.set(name, refuses=False)
    for name in names:
        with application.writer(name) as writer:
            wait_for(partial(recovered, writer), bool)
    with application.pool() as pool:
        wait_for(partial(recovered, pool), bool)
    assert application.rules.published() == Counter(event_bodies(application.database))


def recovered(writer: Any) -> bool:
    """Recover, unless the broker has not heard of a rule yet."""
    try:
        writer.recover()
    except DualWriteError:
        return False
    return True


def test_each_rule_is_named_or_kept(application: Application) -> None:
    names = {topic: next_name("writer") for topic in SETTINGS}
    for topic, name in names.items():
        application.leave_owed(name, topic)
    began_s = time.monotonic()
    for name in names.values():
        kafka_id = kafka_id_of(application.database.engine, name)
        application.rules.cluster.wait_for_state(kafka_id, "CompleteAbort")
    wait_for(lambda: time.monotonic() - began_s, lambda passed_s: passed_s > 1.5 * OLDEST_MS / 1_000)
    for topic in SETTINGS:
        application.rules.set(topic, refuses=True)
    with application.writer(names["aged"]) as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
    for topic, remedy in REMEDIES.items():
        with application.writer(names[topic]) as writer:
            for use in (writer.recover, partial(application.write, writer, "aged")):
                with pytest.raises(OwedRecordsRefusedError) as raised:
                    use()
                assert raised.value.topic == application.rules.topics[topic]
                assert remedy in str(raised.value)
    assert_agreed(application, list(names.values()))


@pytest.mark.timeout(300 + DURATION_S)
def test_rules_that_change_all_the_time(application: Application) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    names = [next_name("writer") for _ in range(4)]
    until_s = time.monotonic() + DURATION_S
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor())
        works = [threads.submit(application.use_id, name, random.Random(chance.random()), until_s) for name in names]
        works.append(threads.submit(application.use_outbox, random.Random(chance.random()), until_s))
        works.append(threads.submit(application.change_rules, random.Random(chance.random()), until_s))
        for work in works:
            work.result()
    print(dict(application.errors))
    assert application.bare == []
    assert_agreed(application, names)
