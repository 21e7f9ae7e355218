"""The process that owns a transactional id: the dual write's real steps over the real producer state machine.

Only the outermost shell is replaced: the carriers of requests to a broker (`client/sender.py`) and of statements to a
database. Here both ask the world. A reply of `None` means that a request got no response; `GAVE_UP`, that the caller
has waited for `max.block.ms` without one; `AWAY`, that no broker could be reached for `unreachable.timeout.ms`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from dualwrite.client import messages as m
from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.log.transaction_end import PartitionEnd, TransactionEnd
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.batch_reading import StoredRecord
from dualwrite.client.records.delivery import DeliveryResult, delivery_result
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.client.transactions.recovery import CoordinatorMemory
from dualwrite.client.transactions.states import ProducerState
from dualwrite.errors import (
    Api,
    DeliveryError,
    DualWriteError,
    FatalError,
    KafkaTimeoutError,
    KafkaUnreachableError,
    NoMarkerError,
    OutcomeUnknown,
    RecordsGoneError,
    exception_for,
)
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.availability import Availability, TaskWatch
from dualwrite.recipes.core.buffer import BufferedOffsets, BufferedRecord, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.store import NO_STORED_BLOCKS, StoredBlocks, not_durable, state_in
from dualwrite.recipes.core.waiting import direct
from tests.proof.automaton import DatabaseGone, Program, Said, ask
from tests.proof.kafka_model import NO_DEADLINE_MS, Profile
from tests.proof.kafka_offsets import position_of
from tests.proof.kafka_requests import (
    GROUP_ID,
    TOPIC,
    TRANSACTIONAL_ID,
    Added,
    AskFeatures,
    CommitOffset,
    EndOf,
    Features,
    InFlight,
    OffsetCommitted,
    Piece,
    Produce,
    Produced,
    RecordsOf,
    RepairOf,
)
from tests.proof.shape import ONE_RECORD, Shape

GAVE_UP: Final = "gave up"
"""The reply to a caller that has waited too long."""

AWAY: Final = "away"
"""The reply to a caller that cannot reach any broker."""

KNOWN_GONE: Final = False
"""The reply to COMMIT on a connection that the database has ended before."""

GONE: Final = "GONE"
"""The reply to a reader of records that are not in the log any more."""

NO_MARKER: Final = "no marker"
"""The reply to a reader that has come to the end of the log without the expected marker."""

RETURNED: Final = "returned"
"""The result of a block that ended without an error."""

RECOVERED: Final = ("recover", "returned")
"""The result of `recover()` without an error."""

LOST: Final = (("recover", "PreparedTransactionLost"), ("recover", "RecordsGoneError"))
"""The same, if a decided transaction cannot be repaired."""

UNPROVEN: Final = ("log", "unproven")
"""The message to operators if the end of a transaction cannot be proven any more, and it is taken for committed."""

WENT_BACK: Final = ("recover", "DatabaseWentBackError")
"""The result of `recover()` if the database has lost a transaction that Kafka still has."""

_NODE: Final = 1


class Cast(NamedTuple):
    """A request without a wait for its response, by a producer that is being closed."""

    request: Hashable


class Moment(NamedTuple):
    """Let a moment pass, or not. `until_back`: until the process notices that Kafka can be reached again."""

    until_back: bool


class Stuck(Exception):  # noqa: N818 - it is a finding, not an error of the product
    """The producer's state machine has nothing to send and has not ended its call."""


# ---- Kafka ----------------------------------------------------------------------------------------------------------


class RefusesNothing(Repairability):
    """Lets the search also reach states that the product refuses."""

    async def check(self, entries: object, kafka: object) -> Collection[str]:
        return ()

    def _refuse_without_text(self, manifest: object, write: object, owned: object) -> None:
        pass


class _Fate(NamedTuple):
    """The future of a record that was sent, as far as a dual write asks it."""

    partition: int

    def done(self) -> bool:
        return False


class _Unsent:
    """A batch that is not acknowledged, with one record, as if the next did not fit into it."""

    def __init__(self, partition: int, record: bytes) -> None:
        self.partition = partition
        self.records = [record]
        self.sent_as: Produce | None = None
        self.is_in_flight = False


