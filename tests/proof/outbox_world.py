"""`OutboxRules`: the possible steps of an outbox, its adders and its publishers, and the invariants.

Blocks are added by some processes, and published by others, each possibly in the belief to be alone: its lease lapses
at any step, and it goes on at any later one. The steps of Kafka, the state row and commits are those of `world.py`. In
addition each statement on the outbox is a step of its own, because the table is not locked.

python -m tests.proof.outbox_world --tier 3 --faults losses=1
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Collection, Container, Hashable, Iterator, Sequence
from typing import Final, NamedTuple

from tests.proof import outbox_model
from tests.proof.automaton import Automaton, Told
from tests.proof.explore import Explorer, Found
from tests.proof.kafka_log import Batch, visible
from tests.proof.kafka_model import PROFILES, Profile
from tests.proof.lanes import OUTBOX_LANE
from tests.proof.outbox import NOT_PROVEN, OutboxKind, adds, publishes_the_rest
from tests.proof.outbox_model import (
    DIVERSION,
    HOUR_MS,
    NO_CHANGES,
    AddAgain,
    OnOutbox,
    Touch,
    conflict,
    diversion,
    has_added,
)
from tests.proof.owner import GAVE_UP, RECOVERED, UNPROVEN
from tests.proof.pool import LAST_WRITE
from tests.proof.reductions import Reduced
from tests.proof.remembered import forget
from tests.proof.world import Budget, Rules, Step, World, has_open, replaced, seen_by_readers, spend

_SETTLING_TRIES: Final = 4
_BOUNDED: Final = (PROFILES[3], PROFILES[4])
"""Profiles of brokers that abort prepared transactions after a timeout, so that the last batch is kept."""

_FORGETTING: Final = ("foreigners", "expiries")
"""Faults that may make a coordinator forget the end of a transaction before a publisher has noted it."""

_FLAGS: Final = ("touches", "are_large", "by_commit", "in_steps", "diverts", "is_diverted")
"""Properties of a space that are off by default, as `OutboxKind` has them."""

_SHOWN: Final = 60
"""How much of a statement a sentence shows."""


class OutboxRules(Rules):
    """The possible steps."""

    def __init__(
        self,
        profile: Profile,
        written: Sequence[Sequence[bytes]],
        after_crash: Sequence[bytes] = (),
        *,
        kind: OutboxKind,
        publishers: int = 1,
        rounds: int = 1,
    ) -> None:
        """`rounds`: of each publisher, before it closes."""
        super().__init__(profile, written, after_crash, recoveries=publishers, pools=True)
        self.close()
        self._kind = kind
        of_blocks = kind._replace(by_commit=False, are_large=False)
        adding = [
            adds(profile, values, of_blocks, rounds=rounds if kind.diverts and not number else 0)
            for number, values in enumerate(written)
        ]
        after = adds(profile, after_crash, of_blocks._replace(by_commit=kind.by_commit, touches=False), rounds=1)
        rest = publishes_the_rest(profile, of_blocks._replace(touches=False, fails_over=False), tries=_SETTLING_TRIES)
        publishing = adds(profile, (), kind, rounds=rounds)
        self.programs = [Automaton(program) for program in (*adding, after, rest, publishing)]

    def start(self, budget: Budget) -> World:
        """Return the world before anything has happened."""
        world = super().start(budget)
        if not self._kind.diverts:
            return world
        outbox = world.outbox._replace(rows=diversion(is_on=self._kind.is_diverted))
        return world._replace(outbox=outbox, has_one_topic=True)

    # ---- steps ----------------------------------------------------------------------------------------------

    def _of_request(self, world: World, number: int, request: Hashable) -> Iterator[Step]:
        match request:
            case OnOutbox():
                steps = self._uses_outbox(world, number, request)
            case AddAgain():
                steps = self._adds_again(world, number, request)
            case Touch():
                steps = self._touches_row(world, number, request)
            case _:
                yield from super()._of_request(world, number, request)
                return
        yield from steps
        if world.budget.crashes and not world.is_settling:
            poorer = spend(world, crashes=1)
            left = tuple(txn for txn in poorer.txns if txn.process != number or txn.is_committing)
            yield f"P{number} is killed", self._restarted(poorer._replace(txns=left), number)

    def _uses_outbox(self, world: World, number: int, request: OnOutbox) -> Iterator[Step]:
        if request.number is not None and self._txn(world, number, request.number) is None:
            yield f"P{number} finds its connection gone", self._answer(world, number, None)
        elif not self._waits_for_row(world, number, request):
            after, result = self._on_outbox(world, number, request)
            yield f"P{number}: {request.sql[:_SHOWN]}... -> {result}", self._answer(after, number, result)
        elif request.skips_locked:
            yield f"P{number} skips a locked row", self._answer(world, number, ())
        elif request.is_of_diversion and world.budget.give_ups and not world.is_settling:
            yield f"P{number} waits for a row in vain", self._answer(spend(world, give_ups=1), number, GAVE_UP)

    def _on_outbox(self, world: World, number: int, request: OnOutbox) -> tuple[World, Hashable]:
        txn = None if request.number is None else self._txn(world, number, request.number)
        if txn is None:
            result, outbox, _ = outbox_model.executed(world.outbox, NO_CHANGES, request)
            return world._replace(outbox=outbox), result
        result, outbox, changes = outbox_model.executed(world.outbox, txn.outbox, request)
        if request.adds:
            earlier = (*outbox.earlier, *((value, world.table) for value in txn.inserted))
            outbox = outbox._replace(earlier=earlier)
        return replaced(world, txn, txn._replace(outbox=changes))._replace(outbox=outbox), result

    def _waits_for_row(self, world: World, number: int, request: OnOutbox) -> bool:
        """Return whether a statement needs a row that another transaction has changed or locked, and not let go yet."""
        mine = None if request.number is None else self._txn(world, number, request.number)
        if mine is None or not (request.is_of_publisher or request.is_of_diversion):
            return False
        after, _ = self._on_outbox(world, number, request)
        changes = next(txn.outbox for txn in after.txns if txn[:3] == mine[:3])
        return any(conflict(changes, txn.outbox) for txn in world.txns if txn is not mine)

    def _adds_again(self, world: World, number: int, request: AddAgain) -> Iterator[Step]:
        mine = self._txn(world, number, request.number)
        if mine is None:
            yield f"P{number} finds its connection gone", self._answer(world, number, None)
            return
        found = any(has_added(txn.outbox, request.seq) for txn in world.txns if txn is not mine)
        if not found or not self.knows_of(world, number, request):
            yield f"P{number} adds a block again: it is being added: {found}", self._answer(world, number, found)
        if world.budget.give_ups and not world.is_settling:
            text = f"P{number} adds a block again, and gives up"
            yield text, self._answer(spend(world, give_ups=1), number, GAVE_UP)

    def knows_of(self, world: World, number: int, request: AddAgain) -> bool:
        """Return whether a process knows that a block is being added: it would ask for ever."""
        process = world.processes[number]
        nodes = self.programs[process.program].nodes
        at = process.node
        while (node := nodes[at]).came_from >= 0:
            at = node.came_from
            asked = nodes[at].request
            if node.reply is True and isinstance(asked, AddAgain) and asked.seq == request.seq:
                return True
        return False

    def _touches_row(self, world: World, number: int, request: Touch) -> Iterator[Step]:
        txn = self._txn(world, number, request.number)
        if txn is None:
            yield f"P{number} finds its connection gone", self._answer(world, number, None)
        elif not any(other.has_touched for other in world.txns):
            touched = replaced(world, txn, txn._replace(has_touched=True))
            yield f"P{number} changes the row that all blocks change", self._answer(touched, number, True)

    def _of_database(self, world: World) -> Iterator[Step]:
        yield from super()._of_database(world)
        if world.budget.hours and not world.is_settling:
            later = world.outbox._replace(passed_ms=world.outbox.passed_ms + HOUR_MS)
            yield "an hour passes", spend(world, hours=1)._replace(outbox=later)

    def _at_once(self, world: World, number: int) -> World:
        """Carry out a step that only changes the process's own database transaction."""
        while True:
            world = super()._at_once(world, number)
            request = self._request(world, number)
            if not isinstance(request, OnOutbox) or not self._is_alone(world, number, request):
                return world
            world, result = self._on_outbox(world, number, request)
            world = self._moved(world, number, world.processes[number], result)

    def _is_alone(self, world: World, number: int, request: OnOutbox) -> bool:
        """Return whether a statement is about rows that no other transaction can change, as its lock says."""
        txn = None if request.number is None else self._txn(world, number, request.number)
        others = (other for other in world.txns if other is not txn)
        is_mine = txn is not None and txn.is_locked and not any(other.is_locked for other in others)
        return request.is_of_publisher and is_mine

    # ---- observations for tests -----------------------------------------------------------------------------

    def request_of(self, world: World, number: int) -> Hashable:
        """Return the request of a process; None if it has ended."""
        return self._request(world, number)

    def told_by(self, world: World, number: int) -> Told:
        """Return the results that the callers of a process got."""
        return self._told(world.processes[number])

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
        wrong = self._wrong_order(world)
        if wrong is not None or not self.is_at_rest(world):
            return wrong
        return self._wrong_of_publishing(world, seen) or self._unknown(world)

    def _has_order(self, world: World) -> bool:
        """Return False: blocks are published in the order of their numbers, and these need not be that of commits."""
        return False

    def _wrong_order(self, world: World) -> str | None:
        """Return whether a block is visible before an earlier commit's block.

        If all change one row of the application, that is the order of commits.
        """
        earlier = dict(world.outbox.earlier)
        found = [value for value in visible(world.kafka.logs[0]) if not _is_repaired(world, value, earlier)]
        for at, value in enumerate(found):
            behind = earlier.get(value, frozenset()).intersection(found[at + 1 :])
            if behind:
                return f"{found} are visible, and {sorted(behind)} were committed before {value!r} was added"
        if self._kind.diverts:
            return self._wrong_of_both_ways(world, found)
        missing = [value for value in world.decided if value not in found]
        if self._kind.touches and (*found, *missing) != world.decided and not world.is_settling:
            return f"{found} are visible, and {list(world.decided)} were committed, in this order"
        return None

    def _wrong_of_both_ways(self, world: World, found: Sequence[bytes]) -> str | None:
        """Return the error of a pool whose blocks go to Kafka themselves, or to the outbox.

        A record may be visible before that of an earlier commit, whose marker is late, if it is behind it.
        """
        is_diverted = any(row[:2] == DIVERSION and row[2] for row in world.outbox.rows)
        rows = ((row[1], row[3] or b"") for row in world.outbox.rows if row[1] > 0)  # also of batches that are settled
        waiting = [number for number, content in rows if not any(value in content for value in found)]
        if waiting and not is_diverted:
            return f"blocks go to Kafka while {waiting} are in the outbox"
        sent = {value for entry in world.kafka.logs[0] if isinstance(entry, Batch) for value in entry.records}
        seen = [value for value in world.decided if value in found]
        last = world.decided.index(seen[-1]) if seen else 0
        if self._kind.touches and (found != seen or not sent.issuperset(world.decided[:last])):
            return f"{found} are visible, and {list(world.decided)} were committed, in this order"
        return None

    def _wrong_of_publishing(self, world: World, seen: Collection[bytes]) -> str | None:
        """Return the error of a world at rest."""
        told = self._told(world.processes[-1])
        missing = world.table.difference(seen)
        if NOT_PROVEN in told:  # until a person has decided, whichever end it had
            return self._wrong_of_stop(world, missing)
        if missing:
            return f"{missing} are committed, and not visible"
        if self.profile in _BOUNDED and any(UNPROVEN in self._told(process) for process in world.processes):
            return "what is not proven was taken for committed"
        if RECOVERED not in told or (LAST_WRITE, "COMMITTED" if self._kind.diverts else "STORED") not in told:
            return "no process can publish any more"
        if self._kind.diverts and self.profile is PROFILES[4]:
            # a late AddPartitionsToTxn opens an empty one under the id of the outbox, which no reader waits for
            world = world._replace(beside=world.beside[OUTBOX_LANE:])
        return "a transaction is open at rest" if has_open(world) else None

    def _wrong_of_stop(self, world: World, missing: Collection[bytes]) -> str | None:
        """Return the error of an outbox that has stopped publishing, because an end is not proven.

        The log has no proof, and on tier 3 another program or an expiry has made the coordinator forget. The database
        still has all records that are not visible.
        """
        spent = {name for name, left in world.budget._asdict().items() if left < getattr(self._budget, name)}
        if self._kind.is_readable and not world.log_starts:
            return "an outbox has stopped, although the log shows how its last batch has ended"
        if self.profile is not PROFILES[4] and not spent.intersection(_FORGETTING):
            return "an outbox has stopped, although its coordinator could tell"
        stored = [found[3] or b"" for found in world.outbox.rows if found[1] > 0]
        gone = [value for value in missing if not any(value in content for content in stored)]
        return f"{gone} are committed, and neither visible nor kept" if gone else None

    def _unknown(self, world: World) -> str | None:
        """Return a block whose outcome its process does not know, although the notes were all there."""
        if world.budget.hours != self._budget.hours:
            return None
        for process in world.processes:
            for said in self._told(process):
                if said[1] is None and not (self._kind.diverts and said[0] not in dict(world.outbox.earlier)):
                    return f"the outcome of {said[0]!r} is not known, and could be"
        return None


