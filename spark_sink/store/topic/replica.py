"""A process's copy of the state: it reads the log, and sends records to it.

The leader of the partition may be a deposed one, and show an old log. So a call acts only on a state that was read up
to a record that this process sent after the call: a leader that can acknowledge one is the leader.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeVar

from spark_sink import commands
from spark_sink.errors import CommitLogError, SinkError
from spark_sink.store.topic.log import CommitLog, OutOfLogError, StoredRecord
from spark_sink.store.topic.operations import Change
from spark_sink.store.topic.records import Content, Mark, NewStore, Snapshot, Update, decoded, encoded
from spark_sink.store.topic.state import StoreState

_log = logging.getLogger("spark_sink")

ResultT = TypeVar("ResultT")

SNAPSHOT_EVERY: Final = 64
"""Least number of records between two snapshots."""

_REFRESH_TRIES: Final = 10
_FIRST_LOOK: Final = 4 * SNAPSHOT_EVERY
"""Number of records at the end of the log that are searched for a snapshot first."""


class OutcomeUnknownError(CommitLogError):
    """An update was sent, and it is unknown whether it counts, or will."""


class _Place(NamedTuple):
    """The record at an offset: two logs that agree on it agree on all before it."""

    epoch: int
    id: str


class _Sent:
    """A record that this process has sent, as far as it was read."""

    def __init__(self) -> None:
        self.offsets: set[int] = set()
        self.was_read = False
        """Whether it is at its acknowledged offset, and the log was read up to there."""
        self.counted_at_ms: int | None = None
        """The leader's time; None if it does not count."""


