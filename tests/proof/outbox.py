"""Processes of a pool with an outbox: the real blocks, the real publisher, and the queries of its background.

A process adds blocks or publishes, as a pool with `Outbox(publishes=False)` and `dualwrite publish` do; a process after
a crash does both. Only the carriers of requests and statements are replaced, the threads, and the clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.delivery import Outbox
from dualwrite.errors import AuthorizationError, DualWriteError
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.core.leases import Lease, outbox_prefix_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.store import Added, Backlog, DatabaseTransaction, Diversion
from dualwrite.recipes.core.waiting import direct
from dualwrite.recipes.pool import outbox, outbox_publisher
from dualwrite.recipes.pool.coordinator import PoolCoordinator
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.sql.outbox_elsewhere import OF_SQLITE, OutboxInSteps
from dualwrite.recipes.sql.outbox_statements import ADD, OF_POSTGRES, place_of
from tests.proof.automaton import DatabaseGone, Program, Said, ask
from tests.proof.clock import Clock
from tests.proof.kafka_model import NO_DEADLINE_MS, Profile
from tests.proof.kafka_requests import TOPIC
from tests.proof.lease_model import PREFIX, CheckedLeases
from tests.proof.outbox_model import CheckedStatements, CheckedSteps, Touch, outbox_table
from tests.proof.owner import (
    RECOVERED,
    RETURNED,
    UNPROVEN,
    Begin,
    CheckedDatabase,
    CheckedKafka,
    CheckedTransaction,
)
from tests.proof.pool import LAST_WRITE, SETTINGS, CheckedWaiting, OneThread

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


class OutboxTransaction(CheckedTransaction):
    """A database transaction that may add a block to the outbox, or publish some."""

    def __init__(self, number: int, statements: CheckedStatements, *, by_commit: bool) -> None:
        self.outbox: Final = outbox_table(statements)
        super().__init__(number, by_commit=by_commit, stored_blocks=self.outbox)
        self._statements = statements

    async def touch(self) -> None:
        """Change the row of the application that all blocks change."""
        await self._ask(Touch(self._number))

    async def add_to_outbox(self, transactional_id: str, content: bytes) -> Added:
        """Add a block, as a transaction of PostgreSQL does."""
        if isinstance(self.outbox, OutboxInSteps):
            return await self.outbox.add(transactional_id, content)
        values = {"id": transactional_id, "content": content, "mark": ""}
        ((text,),) = await self._statements.rows(ADD, values)
        return place_of(text, content).added


class UnreadableKafka(CheckedKafka):
    """The same, for a client without READ on the topic."""

    async def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool) -> TransactionEnd:
        raise AuthorizationError("READ is missing")

    async def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        return {topic: TopicDescription(is_readable=False, cleanup_policy="delete") for topic in topics}


class CheckedOutboxDatabase(CheckedDatabase):
    """An `OutboxDatabase` whose statements go to the world."""

    def __init__(self, clock: Clock, *, by_commit: bool, are_large: bool, fails_over: bool, in_steps: bool) -> None:
        super().__init__(by_commit=by_commit, fails_over=fails_over)
        self._statements: Final = CheckedSteps if in_steps else CheckedStatements
        self._has_waiting: Final = OF_SQLITE.has_waiting if in_steps else OF_POSTGRES.has_waiting
        self._clock = clock
        self._are_large = are_large

    async def prepare_outbox(self) -> None:
        pass

    async def begin(self) -> OutboxTransaction:
        self._begun += 1
        number = self._begun
        await ask(Begin(number))
        statements = self._statements(number, are_large=self._are_large, give_up=self._clock.give_up)
        return OutboxTransaction(number, statements, by_commit=self._by_commit)

    async def prepare_diversion(self, name: str) -> None:
        raise AssertionError("all blocks go to the outbox")

    async def diversion(self, database: DatabaseTransaction, name: str) -> Diversion:
        raise AssertionError("all blocks go to the outbox")

    async def add(self, block: DatabaseTransaction, transactional_id: str, content: bytes) -> Added:
        assert isinstance(block, OutboxTransaction)
        return await block.add_to_outbox(transactional_id, content)

    async def was_committed(self, database: DatabaseTransaction, transactional_id: str, added: Added) -> bool | None:
        assert isinstance(database, OutboxTransaction)
        return await database.outbox.was_committed(transactional_id, added)

    async def has_waiting(self, transactional_id: str) -> bool:
        ((found,),) = await self._statements(None).rows(self._has_waiting, {"id": transactional_id})
        return bool(found)

    async def backlog(self, transactional_id: str) -> Backlog:
        return Backlog(0, 0, 0)  # no program reaches the limits

    async def vacuum_outbox(self) -> None:
        """Do nothing: a deleted row leaves nothing behind here."""


class OutboxProcess:
    """One process with a pool that has an outbox."""

    def __init__(
        self,
        profile: Profile,
        told: list[Said],
        *,
        publishes: bool,
        by_commit: bool = False,
        are_large: bool = False,
        fails_over: bool = False,
        is_readable: bool = True,
        in_steps: bool = False,
    ) -> None:
        self._told = told
        self.clock: Final = Clock(outbox, outbox_publisher)
        database = self._database = CheckedOutboxDatabase(
            self.clock, by_commit=by_commit, are_large=are_large, fails_over=fails_over, in_steps=in_steps
        )
        settings = self._settings = PoolSettings(
            PREFIX,
            {
                "max_writers": 1,
                "acquire_timeout_ms": 0,
                "lease_ms": NO_DEADLINE_MS,
                "lock_timeout_ms": None,
                "resolve_timeout_ms": NO_DEADLINE_MS,
                "delivery": Outbox(publishes=publishes),
                "pause": self._reach,
                **SETTINGS,
            },
        )
        runtime, availability = OneThread(), Availability()
        leases = (CheckedLeases if publishes else _UnaskedLeases)(outbox_prefix_of(PREFIX))
        waiting: Any = CheckedWaiting(profile, CheckedKafka if is_readable else UnreadableKafka)
        self._pool = PoolCoordinator(
            settings,
            leases=leases,
            new_coordinator=settings.coordinator_maker(database, waiting, availability, leases),
            runtime=runtime,
            availability=availability,
            new_outbox=lambda counts: settings.new_outbox(database, waiting, availability, leases, runtime, counts),
        )

    def _reach(self, point: PausePoint) -> None:
        if self._settings.tally.unproven:
            self._note(UNPROVEN)

    @property
    def _publisher(self) -> OutboxPublisher:
        assert self._pool.outbox is not None
        return self._pool.outbox

    async def add(self, value: bytes, *, touches: bool = False) -> None:
        """Carry out one block, and note its caller's result: the outcome, None for unknown."""
        progress = None
        block = self._pool.new_use()
        try:
            block.enter()
            await block.get_ready()
            database = await self._database.begin()
            records = RecordBuffer()
            progress = DualWriteProgress(database, records, direct)
            records.send(TOPIC, value, timestamp_ms=1)
            try:
                if touches:
                    await database.touch()
                await database.insert(value)
            except DatabaseGone:
                await block.roll_back(progress)
                raise
            await block.commit(progress)
            self._told.append((value, RETURNED))
        except (DualWriteError, DatabaseGone) as error:
            self._told.append((value, "raised", type(error).__name__))
        finally:
            block.leave()
        if progress is not None:
            await self._find_out(progress)
            self._told.append((value, None if progress.outcome is None else progress.outcome.name))

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

    async def publish_all(self) -> bool:
        """Publish until no block waits any more. Return whether that succeeded."""
        publisher = self._publisher
        for _ in range(_ROUNDS_TO_SETTLE):
            await self._work_once()
            is_well = publisher.last_error is None and publisher.publishes
            if is_well and not await self._database.has_waiting(publisher.writes.transactional_id):
                return True
        return False

    async def close(self) -> None:
        """Publish the rest, and give the lease back."""
        await self._publisher.stop()


