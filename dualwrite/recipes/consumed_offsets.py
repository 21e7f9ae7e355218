"""Where the offsets of consumed records are kept so that they are committed with what was made of the records.

In the database: a row per partition, moved in the dual write's own commit. In the transaction: the group's offsets in
Kafka, committed with the records that are sent (KIP-447). Either way a consumer that has lost its partitions without
knowing cannot write: the row is not where it left it, or Kafka refuses its generation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from dualwrite.client.records import ConsumerGroupMetadata, TopicPartition
from dualwrite.errors import AbortableError, PartitionTakenOverError
from dualwrite.recipes.consumer_side import ConsumerSide
from dualwrite.recipes.dual_writes import DualWrite
from dualwrite.recipes.sqlalchemy_transaction import Carry, here
from dualwrite.recipes.state_row import missing_table
from dualwrite.recipes.state_table import exact_text

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

MAX_NAME_LENGTH: Final = 255
"""Of a group or a topic, in characters. Kafka's topics have 249 at the most."""

metadata = sa.MetaData()

kafka_consumed_offset = sa.Table(
    "kafka_consumed_offset",
    metadata,
    sa.Column("group_id", exact_text(MAX_NAME_LENGTH), primary_key=True),
    sa.Column("topic", exact_text(MAX_NAME_LENGTH), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

_T = kafka_consumed_offset
_OF_PARTITION = sa.and_(
    _T.c.group_id == sa.bindparam("group"),
    _T.c.topic == sa.bindparam("of_topic"),
    _T.c.partition == sa.bindparam("of_partition"),
)
_SELECT = sa.select(_T.c.topic, _T.c.partition, _T.c.next_offset).where(_T.c.group_id == sa.bindparam("group"))
_MOVE = (
    sa.update(_T)
    .where(_OF_PARTITION, _T.c.next_offset == sa.bindparam("expected"))
    .values(next_offset=sa.bindparam("next"), updated_at=sa.func.now())
)
_FIRST = sa.insert(_T).values(
    group_id=sa.bindparam("group"),
    topic=sa.bindparam("of_topic"),
    partition=sa.bindparam("of_partition"),
    next_offset=sa.bindparam("next"),
)

# What a group coordinator says to who is no longer, or not yet again, a member with these partitions.
_LOST_MEMBERSHIP: Final = frozenset(
    {
        22,  # ILLEGAL_GENERATION
        25,  # UNKNOWN_MEMBER_ID
        27,  # REBALANCE_IN_PROGRESS
        113,  # STALE_MEMBER_EPOCH (KIP-848)
    }
)


class OffsetPlace(Protocol):
    """Where consumed offsets are kept, for one consumer."""

    async def start(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Where to go on with newly assigned partitions; without those that the group's own offsets rule."""

    def is_behind(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the record was consumed before."""

    async def move(
        self, tx: DualWrite, membership: ConsumerGroupMetadata, next_offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Make the offsets a part of the dual write. Raises PartitionTakenOverError."""

    def moved(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """The dual write is committed."""

    async def where_to_go_on(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """After a dual write that failed, or of which nobody knows: what is true of the partitions now."""

    def lost_membership(self, error: BaseException) -> bool:
        """Whether this says that another consumer has the partitions."""


def create_offset_table(engine: sa.Engine) -> None:
    """Create `kafka_consumed_offset` where it is missing; safe when several processes do it at once."""
    try:
        metadata.create_all(engine)
    except (IntegrityError, ProgrammingError, OperationalError):
        if not sa.inspect(engine).has_table(kafka_consumed_offset.name):
            raise


class OffsetsInDatabase:
    """A row per group and partition in `kafka_consumed_offset`, moved by a compare-and-set in the dual write's commit.

    The compare-and-set is the first statement of the block. So a consumer that lost the partition, and another that has
    it now, queue at the row, and the one that comes second finds another offset than it expects: neither its data nor
    its records are written. It needs no word from the group coordinator, which may be late.
    """

    def __init__(self, engine: sa.Engine | AsyncEngine, *, create_table: bool = True) -> None:
        self._engine, self._carry = _blocking_face(engine)
        self._create_table = create_table
        self._expected: dict[TopicPartition, int | None] = {}

    async def start(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        stored = await self._carry(lambda: self._stored(consumer.group_id))
        self._expected.update({partition: stored.get(partition) for partition in partitions})
        return {partition: stored[partition] for partition in partitions if partition in stored}

    def _stored(self, group: str) -> dict[TopicPartition, int]:
        if self._create_table:
            create_offset_table(self._engine)
            self._create_table = False
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(_SELECT, {"group": group}).all()
        except (OperationalError, ProgrammingError) as error:
            if sa.inspect(self._engine).has_table(_T.name):
                raise
            raise missing_table(
                _T.name, option=" --consumed-offsets", otherwise="create_offset_table(engine)"
            ) from error
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def is_behind(self, partition: TopicPartition, offset: int) -> bool:
        expected = self._expected.get(partition)
        return expected is not None and offset < expected

    async def move(
        self, tx: DualWrite, membership: ConsumerGroupMetadata, next_offsets: Mapping[TopicPartition, int]
    ) -> None:
        connection = _connection_of(tx)
        for partition in sorted(next_offsets):  # in one order everywhere, so that consumers do not lock each other out
            move_one = partial(self._move_one, connection, membership.group_id, partition, next_offsets[partition])
            await self._carry(move_one)

    def _move_one(self, connection: sa.Connection, group: str, partition: TopicPartition, next_offset: int) -> None:
        expected = self._expected.get(partition)
        named = {"group": group, "of_topic": partition.topic, "of_partition": partition.partition, "next": next_offset}
        if expected is not None:
            if connection.execute(_MOVE, {**named, "expected": expected}).rowcount != 1:
                raise _taken_over(group, partition, expected)
            return
        try:
            connection.execute(_FIRST, named)
        except IntegrityError as error:
            raise _taken_over(group, partition, expected) from error

    def moved(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        self._expected.update(next_offsets)

    async def where_to_go_on(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return await self.start(consumer, partitions)

    def lost_membership(self, error: BaseException) -> bool:
        return isinstance(error, PartitionTakenOverError)


def _blocking_face(engine: sa.Engine | AsyncEngine) -> tuple[sa.Engine, Carry]:
    """The engine that statements are sent to, and how that is carried out."""
    if not isinstance(engine, sa.Engine):
        from dualwrite.recipes.sqlalchemy_async import in_a_greenlet  # it needs a greenlet, which threads do not

        return engine.sync_engine, in_a_greenlet
    return engine, here


def _connection_of(tx: Any) -> sa.Connection:
    """Of a dual write for threads or for tasks."""
    found = getattr(tx.connection, "sync_connection", tx.connection)
    assert isinstance(found, sa.Connection), "a dual write on SQLAlchemy has one"
    return found


def _taken_over(group: str, partition: TopicPartition, expected: int | None) -> PartitionTakenOverError:
    return PartitionTakenOverError(
        f"another consumer of group {group!r} has gone on with {partition.topic}-{partition.partition}, which stood at "
        f"{'no offset' if expected is None else expected} for this one; nothing was written on either side: read on "
        "from the stored offset, or leave the partition to the other"
    )


class OffsetsInTransaction:
    """The group's offsets in Kafka, committed by the Kafka transaction of the dual write (KIP-447).

    The group coordinator refuses a consumer of an old generation, before anything is decided. What a crash left in
    doubt keeps the next consumer of the partition waiting until it is completed: it asks for stable offsets only.
    """

    async def start(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return {}

    def is_behind(self, partition: TopicPartition, offset: int) -> bool:
        return False

    async def move(
        self, tx: DualWrite, membership: ConsumerGroupMetadata, next_offsets: Mapping[TopicPartition, int]
    ) -> None:
        if membership.generation_id < 0:  # offsets without a generation are taken from anybody
            raise PartitionTakenOverError(
                f"this consumer is no longer a member of group {membership.group_id!r}; nothing was written on either "
                "side: another consumer reads these records again"
            )
        tx.send_offsets(next_offsets, membership)

    def moved(self, next_offsets: Mapping[TopicPartition, int]) -> None:
        """Kafka knows."""

    async def where_to_go_on(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return await consumer.committed(partitions)

    def lost_membership(self, error: BaseException) -> bool:
        refused = isinstance(error, AbortableError) and error.error_code in _LOST_MEMBERSHIP
        return refused or isinstance(error, PartitionTakenOverError)


_: tuple[type[OffsetPlace], ...] = (OffsetsInDatabase, OffsetsInTransaction)
