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
from functools import partial
from typing import Any, Final, NamedTuple

from dualwrite.client.messages import DescribeTransaction
from dualwrite.client.transactions.recovery import commits_later
from dualwrite.prepared_state import PreparedTxnState
from tests.proof import kafka_model as broker
from tests.proof.automaton import Automaton, Told
from tests.proof.durability import Past, Snapshot, after_commit, failovers, restores
from tests.proof.kafka_model import BLOCKED, PROFILES, EndOf, Kafka, Profile, RecordsOf, RepairOf
from tests.proof.lanes import Held, Lane, OfSlot, exchanged, exchanged_hold
from tests.proof.lease_model import LeaseRow, OnLeases, executed, has_expired, lapsed, slots_that_may_lapse
from tests.proof.owner import (
    GAVE_UP,
    NO_MARKER,
    RECOVERED,
    WENT_BACK,
    Begin,
    Cast,
    Commit,
    Insert,
    Lock,
    LockAndWrite,
    LockInTime,
    MakeDurable,
    Read,
    Rollback,
    Write,
    recovers,
    writes,
)
from tests.proof.pool import LAST_WRITE, Interrupt, pool_recovers, pool_writes
from tests.proof.service import ReadRow, serves
from tests.proof.symmetry import Symmetry

_FEW: Final = 2
"""So many processes are not merged: exchanging them takes longer than visiting twice as many states."""

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
    failovers: int = 0
    """Standbys that take over from the database's primary, with or without what is not durable."""
    restores: int = 0
    """Databases that are restored to an earlier state."""
    lapses: int = 0
    """Leases that expire while their owner lives."""
    rounds: int = 0
    """Times at which the background of a pool does something, while a block waits."""


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
    cut_off: tuple[str, str] | None = None
    """The row as the old primary shows it, if a standby took over and the connection is still to the old one."""
    held: tuple[Held, ...] = ()
    """What it has done to the rows of other ids of a pool."""


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
    past: Past = Past()
    beside: tuple[Lane, ...] = ()
    """The ids of a pool, except for the one in front, which is the first one between any two steps."""
    in_front: int = 0
    leases: tuple[LeaseRow, ...] = ()


Step = tuple[str, World]


