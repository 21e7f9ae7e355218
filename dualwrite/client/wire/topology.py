"""The addresses of brokers and the leaders of partitions, as metadata and other responses last reported. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dualwrite.client.messages import Broker, MetadataResponse

NO_LEADER: Final = -1

Address = tuple[str, int]


class Topology:
    """Brokers and leaders. Written in one loop, read from any thread: entries are immutable and replaced as a whole."""

    def __init__(self) -> None:
        self.addresses: dict[int, Address] = {}
        self.cluster_id = ""
        """The id of the cluster; "" until the first metadata has come."""
        self._leaders: dict[str, tuple[int, ...]] = {}

    def learn_broker(self, broker: Broker) -> None:
        """Remember a broker's address, from any response that contains it."""
        self.addresses[broker.node_id] = (broker.host, broker.port)

    def apply(self, response: MetadataResponse) -> None:
        """Apply new metadata of this cluster; a topic with an error keeps its previous leaders."""
        self.cluster_id = response.cluster_id or self.cluster_id
        for broker in response.brokers:
            self.learn_broker(broker)
        for topic in response.topics:
            if topic.error_code == 0 and topic.leaders:
                self._leaders[topic.name] = topic.leaders

    def partitions(self, topic: str) -> int:
        """Return the number of partitions, 0 for an unknown topic."""
        return len(self._leaders.get(topic, ()))

    def leader(self, topic: str, partition: int) -> int:
        """Return the node id of the leader, or -1 if there is none or it is unknown."""
        leaders = self._leaders.get(topic, ())
        return leaders[partition] if partition < len(leaders) else NO_LEADER

    def forget_leader(self, topic: str, partition: int) -> None:
        """Forget a leader that responded that it is not the leader."""
        leaders = self._leaders.get(topic)
        if leaders is not None and partition < len(leaders):
            self._leaders[topic] = (*leaders[:partition], NO_LEADER, *leaders[partition + 1 :])

    @property
    def topics(self) -> Iterable[str]:
        """The names of all known topics."""
        return self._leaders.keys()
