"""Kafka is away, or refuses a record for good: the blocks of a pool with an outbox go on, up to its limits."""

from __future__ import annotations

import time
import zlib
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.records.late import ORIGINAL_TIMESTAMP
from dualwrite.delivery import Outbox
from dualwrite.errors import StoredBlockRefusedError, StoreFullError
from dualwrite.outcome import Outcome
from dualwrite.recipes.recovery.taking_out import take_out
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.recipes.away import kafka_away, recover_with_kafka_back
from tests.recipes.outboxes import (
    Open,
    assert_published,
    in_order,
    open_style,
    outbox_pool,
    scenario,
)
from tests.recipes.pools import QUIET_LEASE_MS, write
from tests.recipes.test_refused_blocks import REFUSING
from tests.support.conditions import until

__all__ = ["open_style", "scenario"]  # fixtures


def test_blocks_go_on_while_kafka_is_away(scenario: PsycopgScenario, emulator: Emulator, open_style: Open) -> None:
    style = open_style()
    style.write(0)
    assert_published(scenario, 0)
    with kafka_away(emulator):
        for number in range(1, 6):
            assert style.write(number).outcome is Outcome.STORED
        until(lambda: style.pool.status.kafka_away_since_s is not None)
        until(lambda: style.pool.status.outbox_blocks == 5)
    assert_published(scenario, *range(6))
    assert in_order(scenario) == [str(number) for number in range(6)]
    until(lambda: style.pool.status.outbox_blocks == 0)


def test_kafka_was_never_there(scenario: PsycopgScenario, emulator: Emulator, open_style: Open) -> None:
    emulator.crash_node(0)
    style = open_style()
    for number in range(3):
        assert style.write(number).outcome is Outcome.STORED
    emulator.start_node(0)
    assert_published(scenario, 0, 1, 2)
    assert in_order(scenario) == ["0", "1", "2"]


def test_a_process_dies_while_kafka_is_away(scenario: PsycopgScenario, emulator: Emulator) -> None:
    with kafka_away(emulator), outbox_pool(scenario) as gone:
        write(gone, scenario, 1)
    with outbox_pool(scenario) as pool:
        write(pool, scenario, 2)
        assert_published(scenario, 1, 2)
    assert in_order(scenario) == ["1", "2"]


@pytest.mark.parametrize("publishes", [True, False])
@pytest.mark.parametrize(
    ("limit", "says"),
    [({"max_stored_bytes": 200}, "max_stored_bytes=200"), ({"max_stored_age_ms": 1}, "max_stored_age_ms=1")],
)
def test_at_a_limit_blocks_are_refused(
    scenario: PsycopgScenario, emulator: Emulator, limit: dict[str, Any], says: str, publishes: bool
) -> None:
    """Before they have begun: neither side has any of their data."""
    expected = [0]
    with outbox_pool(scenario, Outbox(publishes=publishes, **limit)) as pool:
        write(pool, scenario, 0)
        with kafka_away(emulator):
            refused: list[StoreFullError] = []

            def is_refused() -> bool:
                number = len(expected)
                try:
                    write(pool, scenario, number)
                except StoreFullError as error:
                    refused.append(error)
                    return True
                expected.append(number)
                return False

            until(is_refused)
            assert says in str(refused[0])
            assert "neither side was changed" in str(refused[0])
        with outbox_pool(scenario) as other:
            recover_with_kafka_back(other)
            assert_published(scenario, *expected)
            until(lambda: pool.status.outbox_blocks == 0)
            write(pool, scenario, len(expected))
            assert_published(scenario, *expected, len(expected))


# ---- records that Kafka refuses for good ----------------------------------------------------------------------------