class Replica:
    """The state of one store in this process. Threads may share it."""

    def __init__(self, log: CommitLog, new_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._log = log
        self._new_id = new_id
        self._lock = threading.Lock()
        self._state = StoreState()
        self._next: int | None = None
        """The offset to read next; None if nothing was read, or everything has to be read anew."""
        self._now_ms = 0
        self._store_id: str | None = None
        """The name of the store, as first read."""
        self._places: dict[int, _Place] = {}
        """The records that were read, from before the last but one snapshot on."""
        self._covered: list[int] = []
        """The offsets up to which the snapshots in the log hold the state."""
        self._watched: dict[str, _Sent] = {}
        """Guarded by the lock: another thread may be about to forget the progress of these records."""
        self._warned: set[str] = set()

    # ---- reading --------------------------------------------------------------------------------------------

    @contextmanager
    def state(self) -> Iterator[StoreState | None]:
        """Return the state as last read, or None if it has to be read. It does not change in this context.

        Call no other method of this object in it.
        """
        with self._lock:
            yield None if self._next is None else self._state

    @property
    def now_ms(self) -> int:
        """The time of the last record that was read, by the leader's clock."""
        return self._now_ms

    def refresh(self) -> int:
        """Read every record that was acknowledged before this call; return the leader's time. Raises CommitLogError."""
        for _ in range(_REFRESH_TRIES):
            if self._appended(Mark(self._new_id())).was_read:
                return self._now_ms
        raise CommitLogError(
            f"the topic {self._log.name} repeatedly does not show records that it has acknowledged", is_away=False
        )

    def begin_store(self) -> None:
        """Name the store, unless it has a name. The log must have been read."""
        with self._lock:
            has_name = self._state.store_id is not None
        if not has_name:
            self._appended(NewStore(self._new_id()))

    def _appended(self, content: Content) -> _Sent:
        """Append a record, and read up to it."""
        sent = _Sent()
        try:
            with self._lock:
                self._watched[content.id] = sent
            offset = self._log.append(encoded(content))
            self._read_to(offset)
            with self._lock:
                sent.was_read = offset in sent.offsets
                if not sent.was_read:
                    self._forget()  # the log has lost its end, or it was read anew from far beyond that record
            return sent
        finally:
            with self._lock:
                self._watched.pop(content.id, None)

    def _read_to(self, last: int) -> None:
        with self._lock:
            while self._next is None or self._next <= last:
                is_anew = self._next is None
                try:
                    self._read_on(last)
                except OutOfLogError:
                    self._forget()
                    if is_anew:
                        return  # the log has lost its end: callers begin again
                except CommitLogError:
                    raise
                except BaseException:
                    self._forget()  # a refused record is refused again
                    raise

    def _read_on(self, last: int) -> None:
        """Read from the last known record, which must still be there."""
        if self._next is None:
            self._load(last)
            return
        first, *others = self._log.read(self._next - 1, last)
        content = decoded(first.value)
        if self._places.get(first.offset) != _Place(first.epoch, content.id):
            _log.warning(
                "the topic %s was truncated and has lost acknowledged records; reading it again", self._log.name
            )
            self._forget()
            return
        for record in others:
            self._apply(record)

    def _load(self, last: int) -> None:
        """Read anew, from a snapshot on if there is one. Raises OutOfLogError if the log has lost its end."""
        start = self._log.start()
        while True:
            try:
                base, records, contents = self._ending(start, last)
            except OutOfLogError:
                gone, start = start, self._log.start()
                if start == gone:
                    raise
            else:
                break
        state = StoreState() if base is None else StoreState.of(base.state)
        if self._store_id is not None and state.store_id not in (None, self._store_id):
            raise self._another_store()
        self._state = state
        self._next = 0 if base is None else base.upto + 1
        self._places = {
            each.offset: _Place(each.epoch, content.id)
            for each, content in zip(records, contents, strict=True)
            if base is not None and each.offset <= base.upto
        }
        self._covered = [] if base is None else [base.upto]
        for record in records:
            if record.offset >= self._next:
                self._apply(record)
        if self._store_id is not None and self._state.store_id is None:
            raise self._another_store()

    def _ending(self, start: int, last: int) -> tuple[Snapshot | None, list[StoredRecord], list[Content]]:
        """Read the log from its end backwards, until a snapshot covers the unread part, or all was read."""
        first = max(start, last - _FIRST_LOOK)
        records = self._log.read(first, max(last, first))
        contents = [decoded(record.value) for record in records]
        while (base := _base(records, contents)) is None and first > start:
            beyond, first = first, max(start, first - 2 * (last - first))
            earlier = [record for record in self._log.read(first, beyond - 1) if record.offset < beyond]
            records = earlier + records
            contents = [decoded(record.value) for record in earlier] + contents
        if base is None and start > 0:
            raise self._is_lost(
                f"begins at offset {start}, and no snapshot covers the records before it, which were deleted"
            )
        return base, records, contents

    def _apply(self, record: StoredRecord) -> None:
        if record.offset != self._next:
            raise self._is_lost(
                f"has no record at offset {self._next}: it was compacted, or something deleted a part of it"
            )
        content = decoded(record.value)
        if isinstance(content, NewStore):
            self._state.name(content.id)
            if self._store_id not in (None, self._state.store_id):
                raise self._another_store()
            self._store_id = self._state.store_id
        elif isinstance(content, Update) and self._state.apply(content, record.time_ms):
            if (watched := self._watched.get(content.id)) is not None:
                watched.counted_at_ms = record.time_ms
        elif isinstance(content, Snapshot):
            self._cover(content)
        if (watched := self._watched.get(content.id)) is not None:
            watched.offsets.add(record.offset)
        self._places[record.offset] = _Place(record.epoch, content.id)
        self._next, self._now_ms = record.offset + 1, record.time_ms
        self._store_id = self._state.store_id or self._store_id

    def _cover(self, snapshot: Snapshot) -> None:
        if self._places.get(snapshot.upto) != _Place(snapshot.epoch, snapshot.of):
            return  # of a history that the log has lost, or older than the known state
        if self._covered and snapshot.upto <= self._covered[-1]:
            return
        self._covered = [*self._covered[-1:], snapshot.upto]
        self._places = {offset: place for offset, place in self._places.items() if offset >= self._covered[0]}

    def _forget(self) -> None:
        for sent in self._watched.values():
            sent.offsets.clear()
            sent.counted_at_ms = None
        self._state, self._next, self._places, self._covered = StoreState(), None, {}, []

    # ---- sending --------------------------------------------------------------------------------------------

    def update(self, state: StoreState, sink_id: str, change: Change) -> Update:
        """Return the update for a change that was computed from this state. Raises SinkError without a store."""
        if state.store_id is None:
            raise missing_store(self._log.name)
        versions = {name: state.sink(sink_id).versions.get(name) for name in change.expects}
        return Update(self._new_id(), state.store_id, sink_id, versions, change.touches, change.puts, change.drops)

    def send(self, update: Update) -> int | None:
        """Send an update, and read up to it; return the leader's time at which it counted.

        None: it does not count, and never will. Raises OutcomeUnknownError, and SinkError if it is too long to send.
        """
        try:
            sent = self._appended(update)
        except CommitLogError as error:
            raise OutcomeUnknownError(str(error), is_away=error.is_away) from error
        if sent.counted_at_ms is None and not sent.was_read:
            raise OutcomeUnknownError(
                f"the topic {self._log.name} does not show a record that was acknowledged: it was truncated, or has "
                "advanced far beyond it",
                is_away=False,
            )
        return sent.counted_at_ms

    # ---- deleting old records -------------------------------------------------------------------------------

    def compact(self) -> None:
        """Write a snapshot, and delete the records before the previous one. Warns if that is not possible."""
        with self._lock:
            if self._next is None or self._next - (self._covered[-1] if self._covered else 0) < SNAPSHOT_EVERY:
                return
            upto = self._next - 1
            place = self._places[upto]
            snapshot = Snapshot(self._new_id(), upto, place.epoch, place.id, self._state.document())
        try:
            self._appended(snapshot)
            with self._lock:
                covered = self._covered[0] if len(self._covered) == 2 and self._covered[1] >= upto else 0
            if covered > 0:
                self._log.delete_before(covered)
        except SinkError as error:
            reason = str(error)
            if reason not in self._warned:
                self._warned.add(reason)
                _log.warning(
                    "the topic %s of the commit store grows, because old records cannot be deleted: %s",
                    self._log.name,
                    reason,
                )

    # ---- refusals -------------------------------------------------------------------------------------------

    def _is_lost(self, why: str) -> SinkError:
        return SinkError(
            f"the commit store in the topic {self._log.name} is lost: the topic {why}. Nothing was changed: go on as "
            "after the loss of a database (docs/spark-store.md, A store that was lost), with a new topic"
        )

    def _another_store(self) -> SinkError:
        return self._is_lost("was deleted and created again, so it holds another store than before")


def _base(records: list[StoredRecord], contents: list[Content]) -> Snapshot | None:
    """Return the first snapshot of this log's history that covers all earlier records."""
    places = {each.offset: _Place(each.epoch, content.id) for each, content in zip(records, contents, strict=True)}
    for content in contents:
        if isinstance(content, Snapshot) and places.get(content.upto) == _Place(content.epoch, content.of):
            return content
    return None


def missing_store(topic: str) -> SinkError:
    """Return the error for a topic that does not exist, or has no store in it."""
    return SinkError(
        f"the topic {topic} has no commit store; nothing was written: create it with "
        f"{commands.init_store(schema=None)}, or let the sink do it (commitStore.createTables=true)"
    )
