"""The two places that keep consumed offsets, so that they are committed together with the results of the records.

In the database: a row per partition, updated in the dual write's own commit. In the transaction: the group's offsets in
Kafka, committed with the records that are sent (KIP-447). Either way a zombie consumer that has lost its partitions
cannot write: the row no longer holds the offset it expects, or Kafka refuses its generation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from dualwrite.client.records.record import ConsumerGroupMetadata, TopicPartition
from dualwrite.errors import AbortableError, PartitionTakenOverError
from dualwrite.recipes.consume.consumers import ConsumerAdapter, Positions
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.store import missing_table
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sqlalchemy.drivers import Carry, here
from dualwrite.recipes.sqlalchemy.own_statements import AS_NAMED
from dualwrite.recipes.sqlalchemy.tables import create_missing, home, in_schema, kafka_consumed_offset, schema_for

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


class _Statements:
    def __init__(self, pinned: PinnedTables) -> None:
        self.schema = pinned.schema
        table = in_schema(kafka_consumed_offset, pinned.schema)
        of_group = table.c.group_id == sa.bindparam("group")
        of_topic = table.c.topic == sa.bindparam("of_topic")
        self.select = sa.select(table.c.topic, table.c.partition, table.c.next_offset, table.c.topic_id).where(of_group)
        self.move = (
            sa.update(table)
            .where(
                of_group,
                of_topic,
                table.c.partition == sa.bindparam("of_partition"),
                table.c.next_offset == sa.bindparam("expected"),
            )
            .values(next_offset=sa.bindparam("next"), updated_at=sa.func.now())
        )
        self.move_of_topic = self.move.where(
            sa.or_(table.c.topic_id.is_(None), table.c.topic_id == sa.bindparam("of_topic_id"))
        ).values(topic_id=sa.bindparam("of_topic_id"))
        self.first = sa.insert(table).values(
            group_id=sa.bindparam("group"),
            topic=sa.bindparam("of_topic"),
            partition=sa.bindparam("of_partition"),
            next_offset=sa.bindparam("next"),
            topic_id=sa.bindparam("of_topic_id"),
        )
        self.forget = sa.delete(table).where(of_group, of_topic)


# The error codes of a group coordinator for a client that is not, or not yet again, a member with these partitions.
_LOST_MEMBERSHIP: Final = frozenset(
    {
        22,  # ILLEGAL_GENERATION
        25,  # UNKNOWN_MEMBER_ID
        27,  # REBALANCE_IN_PROGRESS
        113,  # STALE_MEMBER_EPOCH (KIP-848)
    }
)


def create_offset_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create the table `kafka_consumed_offset` if it does not exist; several processes may do so at once."""
    create_missing(engine, kafka_consumed_offset, schema_for(engine, schema))


def forget_consumed_offsets(engine: sa.Engine, group: str, topic: str, *, schema: str | None = None) -> int:
    """Make `group` start afresh with `topic`, and return the number of partitions that had offsets.

    For a topic that was deliberately deleted and created again. Stop the consumers of the group first.
    """
    with engine.begin() as connection:
        statements = _Statements(home(connection, schema_for(engine, schema), kafka_consumed_offset.name))
        values = {"group": group, "of_topic": topic}
        return connection.execute(statements.forget, values, execution_options=AS_NAMED).rowcount


