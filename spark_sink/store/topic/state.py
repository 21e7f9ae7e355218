"""The state of a store: the fold of its log, by the rule that says which updates count. Pure.

The rule is the same for all operations, and frozen: an older process must never judge a record otherwise than a newer
one. So it knows names, versions and rows, and not their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from spark_sink.store.topic.records import Row, Update


@dataclass
class SinkState:
    """The rows of one sink, and the versions of its names."""

    versions: dict[str, str] = field(default_factory=dict)
    tables: dict[str, dict[str, Row]] = field(default_factory=dict)

    def rows(self, table: str) -> Mapping[str, Row]:
        """Return the rows of a table, by key."""
        return self.tables.get(table, {})

    def counts(self, update: Update) -> bool:
        """Return whether each name that the update expects has the version that its sender read."""
        return all(self.versions.get(name) == version for name, version in update.expects.items())

    def change(self, update: Update, time_ms: int) -> None:
        """Make the changes of an update that counts."""
        self.versions.update(dict.fromkeys(update.touches, update.id))
        for put in update.puts:
            rows = self.tables.setdefault(put.table, {})
            rows[put.key] = {**rows.get(put.key, {}), **put.columns, **dict.fromkeys(put.times, time_ms)}
        for drop in update.drops:
            self.tables.get(drop.table, {}).pop(drop.key, None)


@dataclass
class StoreState:
    """The sinks of a store."""

    store_id: str | None = None
    """None until a record names the store; until then no update counts."""
    sinks: dict[str, SinkState] = field(default_factory=dict)

    def name(self, store_id: str) -> None:
        """Take the name of the store, unless it has one."""
        if self.store_id is None:
            self.store_id = store_id

    def sink(self, sink_id: str) -> SinkState:
        """Return the state of a sink; an empty one, which is not kept, for a sink without records."""
        return self.sinks.get(sink_id) or SinkState()

    def apply(self, update: Update, time_ms: int) -> bool:
        """Make the changes of the update, if it counts; return whether it does."""
        sink = self.sink(update.sink_id)
        if update.store_id != self.store_id or not sink.counts(update):
            return False
        sink.change(update, time_ms)
        self.sinks[update.sink_id] = sink
        return True

    def document(self) -> dict[str, Any]:
        """Return the state for a snapshot."""
        return {
            "store": self.store_id,
            "sinks": {
                sink_id: {"versions": dict(sink.versions), "tables": {name: dict(t) for name, t in sink.tables.items()}}
                for sink_id, sink in self.sinks.items()
            },
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the state of a snapshot."""
        sinks = {
            sink_id: SinkState(dict(sink["versions"]), {name: dict(rows) for name, rows in sink["tables"].items()})
            for sink_id, sink in document["sinks"].items()
        }
        return cls(document["store"], sinks)
