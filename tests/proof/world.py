"""`World`: the broker, the state row, the processes and the network as one value, and its possible next steps.

A request is carried out and answered in one step, because a process that waits for a response does nothing else: its
next request may be arbitrarily late. A process's changes of its own database transaction alone happen at once, for the
same reason. Everything else interleaves: lost responses, requests that arrive late, connections and locks that vanish,
commits that are in the air, crashes, the broker's timeouts, foreign programs, and ids that expire. How many faults
there are in all is limited by the `Budget`, which makes the space finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeGuard

from dualwrite.broker_emulator.transactions.states import ONGOING, PREPARE_ABORT, PREPARE_STATES
from dualwrite.client.messages import (
    AddPartitionsToTxn,
    DescribeTransaction,
    DescribeTransactionResponse,
    EndTxn,
    InitProducerId,
)
from dualwrite.client.transactions.recovery import commits_later
from dualwrite.prepared_state import PreparedTxnState
from tests.proof import kafka_events as broker
from tests.proof import outbox_model
from tests.proof.automaton import Automaton, Told
from tests.proof.durability import Past, Snapshot, after_commit, failovers, restores
from tests.proof.kafka_log import end_offset, is_open, visible
from tests.proof.kafka_model import NO_DEADLINE_MS, PROFILES, Kafka, Profile, described, serve
from tests.proof.kafka_offsets import committed_positions, position_of
from tests.proof.kafka_requests import (
    BLOCKED,
    AskFeatures,
    EndOf,
    InFlight,
    Produce,
    RecordsOf,
    RepairOf,
)
from tests.proof.lanes import Held, Lane, OfSlot, exchanged, exchanged_hold, slots_of, with_rows, with_topic
from tests.proof.lease_model import LeaseRow, OnLeases, executed, has_expired, lapsed, leases_that_may_lapse
from tests.proof.outbox_model import EMPTY, NO_CHANGES, Changes, Outbox
from tests.proof.owner import (
    AWAY,
    GAVE_UP,
    GONE,
    KNOWN_GONE,
    LOST,
    NO_MARKER,
    RECOVERED,
    RETURNED,
    UNPROVEN,
    WENT_BACK,
    Begin,
    Cast,
    Commit,
    Insert,
    Lock,
    LockInTime,
    MakeDurable,
    Moment,
    Read,
    Rollback,
    Write,
    recovers,
    writes,
)
from tests.proof.plain import FAILED, Decide, produces
from tests.proof.pool import LAST_WRITE, Interrupt, pool_recovers, pool_writes
from tests.proof.remembered import remembered
from tests.proof.service import ReadRow, serves
from tests.proof.shape import ONE_RECORD, Shape
from tests.proof.symmetry import Symmetry

_FEW: Final = 2
"""So many processes are not merged: exchanging them takes longer than visiting twice as many states."""

_MOST_LATE: Final = 3
_SETTLING_TRIES: Final = 4
_READS: Final = (EndOf, RecordsOf, RepairOf, DescribeTransaction, AskFeatures)
_POLLS: Final = 3
"""How often a process gets the same response to the same request in a row, before another event has to happen."""

_UNUSED: Final = Lane()

_REFUSES_MARKER: Final = "the leader refuses the marker of a decided transaction"

_NOTHING_CHANGED: Final = ("KafkaUnreachableError", "StoreFullError", "StoredBlocksError")
"""Errors of a block that say: neither side was changed."""


class Budget(NamedTuple):
    """How often each kind of fault may still happen."""

    crashes: int = 0
    kills: int = 0
    """Database connections that end, and with them their transactions and locks."""
    losses: int = 0
    """Responses that are lost: the request was carried out, or will be later, or never."""
    give_ups: int = 0
    """Callers that wait for longer than max.block.ms."""
    timeouts: int = 0
    """Transactions that the broker aborts."""
    foreigners: int = 0
    """Foreign programs that initialise the id."""
    expiries: int = 0
    """Ids that the broker forgets."""
    moves: int = 0
    """Moves of coordinators and leaders, and requests refused for that reason, carried out or not."""
    upgrades: int = 0
    """Whether `transaction.version` may be raised."""
    terminations: int = 0
    """Operators who terminate the id's open transaction."""
    aborts: int = 0
    """Operators who abort the open transaction in one partition."""
    outages: int = 0
    """Times at which Kafka cannot be reached any more; it comes back at any later step."""
    deletions: int = 0
    """Times at which retention deletes all decided records of the log, which consumers have read."""
    failovers: int = 0
    """Standbys that take over from the database's primary, with or without its undurable commits."""
    restores: int = 0
    """Databases that are restored to an earlier state."""
    lapses: int = 0
    """Leases that expire while their owner lives."""
    rounds: int = 0
    """Times at which the background of a pool acts, while a block waits."""
    hours: int = 0
    """Hours without any event, by the clock of the database."""


class Txn(NamedTuple):
    """One database transaction, as its server knows it."""

    process: int
    incarnation: int
    number: int
    is_locked: bool = False
    row: tuple[str, str] | None = None
    inserted: tuple[bytes, ...] = ()
    is_committing: bool = False
    """Whether its COMMIT is on the way, and no process waits for it."""
    held: tuple[Held, ...] = ()
    """Its changes of the rows of other ids of a pool."""
    outbox: Changes = NO_CHANGES
    """Its changes of the outbox, without a lock of it."""
    has_touched: bool = False
    """Whether it has locked the row of the application that all blocks change."""


class Process(NamedTuple):
    """A process: its program's node, and how often it was started again."""

    program: int
    node: int
    incarnation: int = 0


class World(NamedTuple):
    """Everything."""

    kafka: Kafka
    row: tuple[str, str]
    """The committed prepared state, and its manifest."""
    table: frozenset[bytes]
    """The committed changes of the application."""
    txns: tuple[Txn, ...]
    processes: tuple[Process, ...]
    late: tuple[Any, ...]
    """Requests that may still reach the broker."""
    budget: Budget
    is_settling: bool = False
    decided: tuple[bytes, ...] = ()
    """The committed changes that come with records, in the order of their commits."""
    broken: str = ""
    """A request's violation of a rule; empty without one."""
    is_away: bool = False
    """Whether Kafka cannot be reached."""
    log_starts: tuple[int, ...] = ()
    """The first offset that retention has left in each partition; empty if it has deleted nothing."""
    is_unproven: bool = False
    """Whether a gone process has logged that it could not prove the end of a transaction."""
    past: Past = Past()
    beside: tuple[Lane, ...] = ()
    """The ids of a pool, except for the one in front, which is the first one between any two steps."""
    in_front: int = 0
    leases: tuple[LeaseRow, ...] = ()
    outbox: Outbox = EMPTY
    has_one_topic: bool = False
    """Whether the ids of a pool write to the same partition, and not each to one of its own."""


