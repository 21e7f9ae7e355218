"""`World`: the broker, the state row, the processes and the network as one value, and what can happen to it next.

A request is carried out and answered in one step, because a process that waits for a response does nothing else: its
next request may be as late as anything. What a process does to its own database transaction alone happens at once, for
the same reason. Everything else interleaves: lost responses, requests that arrive late, connections and locks that
vanish, commits that are in the air, crashes, the broker's timeouts, foreign programs, and ids that expire. How many
faults there are in all is limited by the `Budget`, which makes the space finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from dualwrite.broker_emulator.transactions.states import ONGOING, PREPARE_ABORT, PREPARE_STATES
from dualwrite.client.messages import (
    AddPartitionsToTxn,
    DescribeTransaction,
    DescribeTransactionResponse,
    EndTxn,
    InitProducerId,
)
from tests.proof import kafka_model as broker
from tests.proof.automaton import Automaton, Told
from tests.proof.kafka_model import BLOCKED, EndOf, Kafka, Produce, Profile, RecordsOf, RepairOf
from tests.proof.owner import (
    GAVE_UP,
    NO_MARKER,
    RECOVERED,
    RETURNED,
    Attach,
    Begin,
    Cast,
    Commit,
    Insert,
    Lock,
    LockAndWrite,
    Read,
    Rollback,
    Write,
    recovers,
    writes,
)
from tests.proof.plain import FAILED, Decide, produces

_MOST_LATE: Final = 3
_SETTLING_TRIES: Final = 4
_POLLS: Final = 3
"""How often a process gets the same response to the same request in a row, before something else has to happen."""


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
    """What a request has done that none may do; empty if nothing."""


Step = tuple[str, World]

_FALSE_ERRORS: Final = ("PreparedTransactionLost", "DatabaseWentBackError", "TransactionHangsError")
"""They say that a person has to repair something. In this world no record, row or marker is lost, so nobody has to."""

_FALSE_ALONE: Final = ("FencedError", "FatalError", "OutcomeUnknown")
"""They say that another process has the id, or may have replaced the row."""


class Rules:
    """What can happen, for one kind of broker and the dual writes of some processes."""

    def __init__(
        self,
        profile: Profile,
        written: Sequence[Sequence[bytes]],
        after_crash: Sequence[bytes],
        *,
        predicts: bool = False,
        is_plain: bool = False,
    ) -> None:
        """`is_plain`: the values are transactions of a `Producer` without a database; those with an x are aborted."""
        self.profile = profile
        self._first = len(written)
        self._written = tuple(value for values in written for value in values)
        self._after_crash = tuple(after_crash)
        self._budget = Budget()
        self._settles = self._first + 1
        self._is_plain = is_plain
        if is_plain:
            programs = [*(produces(profile, values) for values in written), produces(profile, after_crash)]
            programs.append(produces(profile, (), tries=_SETTLING_TRIES))
        else:
            programs = [writes(profile, values, predicts=predicts) for values in written]
            programs.append(recovers(profile, after_crash, predicts=predicts))
            programs.append(recovers(profile, tries=_SETTLING_TRIES))
        self.programs = [Automaton(program) for program in programs]

    def start(self, budget: Budget) -> World:
        """Return the world before anything has happened."""
        self._budget = budget
        processes = tuple(Process(number, 0) for number in range(self._first))
        world = World(Kafka(), ("", ""), frozenset(), (), processes, (), budget)
        for number in range(self._first):
            world = self._at_once(world, number)
        return world

    def close(self) -> None:
        """Release the programs."""
        for program in self.programs:
            program.close()

    # ---- what can happen ------------------------------------------------------------------------------------

    def steps(self, world: World) -> Iterator[Step]:
        """Yield each possible next world, with a sentence."""
        for number in range(len(world.processes)):
            yield from self._of_process(world, number)
        yield from self._of_kafka(world)
        yield from self._of_database(world)
        if not world.is_settling and self._all_ended(world):
            yield self._settle(world)

    def _request(self, world: World, number: int) -> Hashable:
        process = world.processes[number]
        return self.programs[process.program].nodes[process.node].request

    def _of_process(self, world: World, number: int) -> Iterator[Step]:
        request = self._request(world, number)
        if request is None:
            return
        name = f"P{number}"
        match request:
            case Lock() | Read():
                yield from self._reads(world, number, request)
            case LockAndWrite():
                yield self._locks_and_writes(world, number, request)
            case Commit():
                yield from self._commits(world, number, request)
            case _:
                yield from self._asks_kafka(world, number, request)
        if world.budget.crashes and not world.is_settling:
            yield from self._crashes(world, number, name, request)

    def _reads(self, world: World, number: int, request: Lock | Read) -> Iterator[Step]:
        txn = self._txn(world, number, request.number)
        if txn is None:
            yield f"P{number} finds its connection gone", self._answer(world, number, None)
        elif isinstance(request, Read) or txn.is_locked:
            yield f"P{number} reads the row under its lock", self._answer(world, number, txn.row or world.row)
        elif not any(other.is_locked for other in world.txns):
            locked = _with(world, txn, txn._replace(is_locked=True))
            yield f"P{number} locks the row and reads it", self._answer(locked, number, world.row)

    def _locks_and_writes(self, world: World, number: int, request: LockAndWrite) -> Step:
        txn = self._txn(world, number, request.number)
        if txn is None:
            return f"P{number} finds its connection gone", self._answer(world, number, None)
        if world.row[0] != request.previous or any(other.is_locked for other in world.txns):
            return f"P{number} finds the row locked or changed", self._answer(world, number, False)
        written = _with(world, txn, txn._replace(is_locked=True, row=(request.state, world.row[1])))
        return f"P{number} locks the row and writes {request.state}", self._answer(written, number, True)

    def _commits(self, world: World, number: int, request: Commit) -> Iterator[Step]:
        txn = self._txn(world, number, request.number)
        if txn is None:
            yield f"P{number} finds its connection gone at COMMIT", self._answer(world, number, None)
            return
        done = _committed(world, txn)
        yield f"P{number} commits the database", self._answer(done, number, True)
        if world.budget.losses and not world.is_settling:
            poorer = _spend(world, losses=1)
            done, dropped = _committed(poorer, txn), _with(poorer, txn, None)
            yield f"P{number} commits the database, and does not hear of it", self._answer(done, number, None)
            yield f"P{number}'s COMMIT is lost", self._answer(dropped, number, None)
            on_the_way = _with(poorer, txn, txn._replace(is_committing=True))
            yield f"P{number}'s COMMIT is delayed, and its connection lost", self._answer(on_the_way, number, None)

    def _asks_kafka(self, world: World, number: int, request: Hashable) -> Iterator[Step]:
        kafka, response = broker.serve(world.kafka, request, self.profile)
        if response is not BLOCKED and kafka == world.kafka and self._only_polls(world, number, request, response):
            response = BLOCKED
        broken = self._broken(world, number, request, kafka)
        if response is not BLOCKED:
            carried_out = world._replace(kafka=kafka, broken=broken)
            yield f"P{number}: {request} -> {response}", self._answer(carried_out, number, response)
        elif isinstance(request, EndOf) and not broker.marker_is_due(world.kafka) and not broker.is_open(world.kafka):
            yield f"P{number}: {request} -> no marker", self._answer(world, number, NO_MARKER)
        if world.is_settling:
            return
        if world.budget.give_ups and isinstance(request, EndOf) and response is BLOCKED:
            poorer = _spend(world, give_ups=1)
            yield f"P{number}: {request} -> no marker yet", self._answer(poorer, number, NO_MARKER)
        if world.budget.losses:
            poorer = _spend(world, losses=1)
            if response is not BLOCKED:
                text = f"P{number}: {request} is carried out, and the response {response} lost"
                yield text, self._answer(poorer._replace(kafka=kafka, broken=broken), number, None)
            yield (
                f"P{number}: {request} is delayed, and its connection lost",
                self._answer(_later(poorer, request), number, None),
            )
        if world.budget.give_ups:
            text = f"P{number}: {request} is delayed, and its caller gives up"
            yield text, self._answer(_later(_spend(world, give_ups=1), request), number, GAVE_UP)

    def _broken(self, world: World, number: int | None, request: Hashable, after: Kafka) -> str:
        """Return what a request does that none may do. `number`: the process that waits for its response."""
        before, now = world.kafka.metadata, after.metadata
        if before is None or now is None or after == world.kafka:
            return world.broken
        ends = before.state is ONGOING and now.state in PREPARE_STATES
        if isinstance(request, EndTxn) and ends and before.client_pair != (request.producer_id, request.producer_epoch):
            return f"{request} has ended a transaction of {before.client_pair}"
        if self._joins(world, request) and now.producer_pair != (request.producer_id, request.producer_epoch):
            return f"{request} has joined a transaction of {now.producer_pair}"
        if now.state is PREPARE_ABORT and ends and number is not None:
            return self._broken_by_abort(world, number, request, before.producer_pair)
        return world.broken

    def _joins(self, world: World, request: Hashable) -> TypeGuard[AddPartitionsToTxn | Produce]:
        """Return whether a request that is carried out opens or joins the transaction of the coordinator.

        Not a batch behind others of its transaction, which a leader takes until the marker comes; and brokers before
        Kafka 4 take one whatever its epoch.
        """
        if isinstance(request, Produce):
            has_others = broker.has_open_records(world.kafka, request.producer_id, request.producer_epoch)
            return self.profile.rules.transaction_version >= 2 and not has_others
        return isinstance(request, AddPartitionsToTxn)

    def _broken_by_abort(self, world: World, number: int, request: Hashable, pair: tuple[int, int]) -> str:
        """Return what is wrong with a process that aborts the open transaction of a pair.

        One that has lost the lock may abort what another has decided since; that is repaired. But it may do so only
        unknowingly, and where EndTxn can name a pair, only with that.
        """
        has_names = self.profile.rules.transaction_version >= 2 and not self._is_plain
        if isinstance(request, InitProducerId) and has_names:
            return f"{request} has aborted the transaction of {pair}, which it does not name"
        if world.row[0] == "{}:{}".format(*pair) and broker.has_open_records(world.kafka, *pair):
            if any(txn.is_locked and not txn.is_committing and txn.process == number for txn in world.txns):
                return "a process has aborted what the row decides, and it holds the lock"
            if self._has_described(world.processes[number], pair):
                return "a process has aborted what it knew to be open, and what another has decided"
        return world.broken

    def _has_described(self, process: Process, pair: tuple[int, int]) -> bool:
        """Return whether Kafka has told a process that the transaction of a pair is open."""
        nodes = self.programs[process.program].nodes
        at = process.node
        while at > 0:
            told = nodes[at].reply
            if isinstance(told, DescribeTransactionResponse) and (told.producer_id, told.producer_epoch) == pair:
                return told.state == ONGOING.label
            at = nodes[at].came_from
        return False

    def _only_polls(self, world: World, number: int, request: Hashable, response: object) -> bool:
        """Return whether the process has just got this response to this request again and again: it would ask for ever.

        Twice in a row is no poll: a step and the next one may ask the same.
        """
        process = world.processes[number]
        nodes = self.programs[process.program].nodes
        node = nodes[process.node]
        for _ in range(_POLLS):
            before = nodes[node.came_from]
            if node.came_from < 0 or node.reply != response or before.request != request:
                return False
            node = before
        return True

    def _crashes(self, world: World, number: int, name: str, request: Hashable) -> Iterator[Step]:
        poorer = _spend(world, crashes=1)
        mine = [txn for txn in world.txns if txn.process == number and not txn.is_committing]
        for txn in mine:
            poorer = _with(poorer, txn, None)
        match request:
            case Commit():
                committing = self._txn(world, number, request.number)
                yield f"{name} is killed, and its COMMIT lost", self._restarted(poorer, number)
                if committing is not None:
                    done = _committed(_with_added(poorer, committing), committing)
                    yield f"{name} is killed after its COMMIT", self._restarted(done, number)
                    on_the_way = _with_added(poorer, committing._replace(is_committing=True))
                    yield f"{name} is killed, and its COMMIT delayed", self._restarted(on_the_way, number)
            case Lock() | Read() | LockAndWrite():
                yield f"{name} is killed", self._restarted(poorer, number)
            case _:
                later = _later(poorer, request)
                yield f"{name} is killed, and {request} may arrive later", self._restarted(later, number)

    def _of_kafka(self, world: World) -> Iterator[Step]:
        kafka, budget = world.kafka, world.budget
        for at, request in enumerate(world.late):
            after, response = broker.serve(kafka, request, self.profile)
            if response is not BLOCKED:
                rest = world.late[:at] + world.late[at + 1 :]
                broken = self._broken(world, None, request, after)
                yield f"late: {request} -> {response}", world._replace(kafka=after, late=rest, broken=broken)
        if broker.marker_is_due(kafka):
            yield "Kafka writes the marker", world._replace(kafka=broker.write_marker(kafka))
        if world.is_settling:
            return
        if budget.timeouts and (aborted := broker.timed_out(kafka, self.profile)) is not None:
            yield "Kafka aborts by the timeout", _spend(world, timeouts=1)._replace(kafka=aborted)
        if budget.foreigners and (taken := broker.initialised_by_another(kafka, self.profile)) is not None:
            yield "a foreign program initialises the id", _spend(world, foreigners=1)._replace(kafka=taken)
        if budget.expiries and (gone := broker.expired(kafka)) is not None:
            yield "Kafka forgets the id", _spend(world, expiries=1)._replace(kafka=gone)

    def _of_database(self, world: World) -> Iterator[Step]:
        for txn in world.txns:
            if txn.is_committing:
                yield f"the delayed COMMIT of P{txn.process} takes effect", _committed(world, txn)
                yield f"the delayed COMMIT of P{txn.process} is dropped", _with(world, txn, None)
            elif world.budget.kills and not world.is_settling:
                yield f"the database ends P{txn.process}'s connection", _with(_spend(world, kills=1), txn, None)

    # ---- processes ------------------------------------------------------------------------------------------

    def _all_ended(self, world: World) -> bool:
        return not world.txns and all(self._request(world, at) is None for at in range(len(world.processes)))

    def is_at_rest(self, world: World) -> bool:
        """Return whether nothing is left to do: everything was recovered."""
        return world.is_settling and self._all_ended(world) and not broker.marker_is_due(world.kafka)

    def _settle(self, world: World) -> Step:
        process = Process(self._settles, 0, incarnation=99)
        settling = world._replace(processes=(*world.processes, process), is_settling=True)
        return "everything is over; recover() is called", self._at_once(settling, len(settling.processes) - 1)

    def _restarted(self, world: World, number: int) -> World:
        process = Process(self._first, 0, world.processes[number].incarnation + 1)
        return self._at_once(_with_process(world, number, process), number)

    def _answer(self, world: World, number: int, reply: Hashable) -> World:
        process = world.processes[number]
        node = self.programs[process.program].step(process.node, reply)
        return self._at_once(_with_process(world, number, process._replace(node=node)), number)

    def _at_once(self, world: World, number: int) -> World:
        """Carry out what only changes the process's own database transaction."""
        while True:
            request = self._request(world, number)
            process = world.processes[number]
            reply: Hashable = True
            match request:
                case Begin():
                    world = _with_added(world, Txn(number, process.incarnation, request.number))
                case Insert() | Write() | Attach():
                    txn = self._txn(world, number, request.number)
                    if txn is None:
                        reply = None
                    elif isinstance(request, Insert):
                        world = _with(world, txn, txn._replace(inserted=(*txn.inserted, request.write)))
                    elif isinstance(request, Attach):
                        if txn.row is not None and txn.row[0] == request.state:
                            world = _with(world, txn, txn._replace(row=(request.state, request.manifest)))
                    else:
                        assert txn.is_locked, "the row was written without its lock"
                        world = _with(world, txn, txn._replace(row=(request.state, request.manifest)))
                case Rollback():
                    txn = self._txn(world, number, request.number)
                    world = world if txn is None else _with(world, txn, None)
                case Decide():
                    world = world._replace(table=world.table | {request.value})
                case Cast():
                    world = _later(world, request.request)
                case _:
                    return world
            node = self.programs[process.program].step(process.node, reply)
            world = _with_process(world, number, process._replace(node=node))

    def _txn(self, world: World, number: int, txn_number: int) -> Txn | None:
        incarnation = world.processes[number].incarnation
        for txn in world.txns:
            if txn[:3] == (number, incarnation, txn_number) and not txn.is_committing:
                return txn
        return None

    # ---- what must hold -------------------------------------------------------------------------------------

    def wrong(self, world: World) -> str | None:
        """Return what is wrong with a world; None if nothing is."""
        seen = broker.visible(world.kafka)
        doubled = [value for value, count in Counter(seen).items() if count > 1]
        if doubled:
            return f"{doubled} are visible twice"
        if not world.table.issuperset(seen):
            return f"{set(seen) - world.table} are visible, and were not committed"
        if not self._is_plain and world.decided[: len(seen)] != tuple(seen):
            return f"{seen} are visible, and {list(world.decided)} were committed, in this order"
        if world.broken:
            return world.broken
        if broker.marker_is_refused(world.kafka):
            return "the leader refuses the marker of a decided transaction"
        for process in world.processes:
            false = self._false(world, self.programs[process.program].nodes[process.node].told)
            if false is not None:
                return false
        if self._is_plain:
            return self._wrong_of_plain(world, seen)
        if len(world.processes) == 1:
            return self._wrong_if_alone(world, seen)
        return self._wrong_at_rest(world, seen) if self.is_at_rest(world) else None

    @staticmethod
    def _false(world: World, told: Told) -> str | None:
        """Return what a caller was told that is not so."""
        for said in told:
            if said != RECOVERED and said[1] in ("COMMITTED", RETURNED) and said[0] not in world.table:
                return f"{said[0]!r} was said to be committed, and is not"
            if said[1] == "ROLLED_BACK" and said[0] in world.table:
                return f"{said[0]!r} was said to be rolled back, and is committed"
            if said[-1] in _FALSE_ERRORS:
                return f"{said[-1]} was raised for {said[0]!r}, and it is not so"
        return None

    def _wrong_of_plain(self, world: World, seen: Sequence[bytes]) -> str | None:
        """Return what is wrong with transactions without a database. An unknown outcome may be either."""
        for process in world.processes:
            for said in self.programs[process.program].nodes[process.node].told:
                if said[1] == FAILED and said[0] in seen:
                    return f"the commit of {said[0]!r} has failed with {said[2]}, and it is visible"
                if said[1] == RETURNED and said != RECOVERED and said[0] not in seen and self.is_at_rest(world):
                    return f"{said[0]!r} was committed, and is not visible"
        is_left_open = self.is_at_rest(world) and broker.is_open(world.kafka)
        return "a transaction is open at rest" if is_left_open else None

    def _wrong_if_alone(self, world: World, seen: Sequence[bytes]) -> str | None:
        """Return what is wrong with a process that shares the id with no other, as far as only it can be the cause."""
        process = world.processes[0]
        told = self.programs[process.program].nodes[process.node].told
        if told and told[-1] == RECOVERED and not broker.marker_is_due(world.kafka):
            left = world.table.difference(seen, self._after_crash)  # those it writes next
            if left:
                return f"recover() has returned, and {left} are not published"
        only_connections_ended = world.budget == self._budget._replace(kills=world.budget.kills)
        for said in told if only_connections_ended else ():
            if said[-1] in _FALSE_ALONE:
                return f"{said[-1]} was raised for {said[0]!r}, and no other process exists"
        if not self._all_ended(world):
            return None
        if world.budget == self._budget and not world.table.issuperset(self._written):
            return f"nothing has failed, and only {world.table} are committed"
        if only_connections_ended and broker.is_open(world.kafka) and not broker.marker_is_due(world.kafka):
            return "Kafka has not failed, and a transaction is left open"
        return None

    def _wrong_at_rest(self, world: World, seen: Sequence[bytes]) -> str | None:
        lost = world.table.difference(seen)
        if lost:
            return f"{lost} are committed, and not visible"
        last = world.processes[-1]
        if RECOVERED not in self.programs[last.program].nodes[last.node].told:
            return "nobody could recover"
        if broker.is_open(world.kafka):
            return "a transaction is open at rest"
        return None


# ---- changes --------------------------------------------------------------------------------------------------------


def _spend(world: World, **spent: int) -> World:
    budget = world.budget
    return world._replace(budget=budget._replace(**{name: getattr(budget, name) - n for name, n in spent.items()}))


def _later(world: World, request: Hashable) -> World:
    if len(world.late) >= _MOST_LATE or isinstance(request, EndOf | RecordsOf | RepairOf | DescribeTransaction):
        return world
    return world._replace(late=tuple(sorted((*world.late, request), key=repr)))


def _with_process(world: World, number: int, process: Process) -> World:
    processes = world.processes
    return world._replace(processes=(*processes[:number], process, *processes[number + 1 :]))


def _with(world: World, txn: Txn, changed: Txn | None) -> World:
    kept = (other if other != txn else changed for other in world.txns)
    return world._replace(txns=tuple(other for other in kept if other is not None))


def _with_added(world: World, txn: Txn) -> World:
    return world._replace(txns=tuple(sorted((*world.txns, txn))))


def _committed(world: World, txn: Txn) -> World:
    return _with(world, txn, None)._replace(
        row=txn.row or world.row,
        table=world.table | set(txn.inserted),
        decided=world.decided + txn.inserted,
    )
