"""Producers of one transactional id without a database: the promises of `Producer` alone to those who share an id.

Each process takes the id over with `init_transactions(keep_prepared_txn=True)` and `complete_transaction()`, then ends
transactions with one record each, by commit or by abort. No lock keeps the processes apart: only fencing does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import RecordBuffer
from tests.proof.automaton import Automaton, Program, Said
from tests.proof.explore import Explorer, Found
from tests.proof.kafka_events import marker_is_due
from tests.proof.kafka_log import visible
from tests.proof.kafka_model import PROFILES, Profile
from tests.proof.kafka_requests import TOPIC, TRANSACTIONAL_ID
from tests.proof.owner import CheckedKafka
from tests.proof.world import Budget, Rules, World

_ENDED = {"commit": "COMMITTED", "abort": "ABORTED"}


class LoneKafka(CheckedKafka):
    """A producer whose user holds no lock, and therefore fences others at once."""

    async def complete(self, row: PreparedTxnState, *, is_over: bool = False) -> None:
        await self._run(lambda: self._live.complete_transaction(row))


def producer(profile: Profile, name: str, ends: Sequence[str]) -> Program:
    """Return a process whose transactions end like `ends`: "commit" or "abort". Refused ones it aborts, and goes on."""

    async def program(told: list[Said]) -> None:
        kafka = LoneKafka(profile)
        try:
            await kafka.take_over(TRANSACTIONAL_ID)
            await kafka.complete(PreparedTxnState())
            for number, end in enumerate(ends, 1):
                await _transaction(kafka, f"{name}{number}".encode(), end, told)
        except DualWriteError as error:
            told.append((name, "raised", type(error).__name__))
        await kafka.give_up()

    return program


async def _transaction(kafka: LoneKafka, value: bytes, end: str, told: list[Said]) -> None:
    records = RecordBuffer()
    records.send(TOPIC, value, timestamp_ms=1)
    await kafka.begin()
    try:
        await kafka.send(records, lambda: None)
        await kafka.prepare()
        told.append((value, "UNDECIDED" if end == "commit" else "ABORTED"))
        await (kafka.commit() if end == "commit" else kafka.abort())
        told.append((value, _ENDED[end]))
    except DualWriteError:
        await kafka.abort()


class ProducerRules(Rules):
    """The possible steps of producers, and the invariants."""

    def __init__(self, profile: Profile, ends: Sequence[Sequence[str]]) -> None:
        super().__init__(profile, [()] * len(ends), ())
        for number, mine in enumerate(ends):
            self.programs[number] = Automaton(producer(profile, "abc"[number], mine))

    def wrong(self, world: World) -> str | None:
        """Return the error of a world; None if it is right."""
        seen = visible(world.kafka.logs[0])
        doubled = [value for value, count in Counter(seen).items() if count > 1]
        if doubled:
            return f"{doubled} are visible twice"
        said: dict[bytes, str] = {}
        for process in world.processes:
            said |= {told[0]: told[1] for told in self.programs[process.program].nodes[process.node].told}
        for value in seen:
            if said.get(value) not in ("COMMITTED", "UNDECIDED"):
                return f"{value!r} is visible, and its producer has not committed it"
        if not marker_is_due(world.kafka):
            for value, what in said.items():
                if what == "COMMITTED" and value not in seen:
                    return f"the commit of {value!r} returned, and it is not visible"
        return None


class ProducerSpace(NamedTuple):
    """One search among producers."""

    tier: int
    ends: tuple[tuple[str, ...], ...]
    """How the transactions of each producer end."""
    budget: Budget = Budget()

    @property
    def name(self) -> str:
        """Return its name, by its particularities."""
        faults = "".join(f"-{name}{n}" for name, n in self.budget._asdict().items() if n)
        return f"tier{self.tier}{faults}-producers {'/'.join(map(','.join, self.ends))}"

    @property
    def size(self) -> tuple[int, int]:
        """Return how many transactions there are, and how many faults."""
        return sum(map(len, self.ends)), sum(self.budget)

    def rules(self) -> ProducerRules:
        """Return the possible steps in it."""
        return ProducerRules(PROFILES[self.tier], self.ends)

    def search(self, most_states: int | None = None) -> Found:
        """Visit every state, or so many."""
        rules = self.rules()
        try:
            return Explorer(rules, self.budget).search(most_states)
        finally:
            rules.close()
