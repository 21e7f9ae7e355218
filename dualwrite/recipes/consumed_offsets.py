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
from dualwrite.recipes.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy_tables import AS_NAMED, home, in_schema, schema_for
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


class _Statements:
    """Those on the rows of one table, which is named in full."""

    def __init__(self, pinned: PinnedTables) -> None:
        self.schema = pinned.schema
        table = in_schema(kafka_consumed_offset, pinned.schema)
        of_group = table.c.group_id == sa.bindparam("group")
        self.select = sa.select(table.c.topic, table.c.partition, table.c.next_offset).where(of_group)
        self.move = (
            sa.update(table)
            .where(
                of_group,
                table.c.topic == sa.bindparam("of_topic"),
                table.c.partition == sa.bindparam("of_partition"),
                table.c.next_offset == sa.bindparam("expected"),
            )
            .values(next_offset=sa.bindparam("next"), updated_at=sa.func.now())
        )
        self.first = sa.insert(table).values(
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


def create_offset_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_consumed_offset` where it is missing; safe when several processes do it at once."""
    schema = schema_for(engine, schema)
    try:
        in_schema(kafka_consumed_offset, schema).metadata.create_all(engine.execution_options(**AS_NAMED))
    except (IntegrityError, ProgrammingError, OperationalError):
        if not sa.inspect(engine).has_table(kafka_consumed_offset.name, schema=schema):
            raise


class OffsetsInDatabase:
    """A row per group and partition in `kafka_consumed_offset`, moved by a compare-and-set in the dual write's commit.

    The compare-and-set is the first statement of the block. So a consumer that lost the partition, and another that has
    it now, queue at the row, and the one that comes second finds another offset than it expects: neither its data nor
    its records are written. It needs no word from the group coordinator, which may be late.
    """

    def __init__(
        self, engine: sa.Engine | AsyncEngine, *, create_table: bool = True, schema: str | None = None
    ) -> None:
        self._engine, self._carry = _blocking_face(engine)
        self._schema = schema_for(self._engine, schema)
        self._statements: _Statements | None = None
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
            create_offset_table(self._engine, self._schema)
            self._create_table = False
        statements = self._known()
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(statements.select, {"group": group}, execution_options=AS_NAMED).all()
        except (OperationalError, ProgrammingError) as error:
            if sa.inspect(self._engine).has_table(kafka_consumed_offset.name, schema=statements.schema):
                raise
            raise missing_table(
                kafka_consumed_offset.name, option=" --consumed-offsets", otherwise="create_offset_table(engine)"
            ) from error
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def _known(self) -> _Statements:
        """On the table as it was found first, wherever a block lets unqualified names lead to."""
        if self._statements is None:
            with self._engine.connect() as connection:
                self._statements = _Statements(home(connection, self._schema, kafka_consumed_offset.name))
        return self._statements

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
        statements = self._known()
        named = {"group": group, "of_topic": partition.topic, "of_partition": partition.partition, "next": next_offset}
        if expected is not None:
            values = {**named, "expected": expected}
            if connection.execute(statements.move, values, execution_options=AS_NAMED).rowcount != 1:
                raise _taken_over(group, partition, expected)
            return
        try:
            connection.execute(statements.first, named, execution_options=AS_NAMED)
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
