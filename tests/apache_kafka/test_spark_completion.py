"""The Kafka side of the Spark sink on real brokers: EndTxn with the stored pair, by another process than the writer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from spark_sink.errors import AttemptCondemnedError, SinkOptionError
from spark_sink.options import parse
from spark_sink.sink_kafka import ProducerSinkKafka
from spark_sink.store.attempt_states import Ending, Verdict
from tests.spark.kafka_world import claim, everything

from .clusters import Cluster
from .conftest import NewName
from .reading import read_committed

MakeSide = Callable[..., ProducerSinkKafka]


@pytest.fixture
def make_side(cluster: Cluster, topic: str) -> Iterator[MakeSide]:
    """Sides of processes of their own, as far as Kafka can tell."""
    made: list[ProducerSinkKafka] = []

    def make(mode: str | None = None) -> ProducerSinkKafka:
        options = {
            "sinkId": "s",
            "topic": topic,
            "txn.mode": mode or "auto",
            "commitStore.urlEnv": "NOWHERE",
            "kafka.bootstrap.servers": cluster.bootstrap_servers,
        }
        made.append(ProducerSinkKafka(parse(options)))
        return made[-1]

    yield make
    for side in made:
        side.close()


def test_a_batch(cluster: Cluster, topic: str, make_side: MakeSide, new_name: NewName) -> None:
    """Two winners, a loser, and an attempt that sleeps until its id has been leased again."""
    ids = [new_name("s-0") for _ in range(3)]
    claims = []
    for number, transactional_id in enumerate(ids):
        transaction = make_side().open(transactional_id, lambda: True)
        transaction.write(pa.record_batch({"value": [transactional_id]}))
        verdict = Verdict.COMMIT if number < 2 else Verdict.ABORT
        claims.append(claim(transactional_id, verdict, transaction.prepare()))
        transaction.close()
    with pytest.raises(AttemptCondemnedError):
        make_side().open(ids[0], lambda: False)
    expected = [Ending.COMMITTED, Ending.COMMITTED, Ending.ABORTED]
    for _ in range(2):
        ended = make_side().end(claims, everything)
        assert [ended[each.attempt_id].ending for each in claims] == expected, ended
    settings = {"bootstrap.servers": cluster.bootstrap_servers}
    assert sorted(read_committed(settings, topic)) == sorted(each.encode() for each in ids[:2])


def test_modes_that_the_cluster_lacks_are_refused(cluster: Cluster, make_side: MakeSide, new_name: NewName) -> None:
    transactional_id = new_name("s-0")
    with pytest.raises(SinkOptionError, match=r"txn\.mode=kip939"):
        make_side("kip939").open(transactional_id, lambda: True)
