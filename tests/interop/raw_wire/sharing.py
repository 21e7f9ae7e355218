"""Members of share groups on a raw connection, with short forms of the responses."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.emulator.api.config_requests import GROUP, SET, alter
from tests.emulator.api.raw_client import RawClient, milliseconds, plain_batch
from tests.support.conditions import until

Batches = Sequence[tuple[int, int, Sequence[int]]]
"""First offset, last offset and types of each."""


class Part(NamedTuple):
    """The part of a response for one partition."""

    error: int
    acknowledge_error: int
    acquired: list[tuple[int, int, int]]
    """First offset, last offset and delivery count."""


def set_group(client: RawClient, group_id: str, **settings: str) -> None:
    """Alter settings of a group, whose names have `_` for `.`, and no `share.`."""
    changes = [("share." + name.replace("_", "."), SET, value) for name, value in settings.items()]
    assert alter(client, GROUP, group_id, *changes) == (0, None)


def heartbeat(client: RawClient, group_id: str, member_id: str, epoch: int, **values: Any) -> Any:
    fields = {"rack_id": None, "subscribed_topic_names": None, **values}
    return client.call("share_group_heartbeat", 1, group_id=group_id, member_id=member_id, member_epoch=epoch, **fields)


class Sharer:
    """A member of a share group and its session about one topic."""

    def __init__(self, client: RawClient, group_id: str, topic: str, member_id: str = "") -> None:
        self.client = client
        self.group_id = group_id
        self.topic = topic
        self.topic_id = client.topic_id(topic)
        self.member_id = member_id or str(uuid.uuid4())
        self.epoch = 0
        self.session_epoch = 0

    def beat(self, epoch: int | None = None, topics: Iterable[str] | None = None) -> Any:
        """A heartbeat, with the member's epoch unless told otherwise; joining subscribes to the topic."""
        epoch = self.epoch if epoch is None else epoch
        names = (self.topic,) if epoch == 0 and topics is None else topics
        answer = heartbeat(
            self.client,
            self.group_id,
            self.member_id,
            epoch,
            subscribed_topic_names=None if names is None else tuple(names),
        )
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
        return answer

    def join(self) -> Sharer:
        """Join, and heartbeat until partitions are assigned."""

        def has_partitions() -> bool:
            answer = self.beat()
            assert answer.error_code == 0, answer
            return answer.assignment is not None and bool(answer.assignment.topic_partitions)

        until(has_partitions)
        return self

    def put(self, *values: str) -> None:
        """Write a batch of records to partition 0."""
        assert self.client.produce(self.topic, plain_batch(*(value.encode() for value in values))).error_code == 0

    # sessions

    def raw_fetch(self, epoch: int, acknowledged: Mapping[int, Batches] | None = None, **values: Any) -> Any:
        """ShareFetch; opening a session names partition 0."""
        version = values.pop("version", 2)
        named: dict[int, Batches] = {0: ()} if epoch == 0 else {}
        named |= acknowledged or {}
        topics = ({"topic_id": self.topic_id, "partitions": _partitions(named)},) if named else ()
        fields = {
            "max_wait": milliseconds(values.pop("max_wait_ms", 3000)),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            "forgotten_topics_data": (),
        }
        names = {"group_id": self.group_id, "member_id": self.member_id, "share_session_epoch": epoch}
        return self.client.call("share_fetch", version, **{**names, **fields, "topics": topics, **values})

    def fetch(self, acknowledged: Batches = (), **values: Any) -> Part:
        """ShareFetch in the member's session: the part for partition 0."""
        answer = self.raw_fetch(self.session_epoch, {0: acknowledged} if acknowledged else None, **values)
        assert answer.error_code == 0, answer
        self.session_epoch += 1
        for row in answer.responses[0].partitions if answer.responses else ():
            acquired = [(found.first_offset, found.last_offset, found.delivery_count) for found in row.acquired_records]
            return Part(int(row.error_code), int(row.acknowledge_error_code), acquired)
        return Part(0, 0, [])

    def acquire(self, **values: Any) -> list[tuple[int, int, int]]:
        """ShareFetch until records are acquired: a broker may have to read the state first."""
        found: list[list[tuple[int, int, int]]] = []

        def has_some() -> bool:
            part = self.fetch(**values)
            assert (part.error, part.acknowledge_error) == (0, 0)
            found.append(part.acquired)
            return bool(part.acquired)

        until(has_some)
        return found[-1]

    def raw_acknowledge(self, epoch: int, acknowledged: Mapping[int, Batches], **values: Any) -> Any:
        """ShareAcknowledge."""
        version = values.pop("version", 2)
        topic_id = values.pop("topic_id", self.topic_id)
        topics = ({"topic_id": topic_id, "partitions": _partitions(acknowledged)},)
        names = {"group_id": self.group_id, "member_id": self.member_id, "share_session_epoch": epoch}
        return self.client.call(
            "share_acknowledge", version, **{**names, "is_renew_ack": False, "topics": topics, **values}
        )

    def acknowledge(self, batches: Batches, *, partition: int = 0, **values: Any) -> int:
        """ShareAcknowledge in the member's session: the error of the partition."""
        answer = self.raw_acknowledge(self.session_epoch, {partition: batches}, **values)
        assert answer.error_code == 0, answer
        self.session_epoch += 1
        return int(answer.responses[0].partitions[0].error_code)

    def close(self) -> int:
        """Close the session."""
        self.session_epoch = 0
        return int(self.raw_fetch(-1, max_wait_ms=0).error_code)


def _partitions(acknowledged: Mapping[int, Batches]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "partition_index": index,
            "acknowledgement_batches": tuple(
                {"first_offset": first, "last_offset": last, "acknowledge_types": tuple(types)}
                for first, last, types in batches
            ),
        }
        for index, batches in acknowledged.items()
    )
