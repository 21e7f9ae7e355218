"""Where the offsets of consumed records are kept so that they are committed with what was made of the records.

In the database: a row per partition, moved in the dual write's own commit. In the transaction: the group's offsets in
Kafka, committed with the records that are sent (KIP-447). Either way a consumer that has lost its partitions without
knowing cannot write: the row is not where it left it, or Kafka refuses its generation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from dualwrite.client.records import ConsumerGroupMetadata, TopicPartition
from dualwrite.errors import AbortableError, PartitionTakenOverError, StateRowError
from dualwrite.recipes.consumer_side import ConsumerSide
from dualwrite.recipes.dual_writes import DualWrite
from dualwrite.recipes.sqlalchemy_transaction import Carry, here
from dualwrite.recipes.state_row import missing_table
from dualwrite.recipes.state_table import exact_text

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

MAX_NAME_LENGTH: Final = 255
"""Of a group or a topic, in characters. Kafka's topics have 249 at the most."""

NO_IDS: Final[Mapping[str, str]] = MappingProxyType({})

metadata = sa.MetaData()

kafka_consumed_offset = sa.Table(
    "kafka_consumed_offset",
    metadata,
    sa.Column("group_id", exact_text(MAX_NAME_LENGTH), primary_key=True),
    sa.Column("topic", exact_text(MAX_NAME_LENGTH), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("next_offset", sa.BigInteger, nullable=False),
    sa.Column("topic_id", sa.String(36), nullable=True),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

_T = kafka_consumed_offset
_OF_PARTITION = sa.and_(
    _T.c.group_id == sa.bindparam("group"),
    _T.c.topic == sa.bindparam("of_topic"),
    _T.c.partition == sa.bindparam("of_partition"),
)
_SELECT = sa.select(_T.c.topic, _T.c.partition, _T.c.next_offset, _T.c.topic_id).where(
    _T.c.group_id == sa.bindparam("group")
)
_MOVE = (
    sa.update(_T)
    .where(_OF_PARTITION, _T.c.next_offset == sa.bindparam("expected"))
    .values(next_offset=sa.bindparam("next"), updated_at=sa.func.now())
)
_MOVE_OF_TOPIC = _MOVE.where(sa.or_(_T.c.topic_id.is_(None), _T.c.topic_id == sa.bindparam("of_topic_id"))).values(
    topic_id=sa.bindparam("of_topic_id")
)
_FIRST = sa.insert(_T).values(
    group_id=sa.bindparam("group"),
    topic=sa.bindparam("of_topic"),
    partition=sa.bindparam("of_partition"),
    next_offset=sa.bindparam("next"),
    topic_id=sa.bindparam("of_topic_id"),
)
_FORGET = sa.delete(_T).where(_T.c.group_id == sa.bindparam("group"), _T.c.topic == sa.bindparam("of_topic"))

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

    async def kept(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Where assigned partitions are to go on, of which records have come; without those that nothing is kept of."""

    @property
    def stored_ids(self) -> Mapping[TopicPartition, str]:
        """The topics of which the offsets were kept, as far as that is known."""

    async def move(
        self,
        tx: DualWrite,
        membership: ConsumerGroupMetadata,
        next_offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
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


def forget_consumed_offsets(engine: sa.Engine, group: str, topic: str) -> int:
    """Make `group` begin anew with `topic`; how many partitions had offsets.

    For a topic that was created anew on purpose. Stop the consumers of the group before.
    """
    with engine.begin() as connection:
        return connection.execute(_FORGET, {"group": group, "of_topic": topic}).rowcount


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
        self._stored_ids: dict[TopicPartition, str] = {}

    async def start(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        stored = await self._carry(lambda: self._stored(consumer.group_id))
        for partition in partitions:
            offset, topic_id = stored.get(partition, (None, None))
            self._expected[partition] = offset
            self._stored_ids.pop(partition, None)
            if topic_id is not None:
                self._stored_ids[partition] = topic_id
        return {partition: stored[partition][0] for partition in partitions if partition in stored}

    def _stored(self, group: str) -> dict[TopicPartition, tuple[int, str | None]]:
        if self._create_table:
            create_offset_table(self._engine)
            self._create_table = False
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(_SELECT, {"group": group}).all()
        except (OperationalError, ProgrammingError) as error:
            raise self._explained(error) from error
        return {TopicPartition(topic, partition): (offset, topic_id) for topic, partition, offset, topic_id in rows}

    def _explained(self, error: Exception) -> Exception:
        inspector = sa.inspect(self._engine)
        if not inspector.has_table(_T.name):
            return missing_table(_T.name, option=" --consumed-offsets", otherwise="create_offset_table(engine)")
        if not any(column["name"] == "topic_id" for column in inspector.get_columns(_T.name)):
            return StateRowError(
                f"the table {_T.name} has no column topic_id, which tells a topic from one that was created anew under "
                f"its name; nothing was written: ALTER TABLE {_T.name} ADD COLUMN topic_id VARCHAR(36)"
            )
        return error

    async def kept(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        found = {partition: self._expected.get(partition) for partition in partitions}
        return {partition: offset for partition, offset in found.items() if offset is not None}

    @property
    def stored_ids(self) -> Mapping[TopicPartition, str]:
        return self._stored_ids

    async def move(
        self,
        tx: DualWrite,
        membership: ConsumerGroupMetadata,
        next_offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> None:
        connection = _connection_of(tx)
        for partition in sorted(next_offsets):  # in one order everywhere, so that consumers do not lock each other out
            named = {
                "group": membership.group_id,
                "of_topic": partition.topic,
                "of_partition": partition.partition,
                "next": next_offsets[partition],
                "of_topic_id": topic_ids.get(partition.topic),
            }
            await self._carry(partial(self._move_one, connection, partition, named))

    def _move_one(self, connection: sa.Connection, partition: TopicPartition, named: Mapping[str, Any]) -> None:
        expected = self._expected.get(partition)
        if expected is not None:
            move = _MOVE if named["of_topic_id"] is None else _MOVE_OF_TOPIC
            if connection.execute(move, {**named, "expected": expected}).rowcount != 1:
                raise _taken_over(named["group"], partition, expected)
            return
        try:
            connection.execute(_FIRST, named)
        except IntegrityError as error:
            raise _taken_over(named["group"], partition, expected) from error

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

    async def kept(
        self, consumer: ConsumerSide, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        return await consumer.committed(partitions)

    @property
    def stored_ids(self) -> Mapping[TopicPartition, str]:
        return {}

    async def move(
        self,
        tx: DualWrite,
        membership: ConsumerGroupMetadata,
        next_offsets: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] = NO_IDS,
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