class Rules:
    """What can happen, for one kind of broker and the dual writes of some processes."""

    def __init__(
        self,
        profile: Profile,
        written: Sequence[Sequence[bytes]],
        after_crash: Sequence[bytes],
        *,
        predicts: bool = False,
        recoveries: int = 0,
        services: int = 0,
        fails_over: bool = False,
        two_primaries: bool = False,
        pools: bool = False,
    ) -> None:
        """`recoveries`: how many processes call recover() beside those that write; `services`, how many are services.

        `two_primaries`: after a failover the old primary may still lock rows, which no promise of a dual write covers.
        """
        self._two_primaries = two_primaries
        self._pools = pools
        self.profile = profile
        self._first = len(written)
        self._settles = self._first + 1
        self._recoveries = recoveries
        self._services = services
        on = partial(recovers, predicts=predicts, fails_over=fails_over)
        self.programs = [Automaton(writes(profile, each, predicts=predicts, fails_over=fails_over)) for each in written]
        self.programs += [Automaton(on(profile, after_crash)), Automaton(recovers(profile, tries=_SETTLING_TRIES))]
        if pools:
            every = (*written, after_crash)
            self.programs = [Automaton(pool_writes(profile, each, predicts=predicts)) for each in every]
            self.programs.append(Automaton(pool_recovers(profile, tries=_SETTLING_TRIES)))
        if recoveries or services:
            self.programs.append(Automaton(on(profile)))
            self.programs.append(Automaton(serves(profile, fails_over=fails_over)))
        merges = len(written) + recoveries > _FEW and not pools
        alike = range(self._first, self._first + recoveries)
        self.symmetry = Symmetry(self.programs, written if merges else (), alike if merges else ())

    def start(self, budget: Budget) -> World:
        """Return the world before anything has happened."""
        writers = tuple(Process(number, 0) for number in range(self._first))
        recoveries = (Process(self._settles + 1, 0),) * self._recoveries
        processes = (*writers, *recoveries, *(Process(self._settles + 2, 0),) * self._services)
        world = World(Kafka(), ("", ""), frozenset(), (), processes, (), budget)
        for number in range(len(processes)):
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
        for slot in range(1, len(world.beside) + 1):
            yield from _of_slot(slot, self._of_kafka(_with_in_front(world, slot)))
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
        if isinstance(request, OfSlot):
            in_front = _with_in_front(world, request.slot)
            yield from _of_slot(request.slot, self._of_request(in_front, number, request.request))
        else:
            yield from self._of_request(world, number, request)
        if world.budget.rounds and number < self._first and not world.is_settling:
            yield from self._in_background(world, number)

    def _in_background(self, world: World, number: int) -> Iterator[Step]:
        """Let the background of a pool do what may find something to do."""
        for interrupt in Interrupt:
            has_work = not world.budget.lapses if interrupt is Interrupt.RENEW else has_expired(world.leases)
            if has_work:
                text = f"P{number}'s background {interrupt.value}"
                yield text, self._answer(_spend(world, rounds=1), number, interrupt)

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
            case LockAndWrite():
                yield self._locks_and_writes(world, number, request)
            case Commit():
                yield from self._commits(world, number, request)
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
            row = txn.row or txn.cut_off or world.row
            yield f"P{number} reads the row under its lock", self._answer(world, number, row)
        elif _is_free(world, txn):
            locked = _with(world, txn, txn._replace(is_locked=True))
            yield f"P{number} locks the row and reads it", self._answer(locked, number, txn.cut_off or world.row)

    def _locks_in_time(self, world: World, number: int, request: LockInTime) -> Step:
        txn = self._txn(world, number, request.number)
        if txn is None:
            return f"P{number} finds its connection gone", self._answer(world, number, None)
        if not _is_free(world, txn):
            return f"P{number} finds the row locked", self._answer(world, number, False)
        locked = _with(world, txn, txn._replace(is_locked=True))
        return f"P{number} locks the row and reads it", self._answer(locked, number, world.row)

    def _changes_leases(self, world: World, number: int, request: OnLeases) -> Iterator[Step]:
        result, leases = executed(world.leases, 1 + len(world.beside), _owner(world, number), request)
        done = world._replace(leases=leases)
        yield f"P{number}: {request.sql} -> {result}", self._answer(done, number, result)
        if world.budget.kills and not world.is_settling:
            yield f"P{number} cannot reach the leases", self._answer(_spend(world, kills=1), number, None)
            if done != world:
                text = f"P{number}: {request.sql} is carried out, and the connection lost"
                yield text, self._answer(_spend(done, kills=1), number, None)

    def _locks_and_writes(self, world: World, number: int, request: LockAndWrite) -> Step:
        txn = self._txn(world, number, request.number)
        if txn is None:
            return f"P{number} finds its connection gone", self._answer(world, number, None)
        row = txn.cut_off or world.row
        if row[0] != request.previous or not _is_free(world, txn):
            return f"P{number} finds the row locked or changed", self._answer(world, number, False)
        written = _with(world, txn, txn._replace(is_locked=True, row=(request.state, row[1])))
        return f"P{number} locks the row and writes {request.state}", self._answer(written, number, True)

    def _commits(self, world: World, number: int, request: Commit) -> Iterator[Step]:
        txn = self._txn(world, number, request.number)
        if txn is None:
            yield f"P{number} finds its connection gone at COMMIT", self._answer(world, number, None)
            return
        if txn.cut_off is not None:
            text = f"P{number}'s COMMIT waits for the standby that took over, until its connection ends"
            yield text, self._answer(_with(world, txn, None), number, None)
            return
        done = _committed(world, txn, confirmed=True)
        yield f"P{number} commits the database", self._answer(done, number, True)
        if world.budget.losses and not world.is_settling:
            poorer = _spend(world, losses=1)
            done, dropped = _committed(poorer, txn), _with(poorer, txn, None)
            yield f"P{number} commits the database, and does not hear of it", self._answer(done, number, None)
            yield f"P{number}'s COMMIT is lost", self._answer(dropped, number, None)
            on_the_way = _with(poorer, txn, txn._replace(is_committing=True))
            yield f"P{number}'s COMMIT is delayed, and its connection lost", self._answer(on_the_way, number, None)

    def _makes_durable(self, world: World, number: int, request: MakeDurable) -> Iterator[Step]:
        row = world.row[0]
        if row == request.row:
            durable = world._replace(past=world.past._replace(undurable=()))
            yield f"P{number} makes what it read durable", self._answer(durable, number, True)
        else:
            yield f"P{number} finds {row!r} on another connection", self._answer(world, number, f"{row!r} is there")
        if world.budget.give_ups and not world.is_settling:
            poorer = _spend(world, give_ups=1)
            yield f"P{number} waits in vain for the standby", self._answer(poorer, number, "no standby responded")

    def _asks_kafka(self, world: World, number: int, request: Hashable) -> Iterator[Step]:
        kafka, response = broker.serve(world.kafka, request, self.profile)
        if response is not BLOCKED and kafka == world.kafka and self._only_polls(world, number, response):
            response = BLOCKED
        if response is not BLOCKED:
            yield f"P{number}: {request} -> {response}", self._answer(world._replace(kafka=kafka), number, response)
        elif isinstance(request, EndOf) and self._no_marker_comes(world, number):
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
                yield text, self._answer(poorer._replace(kafka=kafka), number, None)
            yield (
                f"P{number}: {request} is delayed, and its connection lost",
                self._answer(_later(poorer, request), number, None),
            )
        if world.budget.give_ups:
            text = f"P{number}: {request} is delayed, and its caller gives up"
            yield text, self._answer(_later(_spend(world, give_ups=1), request), number, GAVE_UP)

    def _no_marker_comes(self, world: World, number: int) -> bool:
        """Return whether a reader of the log comes to its end, or waits for too long: everybody else waits as well."""
        if broker.marker_is_due(world.kafka):
            return False
        others = (self._request(world, at) for at in range(len(world.processes)) if at != number)
        return not broker.is_open(world.kafka) or all(each is None or isinstance(each, EndOf) for each in others)

    def _only_polls(self, world: World, number: int, response: object) -> bool:
        """Return whether the process has just got this response to its request again and again: it would ask for ever.

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
        poorer = _spend(world, crashes=1)
        mine = [txn for txn in world.txns if txn.process == number and not txn.is_committing]
        for txn in mine:
            poorer = _with(poorer, txn, None)
        match request:
            case Commit():
                committing = self._txn(world, number, request.number)
                yield f"{name} is killed, and its COMMIT lost", self._restarted(poorer, number)
                if committing is not None and committing.cut_off is None:
                    done = _committed(_with_added(poorer, committing), committing)
                    yield f"{name} is killed after its COMMIT", self._restarted(done, number)
                    on_the_way = _with_added(poorer, committing._replace(is_committing=True))
                    yield f"{name} is killed, and its COMMIT delayed", self._restarted(on_the_way, number)
            case Lock() | LockInTime() | Read() | LockAndWrite() | MakeDurable() | OnLeases() | ReadRow():
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
                yield f"late: {request} -> {response}", world._replace(kafka=after, late=rest)
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
        if not world.is_settling:
            yield from self._goes_back(world)
            yield from self._leases_lapse(world)

    def _leases_lapse(self, world: World) -> Iterator[Step]:
        if not world.leases:
            return
        living = {_owner(world, at) for at in range(len(world.processes)) if self._request(world, at) is not None}
        for slot in slots_that_may_lapse(world.leases, living):
            if world.budget.lapses:
                after = _spend(world, lapses=1)._replace(leases=lapsed(world.leases, slot))
                yield f"the lease of slot {slot} expires", after
        dead = {lease[2] for lease in world.leases if lease[2] is not None} - living
        for slot in slots_that_may_lapse(world.leases, dead):
            text = f"the lease of slot {slot} expires, whose owner is dead"
            yield text, world._replace(leases=lapsed(world.leases, slot))

    def _goes_back(self, world: World) -> Iterator[Step]:
        """Yield the failovers and restores. They end all connections, except perhaps those to an old primary."""
        now = Snapshot(world.row, world.table)
        if world.budget.failovers:
            on_old = tuple(txn._replace(cut_off=world.row) for txn in world.txns if not txn.is_committing)
            poorer = _spend(world, failovers=1)
            for state, past in failovers(world.past, now):
                lost = sorted(now.table - state.table)
                after = poorer._replace(row=state.row, table=state.table, past=past)
                yield f"a standby takes over, without {lost}", after._replace(txns=())
                if on_old and self._two_primaries:
                    text = f"a standby takes over, without {lost}, and the old primary lives on"
                    yield text, after._replace(txns=on_old)
        if world.budget.restores:
            for state, past in restores(world.past, now):
                past = past._replace(must_tell=self._must_tell(world, state, past))
                after = _spend(world, restores=1)._replace(row=state.row, table=state.table, past=past, txns=())
                yield f"the database is restored, without {sorted(now.table - state.table)}", after

    def _must_tell(self, world: World, restored: Snapshot, past: Past) -> bool:
        """Return whether a restore to a state will be noticed (docs/guarantees.md, "A database that went back").

        Where no process runs, the coordinator shows it on tiers 2 to 4, if it remembers the last commit. Else a writer
        that is alone and has just carried out its first of three dual writes remembers the newer row: the second one
        finds its connection gone. In between, a request that is on its way may erase what shows it.
        """
        if world.late:
            return False
        if self._all_ended(world):
            stored, described = PreparedTxnState(restored.row[0]), broker.described(world.kafka)
            return self.profile is not PROFILES[1] and described is not None and commits_later(stored, described)
        if len(world.processes) > 1 or not isinstance(self._request(world, 0), Lock | LockAndWrite):
            return False
        told = self._told(world.processes[0])
        return len(told) == 1 and told[0][1] == "COMMITTED" and told[0][0] in past.gone

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
            settling = settling._replace(leases=lapsed(settling.leases, lease[1]))
        return "everything is over; recover() is called", self._at_once(settling, len(settling.processes) - 1)

    def _restarted(self, world: World, number: int) -> World:
        world = _with_in_front(world, 0)
        process = Process(self._first, 0, world.processes[number].incarnation + 1)
        return self._at_once(_with_process(world, number, process), number)

    def _answer(self, world: World, number: int, reply: Hashable) -> World:
        world = _with_in_front(world, 0)
        process = world.processes[number]
        node = self.programs[process.program].step(process.node, reply)
        return self._at_once(_with_process(world, number, process._replace(node=node)), number)

    def _at_once(self, world: World, number: int) -> World:
        """Carry out what only changes the process's own database transaction."""
        while True:
            request = self._request(world, number)
            if isinstance(request, OfSlot):
                world = _with_in_front(world, request.slot)
                request = request.request
            process = world.processes[number]
            reply: Hashable = True
            match request:
                case Begin():
                    world = _with_added(world, Txn(number, process.incarnation, request.number))
                case Insert() | Write():
                    txn = self._txn(world, number, request.number)
                    if txn is None:
                        reply = None
                    elif isinstance(request, Insert):
                        world = _with(world, txn, txn._replace(inserted=(*txn.inserted, request.write)))
                    else:
                        assert txn.is_locked, "the row was written without its lock"
                        world = _with(world, txn, txn._replace(row=(request.state, request.manifest)))
                case Rollback():
                    txn = self._txn(world, number, request.number)
                    world = world if txn is None else _with(world, txn, None)
                case Cast():
                    world = _later(world, request.request)
                case _:
                    return _with_in_front(world, 0)
            world = _with_in_front(world, 0)
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
        seen = [value for kafka in _kafkas(world) for value in broker.visible(kafka)]
        doubled = [value for value, count in Counter(seen).items() if count > 1]
        if doubled:
            return f"{doubled} are visible twice"
        committed = world.table | world.past.gone
        if not committed.issuperset(seen):
            return f"{set(seen) - committed} are visible, and were not committed"
        if any(broker.marker_is_refused(kafka) for kafka in _kafkas(world)):
            return "the leader refuses the marker of a decided transaction"
        for process in world.processes:
            for said in self._told(process):
                if said[:2] == ("service", "lost"):
                    return "a transaction was said to be lost, and its records are in the log"
                if said[1] == "COMMITTED" and said[0] not in committed:
                    return f"{said[0]!r} was said to be committed, and is not"
                if said[1] == "ROLLED_BACK" and (said[0] in world.table or said[0] in seen):
                    return f"{said[0]!r} was said to be rolled back, and is committed"
        return self._wrong_at_rest(world, seen) if self.is_at_rest(world) else None

    def _wrong_at_rest(self, world: World, seen: Sequence[bytes]) -> str | None:
        lost = world.table.difference(seen)
        if lost:
            return f"{lost} are committed, and not visible"
        if world.past.must_tell and world.past.gone.intersection(seen) and not self._was_told_of_restore(world):
            return "the database went back, and nobody was told"
        told = self._told(world.processes[-1])
        if world.past.is_restored and told[-1] == WENT_BACK:
            return None  # which is for a person to decide, and until then both sides stay as they are
        if told[-1] != RECOVERED:
            return "nobody could recover"
        if self._pools and (LAST_WRITE, "COMMITTED") not in told:
            return "nobody can write any more"
        if any(broker.is_open(kafka) for kafka in _kafkas(world)):
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