def _is_repaired(world: World, value: bytes, added: Container[bytes]) -> bool:
    """Return whether a block went to Kafka itself, and was published again, because a broker has aborted it."""
    return (
        value not in added
        and sum(value in entry.records for entry in world.kafka.logs[0] if isinstance(entry, Batch)) > 1
    )


class ReducedOutbox(Reduced, OutboxRules):
    """The same, without orders of steps that need not be tried."""


class OutboxSpace(NamedTuple):
    """One search."""

    tier: int
    budget: Budget
    written: tuple[tuple[bytes, ...], ...] = ((b"a1",),)
    """The blocks of each process that adds some."""
    publishers: int = 1
    rounds: int = 1
    touches: bool = False
    are_large: bool = False
    by_commit: bool = False
    after_crash: tuple[bytes, ...] = ()
    is_readable: bool = True
    in_steps: bool = False
    """Whether the outbox is that of MySQL, MariaDB and SQLite."""
    diverts: bool = False
    """Whether blocks go to Kafka themselves, and to the outbox only while Kafka is away."""
    is_diverted: bool = False
    """Whether they go to the outbox at first, as after an outage."""

    @property
    def name(self) -> str:
        """Return its name, by its particularities."""
        faults = "-".join(f"{name}{n}" for name, n in self.budget._asdict().items() if n)
        blocks = "+".join(str(len(values)) for values in self.written)
        publishing = f"{self.publishers} publishers {self.rounds} rounds"
        flags = [name for name in _FLAGS if getattr(self, name)]
        if not self.is_readable:
            flags.append("unreadable")
        return "-".join((f"outbox-tier{self.tier}", faults or "nothing fails", f"{blocks} blocks", publishing, *flags))

    @property
    def size(self) -> tuple[int, int]:
        """Return how many blocks there are, and how many faults."""
        return sum(map(len, self.written)), sum(self.budget)

    def rules(self, kind: type[OutboxRules] = OutboxRules) -> OutboxRules:
        """Return the possible steps in it, in all orders."""
        return kind(
            PROFILES[self.tier],
            self.written,
            self.after_crash,
            kind=OutboxKind(self.budget.failovers > 0, *(getattr(self, name) for name in OutboxKind._fields[1:])),
            publishers=self.publishers,
            rounds=self.rounds,
        )

    def search(self, most_states: int | None = None, kind: type[OutboxRules] = ReducedOutbox) -> Found:
        """Visit every state, or so many."""
        was = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        rules = self.rules(kind)
        try:
            return Explorer(rules, self.budget).search(most_states)
        finally:
            rules.close()
            forget()
            logging.disable(was)


