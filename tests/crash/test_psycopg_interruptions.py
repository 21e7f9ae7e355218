"""A KeyboardInterrupt after every call of psycopg that a dual write makes."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.pq.abc import PGconn, PGresult

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.waiting import settled
from dualwrite.recipes.psycopg import driver as psycopg_driver
from dualwrite.recipes.psycopg import transaction as psycopg_transaction
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction
from tests.crash.psycopg_scenario import INSERT, PsycopgScenario
from tests.support.databases import PostgresDatabase


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return PsycopgScenario(postgres, emulator)


class InterruptedAt:
    """The ways to wait for a response, interrupted when the n-th one from now on has arrived."""

    def __init__(self, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = at
        monkeypatch.setattr(psycopg_transaction, "settled", self._settled)
        monkeypatch.setattr(psycopg_driver, "generators", self)  # of our own statements

    async def _settled(self, value: Any) -> Any:
        self._count()
        return await settled(value)

    def execute(self, pgconn: PGconn) -> PQGen[list[PGresult]]:
        answers: list[PGresult] = yield from generators.execute(pgconn)
        self._count()
        return answers

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt

    @property
    def struck(self) -> bool:
        return self._left <= 0


@pytest.mark.parametrize("new", [False, True], ids=["ready writer", "new writer"])
def test_an_interruption_at_every_call(scenario: PsycopgScenario, monkeypatch: pytest.MonkeyPatch, new: bool) -> None:
    """The call was carried out, and its response is lost with the interruption."""
    writer = scenario.writer()
    met: set[Outcome | None] = set()
    number = 0
    struck = True
    while struck:
        number += 1
        if new:
            writer.close()
            writer = scenario.writer()
        elif writer.state is not SlotState.READY:
            writer.recover()
        tx: PsycopgDualTransaction | None = None
        with monkeypatch.context() as patched:
            interruption = InterruptedAt(number, patched)
            try:
                with writer.transaction() as tx:
                    tx.connection.execute(INSERT, (number, str(number)))
                    tx.send(scenario.topic, value=str(number), key="k")
            except KeyboardInterrupt:
                pass
            struck = interruption.struck
        outcome = Outcome.ROLLED_BACK if tx is None else tx.outcome
        met.add(outcome)
        if outcome is None:
            assert tx is not None
            assert writer.state is SlotState.UNRESOLVED
            (found,) = writer.recover()
            outcome = found.outcome
            assert tx.outcome is outcome
        if outcome is Outcome.COMMITTED:
            scenario.expected.append(str(number))
        scenario.assert_both_sides_agree()
    assert met == {Outcome.COMMITTED, Outcome.ROLLED_BACK, None}
    writer.close()