Step = tuple[str, World]

_FALSE_ERRORS: Final = ("PreparedTransactionLost", "DatabaseWentBackError", "TransactionHangsError")
"""They say that a person has to repair a transaction. If no record, row or marker is lost, they are wrong."""

_FALSE_ALONE: Final = ("FencedError", "FatalError", "OutcomeUnknown")
"""They say that another process has the id, or may have replaced the row."""

_AT_ONCE: Final = frozenset({Begin, Insert, Write, Rollback, Decide, Cast})
"""Requests that only change a process's own database transaction, or wait for nothing."""

_PROCESSES: Final = World._fields.index("processes")
"""Worlds are copied a million times, and `_replace` takes several times as long as slices."""


class Rules:
    """The possible steps, for one kind of broker and the dual writes of some processes."""

    def __init__(
        self,
        profile: Profile,
        written: Sequence[Sequence[bytes]],
        after_crash: Sequence[bytes],
        *,
        by_commit: bool = False,
        shape: Shape = ONE_RECORD,
        is_plain: bool = False,
        recoveries: int = 0,
        services: int = 0,
        fails_over: bool = False,
        pools: bool = False,
    ) -> None:
        """`is_plain`: the values are transactions of a `Producer` without a database; those with an x are aborted.

        `recoveries`: how many processes call recover() beside those that write; `services`, how many are services.
        """
        self._pools = pools
        self._recoveries = recoveries
        self._services = services
        self.profile = profile
        self.shape = shape
        self._first = len(written)
        self._settles = self._first + 1
        self._values = tuple(tuple(values) for values in written)
        self._written = tuple(value for values in written for value in values)
        self._after_crash = tuple(after_crash)
        self._budget = Budget()
        self._false_errors: tuple[str, ...] = ()
        self._has_operator = False
        self._is_plain = is_plain
        if is_plain:
            programs = [*(produces(profile, values) for values in written), produces(profile, after_crash)]
            programs.append(produces(profile, (), tries=_SETTLING_TRIES))
        elif pools:
            pooled = partial(pool_writes, by_commit=by_commit)
            programs = [pooled(profile, values) for values in (*written, after_crash)]
            programs.append(pool_recovers(profile, tries=_SETTLING_TRIES))
        else:
            writing = partial(writes, by_commit=by_commit, shape=shape, fails_over=fails_over)
            recovering = partial(recovers, shape=shape)
            after = partial(recovering, by_commit=by_commit, fails_over=fails_over)
            programs = [writing(profile, values) for values in written]
            programs.append(after(profile, after_crash))
            programs.append(recovering(profile, tries=_SETTLING_TRIES))
        if recoveries or services:
            programs.append(recovers(profile, by_commit=by_commit, shape=shape, fails_over=fails_over))
            programs.append(serves(profile, fails_over=fails_over))
        self.programs = [Automaton(program) for program in programs]

    def start(self, budget: Budget) -> World:
        """Return the world before anything has happened."""
        self._budget = budget
        self._has_operator = bool(budget.terminations or budget.aborts)
        may_be_true = self._has_operator or self.shape.has_offsets or budget.deletions
        self._false_errors = () if may_be_true else _FALSE_ERRORS
        merges = self._first + self._recoveries > _FEW and not self._pools
        alike = range(self._first, self._first + self._recoveries)
        self.symmetry = Symmetry(self.programs, self._values if merges else (), alike if merges else ())
        writers = tuple(Process(number, 0) for number in range(self._first))
        recoveries = (Process(self._settles + 1, 0),) * self._recoveries
        processes = (*writers, *recoveries, *(Process(self._settles + 2, 0),) * self._services)
        kafka = Kafka(logs=((),) * self.shape.partitions)
        world = World(kafka, ("", ""), frozenset(), (), processes, (), budget)
        for number in range(len(processes)):
            world = self._at_once(world, number)
        return world

    def close(self) -> None:
        """Release the programs."""
        for program in self.programs:
            program.close()

    # ---- steps ----------------------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """Yield each possible next world, with a sentence."""
        for number in range(len(world.processes)):
            yield from self._of_process(world, number)
        yield from self._of_kafka(world)
        for slot, lane in enumerate(world.beside, 1):
            if lane != _UNUSED:
                yield from _of_slot(slot, self._of_kafka(_with_in_front(world, slot)))
        yield from self._of_database(world)
        if not world.is_settling and not world.is_away and self._all_ended(world):
            yield self._settle(world)

    def _request(self, world: World, number: int) -> Hashable:
        process = world.processes[number]
        return self.programs[process.program].nodes[process.node].request

    def _of_process(self, world: World, number: int) -> Iterator[Step]:
        request = self._request(world, number)
        if request is None:
            return
        if isinstance(request, OfSlot):
            in_front = _with_in_front(world, request.slot)
            yield from _of_slot(request.slot, self._of_request(in_front, number, request.request))
        else:
            yield from self._of_request(world, number, request)
        if world.budget.rounds and number < self._first and not world.is_settling:
            yield from self._in_background(world, number)

    def _in_background(self, world: World, number: int) -> Iterator[Step]:
        """Let the background of a pool act where it may find work."""
        for interrupt in Interrupt:
            has_work = not world.budget.lapses if interrupt is Interrupt.RENEW else has_expired(world.leases)
            if has_work:
                text = f"P{number}'s background {interrupt.value}"
                yield text, self._answer(spend(world, rounds=1), number, interrupt)

    def _of_request(self, world: World, number: int, request: Hashable) -> Iterator[Step]:
        name = f"P{number}"
        match request:
            case Lock() | Read():
                yield from self._reads(world, number, request)
            case LockInTime():
                yield self._locks_in_time(world, number, request)
            case ReadRow():
                yield f"P{number} reads the row without its lock", self._answer(world, number, world.row)
            case OnLeases():
                yield from self._changes_leases(world, number, request)
            case Commit():
                yield from self._commits(world, number, request)
            case Moment():
                yield from self._lets_time_pass(world, number, request)
            case MakeDurable():
                yield from self._makes_durable(world, number, request)
            case _:
                yield from self._asks_kafka(world, number, request)
        if world.budget.crashes and not world.is_settling:
            yield from self._crashes(world, number, name, request)

    def _reads(self, world: World, number: int, request: Lock | Read) -> Iterator[Step]:
        txn = self._txn(world, number, request.number)
        if txn is None:
            yield f"P{number} finds its connection gone", self._answer(world, number, None)
        elif isinstance(request, Read) or txn.is_locked:
            row = txn.row or world.row
            yield f"P{number} reads the row under its lock", self._answer(world, number, row)
        elif _is_free(world):
            locked = replaced(world, txn, txn._replace(is_locked=True))
            yield f"P{number} locks the row and reads it", self._answer(locked, number, world.row)

    def _locks_in_time(self, world: World, number: int, request: LockInTime) -> Step:
        txn = self._txn(world, number, request.number)
        if txn is None:
            return f"P{number} finds its connection gone", self._answer(world, number, None)
        if not _is_free(world):
            return f"P{number} finds the row locked", self._answer(world, number, False)
        locked = replaced(world, txn, txn._replace(is_locked=True))
        return f"P{number} locks the row and reads it", self._answer(locked, number, world.row)

    def _changes_leases(self, world: World, number: int, request: OnLeases) -> Iterator[Step]:
        result, leases = executed(world.leases, slots_of(world.beside), _owner(world, number), request)
        done = world._replace(leases=leases)
        yield f"P{number}: {request.sql} -> {result}", self._answer(done, number, result)
        if world.budget.kills and not world.is_settling:
            yield f"P{number} cannot reach the leases", self._answer(spend(world, kills=1), number, None)
            if done != world:
                text = f"P{number}: {request.sql} is carried out, and the connection lost"
                yield text, self._answer(spend(done, kills=1), number, None)

    def _commits(self, world: World, number: int, request: Commit) -> Iterator[Step]:
        txn = self._txn(world, number, request.number)
        if txn is None:
            yield f"P{number} finds its connection gone at COMMIT", self._answer(world, number, KNOWN_GONE)
            return
        done = _committed(world, txn, confirmed=True)
        yield f"P{number} commits the database", self._answer(done, number, True)
        if world.budget.losses and not world.is_settling:
            poorer = spend(world, losses=1)
            done, dropped = _committed(poorer, txn), replaced(poorer, txn, None)
            yield f"P{number} commits the database, and does not hear of it", self._answer(done, number, None)
            yield f"P{number}'s COMMIT is lost", self._answer(dropped, number, None)
            on_the_way = replaced(poorer, txn, txn._replace(is_committing=True))
            yield f"P{number}'s COMMIT is delayed, and its connection lost", self._answer(on_the_way, number, None)

    def _lets_time_pass(self, world: World, number: int, request: Moment) -> Iterator[Step]:
        yield f"P{number} goes on at once", self._answer(world, number, False)
        if not request.until_back:
            yield f"P{number} goes on after a moment", self._answer(world, number, True)
        elif not world.is_away:
            yield f"P{number} notices that Kafka is back", self._answer(world, number, True)

    def _makes_durable(self, world: World, number: int, request: MakeDurable) -> Iterator[Step]:
        row = world.row[0]
        if row == request.row:
            durable = world._replace(past=world.past._replace(undurable=()))
            yield f"P{number} makes what it read durable", self._answer(durable, number, True)
        else:
            yield f"P{number} finds {row!r} on another connection", self._answer(world, number, f"{row!r} is there")
        if world.budget.give_ups and not world.is_settling:
            poorer = spend(world, give_ups=1)
            yield f"P{number} waits in vain for the standby", self._answer(poorer, number, "no standby responded")

    def _asks_kafka(self, world: World, number: int, request: Hashable) -> Iterator[Step]:
        if world.is_away:
            yield f"P{number}: {request} finds Kafka away", self._answer(_later(world, request), number, AWAY)
            return
        if isinstance(request, InFlight):
            for at, each in enumerate(request.requests):
                yield from self._is_answered(world, number, each, at)
        else:
            yield from self._is_answered(world, number, request)
        if world.budget.give_ups and not world.is_settling:
            text = f"P{number}: {request} is delayed, and its caller gives up"
            yield text, self._answer(_later(spend(world, give_ups=1), request), number, GAVE_UP)

    def _is_answered(self, world: World, number: int, request: Hashable, at: int | None = None) -> Iterator[Step]:
        """Yield the possible fates of one request. `at`: its number among several that are on their way."""
        kafka, response = serve(world.kafka, request, self.profile)
        if world.log_starts and _is_deleted(world, request):
            response = GONE
        if response is not BLOCKED and kafka == world.kafka and self._only_polls(world, number, _reply(at, response)):
            response = BLOCKED
        broken = self._broken(world, number, request, kafka)
        if response is not BLOCKED:
            reply = _reply(at, response)
            done = _with_kafka(world, kafka) if broken == world.broken else world._replace(kafka=kafka, broken=broken)
            yield f"P{number}: {_said(request, response)}", self._answer(done, number, reply)
        elif isinstance(request, EndOf) and not broker.marker_is_due(world.kafka):
            yield f"P{number}: {request} -> no marker", self._answer(world, number, NO_MARKER)
        elif isinstance(request, RepairOf) and not broker.marker_is_due(world.kafka):  # its transaction may stay open
            yield f"P{number}: {request} is delayed, and its caller gives up", self._answer(world, number, GAVE_UP)
        if world.is_settling:
            return
        if world.budget.give_ups and isinstance(request, EndOf) and response is BLOCKED:
            poorer = spend(world, give_ups=1)
            yield f"P{number}: {request} -> no marker yet", self._answer(poorer, number, NO_MARKER)
        if world.budget.losses:
            poorer = spend(world, losses=1)
            if response is not BLOCKED:
                text = f"P{number}: {request} is carried out, and the response {response} lost"
                yield text, self._answer(poorer._replace(kafka=kafka, broken=broken), number, _reply(at, None))
            yield (
                f"P{number}: {request} is delayed, and its connection lost",
                self._answer(_later(poorer, request), number, _reply(at, None)),
            )
        if world.budget.moves:
            yield from self._is_refused(spend(world, moves=1), number, request, at)

    def _broken(self, world: World, number: int | None, request: Hashable, after: Kafka) -> str:
        """Return a request's violation of a rule. `number`: the process that waits for its response."""
        before, now = world.kafka.metadata, after.metadata
        if before is None or now is None or after == world.kafka:
            return world.broken
        ends = before.state is ONGOING and now.state in PREPARE_STATES
        if isinstance(request, EndTxn) and ends and before.client_pair != (request.producer_id, request.producer_epoch):
            return f"{request} has ended a transaction of {before.client_pair}"
        if self._joins(request, world) and now.producer_pair != (request.producer_id, request.producer_epoch):
            return f"{request} has joined a transaction of {now.producer_pair}"
        if now.state is PREPARE_ABORT and ends and number is not None:
            return self._broken_by_abort(world, number, request, before.producer_pair)
        return world.broken

    def _joins(self, request: Hashable, world: World) -> TypeGuard[AddPartitionsToTxn | Produce]:
        """Return whether a request that is carried out opens or joins the transaction of the coordinator.

        Not a batch behind others of its transaction, which a leader takes until the marker comes; and brokers before
        Kafka 4 take one of any epoch.
        """
        if isinstance(request, Produce):
            has_others = has_open_records(world.kafka, request.producer_id, request.producer_epoch)
            return self.profile.rules.transaction_version >= 2 and not has_others
        return isinstance(request, AddPartitionsToTxn)

    def _broken_by_abort(self, world: World, number: int, request: Hashable, pair: tuple[int, int]) -> str:
        """Return the error of a process that aborts a pair's open transaction.

        A process that has lost the lock may abort a transaction that another one has decided since; that is repaired.
        But it may do so only unknowingly, and where EndTxn can name a pair, only with that.
        """
        has_names = self.profile.rules.transaction_version >= 2 and not self._is_plain
        if isinstance(request, InitProducerId) and has_names:
            return f"{request} has aborted the transaction of {pair}, which it does not name"
        if world.row[0] == "{}:{}".format(*pair) and has_open_records(world.kafka, *pair):
            if any(txn.is_locked and not txn.is_committing and txn.process == number for txn in world.txns):
                return "a process has aborted what the row decides, and it holds the lock"
            if self._has_described(world.processes[number], pair, world.in_front):
                return "a process has aborted what it knew to be open, and what another has decided"
        return world.broken

    def _has_described(self, process: Process, pair: tuple[int, int], slot: int) -> bool:
        """Return whether Kafka has told a process that the transaction of a pair, under the id of a slot, is open."""
        nodes = self.programs[process.program].nodes
        at = process.node
        while at > 0:
            told = nodes[at].reply
            if not isinstance(told, DescribeTransactionResponse) or self._slot_at(process, at) != slot:
                pass  # of another request
            elif (told.producer_id, told.producer_epoch) == pair:
                return told.state == ONGOING.label
            at = nodes[at].came_from
        return False

    def _slot_at(self, process: Process, node: int) -> int:
        """Return the slot of the id in the request that led to a node."""
        nodes = self.programs[process.program].nodes
        request = nodes[nodes[node].came_from].request
        return request.slot if isinstance(request, OfSlot) else 0

    def _is_refused(self, world: World, number: int, request: Hashable, at: int | None) -> Iterator[Step]:
        for how, kafka, response in broker.refused(world.kafka, request, self.profile):
            after = _move(world, kafka, self.profile)
            yield f"P{number}: {request} -> {response}, {how}", self._answer(after, number, _reply(at, response))

    def _only_polls(self, world: World, number: int, response: object) -> bool:
        """Return whether the process has just got this response to this request again and again: it would ask for ever.

        Twice in a row is no poll: a step and the next one may ask the same.
        """
        process = world.processes[number]
        nodes = self.programs[process.program].nodes
        node = nodes[process.node]
        request = node.request
        for _ in range(_POLLS):
            before = nodes[node.came_from]
            if node.came_from < 0 or node.reply != response or before.request != request:
                return False
            node = before
        return True

    def _crashes(self, world: World, number: int, name: str, request: Hashable) -> Iterator[Step]:
        poorer = spend(world, crashes=1)
        mine = [txn for txn in world.txns if txn.process == number and not txn.is_committing]
        for txn in mine:
            poorer = replaced(poorer, txn, None)
        match request:
            case Commit():
                committing = self._txn(world, number, request.number)
                yield f"{name} is killed, and its COMMIT lost", self._restarted(poorer, number)
                if committing is not None:
                    done = _committed(_with_added(poorer, committing), committing)
                    yield f"{name} is killed after its COMMIT", self._restarted(done, number)
                    on_the_way = _with_added(poorer, committing._replace(is_committing=True))
                    yield f"{name} is killed, and its COMMIT delayed", self._restarted(on_the_way, number)
            case Lock() | LockInTime() | Read() | Moment():
                yield f"{name} is killed", self._restarted(poorer, number)
            case MakeDurable() | OnLeases() | ReadRow():
                yield f"{name} is killed", self._restarted(poorer, number)
            case _:
                later = _later(poorer, request)
                yield f"{name} is killed, and {request} may arrive later", self._restarted(later, number)

    def _of_kafka(self, world: World) -> Iterator[Step]:
        kafka, budget, profile = world.kafka, world.budget, self.profile
        for at, request in enumerate(world.late):
            after, response = serve(kafka, request, profile)
            if response is not BLOCKED:
                rest = world.late[:at] + world.late[at + 1 :]
                broken = self._broken(world, None, request, after)
                yield f"late: {_said(request, response)}", world._replace(kafka=after, late=rest, broken=broken)
        for text, after in broker.markers_written(kafka, profile):
            yield text, world._replace(kafka=after)
        if world.is_settling:
            return
        if world.is_away:
            yield "Kafka can be reached again", world._replace(is_away=False)
        elif budget.outages:
            yield "Kafka cannot be reached any more", spend(world, outages=1)._replace(is_away=True)
        if budget.timeouts and (aborted := broker.timed_out(kafka, profile)) is not None:
            yield "Kafka aborts by the timeout", spend(world, timeouts=1)._replace(kafka=aborted)
        if budget.foreigners:
            yield from self._foreigners(world)
        if budget.expiries and (gone := broker.expired(kafka)) is not None:
            yield "Kafka forgets the id", spend(world, expiries=1)._replace(kafka=gone)
        if budget.deletions and any(kafka.logs) and not (broker.is_open(kafka) or broker.marker_is_due(kafka)):
            emptied = spend(world, deletions=1)._replace(log_starts=tuple(map(end_offset, kafka.logs)))
            yield "retention deletes what is in the log", emptied
        if budget.upgrades and (newer := broker.upgraded(kafka, profile)) is not None:
            yield "the cluster is upgraded", spend(world, upgrades=1)._replace(kafka=newer)
        if budget.moves:
            yield from self._moves(spend(world, moves=1))
        yield from self._of_operator(world)

    def _moves(self, world: World) -> Iterator[Step]:
        """Yield the moves of the coordinator that no process hears of; with a marker that is not acknowledged."""
        kafka, profile = world.kafka, self.profile
        after = broker.moved(kafka, profile)
        if after._replace(coordinator_epoch=kafka.coordinator_epoch) != kafka or broker.marker_is_due(kafka):
            yield "the coordinator moves", _move(world, after, profile)
        for marker in broker.markers_due(kafka, profile):
            written, _ = serve(kafka, marker, profile)
            after = broker.moved(written, profile)
            yield f"{marker} is written, and the coordinator moves", _move(world, after, profile)

    def _of_operator(self, world: World) -> Iterator[Step]:
        """Yield an operator's requests, which may arrive at any time."""
        termination = broker.termination(world.kafka) if world.budget.terminations else None
        if termination is not None:
            yield "an operator terminates the id", _later(spend(world, terminations=1), termination)
        if world.budget.aborts:
            for marker in broker.abort_markers(world.kafka):
                yield "an operator aborts in one partition", _later(spend(world, aborts=1), marker)

    def _foreigners(self, world: World) -> Iterator[Step]:
        kafka, poorer = world.kafka, spend(world, foreigners=1)
        if (taken := broker.initialised_by_another(kafka, self.profile)) is not None:
            yield "a foreign program initialises the id", poorer._replace(kafka=taken)
        if self.profile.rules.two_phase_commit_enabled:
            return  # two-phase commit has a timeout that no other program has
        taken = broker.initialised_by_another(kafka, self.profile, NO_DEADLINE_MS)
        if taken is not None:
            yield "a foreign program initialises the id with our timeout", poorer._replace(kafka=taken)

    def _of_database(self, world: World) -> Iterator[Step]:
        for txn in world.txns:
            if txn.is_committing:
                yield f"the delayed COMMIT of P{txn.process} takes effect", _committed(world, txn)
                yield f"the delayed COMMIT of P{txn.process} is dropped", replaced(world, txn, None)
            elif world.budget.kills and not world.is_settling:
                yield f"the database ends P{txn.process}'s connection", replaced(spend(world, kills=1), txn, None)
        if not world.is_settling:
            yield from self._goes_back(world)
            yield from self._leases_lapse(world)

    def _leases_lapse(self, world: World) -> Iterator[Step]:
        if not world.leases:
            return
        living = {_owner(world, at) for at in range(len(world.processes)) if self._request(world, at) is not None}
        for lease in leases_that_may_lapse(world.leases, living):
            if world.budget.lapses:
                after = spend(world, lapses=1)._replace(leases=lapsed(world.leases, lease))
                yield f"the lease of {lease[0]}-{lease[1]} expires", after
        dead = {lease[2] for lease in world.leases if lease[2] is not None} - living
        for lease in leases_that_may_lapse(world.leases, dead):
            text = f"the lease of {lease[0]}-{lease[1]} expires, whose owner is dead"
            yield text, world._replace(leases=lapsed(world.leases, lease))

    def _goes_back(self, world: World) -> Iterator[Step]:
        """Yield the failovers and restores. They end all connections."""
        if not (world.budget.failovers or world.budget.restores):
            return
        now = _now(world)
        if world.budget.failovers:
            for state, past in failovers(world.past, now):
                lost = sorted(now.table - state.table)
                yield f"a standby takes over, without {lost}", _gone_back(spend(world, failovers=1), state, past)
        if world.budget.restores:
            for state, past in restores(world.past, now):
                told = past._replace(must_tell=self._must_tell(world, state, past))
                after = _gone_back(spend(world, restores=1), state, told)
                yield f"the database is restored, without {sorted(now.table - state.table)}", after

    def _must_tell(self, world: World, restored: Snapshot, past: Past) -> bool:
        """Return whether a restore to a state will be noticed (docs/operations.md, "A database that went back").

        Where no process runs, the coordinator shows it on tiers 2 to 4, if it remembers the last commit. Otherwise a
        writer that is alone and has just carried out its first of three dual writes remembers the newer row: the second
        one finds its connection gone. In between, a request that is on its way may erase the evidence.
        """
        if world.late:
            return False
        if self._all_ended(world):
            stored, described_now = PreparedTxnState(restored.row[0]), described(world.kafka)
            return (
                self.profile is not PROFILES[1] and described_now is not None and commits_later(stored, described_now)
            )
        if len(world.processes) > 1 or not isinstance(self._request(world, 0), Lock):
            return False
        outcomes = [said for said in self._told(world.processes[0]) if said[1] != RETURNED]
        if len(outcomes) != 1 or outcomes[0][1] != "COMMITTED":
            return False
        return {outcomes[0][0]} == world.table == past.gone  # and not the second one, which is published again

    def _was_told_of_restore(self, world: World) -> bool:
        return any(WENT_BACK[1] in said for process in world.processes for said in self._told(process))

    def _told(self, process: Process) -> Told:
        return self.programs[process.program].nodes[process.node].told

    # ---- processes ------------------------------------------------------------------------------------------

    def _all_ended(self, world: World) -> bool:
        return not world.txns and all(self._request(world, at) is None for at in range(len(world.processes)))

    def is_at_rest(self, world: World) -> bool:
        """Return whether nothing is left to do: everything was recovered."""
        is_due = any(broker.marker_is_due(kafka) for kafka in _kafkas(world))
        return world.is_settling and self._all_ended(world) and not is_due

    def _settle(self, world: World) -> Step:
        process = Process(self._settles, 0, incarnation=99)
        past = world.past._replace(undurable=(), backups=())  # it does not go back any more
        settling = world._replace(processes=(*world.processes, process), is_settling=True, past=past)
        for lease in world.leases:
            settling = settling._replace(leases=lapsed(settling.leases, lease))
        return "everything is over; recover() is called", self._at_once(settling, len(settling.processes) - 1)

    def _restarted(self, world: World, number: int) -> World:
        if UNPROVEN in self._told(world.processes[number]):
            world = world._replace(is_unproven=True)
        world = _with_in_front(world, 0)
        process = Process(self._first, 0, world.processes[number].incarnation + 1)
        return self._at_once(_with_process(world, number, process), number)

    def _answer(self, world: World, number: int, reply: Hashable) -> World:
        process = world.processes[number]
        return self._at_once(self._moved(world, number, process, reply), number)

    def _moved(self, world: World, number: int, process: Process, reply: Hashable) -> World:
        """Let the process go on with the reply."""
        world = _with_in_front(world, 0)
        node = self.programs[process.program].step(process.node, reply)
        changed: Process = tuple.__new__(Process, (process.program, node, *process[2:]))
        return _with_process(world, number, changed)

    def _at_once(self, world: World, number: int) -> World:
        """Carry out a step that only changes the process's own database transaction."""
        while True:
            process = world.processes[number]
            request = self.programs[process.program].nodes[process.node].request
            slot = 0
            if isinstance(request, OfSlot):
                slot, request = request
            if type(request) not in _AT_ONCE:
                return world
            world = _with_in_front(world, slot)
            reply: Hashable = True
            match request:
                case Begin():
                    world = _with_added(world, Txn(number, process.incarnation, request.number))
                case Insert() | Write():
                    txn = self._txn(world, number, request.number)
                    if txn is None:
                        reply = None
                    elif isinstance(request, Insert):
                        world = replaced(world, txn, txn._replace(inserted=(*txn.inserted, request.write)))
                    else:
                        assert txn.is_locked, "the row was written without its lock"
                        world = replaced(world, txn, txn._replace(row=(request.state, request.manifest)))
                case Rollback():
                    txn = self._txn(world, number, request.number)
                    world = world if txn is None else replaced(world, txn, None)
                case Decide():
                    world = world._replace(table=world.table | {request.value})
                case Cast():
                    world = _later(world, request.request)
            world = self._moved(world, number, process, reply)

    def _txn(self, world: World, number: int, txn_number: int) -> Txn | None:
        incarnation = world.processes[number].incarnation
        for txn in world.txns:
            if txn[:3] == (number, incarnation, txn_number) and not txn.is_committing:
                return txn
        return None

    # ---- invariants -----------------------------------------------------------------------------------------

    def wrong(self, world: World) -> str | None:
        """Return the error of a world; None if it is right."""
        wrong = self._wrong_in_kafka(world)
        if wrong is not None:
            return wrong
        seen = seen_by_readers(world, self.profile)
        for process in world.processes:
            false = self._false(world, self._told(process), seen)
            if false is not None:
                return false
        if self._is_plain:
            return self._wrong_of_plain(world, seen)
        if len(world.processes) == 1:
            return self._wrong_if_alone(world, seen)
        if self._pools and world.is_settling and (wrong := self._wrong_after_recovery(world)) is not None:
            return wrong
        return self._wrong_at_rest(world) if self.is_at_rest(world) else None

    def _wrong_after_recovery(self, world: World) -> str | None:
        """Return the leftovers of a pool's recovery: the next write would complete them, and so hide them."""
        told = self._told(world.processes[-1])
        if not told or told[-1] != RECOVERED or any(broker.marker_is_due(kafka) for kafka in _kafkas(world)):
            return None
        is_about_to_write = isinstance(self._request(world, -1), OnLeases)  # and has nothing open itself
        if is_about_to_write and has_open(world):
            return "recover() has returned, and a transaction is left open"
        missing = world.table.difference(seen_by_readers(world, self.profile), (LAST_WRITE,))
        is_left = missing and not self._was_said_to_be_lost(world)
        return f"recover() has returned, and {missing} are not visible" if is_left else None

    def _wrong_in_kafka(self, world: World) -> str | None:
        if world.broken:
            return world.broken
        wrong, seen = _seen(world.kafka, self.profile)
        if wrong is not None:
            return wrong
        if world.beside:
            wrong, seen = _wrong_beside(world, self.profile), seen_by_readers(world, self.profile)
            if wrong is not None:
                return wrong
        has_order = self.shape.partitions == 1 and self._has_order(world)
        if has_order and not self._was_said_to_be_lost(world):  # else later ones are visible without it
            in_order = visible(world.kafka.logs[0])
            if world.decided[: len(in_order)] != tuple(in_order):
                return f"{in_order} are visible, and {list(world.decided)} were committed, in this order"
        committed = world.table | world.past.gone if world.past.gone else world.table
        if not seen <= committed:
            return f"{set(seen - committed)} are visible, and were not committed"
        has_order = self.shape.has_offsets and not world.past.is_restored  # a restore takes positions back
        return _wrong_offsets(world) if has_order else None

    def _has_order(self, world: World) -> bool:
        """Return whether records are visible in the order of their commits.

        Not under several ids, nor if a restore took commits whose records were not visible yet.
        """
        is_one_order = not (world.beside or world.past.is_restored)
        return is_one_order and not (self._is_plain or self._has_operator)

    def _false(self, world: World, told: Told, seen: Collection[bytes]) -> str | None:
        """Return a caller's false result."""
        for said in told:
            if said[:2] == ("service", "lost"):
                return "a transaction was said to be lost, and its records are in the log"
            has_value = said != RECOVERED and said[1] in ("COMMITTED", "STORED", RETURNED)
            if has_value and said[0] not in world.table and said[0] not in world.past.gone:
                return f"{said[0]!r} was said to be committed, and is not"
            if said[-1] in _NOTHING_CHANGED and said[0] in world.table:
                return f"{said[0]!r} was refused, and is committed"
            if said[-1] == "IllegalStateError":
                return f"{said[0]!r} ended in an error of the caller's"
            if said[1] == "ROLLED_BACK" and (said[0] in world.table or said[0] in seen):
                return f"{said[0]!r} was said to be rolled back, and is committed"
            if said[-1] in self._false_errors and not world.past.is_restored:  # which makes them true
                return f"{said[-1]} was raised for {said[0]!r}, and it is not so"
        return None

    def _was_said_to_be_lost(self, world: World) -> bool:
        """Return whether the log has lost records, and a caller knows.

        A recovery reports it; or it was logged once that nothing proves the end any more. On tier 4 a recovery may
        report a committed transaction: only a person can find out.
        """
        if not world.log_starts:
            return False
        told = [self._told(process) for process in world.processes]
        is_unproven = world.is_unproven or any(UNPROVEN in each for each in told)
        return is_unproven or (bool(told[-1]) and told[-1][-1] in LOST and RECOVERED not in told[-1])

    def _wrong_of_plain(self, world: World, seen: Collection[bytes]) -> str | None:
        """Return the error of transactions without a database. An unknown outcome may be either."""
        for process in world.processes:
            for said in self.programs[process.program].nodes[process.node].told:
                if said[1] == FAILED and said[0] in seen:
                    return f"the commit of {said[0]!r} has failed with {said[2]}, and it is visible"
                if said[1] == RETURNED and said != RECOVERED and said[0] not in seen and self.is_at_rest(world):
                    return f"{said[0]!r} was committed, and is not visible"
        is_left_open = self.is_at_rest(world) and broker.is_open(world.kafka)
        return "a transaction is open at rest" if is_left_open else None

    def _wrong_if_alone(self, world: World, seen: Collection[bytes]) -> str | None:
        """Return the error of a process that shares the id with no other, as far as only it can be the cause."""
        process = world.processes[0]
        told = self.programs[process.program].nodes[process.node].told
        if told and told[-1] == RECOVERED and not broker.marker_is_due(world.kafka):
            left = world.table.difference(seen, self._after_crash)  # those it writes next
            if left and not self._was_said_to_be_lost(world):
                return f"recover() has returned, and {left} are not published"
        only_connections_ended = world.budget == self._budget._replace(kills=world.budget.kills)
        for said in told if only_connections_ended else ():
            if said[-1] in _FALSE_ALONE:
                return f"{said[-1]} was raised for {said[0]!r}, and no other process exists"
        if not self._all_ended(world):
            return None
        if world.budget == self._budget and not world.table.issuperset(self._written):
            return f"nothing has failed, and only {world.table} are committed"
        if only_connections_ended and any(
            broker.is_open(kafka) and not broker.marker_is_due(kafka) for kafka in _kafkas(world)
        ):
            return "Kafka has not failed, and a transaction is left open"
        return None

    def _wrong_at_rest(self, world: World) -> str | None:
        missing = self._missing(world)
        told = self._told(world.processes[-1])
        is_lost = self._was_said_to_be_lost(world)
        wrong = self._wrong_after_restore(world, missing) if world.past.is_restored else None
        if wrong is not None:
            return wrong
        if world.past.is_restored and told[-1] == WENT_BACK:
            return None  # which is for a person to decide, and until then both sides stay as they are
        has_recovered = told[-1] == RECOVERED if world.past.is_restored or self._pools else RECOVERED in told
        if not has_recovered and not is_lost:
            return None if missing and self._may_be_lost(told[-1]) else "recovery has never succeeded"
        if missing and not is_lost:
            return f"{missing} are committed, and not visible"
        if self._pools and (LAST_WRITE, "COMMITTED") not in told:
            return "no process can write any more"
        if has_open(world):
            return "a transaction is open at rest"
        return None

    def _wrong_after_restore(self, world: World, missing: set[object]) -> str | None:
        """Return the error after a restore: no other data may be lost, and the restore must be reported."""
        if missing:
            return f"{missing} are committed, and not visible"
        is_noticed = world.past.must_tell and not world.past.gone.isdisjoint(seen_by_readers(world, self.profile))
        if is_noticed and not self._was_told_of_restore(world):
            return "the database went back, and no call raised DatabaseWentBackError"
        return None

    def _missing(self, world: World) -> set[object]:
        """Return committed data that readers do not see: records by partition, and positions of readers."""
        missing: set[object] = set()
        for partition in range(self.shape.partitions):
            sent = {value for value in world.table if partition in self.shape.partitions_of(value)}
            found = chain.from_iterable(visible(kafka.logs[partition]) for kafka in _kafkas(world))
            missing.update((value, partition) for value in sent.difference(found))
        if self.shape.has_offsets and not world.past.is_restored:  # the group may stand before, or beyond, the table
            wanted = dict(sorted(map(position_of, world.table)))
            missing.update(wanted.items() - dict(committed_positions(world.kafka.offsets)).items())
        return missing

    def _may_be_lost(self, said: tuple[Any, ...]) -> bool:
        """Return whether the last caller got a documented loss: consumed offsets are not published again."""
        return self.shape.has_offsets and said == ("recover", "PreparedTransactionLost")


