"""The dual write on a key-value store that the crash tests break, and the invariants afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.producer import Producer
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PauseHook
from examples.rocksdb_writer import RocksDbDualWriter
from tests.crash.scenario import LIMITS, Predecessor, Seen, event_texts
from tests.support.databases import unique
from tests.support.key_value_stores import RocksDbStore
from tests.support.topics import read_topic


def keyed(name: str, number: int) -> dict[str, str]:
    """The events of one dual write, under keys that sort as they were written."""
    return {f"{number:03}-{index}": text for index, text in enumerate(event_texts(name))}


def write_events(store: RocksDbStore, writer: RocksDbDualWriter, topic: str, number: int) -> Seen:
    tx: Any = None
    try:
        with writer.transaction() as tx:
            for key, value in keyed(str(number), number).items():
                store.add(tx, key, value)
                tx.send(topic, value=value, key="k")
    except Exception as error:
        return Seen(error, tx.outcome if tx else None)
    return Seen(None, tx.outcome)


@dataclass
class KeyValueScenario:
    """One transactional id, one topic, one store, and the events that must be in both at the end."""

    store: RocksDbStore
    emulator: Emulator
    transactional_id: str = field(default_factory=lambda: unique("writer"))
    topic: str = field(default_factory=lambda: unique("topic"))
    expected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.emulator.create_topic(self.topic)

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> RocksDbDualWriter:
        return self.store.writer(
            bootstrap_servers=self.emulator.bootstrap_servers,
            transactional_id=self.transactional_id,
            pause=pause,
            **(LIMITS | settings),
        )

    @property
    def kafka_id(self) -> str:
        """The id as Kafka sees it."""
        with self.writer() as writer:
            identity = blocking.run(writer.backend.database.ensure_row(self.transactional_id))
        return identity.kafka_id(self.transactional_id)

    def write(self, writer: RocksDbDualWriter, number: int) -> Seen:
        seen = write_events(self.store, writer, self.topic, number)
        if seen.took_effect:
            self.expected += event_texts(str(number))
        return seen

    def leave_behind(self, predecessor: Predecessor) -> None:
        """Do as a process does that is killed between the two commits, or before the first."""
        with Producer(
            bootstrap_servers=self.emulator.bootstrap_servers,
            transactional_id=self.kafka_id,
            transaction_two_phase_commit_enable=True,
        ) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            events = keyed("before", 0)
            for value in events.values():
                producer.send(self.topic, value=value, key="k")
            state = producer.prepare_transaction()
            if predecessor is Predecessor.COMMITTED:
                self.store.commit_as(self.transactional_id, str(state), events)
                self.expected += events.values()
            producer.close(timeout_s=0)

    def assert_both_sides_agree(self) -> None:
        """Store, topic and expectation are equal, in order, and nothing is left open."""
        in_topic = [value for _, value in read_topic(self.emulator.bootstrap_servers, self.topic)]
        assert (self.store.values(), in_topic) == (self.expected, self.expected)
        ours = [t for t in self.emulator.transactions() if t.transactional_id == self.kafka_id]
        assert all(transaction.state in ("Empty", "CompleteCommit", "CompleteAbort") for transaction in ours)