def test_records_that_are_too_old_for_their_topic_get_a_new_timestamp(
    scenario: PsycopgScenario, emulator: Emulator
) -> None:
    two_hours_ago_ms = int(time.time() * 1000) - 2 * 3_600_000
    emulator.create_topic(REFUSING, 1)
    with outbox_pool(scenario, Outbox(publishes=False)) as pool:
        write(pool, scenario, 1)
        with pool.transaction() as tx:
            tx.send(REFUSING, "old", timestamp_ms=two_hours_ago_ms)
        write(pool, scenario, 2)
    emulator.set_config({"message.timestamp.before.max.ms": "3600000"}, topic=REFUSING)
    with outbox_pool(scenario) as pool:
        pool.recover()
        assert pool.status.refused == ()
    assert_published(scenario, 1, 2)
    assert [len(record.headers) for record in emulator.records(scenario.topic)] == [0, 0]
    (record,) = emulator.records(REFUSING)
    assert [tuple(header) for header in record.headers] == [(ORIGINAL_TIMESTAMP, b"%d" % two_hours_ago_ms)]


_WITHOUT_ITS_RECORD: Final = b"\2" + bytes(13) + b"\1"


@pytest.fixture(
    params=[b"\x00", _WITHOUT_ITS_RECORD + zlib.crc32(_WITHOUT_ITS_RECORD).to_bytes(4, "big"), None],
    ids=["damaged", "malformed", "gone"],
)
def damage(request: pytest.FixtureRequest) -> bytes | None:
    """The bytes that replace a block's records."""
    found: bytes | None = request.param
    return found


@pytest.fixture
def unreadable(scenario: PsycopgScenario, damage: bytes | None) -> bytes:
    """Make block 2 of three waiting ones unreadable. Return its old bytes."""
    with outbox_pool(scenario, Outbox(publishes=False)) as pool:
        for number in (1, 2, 3):
            write(pool, scenario, number)
    with scenario.database.aside.connect() as connection:
        (_, (seq, records), _) = connection.execute(sa.text(_WAITING)).all()
    replace(scenario, seq, damage)
    return bytes(records)


_WAITING: Final = "SELECT seq, records FROM kafka_transaction_outbox WHERE seq > 0 ORDER BY seq"


def replace(scenario: PsycopgScenario, seq: int, content: bytes | None) -> None:
    """Replace the bytes of a block."""
    update = sa.text("UPDATE kafka_transaction_outbox SET records = :content WHERE seq = :seq")
    with scenario.database.aside.begin() as connection:
        connection.execute(update, {"content": content, "seq": seq})


def test_the_outbox_waits_behind_a_block_that_cannot_be_read(
    scenario: PsycopgScenario, unreadable: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with outbox_pool(scenario, lease_ms=QUIET_LEASE_MS) as pool:
        for _ in range(3):
            with pytest.raises(StoredBlockRefusedError, match=r"cannot be read: .*; or take the block out"):
                pool.recover()
        (refused,) = pool.status.refused
        assert (refused.topic, refused.why.partition(":")[0]) == ("", "it cannot be read")
        assert in_order(scenario) == ["1"]
        told = [record.levelname for record in caplog.records if "cannot be read" in record.getMessage()]
        assert told == ["ERROR"], "once, however often it is tried"
        replace(scenario, refused.seq, unreadable)
        pool.recover()
        assert pool.status.refused == ()
        assert_published(scenario, 1, 2, 3)
        assert in_order(scenario) == ["1", "2", "3"]


@pytest.mark.usefixtures("unreadable")
def test_a_block_is_not_tried_again_while_kafka_is_away(scenario: PsycopgScenario) -> None:
    with outbox_pool(scenario) as pool:
        with pytest.raises(StoredBlockRefusedError):
            pool.recover()
        publisher = pool.pool.outbox
        assert publisher is not None
        rounds = publisher._rounds
        until(lambda: publisher._rounds > rounds + 3)
        assert pool.pool.counts.background_failures == 0


@pytest.mark.usefixtures("unreadable")
def test_a_block_that_cannot_be_read_is_taken_out(scenario: PsycopgScenario, damage: bytes | None) -> None:
    with outbox_pool(scenario) as pool:
        with pytest.raises(StoredBlockRefusedError):
            pool.recover()
        (refused,) = pool.status.refused
        taken = take_out(scenario.database.aside, scenario.transactional_id, refused.seq, apply=True)
        assert (taken.transactional_id, taken.seq) == (scenario.transactional_id, refused.seq)
        assert (taken.changed, taken.records, taken.unreadable) == (True, (), damage or b"")
        pool.recover()
        assert pool.status.refused == ()
        until(lambda: in_order(scenario) == ["1", "3"])
