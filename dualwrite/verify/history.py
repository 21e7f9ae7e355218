"""What a history of dual writes is made of: what callers, readers and recoveries saw, and what was there in the end.

A history is a sequence of events. Each process notes its own, in their order: before what it begins, and after what it
has heard. `at` is a time in seconds, by one clock for all; what is compared between processes is only whether one time
is before another, so a virtual clock serves as well. What is there in the end comes as events too, so that a history
is one stream: `dualwrite/verify/lines.py` reads and writes it as lines of JSON.

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
    """What a recovery says about the transaction that it found."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    NOTHING = "nothing"
    """It found none."""


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
class Invoke:
    """A block begins. If it is committed, all its rows and records appear, else none."""

    at: float
    process: str
    dual_write: str
    """Its name, which no other one has."""
    rows: tuple[Change, ...] = ()
    """In the order in which they are made: the last one of a key is its final version."""
    records: tuple[Change, ...] = ()
    transactional_id: str | None = None
    sequence: str | None = None
    """Within a sequence, the records of a key stand in the log in the order of the row versions of the key; None: in
    any order. What one process begins in a sequence is decided in that order. A transactional id is a sequence; the
    ids of a pool together are none if anything is repaired or stored."""


@dataclass(frozen=True, slots=True)
class Deciding:
    """The database commit of a dual write is about to be sent: nothing of it may be visible before."""

    at: float
    process: str
    dual_write: str
    reads: tuple[Change, ...] = ()
    """The newest row of each key that it has read."""
    prepared_state: str | None = None
    consumed: tuple[Change, ...] = ()
    """The records that it has read."""


@dataclass(frozen=True, slots=True)
class Ok:
    """The caller was told that the dual write is committed."""

    at: float
    process: str
    dual_write: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The caller was told that the dual write is rolled back."""

    at: float
    process: str
    dual_write: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The caller was told that nobody can say. A dual write without any end means the same: its process died."""

    at: float
    process: str
    dual_write: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Recover:
    """A recovery of a transactional id has returned."""

    at: float
    process: str
    transactional_id: str
    outcome: Outcome
    prepared_state: str | None = None
    """Of the transaction that it found; compared with that of `Deciding`."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A reader has got records of a partition, or none."""

    at: float
    reader: str
    """A reader that is assigned the partition anew, or seeks, is another reader. Its first poll may be one without
    records, which says where it begins."""
    isolation: Isolation
    partition: str
    """As Kafka prints it: `orders-3`."""
    records: tuple[Record, ...]
    position: int
    """The offset that it reads next: everything before it has been shown, or never will be."""
    last_stable_offset: int | None = None
    """What the broker gave with the records."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The committed offset of a consumer group, as somebody fetched it."""

    at: float
    since: float
    """When it was asked for."""
    process: str
    group: str
    partition: str
    offset: int


@dataclass(frozen=True, slots=True)
class RowAtRest:
    """A row that the database has in the end."""

    key: str
    value: str
    version: int | None = None
    """The place of its commit among those of the key; None: not known."""


@dataclass(frozen=True, slots=True)
class RecordAtRest:
    """A record that a reader with `read_committed` gets in the end."""

    partition: str
    offset: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class PartitionAtRest:
    """How far the log of a partition goes in the end, and how far it is readable."""

    partition: str
    last_stable_offset: int
    high_watermark: int


Event = (
    Invoke | Deciding | Ok | Fail | Unknown | Recover | Poll | GroupOffset | RowAtRest | RecordAtRest | PartitionAtRest
)
