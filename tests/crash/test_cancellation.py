"""Cancellation at every suspension of a dual write: decided by the row, told by a note, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dualwrite.errors import IllegalStateError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.core.slot import SlotState
from tests.crash.asyncpg_scenario import AsyncpgScenario
from tests.crash.awaited import AwaitedScenario
from tests.crash.psycopg_scenario import AwaitedPsycopgScenario
from tests.crash.scenario import Predecessor, event_texts
from tests.producer.cancelling import Moment, cancelled_at
from tests.support.databases import unique

AnyAwaited = AwaitedScenario | AsyncpgScenario | AwaitedPsycopgScenario

NOTES = {
    Outcome.COMMITTED: "is committed anyway",
    Outcome.ROLLED_BACK: "neither database nor Kafka is changed",
    None: "reads its outcome and completes Kafka's side",
}


class Attempt:
    """One dual write, and the outcome that its cancellation told."""

    def __init__(self, scenario: AnyAwaited, writer: Any, number: int) -> None:
        self._scenario: Any = scenario  # its methods take a transaction of its own writers
        self._writer = writer
        self._number = number
        self.tx: DualWrite | None = None
        self.error: BaseException | None = None

    async def write(self) -> None:
        try:
            async with self._writer.transaction() as self.tx:
                for index, body in enumerate(event_texts(str(self._number))):
                    await self._scenario.insert(self.tx, self._number * 10 + index, body)
                    self.tx.send(self._scenario.topic, value=body, key="k")
        except BaseException as error:
            self.error = error
            raise

    async def settle(self) -> None:
        """Note the expected events, by the caller's possible knowledge."""
        outcome = self.tx.outcome if self.tx is not None else Outcome.ROLLED_BACK
        if self.tx is not None and self.error is not None:
            assert any(NOTES[outcome] in note for note in self.error.__notes__)
        if outcome is None:
            assert self._writer.state is SlotState.UNRESOLVED
            (found,) = await self._writer.recover()
            outcome = found.outcome
            assert self.tx is not None
            assert self.tx.outcome is outcome
        if outcome is Outcome.COMMITTED:
            self._scenario.expected += event_texts(str(self._number))


# Steps after the first cancellation are the writer's own affair: for them, one driver of SQLAlchemy will do.
_HOW_OFTEN = [
    ("psycopg", False),
    ("psycopg", True),
    ("asyncpg", False),
    ("aiosqlite", False),
    *((driver, again) for driver in ("psycopg-alone", "asyncpg-alone") for again in (False, True)),
]


@pytest.mark.parametrize(("awaited", "again"), _HOW_OFTEN, indirect=["awaited"])
@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("new", [False, True], ids=["ready writer", "new writer"])
def test_a_dual_write_cancelled_at_every_suspension(
    awaited: AnyAwaited, moment: Moment, new: bool, again: bool
) -> None:
    async def run() -> set[Outcome | None]:
        writer = awaited.awaited_writer()
        met: set[Outcome | None] = set()
        number = 0
        came = True
        while came:
            number += 1
            if new:
                await writer.close()
                writer = awaited.awaited_writer()
            elif writer.state is not SlotState.READY:
                await writer.recover()
            attempt = Attempt(awaited, writer, number)
            stepping = await cancelled_at(attempt.write(), number, moment, again=again)
            came = stepping.came
            met.add(attempt.tx.outcome if attempt.tx else None)
            await attempt.settle()
        await writer.close()
        return met

    met = awaited.run(run())
    assert met >= {Outcome.COMMITTED, Outcome.ROLLED_BACK}
    awaited.assert_both_sides_agree()


@pytest.mark.parametrize("moment", Moment)
async def test_the_very_first_use_cancelled_at_every_suspension(awaited: AnyAwaited, moment: Moment) -> None:
    """The row is made then, in a transaction of its own, which must not keep the database locked either."""
    number = 0
    came = True
    while came:
        number += 1
        awaited.transactional_id = unique("writer")
        writer = awaited.awaited_writer()
        stepping = await cancelled_at(writer.recover(), number, moment)
        came = stepping.came
        attempt = Attempt(awaited, writer, number)
        await attempt.write()
        await attempt.settle()
        await writer.close()
    awaited.assert_both_sides_agree()


