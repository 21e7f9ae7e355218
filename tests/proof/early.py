"""May records be sent before the state row is locked? A dual write with that order of steps, for the search to judge.

Today a dual write sends its records under the lock of the state row. Here a process that owns the id sends them first,
with the worst timing: all of Produce is over before the lock is asked for. Any overlap of the two lies in between. An
`Ordering` is the process's behaviour once it has the lock.

    python -m tests.proof.early --tier 1 --ordering trusting --faults kills=1

This is no part of the product: it answers a question about a change of its steps.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

from dualwrite.client import messages as m
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.transactions.initialisation import described
from dualwrite.client.transactions.recovery import DescribedState
from dualwrite.errors import FencedError, KafkaTimeoutError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.dual_write import DualWriteProgress, Resolution
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.slot import SlotState
from tests.proof.automaton import Automaton, Program, Said, ask
from tests.proof.explore import Explorer, Found
from tests.proof.kafka_log import Batch, Marker
from tests.proof.kafka_model import NO_DEADLINE_MS, PROFILES, Profile
from tests.proof.kafka_requests import TOPIC, TRANSACTIONAL_ID
from tests.proof.owner import (
    AWAY,
    GAVE_UP,
    Begin,
    CheckedDatabase,
    CheckedKafka,
    CheckedTransaction,
    Owner,
    RefusesNothing,
    as_response,
    hashable,
)
from tests.proof.shape import ONE_RECORD
from tests.proof.world import Budget, Rules, World

_MARK: Final = "#"
_TRIES: Final = 4


class Ordering(Enum):
    """When records are sent; and, if early, the check under the lock before the row is written."""

    LOCKED = "locked"
    """The records are sent under the lock, as the product does."""
    TRUSTING = "trusting"
    """Compare the row with the remembered one."""
    ASKING = "asking"
    """Compare the row, and ask the coordinator whether it still has the transaction open."""
    PROVING = "proving"
    """Compare the row, and add a partition once more to the transaction, which a fenced process is refused."""
    MARKED = "marked"
    """Compare the row and its mark, which each take-over raises and commits before its first request to Kafka."""


class MarkedTransaction(CheckedTransaction):
    """A database transaction whose state row has a mark: a number that each take-over raises."""

    def __init__(self, number: int, expected_mark: int | None) -> None:
        super().__init__(number, by_commit=False)
        self._expected_mark = expected_mark
        self.mark = 0

    async def lock(self, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        """Lock the row. Raises FencedError if its mark is not the expected one."""
        row = await super().lock(transactional_id, timeout_ms=timeout_ms)
        _, _, mark = (await super().read_manifest(transactional_id)).partition(_MARK)
        self.mark = int(mark or 0)
        if self._expected_mark not in (None, self.mark):
            raise FencedError("another process takes the id over, or has; nothing was decided")
        return row

    async def read_manifest(self, transactional_id: str) -> str:
        return (await super().read_manifest(transactional_id)).partition(_MARK)[0]

    async def write(
        self, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState, manifest: str
    ) -> None:
        marked = f"{manifest}{_MARK}{self.mark}"
        await super().write(transactional_id, previous=previous, new=new, manifest=marked)


class MarkedDatabase(CheckedDatabase):
    """A database whose state row has a mark: the expected one is this process's own."""

    def __init__(self) -> None:
        super().__init__(by_commit=False)
        self.expected_mark: int | None = None

    async def begin(self) -> MarkedTransaction:
        return MarkedTransaction(await self._begin(), self.expected_mark)

    async def raise_mark(self) -> None:
        """Raise the mark and commit that: from now on, no earlier owner of the id writes the row."""
        database = MarkedTransaction(await self._begin(), None)
        row = await database.lock(TRANSACTIONAL_ID, timeout_ms=None)
        manifest = await database.read_manifest(TRANSACTIONAL_ID)
        database.mark += 1
        await database.write(TRANSACTIONAL_ID, previous=row, new=row, manifest=manifest)
        await database.commit()
        self.expected_mark = database.mark

    async def _begin(self) -> int:
        self._begun += 1
        await ask(Begin(self._begun))
        return self._begun


class EarlyKafka(CheckedKafka):
    """A participant that can ask the coordinator about its open transaction, as no producer of today does."""

    async def has_open(self, prepared_state: PreparedTxnState) -> bool:
        """Return whether the coordinator has this transaction open. Raises KafkaTimeoutError without a response."""
        found = described(await self._response_to(m.DescribeTransaction(TRANSACTIONAL_ID)))
        return found.state is DescribedState.ONGOING and found.pair == prepared_state

    async def adds_again(self, prepared_state: PreparedTxnState) -> bool:
        """Return whether the coordinator lets the owner of this transaction add a partition of it again."""
        pair = prepared_state.producer_id, prepared_state.producer_epoch
        request = m.AddPartitionsToTxn(TRANSACTIONAL_ID, *pair, (TopicPartition(TOPIC, 0),))
        response = await self._response_to(request)
        return set(response.error_codes.values()) == {0}

    async def _response_to(self, request: m.Request) -> Any:
        response = await ask(hashable(request))
        if response is None or response in (AWAY, GAVE_UP):
            raise KafkaTimeoutError("nobody knows whether the transaction is open; nothing was decided")
        return as_response(request, response)


