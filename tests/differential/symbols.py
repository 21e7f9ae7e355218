"""One broker's choices in a sequence (ids of producers, members and topics), and responses without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, NamedTuple
from uuid import UUID

from dualwrite.broker_emulator.groups.consumer_protocol import (
    MalformedError,
    encode_assignment,
    read_assignment,
    read_version,
)
from dualwrite.broker_emulator.log.record_batch import BatchHeader, iter_records, split_batches
from tests.differential.steps import IDS


class Pair(NamedTuple):
    """A producer id and an epoch."""

    producer_id: int
    epoch: int


NO_PAIR: Final = Pair(-1, -1)
_NOW: Final = re.compile(rb"\x00\x00\x01[\x80-\xbf]....", re.DOTALL)
"""Milliseconds since 1970 as they are in these decades, those of the requests included."""
_MEMBER: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_SHORT_MEMBER: Final = re.compile(r"[\w-]{22}")
"""A coordinator's ids for members of KIP-848's groups."""
_LEFT_OUT: Final = ("throttle_time", "message", "leader_id", "node_endpoints", "current_leader", "host")
_MOMENTS: Final = frozenset(
    {"transaction_start_time", "transaction_start_time_ms", "log_append_time", "timestamp", "last_timestamp"}
)
_ASSIGNMENTS: Final = ("assignment", "member_assignment")
_LONG_AGO_MS: Final = 1_750_000_000_000
"""Before any test that is run."""


def in_order(assignment: bytes) -> bytes:
    """Return a consumer's assignment with its topics in order: Kafka's is that of a hash table."""
    try:
        read = read_assignment(assignment)
    except MalformedError:
        return assignment
    if read.user_data:
        return assignment
    by_name: dict[str, list[int]] = {}
    for name, index in sorted(read.partitions):
        by_name.setdefault(name, []).append(index)
    return encode_assignment(by_name, read_version(assignment))


@dataclass
class Symbols:
    """The symbols of one sequence at one broker."""

    name: str
    topics: Mapping[str, tuple[str, UUID]]
    pairs: dict[str, Pair] = field(default_factory=dict)
    sequences: dict[tuple[Pair, tuple[str, int]], int] = field(default_factory=dict)
    members: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The last member id and generation that a group has told."""
    epochs: dict[tuple[str, str], int] = field(default_factory=dict)
    """The epochs of the members of KIP-848."""
    _seen: dict[object, str] = field(default_factory=dict)

    def id(self, letter: str | None) -> str | None:
        """Return a transactional id."""
        return f"{self.name}-{letter}" if letter else letter

    def group(self, letter: str) -> str:
        """Return a group id."""
        return f"{self.name}-{letter}" if letter else letter

    def topic(self, letter: str) -> str:
        """Return the name of a topic; one that is unknown does not exist."""
        known = self.topics.get(letter)
        return known[0] if known is not None else letter and f"{self.name}-{letter}"

    def topic_id(self, letter: str) -> UUID | None:
        """Return the id of a topic, or one that does not exist."""
        known = self.topics.get(letter)
        return known[1] if known is not None else UUID(int=77) if letter else None

    def member(self, group: str, member: str) -> tuple[str, int]:
        """Return a member id and the generation that it knows."""
        known, generation = self.members.get(group, ("", -1))
        return (known if member == "own" else member), generation

    # responses

    def comparable(self, value: Any, name: str = "") -> Any:
        """Return a response without the broker's own choices."""
        if isinstance(value, SimpleNamespace):
            return {key: self.comparable(each, key) for key, each in vars(value).items() if not key.endswith(_LEFT_OUT)}
        if isinstance(value, tuple):
            return sorted((self.comparable(each, name) for each in value), key=repr)
        if name in _MOMENTS and isinstance(value, int):
            return "a moment" if value > _LONG_AGO_MS else value
        if isinstance(value, UUID):
            return self._topic_of(value)
        if isinstance(value, str):
            is_new_id = name == "member_id" and _SHORT_MEMBER.fullmatch(value)
            return self._symbol(value, "member") if is_new_id else self.text(value)
        if name in _ASSIGNMENTS and isinstance(value, bytes):
            return in_order(value)
        if "producer_id" in name:
            return self.producer(value)
        if name == "records" and value is not None:
            return [self.batch(header, batch) for header, batch in split_batches(value)]
        return value

    def batch(self, header: BatchHeader, batch: bytes | memoryview) -> dict[str, Any]:
        """Return a batch without the broker's own fields: of a marker, its time."""
        return {
            "offset": header.base_offset,
            "producer": self.producer(header.producer_id),
            "epoch": header.producer_epoch,
            "sequence": header.base_sequence,
            "attributes": header.attributes,
            "leader epoch": header.leader_epoch,
            "records": [
                (each.offset, each.key, each.value, None if header.is_control else each.timestamp)
                for each in iter_records(batch)
            ],
        }

    def producer(self, producer_id: int) -> int | str:
        """Return the symbol of a producer id, in the order in which they were met."""
        return producer_id if producer_id <= 0 else self._symbol(producer_id, "producer")

    def text(self, text: str) -> str:
        """Return a text with symbols for the ids of members."""
        text = _MEMBER.sub(lambda found: self._symbol(found[0], "member"), text)
        for letter, (topic, _) in self.topics.items():
            text = text.replace(topic, letter)
        return text.replace(f"{self.name}-", "")

    def bytes(self, data: bytes) -> bytes:
        """Return bytes of a log with symbols for member ids and for moments."""
        data = _NOW.sub(b"<moment>", data)
        for member in (known for known in self._seen if isinstance(known, str)):
            data = data.replace(member.encode(), self._seen[member].ljust(36).encode())
        for letter, (topic, topic_id) in self.topics.items():
            data = data.replace(topic_id.bytes, letter.encode() * 16).replace(topic.encode(), letter.encode())
        return data

    def _topic_of(self, topic_id: UUID) -> str:
        return next((letter for letter, (_, known) in self.topics.items() if known == topic_id), str(topic_id))

    def _symbol(self, thing: object, kind: str) -> str:
        return self._seen.setdefault(thing, f"{kind}-{len(self._seen)}")

    def learn_pair(self, letter: str | None, producer_id: int, epoch: int) -> None:
        """Remember the pair in a response of InitProducerId or EndTxn."""
        owner = letter if letter in IDS else "I" if letter is None else None
        if owner is not None and producer_id >= 0:
            self.pairs[owner] = Pair(producer_id, epoch)