def has_open_records(kafka: Kafka, producer_id: int, producer_epoch: int) -> bool:
    """Return whether a partition has records of a pair whose transaction is open."""
    return any(is_open(log, producer_id, producer_epoch) for log in kafka.logs)


@remembered
def _seen(kafka: Kafka, profile: Profile) -> tuple[str | None, frozenset[bytes]]:
    """Return the error in Kafka, and the records that readers see."""
    seen = [visible(log) for log in kafka.logs]
    for values in seen:
        twice = [value for value, count in Counter(values).items() if count > 1]
        if twice:
            return f"{twice} are visible twice", frozenset()
    if broker.marker_is_refused(kafka, profile):
        return _REFUSES_MARKER, frozenset()
    return None, frozenset(chain.from_iterable(seen))


def seen_by_readers(world: World, profile: Profile) -> frozenset[bytes]:
    """Return the records that readers see in Kafka, under all ids."""
    seen = _seen(world.kafka, profile)[1]
    has_more = world.beside and not world.has_one_topic
    return seen.union(*(_seen(lane.kafka, profile)[1] for lane in world.beside)) if has_more else seen


def _wrong_beside(world: World, profile: Profile) -> str | None:
    """Return the error under the ids beside the one in front, and whether a value is visible under two ids."""
    if world.has_one_topic:
        is_refused = any(broker.marker_is_refused(kafka, profile) for kafka in _kafkas(world))
        return _REFUSES_MARKER if is_refused else None
    every = [_seen(kafka, profile) for kafka in _kafkas(world)]
    wrong = next((wrong for wrong, _ in every if wrong is not None), None)
    if wrong is not None:
        return wrong
    counts = Counter(chain.from_iterable(seen for _, seen in every))
    twice = [value for value, count in counts.items() if count > 1]
    return f"{twice} are visible twice" if twice else None


