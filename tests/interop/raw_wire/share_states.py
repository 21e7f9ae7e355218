"""The requests of brokers to the share coordinator, on a raw connection."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from tests.emulator.api.raw_client import RawClient


class StateRequests:
    """The requests of brokers to the share coordinator, about partition 0 of a topic."""

    def __init__(self, client: RawClient, group_id: str, topic_id: uuid.UUID) -> None:
        self.client, self.group_id, self.topic_id = client, group_id, topic_id

    def send(self, name: str, **values: Any) -> Any:
        topic_id, partition = values.pop("topic_id", self.topic_id), values.pop("partition", 0)
        return self._send(name, [(topic_id, [{"partition": partition, **values}])]).results[0].partitions[0]

    def send_all(self, name: str, *topics: Sequence[Mapping[str, Any]]) -> list[list[int]]:
        """Name partition 0 once for each of these rows, in several topics that are the same; return the errors."""
        answer = self._send(name, [(self.topic_id, [{"partition": 0, **row} for row in rows]) for rows in topics])
        return [[int(row.error_code) for row in topic.partitions] for topic in answer.results]

    def _send(self, name: str, topics: Sequence[tuple[uuid.UUID, Sequence[Mapping[str, Any]]]]) -> Any:
        api = f"{name}_share_group_state{'_summary' if name == 'summary' else ''}".replace("summary_", "read_")
        version = 1 if name in ("write", "summary") else 0
        made = tuple({"topic_id": each, "partitions": tuple(rows)} for each, rows in topics)
        return self.client.call(api, version, group_id=self.group_id, topics=made)

    def write(self, state_epoch: int, leader_epoch: int, start_offset: int, *batches: tuple[int, int, int, int]) -> int:
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        rows = tuple(dict(zip(names, batch, strict=True)) for batch in batches)
        epochs = {"state_epoch": state_epoch, "leader_epoch": leader_epoch, "start_offset": start_offset}
        return int(self.send("write", **epochs, delivery_complete_count=1, state_batches=rows).error_code)
