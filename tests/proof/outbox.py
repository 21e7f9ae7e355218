"""Processes of a pool with an outbox: the real blocks, the real publisher, and the queries of its background.

A process adds blocks or publishes, as a pool with `Outbox(publishes=False)` and `dualwrite publish` do; a process after
a crash does both. Only the carriers of requests and statements are replaced, the threads, and the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.delivery import Direct, Outbox
from dualwrite.errors import AuthorizationError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import publishing
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.core.leases import Lease, is_outbox, outbox_prefix_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.store import (
    NO_STORED_BLOCKS,
    Backlog,
    StoredBlock,
    StoredBlocks,
)
from dualwrite.recipes.pool import maintenance, outbox, outbox_publisher
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.sql.diversion_statements import DIALECTS, DiversionRow
from dualwrite.recipes.sql.outbox_elsewhere import OF_SQLITE, OutboxInSteps
from dualwrite.recipes.sql.outbox_statements import ADD, OF_POSTGRES, place_of
from tests.proof.automaton import Program, Said, ask
from tests.proof.clock import Clock
from tests.proof.kafka_model import Profile
from tests.proof.lanes import lane_of
from tests.proof.lease_model import PREFIX, CheckedLeases
from tests.proof.outbox_model import CheckedStatements, CheckedSteps, Touch, outbox_table
from tests.proof.owner import RECOVERED, UNPROVEN, Begin, CheckedDatabase, CheckedKafka, CheckedTransaction
from tests.proof.pool import LAST_WRITE, CheckedWaiting, PooledKafka, PooledProcess, PooledTransaction, on_slot

PUBLISHER: Final = "publisher"
"""The source of the results of attempts to publish."""

LEADS: Final = (PUBLISHER, "publishes")
PARTED: Final = (PUBLISHER, "another process publishes")
NOT_PROVEN: Final = (PUBLISHER, "NotProvenError")
"""Only a person can find out whether Kafka has aborted a decided transaction."""

_ROUNDS_TO_SETTLE: Final = 4
_BACKGROUND_ROUNDS: Final = 3
"""How often the background of a process that adds blocks asks for the outcome of a lost COMMIT."""


class _UnaskedLeases(CheckedLeases):
    """The leases as a process sees them that only makes their table."""

    async def every_lease(self) -> list[Lease]:
        return []


class OutboxKind(NamedTuple):
    """The properties that the processes of a space have in common."""

    fails_over: bool = False
    by_commit: bool = False
    are_large: bool = False
    """Whether no two blocks are published by one transaction."""
    is_readable: bool = True
    """Whether publishers may read the topic."""
    in_steps: bool = False
    """Whether the outbox is that of MySQL, MariaDB and SQLite."""
    touches: bool = False
    """Whether each block changes the same row of the application before it adds its records."""
    diverts: bool = False
    """Whether blocks go to Kafka themselves, and to the outbox only while Kafka is away."""
    is_diverted: bool = False
    """Whether they go to the outbox at first, as after an outage."""


class OutboxTransaction(CheckedTransaction):
    """A database transaction that may add a block to the outbox, or publish some."""

    def __init__(self, number: int, statements: CheckedStatements, *, by_commit: bool) -> None:
        self.outbox: Final = outbox_table(statements)
        super().__init__(number, by_commit=by_commit)
        self._statements = statements

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return self.outbox if is_outbox(transactional_id) else NO_STORED_BLOCKS

    async def touch(self) -> None:
        """Change the row of the application that all blocks change."""
        await self._ask(Touch(self._number))

    async def add_to_outbox(self, transactional_id: str, content: bytes) -> StoredBlock:
        """Add a block, as a transaction of PostgreSQL does."""
        if isinstance(self.outbox, OutboxInSteps):
            return await self.outbox.append(transactional_id, content)
        values = {"id": transactional_id, "content": content, "mark": ""}
        ((text,),) = await self._statements.rows(ADD, values)
        return place_of(text, content).added

    def diversion(self, name: str, timeout_ms: int | None = None) -> DiversionRow:
        """Return the diversion, as PostgreSQL has it."""
        return DiversionRow(self._statements, DIALECTS["postgresql"], name, timeout_ms)


class DivertedTransaction(PooledTransaction, OutboxTransaction):
    """The same, beside the rows of several ids."""


class UnreadableKafka(CheckedKafka):
    """The same, for a client without READ on the topic."""

    async def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool = False) -> TransactionEnd:
        raise AuthorizationError("READ is missing")

    async def describe_topics(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        return {topic: TopicDescription(is_readable=False, cleanup_policy="delete") for topic in topics}


class CheckedOutboxDatabase(CheckedDatabase):
    """An `OutboxDatabase` whose statements go to the world."""

    def __init__(self, clock: Clock, kind: OutboxKind) -> None:
        super().__init__(by_commit=kind.by_commit, fails_over=kind.fails_over)
        self._statements: Final = CheckedSteps if kind.in_steps else CheckedStatements
        self._has_waiting: Final = OF_SQLITE.has_waiting if kind.in_steps else OF_POSTGRES.has_waiting
        self._clock = clock
        self._kind = kind

    async def prepare_outbox(self) -> None:
        pass

    async def prepare_diversion(self, name: str) -> None:
        pass

    async def begin(self) -> OutboxTransaction:
        self._begun += 1
        number = self._begun
        await ask(Begin(number))
        statements = self._statements(number, are_large=self._kind.are_large, give_up=self._clock.give_up)
        transaction = DivertedTransaction if self._kind.diverts else OutboxTransaction
        return transaction(number, statements, by_commit=self._by_commit)

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        lane = lane_of(transactional_id) if self._kind.diverts else 0
        await on_slot(lane, super().make_durable(transactional_id, row, timeout_ms=timeout_ms))

    async def has_waiting(self, transactional_id: str) -> bool:
        ((found,),) = await self._statements(None).rows(self._has_waiting, {"id": transactional_id})
        return bool(found)

    async def backlog(self, transactional_id: str) -> Backlog:
        return Backlog(0, 0, 0)  # no program reaches the limits

    async def vacuum_outbox(self) -> None:
        """Do nothing: a deleted row leaves nothing behind here."""


class OutboxWaiting(CheckedWaiting):
    """`Waiting` whose sleep ends the wait of a block for the end of a diversion."""

    def __init__(self, profile: Profile, kind: OutboxKind, clock: Clock) -> None:
        super().__init__(
            profile, PooledKafka if kind.diverts else CheckedKafka if kind.is_readable else UnreadableKafka
        )
        self._clock = clock

    async def sleep(self, seconds: float) -> None:
        self._clock.pass_s(1.0)


class OutboxProcess(PooledProcess):
    """One process with a pool that has an outbox."""

    def __init__(self, profile: Profile, told: list[Said], kind: OutboxKind, *, publishes: bool) -> None:
        self._kind = kind
        clock = Clock(outbox, outbox_publisher, publishing, *([maintenance] if kind.diverts else []))
        super().__init__(
            told,
            clock,
            CheckedOutboxDatabase(clock, kind),
            OutboxWaiting(profile, kind, clock),
            (CheckedLeases if publishes else _UnaskedLeases)(outbox_prefix_of(PREFIX)),
            delivery=Direct(when_kafka_is_away="store") if kind.diverts else Outbox(publishes=publishes),
            pause=self._reach,
        )

    def _reach(self, point: PausePoint) -> None:
        if self._settings.tally.unproven:
            self._note(UNPROVEN)

    @property
    def _publisher(self) -> OutboxPublisher:
        assert self._pool.outbox is not None
        return self._pool.outbox

    async def _change(self, database: Any, value: bytes) -> None:
        if self._kind.touches:
            await database.touch()
        await database.insert(value)

    async def _find_out(self, progress: DualWriteProgress) -> None:
        """Let the background ask for the outcome, as it does in each round."""
        for _ in range(_BACKGROUND_ROUNDS):
            if progress.outcome is None:
                await self._publisher.writes.resolve_lost()

    async def publish(self, rounds: int) -> None:
        """Let the background do so many rounds, and note their results."""
        publisher = self._publisher
        for number in range(rounds):
            if number:
                await publisher.renew()
            await self._pass_a_moment()
            await self._work_once()
            self._note(LEADS if publisher.publishes else PARTED)

    async def _work_once(self) -> None:
        publisher = self._publisher
        await publisher.work_once()
        if publisher.last_error is not None:
            self._note((PUBLISHER, type(publisher.last_error).__name__))

    def _note(self, said: Said) -> None:
        if said not in self._told:
            self._told.append(said)

    async def settle(self) -> bool:
        """Resolve all ids, and publish until no block waits any more. Return whether that succeeded."""
        publisher = self._publisher
        if self._kind.diverts and not await self._resolves():
            return False
        for _ in range(_ROUNDS_TO_SETTLE):
            await self._work_once()
            is_well = publisher.last_error is None and (publisher.publishes or not publisher.writes.is_diverted)
            has_ended = not self._kind.diverts or not publisher.writes.is_diverted
            if is_well and has_ended and not await self._has_waiting():
                return True
        return False

    async def _has_waiting(self) -> bool:
        database: Any = self._database
        found: bool = await database.has_waiting(self._publisher.writes.transactional_id)
        return found

    async def close(self) -> None:
        """Publish the rest, and give the leases back."""
        await (super().close() if self._kind.diverts else self._publisher.stop())


def adds(profile: Profile, values: Sequence[bytes], kind: OutboxKind, *, rounds: int = 0) -> Program:
    """Return the program of a process that adds blocks, and with `rounds` publishes the waiting ones then."""

    async def program(told: list[Said]) -> None:
        process = OutboxProcess(profile, told, kind, publishes=rounds > 0)

        async def steps() -> None:
            for value in values:
                await process.write(value)
                await process.publish(rounds if kind.diverts else 0)
            await process.publish(0 if kind.diverts and values else rounds)
            if rounds:
                await process.close()

        await process.clock.told(steps())

    return program


def publishes_the_rest(profile: Profile, kind: OutboxKind, *, tries: int) -> Program:
    """Return the program of processes that publish all remaining blocks, and one more."""

    async def program(told: list[Said]) -> None:
        has_added = False
        for _ in range(tries):
            process = OutboxProcess(profile, told, kind, publishes=True)
            is_settled = await process.clock.told(process.settle())
            if is_settled and not has_added:
                await process.clock.told(process.write(LAST_WRITE))
                has_added = True
                is_settled = await process.clock.told(process.settle())
            if is_settled:
                told.append(RECOVERED)
                return
            if kind.diverts:
                await process.clock.told(process.close())

    return program
