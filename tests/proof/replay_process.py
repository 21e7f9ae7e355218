"""A process of a replay: the code that ships, in a thread with an event loop, a network and a time of its own.

It is `tests.proof.owner.Owner`, as in the search, over the real `AsyncProducer` and the real psycopg adapter. Requests
that go to the world in the search go to the gate here, before or while they go to real servers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import psycopg

from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.records.batch_reading import StoredRecord
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.errors import KafkaTimeoutError, OutcomeUnknown
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.id_settings import OneId
from dualwrite.recipes.core.kafka_participant import AsyncKafkaParticipant
from dualwrite.recipes.core.settings import WritingSettings
from dualwrite.recipes.core.store import StoredBlocks
from dualwrite.recipes.core.waiting import TASKS, Waiting
from dualwrite.recipes.postgres.adapter import PostgresDatabase
from dualwrite.recipes.postgres.backend import PostgresBackend
from dualwrite.recipes.psycopg.backend import PsycopgDriver
from dualwrite.recipes.psycopg.transaction import PsycopgTransaction
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction
from tests.proof.automaton import DatabaseGone, Said
from tests.proof.kafka_requests import TRANSACTIONAL_ID
from tests.proof.owner import Owner
from tests.proof.replay_network import WAIT_S, Gate, KafkaRelay, Network, Parked, PostgresRelay, ReplayError, What
from tests.proof.replay_servers import TRANSACTION_TIMEOUT_MS
from tests.proof.shape import ONE_RECORD
from tests.proof.story import Fate

MAX_BLOCK_MS: Final = 60_000
RESOLVE_TIMEOUT_MS: Final = 60_000
_ABANDON_STEP_S: Final = 0.05
_ABANDON_STEPS: Final = 200

Program = Callable[[Callable[[], Owner]], Coroutine[Any, Any, None]]


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be moved ahead: for its process alone, and with no effect that others see."""

    _ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_s

    def pass_time(self, seconds: float) -> None:
        """Let timers become due, those too that the present turn of the loop sets. May be called from any thread."""
        self.call_soon_threadsafe(self._pass, seconds)

    def _pass(self, seconds: float) -> None:
        self._ahead_s += seconds


