"""The records of the log, and their bytes: JSON, one record in a batch. Pure.

Four kinds: the first one names the store; an update changes rows, if it counts; a mark changes nothing: reading up to
it shows all that was acknowledged before; a snapshot is the state up to an offset.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_sink.errors import SinkError

_FORMAT: Final = 1
"""The version of the rule and of the bytes. New columns of rows need no new version."""

Row = Mapping[str, Any]
"""The columns of a row, by their names in the SQL store; times are milliseconds since 1970."""


@dataclass(frozen=True)
class Put:
    """Columns to write into one row; its other columns stay as they are."""

    table: str
    key: str
    columns: Row
    times: tuple[str, ...] = ()
    """The columns that get the time of the record, by the leader's clock."""


@dataclass(frozen=True)
class Drop:
    """A row to delete."""

    table: str
    key: str


@dataclass(frozen=True)
class Update:
    """A change of one sink's rows. It counts only if each name still has the version that its sender has read."""

    id: str
    store_id: str
    sink_id: str
    expects: Mapping[str, str | None]
    """The version of each name: the id of the last counted record that touched it; None if there is none."""
    touches: tuple[str, ...]
    puts: tuple[Put, ...] = ()
    drops: tuple[Drop, ...] = ()

    def __post_init__(self) -> None:
        if not set(self.touches) & self.expects.keys():
            raise ValueError("an update that expects no name that it touches could count twice")


@dataclass(frozen=True)
class Mark:
    """A record that changes nothing."""

    id: str


@dataclass(frozen=True)
class NewStore:
    """The name of the store. Only the first one in a log counts."""

    id: str


@dataclass(frozen=True)
class Snapshot:
    """The state after the record at `upto`, whose leader epoch and id identify the history."""

    id: str
    upto: int
    epoch: int
    of: str
    state: Mapping[str, Any]


Content = Update | Mark | NewStore | Snapshot


def encoded(content: Content) -> bytes:
    """Return the bytes of a record."""
    return json.dumps({"v": _FORMAT, **_document(content)}, separators=(",", ":")).encode()


def decoded(value: bytes | None) -> Content:
    """Return the record with these bytes. Raises SinkError for another format: no record may be skipped."""
    try:
        document = json.loads(value or b"")
        if document["v"] == _FORMAT:
            return _READERS[document["kind"]](document)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unknown() from error
    raise _unknown()


def _unknown() -> SinkError:
    return SinkError(
        "the topic of the commit store has a record that this version of dualwrite does not know: a newer version, or "
        "another program, has written it. Nothing was changed: install the newer version wherever the sink runs, and "
        "let nothing else write to that topic"
    )


def _document(content: Content) -> dict[str, Any]:
    if isinstance(content, Update):
        return {
            "kind": "update",
            "id": content.id,
            "store": content.store_id,
            "sink": content.sink_id,
            "expects": dict(content.expects),
            "touches": list(content.touches),
            "put": [[put.table, put.key, dict(put.columns), list(put.times)] for put in content.puts],
            "drop": [[drop.table, drop.key] for drop in content.drops],
        }
    if isinstance(content, Snapshot):
        return {
            "kind": "snapshot",
            "id": content.id,
            "upto": content.upto,
            "epoch": content.epoch,
            "of": content.of,
            "state": dict(content.state),
        }
    return {"kind": "mark" if isinstance(content, Mark) else "store", "id": content.id}


def _update(document: Any) -> Update:
    return Update(
        id=document["id"],
        store_id=document["store"],
        sink_id=document["sink"],
        expects=document["expects"],
        touches=tuple(document["touches"]),
        puts=tuple(Put(table, key, row, tuple(times)) for table, key, row, times in document["put"]),
        drops=tuple(Drop(table, key) for table, key in document["drop"]),
    )


def _snapshot(document: Any) -> Snapshot:
    return Snapshot(document["id"], document["upto"], document["epoch"], document["of"], document["state"])


_READERS: Final[Mapping[str, Callable[[Any], Content]]] = {
    "update": _update,
    "snapshot": _snapshot,
    "mark": lambda document: Mark(document["id"]),
    "store": lambda document: NewStore(document["id"]),
}