def _wrong_offsets(world: World) -> str | None:
    """Return whether a reader has gone back, or is ahead of the decisions."""
    decided = {position_of(value) for value in world.table}
    newest: dict[str, int] = {}
    for position in committed_positions(world.kafka.offsets):
        if position not in decided:
            return f"{position} is committed, and its dual write is not"
        if position.offset < newest.get(position.reader, 0):
            return f"{position} is committed after {newest}: the group has gone back"
        newest[position.reader] = position.offset
    return None


# ---- changes --------------------------------------------------------------------------------------------------------


def spend(world: World, **spent: int) -> World:
    """Return the world after a part of its budget was spent."""
    budget = world.budget
    return world._replace(budget=budget._replace(**{name: getattr(budget, name) - n for name, n in spent.items()}))


def _later(world: World, request: Hashable) -> World:
    for each in request.requests if isinstance(request, InFlight) else (request,):
        if len(world.late) < _MOST_LATE and not isinstance(each, _READS):
            world = world._replace(late=tuple(sorted((*world.late, each), key=repr)))
    return world


def _is_deleted(world: World, request: Hashable) -> bool:
    """Return whether retention has deleted the records that a request reads."""
    if not isinstance(request, EndOf | RecordsOf | RepairOf):
        return False
    return request.first_offset < world.log_starts[request.partition]