def main() -> None:
    """Search with the given arguments, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", type=int, default=1)
    parser.add_argument("--faults", default="losses=1")
    parser.add_argument("--writes", default="a1", help="blocks of each process that adds some")
    parser.add_argument("--after-crash", default="")
    parser.add_argument("--publishers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="of each publisher, before it closes")
    parser.add_argument("--states", type=int, default=None)
    parser.add_argument("--unreadable", action="store_true", help="publishers may not read the topic")
    for flag in _FLAGS:
        parser.add_argument(f"--{flag.replace('_', '-')}", action="store_true")
    given = parser.parse_args()
    space = OutboxSpace(
        given.tier,
        Budget(**{name: int(n) for name, n in (pair.split("=") for pair in given.faults.split(",") if pair)}),
        tuple(tuple(value.encode() for value in process.split(",")) for process in given.writes.split("/")),
        given.publishers,
        given.rounds,
        after_crash=tuple(value.encode() for value in given.after_crash.split(",") if value),
        is_readable=not given.unreadable,
        **{flag: getattr(given, flag) for flag in _FLAGS},
    )
    began_s = time.monotonic()
    found = space.search(given.states)
    print(f"{space.name}: {found}, {time.monotonic() - began_s:.1f} s")
    if found.story is not None:
        print(found.story)
    sys.exit(found.wrong is not None)


if __name__ == "__main__":
    main()
