"""The registry in the emulator's loop: decide, write the records to `_schemas`, apply them once they are replicated.

The topic is the truth. Where the state may differ from it, because a client produced to the topic, an append failed, or
another leader has fewer records, it is read again before the next request.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.replication import lacks_replicas, wait_until_replicated
from dualwrite.broker_emulator.cluster.topics import NO_LEADER, Partition
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.log.record_batch import iter_records, parse_header
from dualwrite.broker_emulator.log.replay import UNREADABLE
from dualwrite.broker_emulator.schema_registry.decisions import Decision
from dualwrite.broker_emulator.schema_registry.errors import DENIED, STORE_FAILED, TOO_LARGE, RegistryError
from dualwrite.broker_emulator.schema_registry.records import SCHEMAS_TOPIC, RegistryRecord, decoded
from dualwrite.broker_emulator.schema_registry.state import RegistryState
from dualwrite.broker_emulator.security.acl import AclOperation, ResourceType
from dualwrite.broker_emulator.security.principal import ANONYMOUS

if TYPE_CHECKING:
    from dualwrite.broker_emulator.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_MAX_DECISIONS: Final = 5
_CONFIGS: Final = {"cleanup.policy": "compact"}


class _Position(NamedTuple):
    """How much of which log has been applied."""

    log: PartitionLog
    leader_epoch: int
    end_offset: int


class RegistryService:
    """The registry of one cluster. Use it in the emulator's event loop only."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stops = threading.Event()
        self._state = RegistryState(self._stops)
        self._position: _Position | None = None
        self._deciding = asyncio.Lock()

    def start(self) -> None:
        """Create the topic if it does not exist, and read it."""
        if SCHEMAS_TOPIC not in self._cluster.topics:
            self._cluster.create_topic(SCHEMAS_TOPIC, 1, configs=_CONFIGS, replication_factor=len(self._cluster.nodes))
        self._catch_up(self._cluster.topics[SCHEMAS_TOPIC].partitions[0])

    def stop(self) -> None:
        """Give up the decision that a thread makes: a process does not end before its threads."""
        self._stops.set()

    def check_access(self, host: str, operation: AclOperation) -> None:
        """Raise RegistryError if the ACLs forbid a client without a login this operation on the topic."""
        authorizer = self._cluster.authorizer
        if authorizer is None or authorizer.is_allowed(ANONYMOUS, host, operation, ResourceType.TOPIC, SCHEMAS_TOPIC):
            return
        raise RegistryError(
            DENIED,
            f"the ACLs deny {ANONYMOUS}, as which the registry's clients count, {operation.name} on the topic "
            f"{SCHEMAS_TOPIC}; nothing was changed",
        )

    def state(self) -> RegistryState:
        """Return the present state, to be read at once. Raises RegistryError if the topic is out of reach."""
        if not self._deciding.locked():  # otherwise whoever decides has caught up, and relies on the state
            self._catch_up(self._partition())
        return self._state

    async def change(self, decide: Callable[[RegistryState], Decision]) -> object:
        """Decide in a thread, since schemas may be large; write what was decided, and return the response's body.

        One at a time, so that no two register the same version. Raises RegistryError.
        """
        async with self._deciding:
            for _ in range(_MAX_DECISIONS):
                self._catch_up(self._partition())
                decision = await asyncio.to_thread(_decided, decide, self._state)
                if self._is_current(self._partition().log):
                    for record in decision.records:
                        await self._write(record)
                    return decision.body
        raise RegistryError(STORE_FAILED, f"others keep writing to {SCHEMAS_TOPIC}; nothing was changed: send it again")

    async def _write(self, record: RegistryRecord) -> None:
        partition = self._partition()
        log = partition.log
        if lacks_replicas(partition, self._cluster.nodes):
            raise RegistryError(
                STORE_FAILED, f"{SCHEMAS_TOPIC} lacks replicas; nothing was changed: send it again later"
            )
        self._catch_up(partition)  # from here to the append, nobody else can write
        key, value = record.encoded()
        self._position = None  # until it is known that the record is there
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
        self._apply(record, position.end_offset - 1)
        self._position = position

    def _is_current(self, log: PartitionLog) -> bool:
        return self._position == _position_of(log)

    def _partition(self) -> Partition:
        topic = self._cluster.topics.get(SCHEMAS_TOPIC)
        if topic is None or topic.partitions[0].leader_id == NO_LEADER:
            lack = "does not exist" if topic is None else "has no leader"
            raise RegistryError(STORE_FAILED, f"the topic {SCHEMAS_TOPIC} {lack}; nothing was changed")
        return topic.partitions[0]

    def _catch_up(self, partition: Partition) -> None:
        """Apply the records that have been added; all of them, if the log is not the one that was applied."""
        log, known = partition.log, self._position
        if self._is_current(log):
            return
        if not log.is_replicated:
            raise RegistryError(STORE_FAILED, f"records of {SCHEMAS_TOPIC} wait for their replication; send it again")
        is_same = known is not None and known._replace(end_offset=0) == _position_of(log)._replace(end_offset=0)
        first = known.end_offset if is_same and known is not None else 0
        if not first:
            self._state = RegistryState(self._stops)
        for batch in log.batches() if log.log_end_offset > first else ():
            self._read_batch(batch, first)
        self._position = _position_of(log)

    def _read_batch(self, batch: bytes, first: int) -> None:
        header = parse_header(batch)
        try:
            if not header.is_control:
                for record in iter_records(batch):
                    if record.offset >= first and record.key is not None:
                        self._read(record.key, record.value, record.offset)
        except UNREADABLE as error:
            _warn(header.base_offset, error)

    def _read(self, key: bytes, value: bytes | None, offset: int) -> None:
        try:
            record = decoded(key, value)
        except (*UNREADABLE, RecursionError) as error:
            _warn(offset, error)
        else:
            self._apply(record, offset)

    def _apply(self, record: RegistryRecord, offset: int) -> None:
        try:
            self._state.apply(record)
        except UNREADABLE as error:
            _warn(offset, error)


def _position_of(log: PartitionLog) -> _Position:
    return _Position(log, log.leader_epoch, log.log_end_offset)


def _warn(offset: int, error: Exception) -> None:
    logger.warning(
        "the record at offset %d of %s is not the registry's, and is ignored: %r", offset, SCHEMAS_TOPIC, error
    )


def _decided(decide: Callable[[RegistryState], Decision], state: RegistryState) -> Decision:
    try:
        return decide(state)
    except RecursionError:
        raise RegistryError(TOO_LARGE, "the schema is nested too deep; nothing was changed") from None