@pytest.mark.parametrize(
    ("predecessor", "moment"),
    [
        (Predecessor.COMMITTED, Moment.EARLY),
        (Predecessor.COMMITTED, Moment.LATE),
        (Predecessor.ROLLED_BACK, Moment.EARLY),
    ],
)
def test_a_recovery_cancelled_at_every_suspension(
    awaited: AnyAwaited, predecessor: Predecessor, moment: Moment
) -> None:
    """The next one completes its leftovers by the same row: what is still open at Kafka."""
    number = 0
    came = True
    while came:
        number += 1
        awaited.leave_behind(predecessor, number)
        writer = awaited.awaited_writer()
        came = awaited.run(cancelled_at(writer.recover(), number, moment)).came
        left = [Outcome(predecessor)] if _is_open(awaited) else []
        assert [each.outcome for each in awaited.run(writer.recover())] == left
        awaited.run(writer.close())
    awaited.assert_both_sides_agree()


def _is_open(awaited: AnyAwaited) -> bool:
    """Return whether a transaction is open, after the broker has served each request that had arrived."""
    for _ in range(20):  # turns of its loop
        states = {each.state for each in awaited.emulator.transactions()}
    assert states <= {"Empty", "Ongoing", "CompleteCommit", "CompleteAbort"}
    return "Ongoing" in states


# ---- the end of the writer ---------------------------------------------------------------------------------------


class Held:
    """A block of another task that waits after its writes."""

    def __init__(self, scenario: AnyAwaited, writer: Any, number: int) -> None:
        self._scenario: Any = scenario
        self._writer = writer
        self._number = number
        self._is_inside = asyncio.Event()
        self.may_end = asyncio.Event()

    async def begun(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._write())
        await self._is_inside.wait()
        return task

    async def _write(self) -> None:
        async with self._writer.transaction() as tx:
            for index, body in enumerate(event_texts(str(self._number))):
                await self._scenario.insert(tx, self._number * 10 + index, body)
                tx.send(self._scenario.topic, value=body, key="k")
            self._is_inside.set()
            await self.may_end.wait()


async def test_close_waits_until_a_cancelled_block_is_rolled_back(awaited: AnyAwaited) -> None:
    """Frameworks cancel running tasks when a service stops, and do not wait for them."""
    writer = awaited.awaited_writer()
    task = await Held(awaited, writer, 1).begun()
    task.cancel()
    await writer.close()
    assert writer.state is SlotState.CLOSED
    await asyncio.wait([task])
    assert task.cancelled()
    awaited.assert_nothing_open()
    awaited.assert_both_sides_agree()


async def test_close_admits_no_block_while_it_waits_for_one(awaited: AnyAwaited) -> None:
    writer = awaited.awaited_writer()
    held = Held(awaited, writer, 1)
    task = await held.begun()
    closing = [asyncio.create_task(writer.close()) for _ in range(2)]
    await asyncio.sleep(0)  # they wait now
    with pytest.raises(IllegalStateError, match="already carries a dual write"):
        await writer.recover()
    assert not any(each.done() for each in closing)
    held.may_end.set()
    await asyncio.gather(task, *closing)
    assert writer.state is SlotState.CLOSED
    with pytest.raises(IllegalStateError, match="is closed; make a new one"):
        await writer.recover()
    awaited.expected += event_texts("1")
    awaited.assert_both_sides_agree()


async def test_a_writer_that_cannot_be_closed_in_time_goes_on(awaited: AnyAwaited) -> None:
    writer = awaited.awaited_writer()
    held = Held(awaited, writer, 1)
    task = await held.begun()
    with pytest.raises(IllegalStateError, match="still carries a dual write of another task after 0 s; the writer"):
        await writer.close(timeout_s=0)
    held.may_end.set()
    await task
    await Attempt(awaited, writer, 2).write()
    await writer.close()
    awaited.expected += event_texts("1") + event_texts("2")
    awaited.assert_both_sides_agree()
