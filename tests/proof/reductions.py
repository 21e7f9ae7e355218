"""Fewer states to visit, with the same to be found in them: two reductions of a search, and why they are sound.

**A request that is dead is dropped.** A request that was sent by an owner of an older producer epoch may arrive at any
time, and so doubles the states until it does. Once every broker must refuse it for ever, a world with it and a world
without it can do the same, and the invariants do not look at requests under way. It is dead at the coordinator when its
pair is older than the epoch before the current one: a producer id's epoch is only raised, and a producer id is not used
again, also after the id was forgotten. (The epoch before the current one is still answered as a retry, KIP-890.)
Produce is dead when the partition, too, must refuse it: no transaction of its pair is open there, so that none can be
opened, or the log has a newer epoch of its producer id. Before transaction.version 2 a transaction of any epoch counts
as verified, so there none of its producer id may be open, or a newer one.

**A private step is taken at once.** The row that a process reads under its lock, or the state of a connection that is
gone, was fixed before: no other process can change the row or bring the connection back. So the step commutes with each
step of the others: they lead to the same world in either order. It is enough to follow the order in which it comes
first (a persistent set of one step). No violation of an invariant gets lost by that: the step changes only the
process's knowledge and its callers' results, and a result that came too early stays. It must not release a lock or send
a request, which others could see. Nor may a fault strike between: an ended connection (`kills`) would change a reader's
result, so while one is possible, only ended connections count. A crash is no such fault: the process that was killed
one step earlier leaves the same world, but for a request that may arrive later and need not. So a process that ends
with the step is left alone, since it could not be killed any more. No step is put off for ever, because each takes its
program further, and each call ends.

`test_reductions.py` compares both with the full search.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

from dualwrite.client import messages as m
from tests.proof import kafka_log
from tests.proof.kafka_model import Kafka, Profile, rules_of
from tests.proof.kafka_requests import Produce, topic_partition
from tests.proof.owner import Commit, Lock, Read
from tests.proof.remembered import remembered
from tests.proof.world import Budget, Rules, Step, World

_HARMLESS: Final = frozenset(
    {
        "crashes",
        "losses",
        "give_ups",
        "timeouts",
        "foreigners",
        "expiries",
        "moves",
        "upgrades",
        "terminations",
        "aborts",
        "outages",
        "deletions",
        "hours",
    }
)
"""Faults that do not come between a process and its reads of the database."""

_STATEMENTS: Final = (Lock, Read, Commit)


class Reduced(Rules):
    """The possible steps, without orders that need not be tried."""

    def steps(self, world: World) -> Iterator[Step]:
        """Yield each possible next world that has to be visited, with a sentence."""
        alone = None if world.is_settling else self._private(world)
        if alone is not None:
            yield alone
            return
        for text, reached in super().steps(world):
            yield text, reached if not reached.late else without_dead(reached, self.profile)

    def _private(self, world: World) -> Step | None:
        """Return the private step of the first process that has one."""
        for number in range(len(world.processes)):
            request = self._request(world, number)
            if isinstance(request, _STATEMENTS) and self._is_fixed(world, number, request):
                text, reached = next(self._of_process(world, number))
                if self._is_private(world, reached, number):
                    return text, reached
        return None

    def _is_fixed(self, world: World, number: int, request: Lock | Read | Commit) -> bool:
        """Return whether the process's read is fixed: no step of others can change it."""
        txn = self._txn(world, number, request.number)
        if txn is None:
            return _is_harmless(world.budget, also="kills")
        return isinstance(request, Lock | Read) and txn.is_locked and _is_harmless(world.budget)

    def _is_private(self, world: World, reached: World, number: int) -> bool:
        """Return whether a step has changed only its own process, and that process goes on."""
        if self._request(reached, number) is None:
            return False
        if len(world.txns) != len(reached.txns):
            return False
        locks = [(*txn[:3], txn.is_locked, txn.is_committing) for txn in world.txns]
        if [(*txn[:3], txn.is_locked, txn.is_committing) for txn in reached.txns] != locks:
            return False
        return reached._replace(processes=world.processes, txns=world.txns) == world


@remembered
def _is_harmless_to(budget: Budget, also: str) -> bool:
    return all(name in _HARMLESS or name == also or not count for name, count in budget._asdict().items())


def _is_harmless(budget: Budget, *, also: str = "") -> bool:
    return _is_harmless_to(budget, also)


def without_dead(world: World, profile: Profile) -> World:
    """Return the world without the requests that every broker must refuse for ever."""
    late = tuple(request for request in world.late if not is_dead(world.kafka, request, profile))
    return world if len(late) == len(world.late) else world._replace(late=late)


@remembered
def is_dead(kafka: Kafka, request: Hashable, profile: Profile) -> bool:
    """Return whether a request can have no effect any more, in any future."""
    match request:
        case m.EndTxn() | m.AddPartitionsToTxn() | m.AddOffsetsToTxn():
            return _is_over(kafka, request.producer_id, request.producer_epoch)
        case Produce():
            pair = request.producer_id, request.producer_epoch
            return _is_over(kafka, *pair) and not _may_be_appended(kafka, request, profile)
    return False


def _is_over(kafka: Kafka, producer_id: int, epoch: int) -> bool:
    """Return whether the coordinator must refuse a pair for ever."""
    metadata = kafka.metadata
    if metadata is None:
        return producer_id < kafka.next_producer_id
    if producer_id == metadata.producer_id:
        return epoch < metadata.producer_epoch - 1
    return producer_id < metadata.producer_id and producer_id != metadata.previous_producer_id


def _may_be_appended(kafka: Kafka, request: Produce, profile: Profile) -> bool:
    """Return whether the partition may take the batch of a pair that is over: into a transaction that is open there."""
    log = kafka.logs[topic_partition(request.partition).partition]
    if kafka_log.newest_epoch(log, request.producer_id) > request.producer_epoch:
        return False
    checks_epoch = rules_of(kafka, profile).newest_client_version >= 2
    return kafka_log.is_open(log, request.producer_id, request.producer_epoch if checks_epoch else None)
