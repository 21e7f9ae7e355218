"""A broker of each tier with the Kafka ports of a sink, and checks of the result with another client library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import pyarrow as pa

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.attempt.task_transaction import ProducerTransaction
from spark_sink.options import SinkOptions, parse
from spark_sink.pause_points import Pause
from spark_sink.sink_kafka import ProducerSinkKafka
from spark_sink.store.attempt_states import Claim, Ended, Ending, Prepared, Verdict
from tests.support.conditions import until
from tests.support.topics import read_topic, wait_until_settled

TIERS: Final = {
    Tier.KEEP_PREPARED: BrokerConfig(profile=Profile.KIP_939),
    Tier.STORED_PAIR: BrokerConfig(profile=Profile.KAFKA_4_3, unstable_api_versions_enable=True),
    Tier.BOUNDED: BrokerConfig(profile=Profile.KAFKA_4_3),
    Tier.BOUNDED_V1: BrokerConfig(profile=Profile.KAFKA_3_9),
}

_attempts = itertools.count(1)


def rows(*values: str) -> pa.RecordBatch:
    """Return rows that have only values."""
    return pa.record_batch({"value": list(values)})


class Rows:
    """The rows of all claims that `claim` has made. `wanted` says which of them still have the same verdict."""

    _stored: ClassVar[dict[str, Prepared]] = {}

    def __init__(self, wanted: Callable[[Collection[str]], Collection[str]] = lambda attempt_ids: attempt_ids) -> None:
        self._wanted = wanted

    @classmethod
    def add(cls, attempt_id: str, prepared: Prepared) -> None:
        cls._stored[attempt_id] = prepared

    @classmethod
    def row(cls, claim: Claim) -> Prepared:
        """Return the row of a claim as it is now."""
        return cls._stored[claim.attempt_id]

    def still_wanted(self, attempt_ids: Collection[str]) -> Mapping[str, Prepared]:
        return {attempt_id: self._stored[attempt_id] for attempt_id in self._wanted(attempt_ids)}

    def named(self, states: Collection[PreparedTxnState], cluster_id: str) -> frozenset[PreparedTxnState]:
        rows = self._stored.values()
        return frozenset(states) & {each.state for each in rows if not each.is_elsewhere(cluster_id)}

    def replace(self, attempt_id: str, old: PreparedTxnState, new: Prepared) -> bool:
        if self._stored[attempt_id].state == old:
            self._stored[attempt_id] = new
        return self._stored[attempt_id].state == new.state


everything: Final = Rows()
"""A store in which nothing has changed."""


def mine() -> bool:
    """Do `still_mine` for an attempt that was not given up."""
    return True


def claim(transactional_id: str, verdict: Verdict, prepared: Prepared | None = None) -> Claim:
    """Return a claim with an attempt, and a row, of its own."""
    prepared = prepared or Prepared(PreparedTxnState())
    made = Claim(f"attempt-{next(_attempts)}", "query", 0, transactional_id, verdict, prepared.state)
    Rows.add(made.attempt_id, prepared)
    return made


class KafkaWorld:
    """The broker of one test, with a topic `orders` of two partitions."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.faults = emulator.faults
        self._sides: list[ProducerSinkKafka] = []

    def options(self, **options: Any) -> SinkOptions:
        """Return options of a sink for every tier; `__` in names stands for dots, None omits an option."""
        given: dict[str, Any] = {
            "sinkId": "s",
            "topic": "orders",
            "txn.mode": "resume",
            "commitStore.urlEnv": "NOWHERE",
            "kafka.bootstrap.servers": self.emulator.bootstrap_servers,
            "kafka.client.id": "sink",
            "kafka.linger.ms": "0",
            "kafka.retry.backoff.ms": "5",
            "kafka.reconnect.backoff.ms": "5",
            "kafka.max.block.ms": "10000",
        }
        given |= {name.replace("__", "."): value for name, value in options.items()}
        return parse({name: str(value) for name, value in given.items() if value is not None})

    def side(self, *, pause: Pause | None = None, **options: Any) -> ProducerSinkKafka:
        """Make a Kafka port, which is a process of its own as far as Kafka can tell."""
        made = ProducerSinkKafka(self.options(**options), pause=pause)
        self._sides.append(made)
        return made

    def prepared(self, side: ProducerSinkKafka, transactional_id: str, *values: str) -> Prepared:
        """Write and prepare, as a successful task does."""
        transaction = side.open(transactional_id, mine)
        transaction.write(rows(*values))
        prepared = transaction.prepare()
        transaction.close()
        return prepared

    def sent(self, side: ProducerSinkKafka, transactional_id: str, *values: str) -> ProducerTransaction:
        """Send, as a task does that is still running; the rows have reached the broker."""
        transaction = side.open(transactional_id, mine)
        transaction.write(rows(*values))
        until(lambda: self.state(transactional_id) == "Ongoing")
        return transaction

    # ---- observations ---------------------------------------------------------------------------------------

    def committed(self, topic: str = "orders") -> list[str]:
        """Return the values that confluent-kafka reads with read_committed, once no transaction is completing."""
        self.settle()
        return sorted(value for _, value in read_topic(self.emulator.bootstrap_servers, topic))

    def settle(self) -> None:
        """Wait until decided transactions are complete: a commit returns when it is decided."""
        wait_until_settled(self.emulator)

    def state(self, transactional_id: str) -> str | None:
        """Describe the transaction; None if Kafka does not know the id."""
        states = {each.transactional_id: each.state for each in self.emulator.transactions()}
        return states.get(transactional_id)

    def open_ids(self) -> list[str]:
        """Return the ids with an open transaction, prepared or not."""
        return [each.transactional_id for each in self.emulator.transactions() if each.state == "Ongoing"]

    def close(self) -> None:
        """Close all ports."""
        for side in self._sides:
            side.close()


@contextmanager
def kafka_world(tier: Tier, **settings: Any) -> Iterator[KafkaWorld]:
    """Yield a broker of that tier; `settings` are the emulator's."""
    with Emulator(topics={"orders": 2}, config=TIERS[tier], **settings) as emulator:
        world = KafkaWorld(emulator)
        yield world
        world.faults.clear()
        world.close()


def endings(claims: Sequence[Claim], ended: dict[str, Ended] | Any) -> list[Ending]:
    """Return the endings in the order of the claims; check that there are no others."""
    assert set(ended) == {each.attempt_id for each in claims}
    return [ended[each.attempt_id].ending for each in claims]