def _move(world: World, kafka: Kafka, profile: Profile) -> World:
    """Return the world after a move; the markers that the old coordinator was about to write may arrive late."""
    if kafka.coordinator_epoch > world.kafka.coordinator_epoch:
        for marker in broker.markers_due(world.kafka, profile):
            world = _later(world, marker)
    return world._replace(kafka=kafka)


def _reply(at: int | None, response: object) -> Any:
    """Return the reply to a program: with the number of the request, if it has several on their way."""
    return response if at is None else (at, response)


def _with_process(world: World, number: int, process: Process) -> World:
    processes = world.processes
    changed = (*processes[:number], process, *processes[number + 1 :])
    return tuple.__new__(World, (*world[:_PROCESSES], changed, *world[_PROCESSES + 1 :]))


@remembered
def _said(request: Hashable, response: object) -> str:
    return f"{request} -> {response}"


def _with_kafka(world: World, kafka: Kafka) -> World:
    return world if kafka is world.kafka else tuple.__new__(World, (kafka, *world[1:]))


def replaced(world: World, txn: Txn, changed: Txn | None) -> World:
    """Return the world with another transaction instead of one; None: without it."""
    kept = (other if other != txn else changed for other in world.txns)
    return world._replace(txns=tuple(other for other in kept if other is not None))