class EarlyCoordinator(DualWriteCoordinator):
    """A coordinator whose dual writes send their records before the lock, as soon as this process owns the id."""

    def __init__(self, profile: Profile, ordering: Ordering) -> None:
        self._early = EarlyKafka(profile)
        self._marked = MarkedDatabase() if ordering is Ordering.MARKED else None
        owned = OwnedId(
            TRANSACTIONAL_ID,
            database=CheckedDatabase(by_commit=False) if self._marked is None else self._marked,
            kafka=self._early,
            lock_timeout_ms=None,
            resolve_timeout_ms=NO_DEADLINE_MS,
        )
        super().__init__(owned, sleep=_no_sleep, repairability=RefusesNothing())
        self._ordering = ordering

    async def get_ready(self) -> None:
        """Get ready, and mark the row if this process has to take the id over."""
        if self._marked is not None and self._slot.state is SlotState.UNRESOLVED:
            self._marked.expected_mark = None  # the row decides about the lost commit, whichever process has the id now
        await super().get_ready()
        if self._marked is not None and self._slot.state is not SlotState.READY:
            await self._marked.raise_mark()

    async def recover(
        self, examine: Callable[[PreparedTxnState], bool] | None = None, *, publishes_all: bool = True
    ) -> Resolution:
        """Recover as always, after the row was marked."""
        if self._marked is not None:
            await self._marked.raise_mark()
        return await super().recover(examine, publishes_all=publishes_all)

    async def _prepare(self, write: DualWriteProgress) -> None:
        is_early = self._ordering is not Ordering.LOCKED
        if is_early and self._slot.state is SlotState.READY and not self.owned.owed:
            await self._prepare_early(write)
        else:
            await super()._prepare(write)

    async def _prepare_early(self, write: DualWriteProgress) -> None:
        write.transactional_id = self.transactional_id
        await self._steps.send(write)
        row = await write.database.lock(self.transactional_id, timeout_ms=None)
        is_mine = row == self.owned.row
        if is_mine and self._ordering is Ordering.ASKING:
            is_mine = await self._early.has_open(write.prepared_state)
        elif is_mine and self._ordering is Ordering.PROVING:
            is_mine = await self._early.adds_again(write.prepared_state)
        if not is_mine:
            raise FencedError("another process has used the id since; nothing was decided")
        write.locked_row = row
        await self._steps.write_prepared(write)


class EarlyOwner(Owner):
    """One process with such a coordinator."""

    def __init__(self, profile: Profile, told: list[Said], ordering: Ordering) -> None:
        super().__init__(profile, told, by_commit=False, shape=ONE_RECORD)
        coordinator = EarlyCoordinator(profile, ordering)
        assert isinstance(coordinator.owned.database, CheckedDatabase)
        self._coordinator, self._database = coordinator, coordinator.owned.database


class EarlyRules(Rules):
    """The possible steps, where records are sent early."""

    def __init__(
        self,
        profile: Profile,
        written: Sequence[Sequence[bytes]],
        after_crash: Sequence[bytes],
        ordering: Ordering,
        *,
        strict: bool,
    ) -> None:
        super().__init__(profile, written, after_crash)
        self.programs = [Automaton(_program(profile, ordering, values)) for values in written]
        self.programs.append(Automaton(_program(profile, ordering, after_crash, tries=1)))
        self.programs.append(Automaton(_program(profile, ordering, (), tries=_TRIES)))
        self._strict = strict

    def wrong(self, world: World) -> str | None:
        """Return the error of a world; None if it is right."""
        found = super().wrong(world)
        if found is None and self._strict and _has_to_be_repaired(world):
            return f"{world.row[0]} was decided, and Kafka has aborted it: it has to be published again"
        return found


def _has_to_be_repaired(world: World) -> bool:
    (log,) = world.kafka.logs
    for at, batch in enumerate(log):
        if isinstance(batch, Batch) and f"{batch.producer_id}:{batch.producer_epoch}" == world.row[0]:
            ends = (entry for entry in log[at:] if isinstance(entry, Marker) and entry.producer_id == batch.producer_id)
            end = next(ends, None)
            return end is not None and not end.committed
    return False


def _program(profile: Profile, ordering: Ordering, values: Sequence[bytes], *, tries: int = 0) -> Program:
    """Return the program of a process that recovers first, if `tries` is not 0."""

    async def program(told: list[Said]) -> None:
        owner = EarlyOwner(profile, told, ordering)
        for _ in range(tries):
            if await owner.recover():
                break
            owner = EarlyOwner(profile, told, ordering)
        else:
            if tries:
                return
        for value in values:
            await owner.write(value)

    return program


async def _no_sleep(seconds: float) -> None:
    pass


def search(
    tier: int,
    ordering: Ordering,
    budget: Budget,
    written: Sequence[Sequence[bytes]],
    after_crash: Sequence[bytes] = (),
    *,
    strict: bool = False,
) -> Found:
    """Visit every state of such a world. `strict`: an abort of a decided transaction is wrong, though it is mended."""
    rules = EarlyRules(PROFILES[tier], written, after_crash, ordering, strict=strict)
    try:
        return Explorer(rules, budget).search()
    finally:
        rules.close()


def main() -> None:
    """Search with the given arguments, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", type=int, default=1)
    parser.add_argument("--ordering", type=Ordering, choices=list(Ordering), default=Ordering.TRUSTING)
    parser.add_argument("--faults", default="kills=1")
    parser.add_argument("--writes", default="a1,a2/b1", help="dual writes of each process")
    parser.add_argument("--after-crash", default="")
    parser.add_argument("--strict", action="store_true", help="what has to be published again is wrong as well")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    budget = Budget(**{name: int(n) for name, n in (pair.split("=") for pair in given.faults.split(",") if pair)})
    written = [[value.encode() for value in process.split(",")] for process in given.writes.split("/")]
    after = [value.encode() for value in given.after_crash.split(",") if value]
    found = search(given.tier, given.ordering, budget, written, after, strict=given.strict)
    print(f"{PROFILES[given.tier].name}, {given.ordering.value}, {budget}: {found.states} states, depth {found.depth}")
    if found.wrong is not None:
        print(found.story)


if __name__ == "__main__":
    main()