class GateOfLoop:
    """The gate, as coroutines of the process pass it."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.is_closed = False
        """Whether the process was killed."""

    async def passing(self, name: str, *details: Any) -> tuple[Fate, Parked]:
        """Wait for the director. Return the fate, and a function to call when it has come about."""
        if self.is_closed:
            raise asyncio.CancelledError
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[Fate] = loop.create_future()
        parked = Parked(What(name, details), lambda fate: _decide(loop, decided, fate))
        self._gate.arrive(parked)
        return await decided, parked


def _decide(loop: asyncio.AbstractEventLoop, decided: asyncio.Future[Fate], fate: Fate) -> None:
    with suppress(RuntimeError):  # the loop of a process that was killed is closed
        loop.call_soon_threadsafe(lambda: None if decided.done() else decided.set_result(fate))


# ---- Kafka ----------------------------------------------------------------------------------------------------------


class GatedKafka(AsyncKafkaParticipant):
    """The real participant. Its requests are held on the wire; only reads of the log are held here."""

    def __init__(self, settings: Mapping[str, Any], gate: GateOfLoop) -> None:
        super().__init__(settings)
        self._gate = gate

    async def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool = False) -> TransactionEnd:
        fate, parked = await self._gate.passing("EndOf")
        try:
            if fate is Fate.GIVEN_UP:
                pair = str(manifest.prepared_state)
                raise OutcomeUnknown("no leader responded", transactional_id=TRANSACTIONAL_ID, prepared_state=pair)
            # If the story finds no marker, none is awaited.
            return await super().end_of(manifest, timeout_ms, is_over=is_over or fate is not Fate.ANSWERED)
        finally:
            parked.done.set_result(None)

    async def records_of(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int
    ) -> list[StoredRecord]:
        fate, parked = await self._gate.passing("RecordsOf")
        try:
            _give_up_if(fate)
            return await super().records_of(manifest, partitions, timeout_ms)
        finally:
            parked.done.set_result(None)

    async def repair_of(
        self,
        manifest: Manifest,
        parts: Collection[PartitionManifest],
        undecided: PreparedTxnState,
        timeout_ms: int,
        others: Collection[PreparedTxnState] = (),
    ) -> PreparedTxnState | None:
        fate, parked = await self._gate.passing("RepairOf")
        try:
            _give_up_if(fate)
            return await super().repair_of(manifest, parts, undecided, timeout_ms, others)
        finally:
            parked.done.set_result(None)


def _give_up_if(fate: Fate) -> None:
    if fate is Fate.GIVEN_UP:
        raise KafkaTimeoutError("no leader responded; nothing was changed")


# ---- the database ---------------------------------------------------------------------------------------------------


@contextmanager
def _named_as_in_the_model() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise DatabaseGone(str(error)) from error


class GatedTransaction:
    """The real transaction; a `DatabaseTransaction`. The director says when it may wait for others."""

    def __init__(self, number: int, real: PsycopgTransaction, gate: GateOfLoop) -> None:
        self._number = number
        self._real = real
        self._gate = gate
        self.server_process = real.connection.info.backend_pid

    async def insert(self, write: bytes) -> None:
        connection = self._real.connection
        assert isinstance(connection, psycopg.AsyncConnection)
        with _named_as_in_the_model():
            await connection.execute("INSERT INTO written VALUES (%s)", (write.decode(),))

    @property
    def commit_was_sent(self) -> bool:
        return self._real.commit_was_sent

    @property
    def was_ended_past(self) -> bool:
        return self._real.was_ended_past

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return self._real.stored_blocks(transactional_id)

    def doom(self, error: BaseException) -> None:
        self._real.doom(error)

    async def flush(self) -> None:
        await self._real.flush()

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        with self._gone_through(await self._gate.passing("Lock", self._number)):
            return await self._real.lock(transactional_id, timeout_ms=timeout_ms)

    async def read(self, transactional_id: str) -> PreparedTxnState:
        with self._gone_through(await self._gate.passing("Read", self._number)):
            return await self._real.read(transactional_id)

    async def read_manifest(self, transactional_id: str) -> str:
        with self._gone_through(await self._gate.passing("Read", self._number)):
            return await self._real.read_manifest(transactional_id)

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        with _named_as_in_the_model():
            await self._real.write(transactional_id, previous=previous, new=new, manifest=manifest)

    async def commit(self) -> None:
        with self._gone_through(await self._gate.passing("Commit", self._number)):
            await self._real.commit()

    async def rollback(self) -> None:
        await self._real.rollback()

    async def close(self) -> None:
        await self._real.close()

    def close_at_once(self) -> bool:
        return self._real.close_at_once()

    @staticmethod
    @contextmanager
    def _gone_through(passed: tuple[Fate, Parked]) -> Iterator[None]:
        with _named_as_in_the_model():
            try:
                yield
            finally:
                passed[1].done.set_result(None)


class GatedDatabase:
    """The real database; a `Database` whose transactions are numbered as in the model."""

    errors: tuple[type[Exception], ...] = (DatabaseGone,)

    def __init__(self, real: PostgresDatabase[Any], gate: GateOfLoop) -> None:
        self._real = real
        self._gate = gate
        self._begun = 0
        self.newest: dict[int, GatedTransaction] = {}
        """Transactions by number."""

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        with _named_as_in_the_model():
            return await self._real.ensure_row(transactional_id)

    async def begin(self) -> GatedTransaction:
        self._begun += 1
        with _named_as_in_the_model():
            real = await self._real.begin()
        begun = self.newest[self._begun] = GatedTransaction(self._begun, real, self._gate)
        return begun

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        with _named_as_in_the_model():
            await self._real.make_durable(transactional_id, row, timeout_ms=timeout_ms)


# ---- the process ----------------------------------------------------------------------------------------------------


class RealOwner(Owner):
    """`Owner` on real servers."""

    def __init__(
        self, told: list[Said], database: GatedDatabase, waiting: Waiting, settings: Mapping[str, Any]
    ) -> None:
        self._told = told
        self._shape = ONE_RECORD
        self._database: Any = database
        one_id = OneId(
            TRANSACTIONAL_ID, {"lock_timeout_ms": None, "resolve_timeout_ms": RESOLVE_TIMEOUT_MS, **settings}
        )
        self._coordinator = one_id.coordinator(self._database, waiting)


def writing(values: Sequence[bytes]) -> Program:
    """Return the program of a process that carries out dual writes."""

    async def program(new_owner: Callable[[], Owner]) -> None:
        owner = new_owner()
        for value in values:
            await owner.write(value)

    return program


def recovering(values: Sequence[bytes] = (), *, tries: int = 1) -> Program:
    """Return the program of a process that recovers first; if that fails, others try again."""

    async def program(new_owner: Callable[[], Owner]) -> None:
        for _ in range(tries):
            owner = new_owner()
            if await owner.recover():
                for value in values:
                    await owner.write(value)
                return

    return program


class RealProcess:
    """One life of a process."""

    def __init__(self, name: str, program: Program, network: Network, kafka: str, postgres: Any) -> None:
        """`postgres`: a conninfo without an address, and where the server listens."""
        self.name = name
        self.gate = Gate()
        self.told: list[Said] = []
        self.failure: BaseException | None = None
        self._program = program
        self._network = network
        self._kafka = network.run(KafkaRelay(kafka, self.gate, network).start())
        conninfo, target = postgres
        self.database_relay = network.run(PostgresRelay(target).start())
        self._conninfo = f"{conninfo} host=127.0.0.1 port={self.database_relay.port}"
        self._in_loop = GateOfLoop(self.gate)
        self._loop = OwnTimeLoop()
        self._databases: list[GatedDatabase] = []
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()
        assert self._started.wait(WAIT_S)

    def server_process(self, txn_number: int) -> int:
        """Return the process of the database server that serves a transaction."""
        return self._databases[-1].newest[txn_number].server_process

    def lose_patience(self) -> None:
        """Let its callers have waited for longer than max.block.ms."""
        self._loop.pass_time(MAX_BLOCK_MS / 1000 + 1)

    def kill(self) -> None:
        """End it so that others see nothing of its remaining work."""
        self._network.run(self._kafka.sever())
        self._network.run(self.database_relay.sever())
        self._in_loop.is_closed = True
        if self._task is not None:
            with suppress(RuntimeError):  # its loop is closed: it has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
        for _ in range(_ABANDON_STEPS):
            self._thread.join(_ABANDON_STEP_S)
            if not self._thread.is_alive():
                return
            with suppress(RuntimeError):
                self._loop.pass_time(MAX_BLOCK_MS / 1000)
        raise ReplayError(f"{self.name} does not end after it was killed: {self.gate}")

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._run())

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        self._started.set()
        try:
            await self._program(self._new_owner)
        except Exception as error:
            self.failure = error
        finally:
            self.gate.end()

    def _new_owner(self) -> Owner:
        settings = {
            "bootstrap_servers": self._kafka.bootstrap_servers,
            "max_block_ms": MAX_BLOCK_MS,
            "request_timeout_ms": 100 * MAX_BLOCK_MS,
            "delivery_timeout_ms": 200 * MAX_BLOCK_MS,
            "unreachable_timeout_ms": MAX_BLOCK_MS,
            "retry_backoff_ms": 1,
            "reconnect_backoff_ms": 1,
            "batch_size": 1,
            "max_in_flight_requests_per_connection": 1,
            "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
        }
        waiting = replace(TASKS, new_kafka=lambda given: GatedKafka(given, self._in_loop))
        backend = PostgresBackend[Any, AsyncPsycopgDualTransaction](
            self._conninfo,
            driver=PsycopgDriver(psycopg.AsyncConnection, None),
            handle=AsyncPsycopgDualTransaction,
            waiting=TASKS,
            settings=WritingSettings(),
        )
        database = GatedDatabase(backend.database, self._in_loop)
        self._databases.append(database)
        return RealOwner(self.told, database, waiting, settings)