def _is_free(world: World, txn: Txn) -> bool:
    """Return whether nobody has locked the row on the primary to which a transaction is connected."""
    is_cut_off = txn.cut_off is not None
    return not any(other.is_locked for other in world.txns if (other.cut_off is not None) is is_cut_off)


def _committed(world: World, txn: Txn, *, confirmed: bool = False) -> World:
    """Commit. `confirmed`: a synchronous standby has it, as the response to COMMIT says."""
    budget, past = world.budget, world.past
    if budget.failovers or budget.restores:
        before = Snapshot(world.row, world.table)
        past = after_commit(
            past,
            before,
            confirmed=confirmed,
            may_fail_over=bool(budget.failovers),
            may_restore=bool(budget.restores),
        )
    table = world.table | set(txn.inserted)
    beside = world.beside
    for held in txn.held:
        lane = beside[held.slot - 1]
        beside = (*beside[: held.slot - 1], lane._replace(row=held.row or lane.row), *beside[held.slot :])
    after = _with(world, txn, None)
    return after._replace(row=txn.row or world.row, table=table, past=past, beside=beside)


# ---- the ids of a pool ----------------------------------------------------------------------------------------------


def _with_in_front(world: World, slot: int) -> World:
    """Return the world with the id of a slot in front."""
    if world.in_front == slot:
        return world
    if world.in_front:
        world = _exchanged(world, world.in_front)._replace(in_front=0)
    return _exchanged(world, slot)._replace(in_front=slot) if slot else world


def _exchanged(world: World, slot: int) -> World:
    found, beside = exchanged(world.beside, slot, Lane(world.kafka, world.row, world.late))
    txns = tuple(_exchanged_txn(txn, slot) for txn in world.txns)
    return world._replace(kafka=found.kafka, row=found.row, late=found.late, beside=beside, txns=txns)


def _exchanged_txn(txn: Txn, slot: int) -> Txn:
    found, held = exchanged_hold(txn.held, Held(slot, txn.is_locked, txn.row))
    return txn._replace(is_locked=found.is_locked, row=found.row, held=held)


def _of_slot(slot: int, steps: Iterator[Step]) -> Iterator[Step]:
    """Yield the steps of a world in which another id is in front."""
    for text, after in steps:
        yield f"[slot {slot}] {text}", _with_in_front(after, 0)


def _kafkas(world: World) -> list[Kafka]:
    return [world.kafka, *(lane.kafka for lane in world.beside)] if world.beside else [world.kafka]


def _owner(world: World, number: int) -> str:
    return f"{number}.{world.processes[number].incarnation}"