def _with_added(world: World, txn: Txn) -> World:
    return world._replace(txns=tuple(sorted((*world.txns, txn))))


def _is_free(world: World) -> bool:
    return not any(txn.is_locked for txn in world.txns)


def _committed(world: World, txn: Txn, *, confirmed: bool = False) -> World:
    """Commit. `confirmed`: a synchronous standby has it, as the response to COMMIT says."""
    budget, past = world.budget, world.past
    if budget.failovers or budget.restores:
        before = _now(world)
        past = after_commit(
            past,
            before,
            confirmed=confirmed,
            may_fail_over=bool(budget.failovers),
            may_restore=bool(budget.restores),
        )
    beside = world.beside
    for held in txn.held:
        lane = beside[held.slot - 1]
        beside = (*beside[: held.slot - 1], lane._replace(row=held.row or lane.row), *beside[held.slot :])
    return replaced(world, txn, None)._replace(
        row=txn.row or world.row,
        table=world.table | set(txn.inserted),
        decided=world.decided + txn.inserted,
        past=past,
        beside=beside,
        outbox=outbox_model.committed(world.outbox, txn.outbox),
    )


def _now(world: World) -> Snapshot:
    return Snapshot(world.row, world.table, world.outbox, tuple(lane.row for lane in world.beside))