class OffsetsInDatabase:
    """A row per group and partition in `kafka_consumed_offset`, updated by compare-and-set in the dual write.

    The compare-and-set is the first statement of the block. So a consumer that lost the partition and its successor
    queue for the row, and the second to come finds another offset than it expects: neither its data nor its records are
    written. That does not depend on the group coordinator, whose rebalance may be late. One instance may be given to
    several consumers.
    """

    def __init__(
        self, engine: sa.Engine | AsyncEngine, *, create_table: bool = True, schema: str | None = None
    ) -> None:
        self._given_engine = engine
        self._engine, self._carry = _blocking_face(engine)
        self._schema = schema_for(self._engine, schema)
        self._statements: _Statements | None = None
        self._create_table = create_table
        self._expected: dict[TopicPartition, int | None] = {}
        self._stored_ids: dict[TopicPartition, str | None] = {}

    def of_one_consumer(self) -> Self:
        """Return the same table for one more consumer, which does not share the positions of another one."""
        return type(self)(self._given_engine, create_table=self._create_table, schema=self._schema)

    async def start(self, consumer: ConsumerAdapter, partitions: Collection[TopicPartition]) -> Positions:
        """Return where to resume newly assigned partitions; those left out follow the group's own offsets."""
        stored = await self._carry(lambda: self._stored(consumer.group_id))
        for partition in partitions:
            self._expected[partition], self._stored_ids[partition] = stored.get(partition, (None, None))
        return {partition: stored[partition][0] for partition in partitions if partition in stored}

    def _stored(self, group: str) -> dict[TopicPartition, tuple[int, str | None]]:
        if self._create_table:
            create_offset_table(self._engine, self._schema)
            self._create_table = False
        statements = self._pinned_statements()
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(statements.select, {"group": group}, execution_options=AS_NAMED).all()
        except (OperationalError, ProgrammingError) as error:
            name = kafka_consumed_offset.name
            if sa.inspect(self._engine).has_table(name, schema=statements.schema):
                raise
            raise missing_table(name, otherwise="create_offset_table(engine)") from error
        return {TopicPartition(topic, partition): (offset, topic_id) for topic, partition, offset, topic_id in rows}

    def _pinned_statements(self) -> _Statements:
        """Return statements on the table as it was first found, however a block resolves unqualified names."""
        if self._statements is None:
            with self._engine.connect() as connection:
                self._statements = _Statements(home(connection, self._schema, kafka_consumed_offset.name))
        return self._statements

    async def kept(self, consumer: ConsumerAdapter, partitions: Collection[TopicPartition]) -> Positions:
        """Return the positions of partitions that follow the group's offsets: no row has one."""
        return {}

    @property
    def stored_ids(self) -> Mapping[TopicPartition, str | None]:
        return self._stored_ids

    async def move(
        self, tx: DualWrite, membership: ConsumerGroupMetadata, next_offsets: Positions, topic_ids: Mapping[str, str]
    ) -> None:
        """Make the offsets part of the dual write. Raises PartitionTakenOverError."""
        connection = _connection_of(tx)
        for partition in sorted(next_offsets):  # in the same order in every consumer, which rules out deadlocks
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
        statements = self._pinned_statements()
        if expected is not None:
            move = statements.move if named["of_topic_id"] is None else statements.move_of_topic
            values = {**named, "expected": expected}
            if connection.execute(move, values, execution_options=AS_NAMED).rowcount != 1:
                raise _taken_over(named["group"], partition, expected)
            return
        try:
            connection.execute(statements.first, named, execution_options=AS_NAMED)
        except IntegrityError as error:
            raise _taken_over(named["group"], partition, expected) from error

    def moved(self, next_offsets: Positions) -> None:
        self._expected.update(next_offsets)

    resume_positions = start
    """Called after a dual write that failed or whose outcome is unknown."""

    def lost_membership(self, error: BaseException) -> bool:
        """Return whether `error` means that another consumer has the partitions."""
        return isinstance(error, PartitionTakenOverError)


def _blocking_face(engine: sa.Engine | AsyncEngine) -> tuple[sa.Engine, Carry]:
    """Return the engine that executes statements, and the function that calls it from a coroutine."""
    if not isinstance(engine, sa.Engine):
        from dualwrite.recipes.sqlalchemy.writer_async import in_a_greenlet  # requires greenlet; threads do not

        return engine.sync_engine, in_a_greenlet
    return engine, here


def _connection_of(tx: Any) -> sa.Connection:
    found = getattr(tx.connection, "sync_connection", tx.connection)
    assert isinstance(found, sa.Connection), "a dual write on SQLAlchemy has one"
    return found


def _taken_over(group: str, partition: TopicPartition, expected: int | None) -> PartitionTakenOverError:
    return PartitionTakenOverError(
        f"another consumer of group {group!r} has moved {partition.topic}-{partition.partition}, which this one "
        f"expected at {'no offset' if expected is None else expected}; nothing was written to the database or to "
        "Kafka: resume from the stored offset, or leave the partition to the other consumer"
    )


class OffsetsInTransaction:
    """The group's offsets in Kafka, committed by the Kafka transaction of the dual write (KIP-447).

    The group coordinator refuses a consumer of an old generation before the decision. The next consumer of a partition
    waits until an in-doubt transaction with its offsets is completed, because it requests stable offsets only.
    """

    def of_one_consumer(self) -> Self:
        return self

    async def start(self, consumer: ConsumerAdapter, partitions: Collection[TopicPartition]) -> Positions:
        return {}

    async def kept(self, consumer: ConsumerAdapter, partitions: Collection[TopicPartition]) -> Positions:
        return await consumer.committed(partitions)

    @property
    def stored_ids(self) -> Mapping[TopicPartition, str | None]:
        return {}

    async def move(
        self, tx: DualWrite, membership: ConsumerGroupMetadata, next_offsets: Positions, topic_ids: Mapping[str, str]
    ) -> None:
        if membership.generation_id < 0:  # the group coordinator accepts offsets without a generation from any client
            raise PartitionTakenOverError(
                f"this consumer is no longer a member of group {membership.group_id!r}; nothing was written to the "
                "database or to Kafka: another consumer reads these records again"
            )
        tx.send_offsets(next_offsets, membership)

    def moved(self, next_offsets: Positions) -> None:
        """Do nothing: Kafka has the offsets."""

    resume_positions = kept

    def lost_membership(self, error: BaseException) -> bool:
        refused = isinstance(error, AbortableError) and error.error_code in _LOST_MEMBERSHIP
        return refused or isinstance(error, PartitionTakenOverError)


OffsetPlace = OffsetsInDatabase | OffsetsInTransaction
"""The place that keeps the consumed offsets of one consumer."""
