"""The registry in the emulator's loop: decide, write the records to `_schemas`, apply them once they are replicated.

The topic is the truth. It is read again before the next request whenever the state may differ from it: a client
produced to the topic, an append failed, or another leader has fewer records. Reading runs in slices, since clients
control the length of the topic.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.reading import UNREADABLE
from dualwrite.broker_emulator.log.record_batch import parse_header, records_of
from dualwrite.broker_emulator.schema_registry.decisions import Decision
from dualwrite.broker_emulator.schema_registry.errors import DENIED, STORE_FAILED, TOO_LARGE, RegistryError
from dualwrite.broker_emulator.schema_registry.state import SCHEMAS_TOPIC, RegistryRecord, RegistryState, decoded
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.security.principal import ANONYMOUS
from dualwrite.broker_emulator.slices import Pace, in_slices
from dualwrite.broker_emulator.topics.replication import lacks_replicas, wait_until_replicated
from dualwrite.broker_emulator.topics.topics import NO_LEADER, Partition

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_MAX_DECISIONS: Final = 5
_CONFIGS: Final = {"cleanup.policy": "compact"}


class _Position(NamedTuple):
    """The log, and how much of it has been applied."""

    log: PartitionLog
    leader_epoch: int
    end_offset: int

    def is_same_log(self, other: _Position) -> bool:
        return self.log is other.log and self.leader_epoch == other.leader_epoch


class RegistryService:
    """The registry of one cluster. Use it in the emulator's event loop only."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stops = threading.Event()
        self._state = RegistryState(self._stops)
        self._position: _Position | None = None
        self._deciding = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._is_relied_on = False
        """Whether a decision is running, so that the state must not change."""

    async def start(self) -> None:
        """Create the topic if it does not exist, and read it."""
        if SCHEMAS_TOPIC not in self._cluster.topics:
            self._cluster.create_topic(SCHEMAS_TOPIC, 1, configs=_CONFIGS, replication_factor=len(self._cluster.nodes))
        try:
            await self.state()
        except RegistryError as error:
            logger.warning("the schema registry reads its topic at the first request: %s", error)

    def stop(self) -> None:
        """Abandon the read in progress, and the decision in a thread, which would hold up the end of the process."""
        self._stops.set()

    def check_access(self, host: str, operation: AclOperation) -> None:
        """Raise RegistryError if the ACLs deny this operation on the topic to a client without a login."""
        authorizer = self._cluster.authorizer
        if authorizer is None or authorizer.is_allowed(ANONYMOUS, host, operation, ResourceType.TOPIC, SCHEMAS_TOPIC):
            return
        raise RegistryError(
            DENIED,
            f"the ACLs deny {ANONYMOUS}, as which the registry's clients count, {operation.name} on the topic "
            f"{SCHEMAS_TOPIC}; nothing was changed",
        )

    async def state(self) -> RegistryState:
        """Return the current state; use it before the next await. Raises RegistryError if the topic is out of reach."""
        async with self._reading:
            if not self._is_relied_on:
                await self._read_all()
        return self._state

    async def change(self, decide: Callable[[RegistryState], Decision]) -> object:
        """Decide in a thread, since schemas may be large; write the decision, and return the response's body.

        One decision at a time, so that no two requests register the same version. Raises RegistryError.
        """
        async with self._deciding:
            for _ in range(_MAX_DECISIONS):
                await self._catch_up()
                self._is_relied_on = True
                try:
                    decision = await asyncio.to_thread(_decided, decide, self._state)
                    if self._is_current(self._partition().log):
                        for record in decision.records:
                            await self._write(record)
                        return decision.body
                finally:
                    self._is_relied_on = False
        raise RegistryError(STORE_FAILED, f"other writers keep changing {SCHEMAS_TOPIC}; nothing was changed: retry")

    async def _write(self, record: RegistryRecord) -> None:
        await self._catch_up()  # nothing is awaited between this and the append
        partition = self._partition()
        log = partition.log
        if lacks_replicas(partition, self._cluster.nodes):
            raise RegistryError(
                STORE_FAILED, f"{SCHEMAS_TOPIC} lacks replicas; nothing was changed: send it again later"
            )
        key, value = record.encoded()
        self._position = None  # until the record is known to be there
        error = log.append_own(key, value, now_ms=self._cluster.clock.now_ms())
        position = _position_of(log)
        if error is NO_ERROR and not log.is_replicated:
            error = await wait_until_replicated(partition, position.end_offset, position.leader_epoch)
        if error is not NO_ERROR:
            raise RegistryError(
                STORE_FAILED,
                f"the record could not be written to {SCHEMAS_TOPIC} ({error.name}): whether it is there shows when "
                "the topic has its replicas again. Ask for the subject's versions then, or send the request again",
            )
        self._state.apply(record)
        self._position = position

    def _is_current(self, log: PartitionLog) -> bool:
        return self._position == _position_of(log)

    def _partition(self) -> Partition:
        topic = self._cluster.topics.get(SCHEMAS_TOPIC)
        if topic is None or topic.partitions[0].leader_id == NO_LEADER:
            lack = "does not exist" if topic is None else "has no leader"
            raise RegistryError(STORE_FAILED, f"the topic {SCHEMAS_TOPIC} {lack}; nothing was changed")
        return topic.partitions[0]

    async def _catch_up(self) -> None:
        async with self._reading:
            await self._read_all()

    async def _read_all(self) -> None:
        """Apply the new records; all records, if the log is not the one applied so far."""
        for _ in range(_MAX_DECISIONS):
            log = self._partition().log
            if self._is_current(log):
                return
            if not log.is_replicated:
                raise RegistryError(
                    STORE_FAILED, f"records of {SCHEMAS_TOPIC} wait for their replication; send it again"
                )
            ignored = _Ignored()
            try:
                await self._read_to(_position_of(log), ignored)
            finally:
                ignored.log()
        raise RegistryError(STORE_FAILED, f"other writers keep changing {SCHEMAS_TOPIC}; nothing was changed: retry")

    async def _read_to(self, end: _Position, ignored: _Ignored) -> None:
        """Apply the records up to `end`, or until the log has another leader."""
        at = self._position
        if at is None or not at.is_same_log(end):
            self._state = RegistryState(self._stops)
            at = self._position = end._replace(end_offset=0)
        pace = Pace()
        while at.end_offset < end.end_offset and end.is_same_log(_position_of(end.log)):
            last = end.end_offset - 1
            for batch in end.log.batches(at.end_offset):
                await self._read_batch(batch, at.end_offset, ignored)
                if pace.is_over:  # let other tasks run; the batches that follow may change meanwhile
                    last = parse_header(batch).last_offset
                    break
            at = self._position = end._replace(end_offset=last + 1)
            await pace.keep()
            if self._stops.is_set():
                raise RegistryError(STORE_FAILED, "the registry stops; nothing was changed")

    async def _read_batch(self, batch: bytes, first: int, ignored: _Ignored) -> None:
        header = parse_header(batch)
        if header.is_control:
            return
        try:
            records = await in_slices(records_of(batch))
        except UNREADABLE as error:
            ignored.add(header.base_offset, error)
            return
        pace = Pace()
        for record in records:
            await pace.keep()
            if record.offset >= first and record.key is not None:
                try:
                    self._state.apply(decoded(record.key, record.value))
                except (*UNREADABLE, RecursionError) as error:
                    ignored.add(record.offset, error)


class _Ignored:
    """The records that are not the registry's: any number of them is reported in one log line."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""

    def add(self, offset: int, error: Exception) -> None:
        if not self._count:
            self._first = f"at offset {offset} ({error!r:.200})"
        self._count += 1

    def log(self) -> None:
        if self._count:
            logger.warning(
                "%s has records that are not the registry's and are ignored: %d, the first %s",
                SCHEMAS_TOPIC,
                self._count,
                self._first,
            )


def _position_of(log: PartitionLog) -> _Position:
    return _Position(log, log.leader_epoch, log.log_end_offset)


def _decided(decide: Callable[[RegistryState], Decision], state: RegistryState) -> Decision:
    try:
        return decide(state)
    except RecursionError:
        raise RegistryError(TOO_LARGE, "the schema is nested too deep; nothing was changed") from None
