"""A process with a `Producer` of its own: transactions without a database, which are committed or aborted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dualwrite.errors import CommitOutcomeUnknown, DualWriteError, KafkaTimeoutError
from dualwrite.recipes.core.buffer import BufferedRecord
from tests.proof.automaton import Program, Said, ask
from tests.proof.kafka_model import Profile
from tests.proof.kafka_requests import TOPIC, TRANSACTIONAL_ID
from tests.proof.owner import RECOVERED, RETURNED, CheckedKafka

FAILED: Final = "failed"
"""The result of a transaction that is certainly not committed."""

_ABORTED: Final = b"x"


class Decide(NamedTuple):
    """Note that the transaction of a value is going to be committed: from now on it may become visible."""

    value: bytes


def produces(profile: Profile, values: Sequence[bytes], *, tries: int = 1) -> Program:
    """Return the program of a process that takes the id over and carries out transactions, until one fails for good."""

    async def program(told: list[Said]) -> None:
        for _ in range(tries):
            kafka = CheckedKafka(profile, two_phase_commit=False)
            try:
                await kafka.take_over(TRANSACTIONAL_ID)
            except DualWriteError as error:
                told.append(("init", type(error).__name__))
                await kafka.give_up()
                continue
            told.append(RECOVERED)
            for value in values:
                await _transaction(kafka, value, told)
            await kafka.give_up()
            return

    return program


async def _transaction(kafka: CheckedKafka, value: bytes, told: list[Said]) -> None:
    try:
        await kafka.begin()
        await kafka.send([BufferedRecord(TOPIC, value, None, [], 0, 1)], lambda: None)
        if value.startswith(_ABORTED):
            await kafka.flush()
            await kafka.abort()
            return
        await ask(Decide(value))
        await kafka.commit()
        told.append((value, RETURNED))
    except (CommitOutcomeUnknown, KafkaTimeoutError):
        await _abort(kafka)
    except DualWriteError as error:
        told.append((value, FAILED, type(error).__name__))
        await _abort(kafka)


async def _abort(kafka: CheckedKafka) -> None:
    try:
        await kafka.abort()
    except DualWriteError:
        return  # it stays failed, and the next transaction says so
