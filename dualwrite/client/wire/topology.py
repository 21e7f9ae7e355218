"""Who is who among the brokers: addresses and leaders, as metadata and other answers said last. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dualwrite.client.messages import Broker, MetadataResponse

NO_LEADER: Final = -1

Address = tuple[str, int]


class Topology:
    """Written by one loop and read by any thread: each entry is immutable and is replaced as a whole."""

    def __init__(self) -> None:
        self.addresses: dict[int, Address] = {}
        self._leaders: dict[str, tuple[int, ...]] = {}

    def learn_broker(self, broker: Broker) -> None:
        """Where a broker is, from any answer that says so."""
        self.addresses[broker.node_id] = (broker.host, broker.port)

    def apply(self, answer: MetadataResponse) -> None:
        """Take new metadata over; a topic with an error keeps what was known of it."""
        for broker in answer.brokers:
            self.learn_broker(broker)
        for topic in answer.topics:
            if topic.error_code == 0 and topic.leaders:
                self._leaders[topic.name] = topic.leaders

    def partitions(self, topic: str) -> int:
        """How many partitions, 0 when the topic is not known."""
        return len(self._leaders.get(topic, ()))

    def leader(self, topic: str, partition: int) -> int:
        """The node id of the leader, or -1 when there is none or it is not known."""
        leaders = self._leaders.get(topic, ())
        return leaders[partition] if partition < len(leaders) else NO_LEADER

    def forget_leader(self, topic: str, partition: int) -> None:
        """The leader said that it is none."""
        leaders = self._leaders.get(topic)
        if leaders is not None and partition < len(leaders):
            self._leaders[topic] = (*leaders[:partition], NO_LEADER, *leaders[partition + 1 :])

    @property
    def topics(self) -> Iterable[str]:
        """All that are known."""
        return self._leaders.keys()