def adds(
    profile: Profile,
    values: Sequence[bytes],
    *,
    touches: bool = False,
    rounds: int = 0,
    by_commit: bool = False,
    fails_over: bool = False,
    is_readable: bool = True,
    in_steps: bool = False,
) -> Program:
    """Return the program of a process that adds blocks, and with `rounds` publishes the waiting ones then."""

    async def program(told: list[Said]) -> None:
        process = OutboxProcess(
            profile,
            told,
            publishes=rounds > 0,
            by_commit=by_commit,
            fails_over=fails_over,
            is_readable=is_readable,
            in_steps=in_steps,
        )

        async def steps() -> None:
            for value in values:
                await process.add(value, touches=touches)
            await process.publish(rounds)
            if rounds:
                await process.close()

        await process.clock.told(steps())

    return program


def publishes(
    profile: Profile,
    rounds: int,
    *,
    by_commit: bool = False,
    are_large: bool = False,
    fails_over: bool = False,
    is_readable: bool = True,
    in_steps: bool = False,
) -> Program:
    """Return the program of a process that publishes other processes' blocks."""

    async def program(told: list[Said]) -> None:
        process = OutboxProcess(
            profile,
            told,
            publishes=True,
            by_commit=by_commit,
            are_large=are_large,
            fails_over=fails_over,
            is_readable=is_readable,
            in_steps=in_steps,
        )

        async def steps() -> None:
            await process.publish(rounds)
            await process.close()

        await process.clock.told(steps())

    return program


def publishes_the_rest(profile: Profile, *, tries: int, is_readable: bool = True, in_steps: bool = False) -> Program:
    """Return the program of processes that publish all remaining blocks, and one more."""

    async def program(told: list[Said]) -> None:
        has_added = False
        for _ in range(tries):
            process = OutboxProcess(profile, told, publishes=True, is_readable=is_readable, in_steps=in_steps)
            if not await process.clock.told(process.publish_all()):
                continue
            if not has_added:
                await process.clock.told(process.add(LAST_WRITE))
                has_added = True
                if not await process.clock.told(process.publish_all()):
                    continue
            told.append(RECOVERED)
            return

    return program
