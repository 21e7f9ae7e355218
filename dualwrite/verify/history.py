"""The events of a history of dual writes: those of callers, readers and recoveries, and the state at rest.

A history is a sequence of events. Each process notes its own, in their order: before it begins an operation, and after
it gets the response. `at` is a time in seconds, by one clock for all; only the order of times is compared between
processes, so a virtual clock serves as well. The state at rest comes as events too, so that a history is one stream:
`dualwrite/verify/lines.py` reads and writes it as lines of JSON.

A value belongs to one dual write: it stands in one row, in one record, or in one of each. The table is append-only:
each version of a key is a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Isolation(StrEnum):
    """Kafka's `isolation.level` of a reader."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class Outcome(StrEnum):
    """A recovery's outcome for the transaction that it found."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOTHING = "nothing"
    """It found no transaction."""


class Change(NamedTuple):
    """A row or a record, as a dual write makes it or reads it."""

    key: str
    value: str


class Record(NamedTuple):
    """A record as a reader got it."""

    offset: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a dual write."""

    at: float
    process: str
    dual_write: str
    """Its unique name."""


@dataclass(frozen=True, slots=True)
class Invoke(_Step):
    """A block begins. If it is committed, all its rows and records appear, else none."""

    rows: tuple[Change, ...] = ()
    """In the order of their creation: the last one of a key is its final version."""
    records: tuple[Change, ...] = ()
    transactional_id: str | None = None
    sequence: str | None = None
    """Within a sequence, the records of a key stand in the log in the order of the key's row versions; None: in any
    order. Dual writes that one process begins in a sequence are decided in that order. A transactional id is a
    sequence; the ids of a pool together are none if records are repaired or stored."""


@dataclass(frozen=True, slots=True)
class Deciding(_Step):
    """The database commit of a dual write is about to be sent: none of its changes may be visible before."""

    reads: tuple[Change, ...] = ()
    """The newest row of each key that it has read."""
    prepared_state: str | None = None
    consumed: tuple[Change, ...] = ()
    """The records that it has read."""


@dataclass(frozen=True, slots=True)
class Ok(_Step):
    """The caller was told that the dual write is committed."""


@dataclass(frozen=True, slots=True)
class Fail(_Step):
    """The caller was told that the dual write is rolled back."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Unknown(_Step):
    """The caller got an unknown outcome. A dual write without an end event means the same: its process died."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Recover:
    """A recovery of a transactional id has returned."""

    at: float
    process: str
    transactional_id: str
    outcome: Outcome
    prepared_state: str | None = None
    """The prepared state of the transaction that it found; compared with that of `Deciding`."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A reader has got records of a partition, or none."""

    at: float
    reader: str
    """A reader that is assigned the partition anew, or seeks, is another reader. Its first poll may have no records,
    and then says where it begins."""
    isolation: Isolation
    partition: str
    """The partition as Kafka prints it: `orders-3`."""
    records: tuple[Record, ...]
    position: int
    """The offset that it reads next: every earlier record has been shown, or never will be."""
    last_stable_offset: int | None = None
    """The last stable offset that the broker returned with the records."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The committed offset of a consumer group, as a client fetched it."""

    at: float
    since: float
    """When it was requested."""
    process: str
    group: str
    partition: str
    offset: int


@dataclass(frozen=True, slots=True)
class RowAtRest:
    """A row in the database at rest."""

    key: str
    value: str
    version: int | None = None
    """The place of its commit among those of the key; None if unknown."""


@dataclass(frozen=True, slots=True)
class RecordAtRest:
    """A record that a reader with `read_committed` gets at rest."""

    partition: str
    offset: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class PartitionAtRest:
    """The end of a partition's log at rest, and the end of its readable part."""

    partition: str
    last_stable_offset: int
    high_watermark: int


Event = (
    Invoke | Deciding | Ok | Fail | Unknown | Recover | Poll | GroupOffset | RowAtRest | RecordAtRest | PartitionAtRest
)
