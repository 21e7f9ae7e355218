"""Topics whose partitions are requested together, so that a missing topic delays none of the others. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dualwrite.client.operations import Operation


class WantedTopics:
    """The waits for the metadata of topics. Create it, and give it up, under the producer's lock.

    `operations` has the waits for unknown topics. Of them, only `topics` are waited for.
    """

    def __init__(self, operations: Mapping[str, Operation], topics: Collection[str]) -> None:
        self.by_topic = {topic: operation for topic, operation in operations.items() if topic in topics}
        self.all_ended = Operation("metadata of several topics")
        """Ends when each of the waits has ended, or was interrupted."""
        self._beside = [operation for topic, operation in operations.items() if topic not in topics]
        self._left = len(self.by_topic)
        for operation in self._beside:
            operation.listen(self._is_not_waited_for)
        for operation in self.by_topic.values():
            operation.listen(self._one_less)
        if not self.by_topic:
            self.all_ended.end()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left:
            self.all_ended.end()

    def _is_not_waited_for(self) -> None:
        pass

    def give_up(self) -> None:
        """Stop waiting, so that no more requests are sent."""
        for operation in self._beside:
            operation.stop_listening(self._is_not_waited_for)
        for operation in self.by_topic.values():
            operation.stop_listening(self._one_less)