def _gone_back(world: World, state: Snapshot, past: Past) -> World:
    """Return the world whose database shows an earlier state; all connections have ended."""
    decided = tuple(value for value in world.decided if value in state.table)
    return world._replace(
        row=state.row,
        beside=with_rows(world.beside, state.beside),
        table=state.table,
        outbox=outbox_model.gone_back(world.outbox, state.outbox) if world.outbox != EMPTY else EMPTY,
        decided=decided,
        past=past,
        txns=(),
    )


# ---- the ids of a pool ----------------------------------------------------------------------------------------------


def _with_in_front(world: World, slot: int) -> World:
    """Return the world with the id of a slot in front."""
    if world.in_front == slot:
        return world
    if world.in_front:
        world = _exchanged(world, world.in_front)._replace(in_front=0)
    return _exchanged(world, slot)._replace(in_front=slot) if slot else world


def _exchanged(world: World, slot: int) -> World:
    own = with_topic(world.kafka, Kafka()) if world.has_one_topic else world.kafka
    found, beside = exchanged(world.beside, slot, Lane(own, world.row, world.late))
    txns = tuple(_exchanged_txn(txn, slot) for txn in world.txns)
    kafka = with_topic(found.kafka, world.kafka) if world.has_one_topic else found.kafka
    return world._replace(kafka=kafka, row=found.row, late=found.late, beside=beside, txns=txns)


def _exchanged_txn(txn: Txn, slot: int) -> Txn:
    found, held = exchanged_hold(txn.held, Held(slot, txn.is_locked, txn.row))
    return txn._replace(is_locked=found.is_locked, row=found.row, held=held)


def _of_slot(slot: int, steps: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps of a world in which another id is in front."""
    for text, after in steps:
        yield f"[slot {slot}] {text}", _with_in_front(after, 0)


def has_open(world: World) -> bool:
    """Return whether a transaction is open under any id."""
    return any(broker.is_open(kafka) for kafka in _kafkas(world))


def _kafkas(world: World) -> list[Kafka]:
    beside = [lane.kafka for lane in world.beside]
    return [world.kafka, *([with_topic(kafka, world.kafka) for kafka in beside] if world.has_one_topic else beside)]


def _owner(world: World, number: int) -> str:
    return f"{number}.{world.processes[number].incarnation}"
