"""The same repair on every face: blocking and asyncio, SQLAlchemy and psycopg, and the recovery service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.admin import TopicPartition, TransactionAdmin
from dualwrite.broker_emulator import Emulator, Error, Fault
from dualwrite.errors import TransactionHangsError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.conftest import opened
from tests.crash.scenario import AnyScenario, AtPoint, InjectedError
from tests.producer.tiers import TIERS


@pytest.fixture(params=Tier, ids=[tier.name for tier in Tier])
def emulator(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """A broker of each tier, in place of the usual one."""
    with Emulator(config=TIERS[request.param]) as running:
        yield running


FACES = [
    *("sqlite", "postgres", "psycopg"),
    *("asyncio aiosqlite", "asyncio asyncpg", "asyncio psycopg-alone", "asyncio asyncpg-alone"),
]


@pytest.fixture(params=FACES)
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyScenario]:
    """For one id, on each face."""
    with opened(request.param, request, emulator, tmp_path) as scenario:
        yield scenario


def abort(scenario: AnyScenario) -> None:
    """Abort the id's open transaction, as an operator does."""
    with TransactionAdmin(bootstrap_servers=scenario.emulator.bootstrap_servers) as admin:
        admin.force_terminate_transaction(scenario.kafka_id)


def leave_aborted(scenario: AnyScenario, number: int, **settings: Any) -> None:
    """Decide a dual write, fail before Kafka's commit, and let an operator abort it."""

    def abort_and_fail() -> None:
        abort(scenario)
        raise InjectedError

    with scenario.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, abort_and_fail), **settings) as writer:
        seen = scenario.write(writer, number)
        assert isinstance(seen.error, InjectedError)
        assert seen.took_effect


@pytest.mark.parametrize("via", ["write", "recover"])
def test_the_next_use_repairs(scenario: AnyScenario, via: str) -> None:
    with scenario.writer() as writer:
        scenario.write(writer, 1)
    leave_aborted(scenario, 2)
    with scenario.writer() as writer:
        if via == "recover":
            assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        assert scenario.write(writer, 3).error is None
        assert scenario.write(writer, 4).error is None
    scenario.assert_both_sides_agree()


def test_the_write_repairs_itself(scenario: AnyScenario) -> None:
    with scenario.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lambda: abort(scenario))) as writer:
        seen = scenario.write(writer, 1)
        assert (seen.error, seen.outcome) == (None, Outcome.COMMITTED)
        scenario.write(writer, 2)
    scenario.assert_both_sides_agree()


@pytest.mark.usefixtures("brief_watch")
def test_a_hanging_transaction_stops_the_next_writer_until_its_marker_is_written(scenario: AnyScenario) -> None:
    fault = Fault(api="WriteTxnMarkers", action=Error("unsupported_version"), topic=scenario.topic, count=None)
    lost = scenario.emulator.faults.add(fault)
    with scenario.writer() as writer:
        assert scenario.write(writer, 1).error is None
    lost.wait()  # the commit may be answered before its markers are sent
    lost.remove()
    with scenario.writer() as writer:
        error = scenario.write(writer, 2).error
        assert isinstance(error, TransactionHangsError)
        with TransactionAdmin(bootstrap_servers=scenario.emulator.bootstrap_servers) as admin:
            for where in error.partitions:
                admin.commit_transaction(TopicPartition(*where), PreparedTxnState(error.prepared_state))
        assert scenario.write(writer, 3).error is None
    scenario.assert_both_sides_agree()