class CheckedKafka(KafkaParticipant):
    """Kafka's side over the real `TransactionManager`, whose requests go to the world."""

    def __init__(self, profile: Profile, *, two_phase_commit: bool = True) -> None:
        self._profile = profile
        self._two_phase_commit = two_phase_commit
        self._manager: TransactionManager | None = None
        self._unsent: list[_Unsent] = []
        self._sequences: dict[tuple[int, int, int], int] = {}
        self._now_ms = 0.0

    @property
    def _live(self) -> TransactionManager:
        assert self._manager is not None, "no producer: the id was not taken over"
        return self._manager

    def limit_waits(self, timeout_ms: int) -> None:
        """Change nothing: there is no wait here."""

    async def take_over(self, kafka_id: str) -> PreparedTxnState:
        await self.give_up()
        manager = self._manager = TransactionManager(
            transactional_id=kafka_id,
            transaction_timeout_ms=NO_DEADLINE_MS,
            two_phase_commit=self._two_phase_commit,
            accepts_bound=True,
            backoff=Backoff(100, 1000),
        )
        manager.earlier.turn_off()  # this cluster writes all markers
        await self._run(lambda: manager.init_transactions(self._two_phase_commit))
        return manager.transaction.prepared_state

    @property
    def memory(self) -> CoordinatorMemory:
        return self._live.memory

    async def cluster_id(self, timeout_ms: int) -> str:
        return ""  # there is one cluster

    async def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool = False) -> TransactionEnd:
        pair = manifest.prepared_state
        ends = {
            part: await self._read(EndOf(*_pair(pair), part.first_offset, part.last_offset, part.partition))
            for part in manifest.partitions
        }
        if GAVE_UP in ends.values():
            raise OutcomeUnknown("no leader responded", transactional_id=TRANSACTIONAL_ID, prepared_state=str(pair))
        unended = tuple((TOPIC, part.partition) for part, end in ends.items() if end == NO_MARKER)
        if unended:
            raise NoMarkerError(
                "no marker", transactional_id=TRANSACTIONAL_ID, prepared_state=str(pair), partitions=unended
            )
        return TransactionEnd(dict(each for part, end in ends.items() for each in _ends_in(part, end)))

    async def records_of(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int
    ) -> list[StoredRecord]:
        found = []
        for part in partitions:
            request = RecordsOf(*_pair(manifest.prepared_state), part.first_offset, part.last_offset, part.partition)
            values = await self._read(request)
            if values == GAVE_UP:
                raise KafkaTimeoutError("no leader responded; nothing was changed")
            if values == GONE:
                state = str(manifest.prepared_state)
                raise RecordsGoneError("gone", transactional_id=TRANSACTIONAL_ID, prepared_state=state)
            assert len(values) == part.record_count, f"{values} are not the records of {manifest}"
            found += [StoredRecord(TOPIC, part.partition, None, value, [], 1, part.first_offset) for value in values]
        return found

    async def repair_of(
        self,
        manifest: Manifest,
        parts: Collection[PartitionManifest],
        undecided: PreparedTxnState,
        timeout_ms: int,
        others: Collection[PreparedTxnState] = (),
    ) -> PreparedTxnState | None:
        assert not others, "only the Spark sink has them"
        part = min(parts, key=lambda each: each.record_count)
        where = part.first_offset, part.last_offset, part.partition
        request = RepairOf(*_pair(manifest.prepared_state), *where, str(undecided))
        found = await self._read(request)
        if found == GAVE_UP:
            raise KafkaTimeoutError("no leader responded; nothing was changed")
        return PreparedTxnState(found) if found and found != GONE else None

    @staticmethod
    async def _read(request: EndOf | RecordsOf | RepairOf) -> Any:
        """Ask until there is a response, as the reader of the log does."""
        while (response := await ask(request)) is None:
            pass
        if response == AWAY:
            raise _unreachable()
        return response

    async def complete(self, row: PreparedTxnState, *, is_over: bool = False) -> None:
        await self._run(lambda: self._live.complete_transaction(row, fence_others=False, is_over=is_over))

    async def own(self) -> None:
        await self._run(self._live.fence_others)

    @property
    def has_failed(self) -> bool:
        return self._live.state is ProducerState.FATAL_ERROR

    async def is_current(self) -> bool:
        await self._run(self._live.describe)
        return self._live.is_current

    @property
    def bounded_ms(self) -> int | None:
        return self._live.bounded_ms

    @property
    def guarantee(self) -> Guarantee:
        return self._live.guarantee

    async def describe_topics(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        return {topic: TopicDescription(is_readable=True, cleanup_policy="delete") for topic in topics}

    async def begin(self) -> None:
        self._live.begin_transaction()

    async def learn_topics(self, topics: Collection[str], beside: Collection[str] = ()) -> dict[str, DualWriteError]:
        raise AssertionError("all topics are known")

    def partitions(self, topic: str) -> int:
        return 1

    async def send(
        self,
        entries: Iterable[BufferedRecord | BufferedOffsets],
        after_each: Callable[[], object],
        *,
        any_size: bool = False,
    ) -> None:
        for entry in entries:
            if isinstance(entry, BufferedOffsets):
                await self._send_offsets(entry)
                continue
            self._live.check_send()
            assert entry.value is not None
            partition = entry.partition or 0
            fate: Any = _Fate(partition)
            entry.fate = fate
            self._unsent.append(_Unsent(partition, entry.value))
            self._live.accepted()
            after_each()

    async def _send_offsets(self, entry: BufferedOffsets) -> None:
        await self._run(lambda: self._live.send_offsets(entry.offsets, entry.group_metadata))

    async def flush(self) -> None:
        """Send all unsent batches, or fail."""
        flushed = Operation("flush", None)
        while self._unsent and self._live.state is ProducerState.IN_TRANSACTION:
            await self._advance(self._live, flushed)

    async def prepare(self) -> PreparedTxnState:
        await self._run(self._live.prepare_transaction)
        return self._live.transaction.prepared_state

    @property
    def manifest(self) -> Manifest | None:
        return self._live.transaction.manifest("cluster")

    async def commit(self) -> None:
        await self._run(self._live.commit_transaction)

    async def abort(self) -> None:
        await self._run(self._live.abort_transaction)

    async def give_up(self) -> None:
        manager, self._manager = self._manager, None
        if manager is None:
            return
        operation = manager.operation_before_close()
        if manager.drops_unsent:
            self._unsent = self._in_flight
        if operation is not None and not operation.done:
            if not self._unsent:
                manager.settle_without_kafka()
            outgoing = manager.poll(self._now_ms, delivered=not self._unsent)
            if outgoing is not None and not isinstance(outgoing.request, m.FindCoordinator | m.ApiVersions):
                await ask(Cast(hashable(outgoing.request)))
        for batch in self._in_flight:
            await ask(Cast(batch.sent_as))
        self._unsent.clear()
        manager.close(FatalError("the producer was closed"))

    # ---- the sender's part ----------------------------------------------------------------------------------

    async def _run(self, call: Callable[[], Operation]) -> None:
        manager = self._live
        operation = call()
        if not operation.done and not self._unsent:
            manager.settle_without_kafka()
        if not operation.done and manager.exchange.request is not None:
            manager.on_no_response(self._now_ms)  # of an abandoned call; its connection is closed
        while not operation.done:
            await self._advance(manager, operation)
        manager.acknowledge(operation)
        if operation.error is not None:
            raise operation.error

    async def _advance(self, manager: TransactionManager, operation: Operation) -> None:
        if manager.drops_unsent:
            self._unsent = self._in_flight
        outgoing = manager.poll(self._now_ms, delivered=not self._unsent)
        if outgoing is not None:
            await self._exchange(manager, outgoing.request, operation)
        elif operation.done:
            return
        elif ready := self._ready(manager):
            await self._produce(manager, ready, operation)
        elif self._unsent and manager.wants_partitions and manager.retry_at_ms is None:
            return  # `may_produce_to` has just asked for AddPartitionsToTxn
        elif manager.retry_at_ms is not None:
            self._now_ms = manager.retry_at_ms
        else:
            raise Stuck(f"{operation.name} waits, and nothing is sent: {manager.standing}")

    def _is_known(self, manager: TransactionManager, request: m.Request) -> bool:
        """Return whether the response is the same in each world; it was given then."""
        if isinstance(request, m.FindCoordinator):
            manager.on_response(m.FindCoordinatorResponse(0, _NODE, "localhost", 9092), self._now_ms)
            return True
        if isinstance(request, m.ApiVersions) and self._profile.later is None:
            manager.on_response(self._profile.features, self._now_ms)
            return True
        return False

    async def _exchange(self, manager: TransactionManager, request: m.Request, operation: Operation) -> None:
        if not self._is_known(manager, request):
            self._respond(manager, await ask(hashable(request)), operation)

    def _respond(self, manager: TransactionManager, response: Any, operation: Operation) -> None:
        request, later = manager.exchange.request, self._profile.later
        if response == AWAY:
            raise _unreachable()
        if response == GAVE_UP:
            raise _no_outcome(operation)
        if response is None:
            manager.on_no_response(self._now_ms)
        elif isinstance(response, Features) and later is not None:
            manager.on_response(later.features if response.is_upgraded else self._profile.features, self._now_ms)
        else:
            assert request is not None
            manager.on_response(as_response(request, response), self._now_ms)

    @property
    def _in_flight(self) -> list[_Unsent]:
        return [batch for batch in self._unsent if batch.is_in_flight]

    def _ready(self, manager: TransactionManager) -> list[_Unsent]:
        """Return the batches in flight, and of each other partition the first batch, if it may be sent."""
        ready = {batch.partition: batch for batch in self._in_flight}
        if manager.may_produce:
            for batch in self._unsent:
                if batch.partition not in ready and manager.may_produce_to(TOPIC, batch.partition, 0, 0):
                    ready[batch.partition] = batch
        return list(ready.values())

    async def _produce(self, manager: TransactionManager, batches: Sequence[_Unsent], operation: Operation) -> None:
        """Send batches, each to its partition, and wait for the first response."""
        requests = tuple(self._request_of(manager, batch) for batch in batches)
        manager.produced()
        reply = await ask(InFlight(requests) if len(requests) > 1 else requests[0])
        if reply in (GAVE_UP, AWAY):
            for batch in batches:
                batch.is_in_flight = False
            raise _unreachable() if reply == AWAY else _no_outcome(operation)
        at, response = reply if len(requests) > 1 else (0, reply)
        batches[at].is_in_flight = False
        if response is None:
            manager.produce_unanswered()
            return
        assert isinstance(response, Produced)
        self._settle(manager, batches[at], response)

    def _request_of(self, manager: TransactionManager, batch: _Unsent) -> Produce:
        batch.is_in_flight = True
        if batch.sent_as is None:
            pair = manager.producer_id, manager.producer_epoch
            where = (*pair, batch.partition)
            sequence = self._sequences.get(where, 0)
            self._sequences[where] = sequence + len(batch.records)
            version = manager.transaction_version
            batch.sent_as = Produce(*pair, sequence, tuple(batch.records), version, batch.partition)
        return batch.sent_as

    def _settle(self, manager: TransactionManager, batch: _Unsent, response: Produced) -> None:
        code = response.error_code
        result = delivery_result(code, record_count=1, unresolved_before=False)
        if result is DeliveryResult.DELIVERED:
            manager.stored(TOPIC, batch.partition, response.base_offset, len(batch.records))
            self._unsent.remove(batch)
        elif result is DeliveryResult.LOST:
            self._unsent.remove(batch)
            manager.fail_abortable(DeliveryError(f"refused with {code}", error_code=code))
        elif result is DeliveryResult.FATAL:
            self._unsent.remove(batch)
            manager.fail_fatal(exception_for(Api.PRODUCE, code, f"refused with {code}"))


def _pair(prepared: PreparedTxnState) -> tuple[int, int]:
    return prepared.producer_id, prepared.producer_epoch


def _ends_in(part: PartitionManifest, end: str | tuple[Piece, ...]) -> Iterator[tuple[PartitionManifest, PartitionEnd]]:
    if isinstance(end, str):
        yield part, PartitionEnd[end]
        return
    for piece in end:
        first, last, count, name = piece
        yield part._replace(first_offset=first, last_offset=last, record_count=count), PartitionEnd[name]


def hashable(request: m.Request) -> Hashable:
    """Return the world's form of a request: one of its own, if the request has a mapping."""
    if isinstance(request, m.ApiVersions):
        return AskFeatures()
    if not isinstance(request, m.TxnOffsetCommit):
        return request
    ((partition, position),) = request.offsets.items()
    pair = request.producer_id, request.producer_epoch
    return CommitOffset(*pair, partition.topic, position.offset, request.transaction_version)


def as_response(request: m.Request, reply: Any) -> m.Response:
    """Return the response to a request, from the world's reply."""
    if isinstance(request, m.AddPartitionsToTxn) and isinstance(reply, Added):
        return m.AddPartitionsToTxnResponse(dict.fromkeys(request.partitions, reply.error_code))
    if isinstance(reply, Added):
        return m.AddOffsetsToTxnResponse(reply.error_code)
    if isinstance(reply, OffsetCommitted):
        return m.TxnOffsetCommitResponse((reply.error_code,))
    assert isinstance(reply, m.Response)
    return reply


def _no_outcome(operation: Operation) -> KafkaTimeoutError:
    return KafkaTimeoutError(f"{operation.name} has no outcome within max.block.ms")


def _unreachable() -> KafkaUnreachableError:
    return KafkaUnreachableError("no broker could be reached")


class NoWatch(TaskWatch):
    """Runs nothing: the world says when Kafka is back."""

    is_running = True

    def start(self, steps: Coroutine[Any, Any, None]) -> None:
        steps.close()

    def stop(self) -> None:
        pass


# ---- the database ---------------------------------------------------------------------------------------------------


class Begin(NamedTuple):
    """Begin transaction `number` of this process."""

    number: int


class Insert(NamedTuple):
    """Change the application's table."""

    number: int
    write: bytes


class Lock(NamedTuple):
    """Lock the state row and read it."""

    number: int


class LockInTime(NamedTuple):
    """Lock the state row and read it. The reply is False if another transaction keeps it locked."""

    number: int


class Read(NamedTuple):
    """Read the locked state row again, with its manifest."""

    number: int


class Write(NamedTuple):
    """Replace the locked state row."""

    number: int
    state: str
    manifest: str


class Commit(NamedTuple):
    """Commit."""

    number: int


class Rollback(NamedTuple):
    """Roll back."""

    number: int


class MakeDurable(NamedTuple):
    """Commit a change behind the row, which was read with this content. The reply is True, or why not."""

    row: str


class CheckedTransaction:
    """A `DatabaseTransaction` whose statements go to the world. A reply of None: the connection is gone."""

    def __init__(self, number: int, *, by_commit: bool, stored_blocks: StoredBlocks = NO_STORED_BLOCKS) -> None:
        self._number = number
        self._is_over = False
        self._by_commit = by_commit
        self._carried: Write | None = None
        self.commit_was_sent = False
        self.was_ended_past = False
        self._stored_blocks = stored_blocks

    def stored_blocks(self, transactional_id: str) -> StoredBlocks:
        return self._stored_blocks

    async def insert(self, write: bytes) -> None:
        await self._ask(Insert(self._number, write))

    def doom(self, error: BaseException) -> None:
        raise AssertionError(error)

    async def flush(self) -> None:
        pass

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        state, _ = await self._ask(Lock(self._number))
        return state_in(transactional_id, state)

    async def read(self, transactional_id: str) -> PreparedTxnState:
        state, _ = await self._ask(Read(self._number))
        return state_in(transactional_id, state)

    async def read_manifest(self, transactional_id: str) -> str:
        _, manifest = await self._ask(Read(self._number))
        assert isinstance(manifest, str)
        return manifest

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        written = Write(self._number, str(new), manifest)
        if self._by_commit:
            self._carried = written
        else:
            await self._ask(written)

    async def commit(self) -> None:
        is_carrying = self._carried is not None
        if is_carrying:
            await ask(self._carried)  # with COMMIT, in one message
        self.commit_was_sent = True
        reply = await ask(Commit(self._number))
        if not reply:
            # A broken connection that is noticed sends no such message; COMMIT alone may be sent.
            self.commit_was_sent = not (is_carrying and reply is KNOWN_GONE)
            raise DatabaseGone("COMMIT")
        self._is_over = True

    async def rollback(self) -> None:
        if not self._is_over:
            self._is_over = True
            await ask(Rollback(self._number))

    async def close(self) -> None:
        pass

    def close_at_once(self) -> bool:
        return True

    async def _ask(self, request: Hashable) -> Any:
        reply = await ask(request)
        if reply is None:
            raise DatabaseGone(str(request))
        return reply


class CheckedDatabase:
    """A `Database` whose transactions are numbered per process.

    `by_commit`: the row is written by the message of COMMIT, as with psycopg. `fails_over`: a visible commit may not be
    durable.
    """

    def __init__(self, *, by_commit: bool, fails_over: bool = False) -> None:
        self._by_commit = by_commit
        self._fails_over = fails_over
        self._begun = 0
        self.errors = (DatabaseGone,)

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        return DatabaseIdentity("")

    async def begin(self) -> CheckedTransaction:
        self._begun += 1
        await ask(Begin(self._begun))
        return CheckedTransaction(self._begun, by_commit=self._by_commit)

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        if not self._fails_over:
            return
        reply = await ask(MakeDurable(str(row)))
        if reply is None:
            raise DatabaseGone(str(row))
        if reply is not True:
            raise not_durable(transactional_id, row, reply)


# ---- the program ----------------------------------------------------------------------------------------------------


A_MOMENT_S: Final = 100.0
"""Outlasts every wait between two attempts."""


async def _no_sleep(seconds: float) -> None:
    pass


class Owner:
    """One process with a writer for the id, as an application has it."""

    _availability: Availability | None = None
    """None: Kafka is always there."""

    def __init__(
        self,
        profile: Profile,
        told: list[Said],
        *,
        by_commit: bool,
        shape: Shape,
        fails_over: bool = False,
    ) -> None:
        self._told = told
        self._shape = shape
        self._database = CheckedDatabase(by_commit=by_commit, fails_over=fails_over)
        self._availability = Availability(None, NoWatch(), lambda: 0.0)
        self._now_s = 0.0
        owned = OwnedId(
            TRANSACTIONAL_ID,
            database=self._database,
            kafka=CheckedKafka(profile),
            lock_timeout_ms=None,
            resolve_timeout_ms=NO_DEADLINE_MS,
            pause=self._reach,
            availability=self._availability,
        )
        self._coordinator = DualWriteCoordinator(
            owned, sleep=_no_sleep, repairability=RefusesNothing(), clock_s=lambda: self._now_s
        )

    def _reach(self, point: PausePoint) -> None:
        if self._coordinator.owned.tally.unproven and UNPROVEN not in self._told:
            self._told.append(UNPROVEN)

    async def write(self, value: bytes) -> None:
        """Carry out one dual write, and note its caller's result: the outcome, None for unknown."""
        coordinator = self._coordinator
        progress = None
        if self._is_away:
            await self._pass_a_moment()
        try:
            with coordinator.exclusively():
                await coordinator.get_ready()
                database = await self._database.begin()
                records = RecordBuffer()
                progress = DualWriteProgress(database, records, direct)
                self._send(records, value)
                try:
                    await database.insert(value)
                except DatabaseGone:
                    await coordinator.roll_back(progress)
                    raise
                if self._is_away:
                    await self._pass_a_moment()
                await coordinator.commit(progress)
                self._told.append((value, RETURNED))
        except (DualWriteError, DatabaseGone) as error:
            self._told.append((value, "raised", type(error).__name__))
        if progress is not None:
            self._told.append((value, None if progress.outcome is None else progress.outcome.name))

    @property
    def _is_away(self) -> bool:
        return self._availability is not None and self._availability.is_away

    async def _pass_a_moment(self) -> None:
        if self._availability is None or not await ask(Moment(self._is_away)):
            return
        self._now_s += A_MOMENT_S
        self._availability.note_present()

    def _send(self, records: RecordBuffer, value: bytes) -> None:
        for partition in self._shape.partitions_of(value):
            records.send(TOPIC, value, partition=partition, timestamp_ms=1)
        if self._shape.has_offsets:
            reader, offset = position_of(value)
            read = {TopicPartition(reader, 0): OffsetAndMetadata(offset)}
            records.send_offsets(read, ConsumerGroupMetadata(GROUP_ID))

    async def recover(self) -> bool:
        """Recover, as an operator or a new process does. Return whether it succeeded."""
        try:
            with self._coordinator.exclusively():
                await self._coordinator.recover()
        except (DualWriteError, DatabaseGone) as error:
            self._told.append(("recover", type(error).__name__))
            return False
        self._told.append(RECOVERED)
        return True


def writes(
    profile: Profile,
    values: Sequence[bytes],
    *,
    by_commit: bool = False,
    shape: Shape = ONE_RECORD,
    fails_over: bool = False,
) -> Program:
    """Return the program of a process that carries out dual writes."""

    async def program(told: list[Said]) -> None:
        owner = Owner(profile, told, by_commit=by_commit, shape=shape, fails_over=fails_over)
        for value in values:
            await owner.write(value)

    return program


def recovers(
    profile: Profile,
    values: Sequence[bytes] = (),
    *,
    tries: int = 1,
    by_commit: bool = False,
    shape: Shape = ONE_RECORD,
    fails_over: bool = False,
) -> Program:
    """Return the program of a process that recovers first; if that fails, others try again."""

    async def program(told: list[Said]) -> None:
        for _ in range(tries):
            owner = Owner(profile, told, by_commit=by_commit, shape=shape, fails_over=fails_over)
            if await owner.recover():
                for value in values:
                    await owner.write(value)
                return

    return program
