"""A sink whose store in a topic has lost its end, as by an unclean election: correct, or refused by name."""

from __future__ import annotations

import pytest

from spark_sink.errors import StoreWentBackError
from spark_sink.pause_points import PausePoint
from tests.spark.fake_log import FakeLog, FakePartition
from tests.spark.sink_model import QUERY, World, run_batch
from tests.spark.topic_stores import SharedTopicStore

VALUES = [1, 2, 3, 4]


class Site:
    """A sink and the partition of its store."""

    def __init__(self) -> None:
        self.partition = FakePartition()
        store = SharedTopicStore(FakeLog(self.partition))
        store.create()
        self.world = World(store)

    def run(self, lost_from: PausePoint) -> None:
        """Write a batch to its end; then lose all records from the first such point on."""
        reached: list[int] = []

        def note(point: PausePoint) -> None:
            if point is lost_from:
                reached.append(self.partition.end)

        assert run_batch(self.world.process(note), 0, VALUES).committed == 2
        self.partition.lose_end(self.partition.end - reached[0])


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_decided_batch_is_completed_again_after_the_loss(site: Site) -> None:
    site.run(PausePoint.AFTER_DECISION)
    assert not run_batch(site.world.process(), 0, VALUES).decided_anew
    site.world.assert_exactly_once(VALUES)


def test_a_lost_decision_stops_the_sink_until_an_operator_accepts_it(site: Site) -> None:
    site.run(PausePoint.INSIDE_DECISION)
    for _ in range(2):
        with pytest.raises(StoreWentBackError, match="bring the newer topic back; or accept the second copy"):
            site.world.process().plan()
        assert sorted(site.world.broker.committed) == VALUES
    assert site.world.store.acknowledge_lost(site.world.options.sink_id, QUERY, 0)
    run_batch(site.world.process(), 0, VALUES)
    assert sorted(site.world.broker.committed) == sorted(VALUES * 2)
