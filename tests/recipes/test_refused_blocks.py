"""Stored blocks that Kafka refuses for good: they are named, hinder no other block, and are ended by a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Acl, AclFilter, AclOperation, Emulator, ResourceType
from dualwrite.client.records.late import ORIGINAL_TIMESTAMP
from dualwrite.errors import (
    AbortableError,
    KafkaTimeoutError,
    OwedRecordsRefusedError,
    RowLockTimeoutError,
    StateRowError,
    StoredBlockRefusedError,
    StoredBlocksError,
)
from dualwrite.guarantee import Tier
from dualwrite.partitioners import consistent_partition
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.leases import outbox_id_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.stored_blocks import why_refused
from dualwrite.recipes.recovery.plan import Action
from dualwrite.recipes.recovery.taking_out import take_out
from tests.crash.conftest import BLOCKING, opened
from tests.crash.scenario import AtPoint, Scenario, event_texts
from tests.producer.tiers import TIERS
from tests.recipes.pools import make_pool, prefix_of
from tests.recipes.pools import write as write_in_pool
from tests.recipes.repairs import Site, Way, let_end, site_of, sqlite_store
from tests.recipes.test_repair_evidence import ALLOWED
from tests.recipes.test_stored_blocks import AWAY, assert_stored, kafka_away, noticed
from tests.recipes.tiers import ROWS
from tests.recipes.tiers import write as write_value
from tests.recovery.world import service
from tests.support.conditions import until
from tests.support.databases import SqliteDatabase
from tests.support.topics import read_log, read_topic

REFUSING: Final = "refusing"
"""The topic that refuses; other blocks go to the scenario's own."""

SETTINGS: Final = AWAY | {"max_block_ms": 60_000, "retry_backoff_ms": 20}
IMPATIENT: Final = SETTINGS | {"max_block_ms": 4_000}
"""For a missing topic, which is awaited for as long."""

AnyFace = Any


@dataclass(frozen=True)
class Cause:
    """A cause of Kafka's refusal of the topic's records, how it is brought about, and how it is corrected."""

    begin: Callable[[Emulator], object]
    end: Callable[[Emulator], object]
    why: str
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)


def forbid(emulator: Emulator) -> None:
    emulator.add_acls(Acl.deny("User:ANONYMOUS", AclOperation.WRITE, ResourceType.TOPIC, REFUSING))


def allow(emulator: Emulator) -> None:
    emulator.remove_acls(AclFilter(operation=AclOperation.WRITE))


CAUSES: Final = {
    "forbidden": Cause(forbid, allow, "the right that is missing is WRITE on the topic"),
    "too large": Cause(
        lambda emulator: emulator.set_config({"max.message.bytes": "10"}, topic=REFUSING),
        lambda emulator: emulator.set_config({"max.message.bytes": None}, topic=REFUSING),
        "MESSAGE_SIZE_TOO_LARGE",
    ),
    "missing": Cause(
        lambda emulator: emulator.call_in_loop(lambda: emulator.cluster.delete_topic(REFUSING)),
        lambda emulator: emulator.create_topic(REFUSING, 1),
        "UNKNOWN_TOPIC_OR_PARTITION",
        IMPATIENT,
    ),
}


@contextmanager
def broker(tier: Tier = Tier.KEEP_PREPARED) -> Iterator[Emulator]:
    config = replace(TIERS[tier], auto_create_topics_enable=False)
    with Emulator(config=config, topics={REFUSING: 1}, acls=ALLOWED) as emulator:
        yield emulator


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with broker() as running:
        yield running


@pytest.fixture(params=[*BLOCKING, "asyncio asyncpg", "asyncio psycopg-alone"])
def face(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyFace]:
    with opened(request.param, request, emulator, tmp_path) as scenario:
        yield scenario


def write_to(face: AnyFace, writer: Any, topic: str, number: int) -> Any:
    """Write one block, whose records go to this topic."""
    own, face.topic = face.topic, topic
    try:
        return face.write(writer, number)
    finally:
        face.topic = own


def store(face: AnyFace, writer: Any, *topics: str) -> None:
    """Store one block for each topic, numbered from 1, while Kafka is away."""
    with kafka_away(face.emulator):
        for number, topic in enumerate(topics, start=1):
            assert_stored(write_to(face, writer, topic, number))
    wait_for_kafka(face, writer)


def wait_for_kafka(face: AnyFace, writer: Any) -> None:
    if hasattr(writer, "awaited"):
        face.run(noticed(writer.awaited.coordinator.owned.availability))
    else:
        until(lambda: not writer.coordinator.owned.availability.is_away)


def values(face: AnyFace, topic: str) -> list[str]:
    return [str(value) for _, value in read_topic(face.emulator.bootstrap_servers, topic)]


def texts(*numbers: int) -> list[str]:
    return [text for number in numbers for text in event_texts(str(number))]


def numbers_stored(face: AnyFace) -> list[int]:
    """Return the numbers of the rows; those of blocks that were taken out are negative."""
    query = "SELECT seq FROM kafka_transaction_redo WHERE transactional_id = :id AND seq <> 0 ORDER BY seq"
    with face.database.aside.connect() as connection:
        return list(connection.scalars(sa.text(query), {"id": face.transactional_id}))


def refusal(writer: Any) -> StoredBlockRefusedError:
    with pytest.raises(StoredBlockRefusedError) as raised:
        writer.recover()
    return raised.value


def test_the_reason_is_the_refusal_and_not_that_its_transaction_has_failed() -> None:
    refusal = AbortableError("batch of 1 records: MESSAGE_TOO_LARGE", error_code=10)
    later = refusal.reworded("send(): the producer is in a transaction that failed; call abort_transaction()")
    later.__cause__ = refusal
    assert why_refused(later) == why_refused(refusal) == "batch of 1 records: MESSAGE_TOO_LARGE"


@pytest.mark.parametrize("cause", list(CAUSES))
def test_it_is_named_and_those_behind_it_wait_in_order(face: AnyFace, emulator: Emulator, cause: str) -> None:
    with face.writer(**CAUSES[cause].settings) as writer:
        store(face, writer, face.topic, REFUSING, face.topic)
        CAUSES[cause].begin(emulator)
        for _ in range(2):
            error = refusal(writer)
            assert (error.transactional_id, error.seq, error.topic) == (face.transactional_id, 2, REFUSING)
            assert CAUSES[cause].why in error.why
            assert f"--take-out {face.transactional_id}:2 --apply" in str(error)
        assert values(face, face.topic) == texts(1)
        assert numbers_stored(face) == [2, 3]
        assert_stored(write_to(face, writer, face.topic, 4))
        CAUSES[cause].end(emulator)
        assert [found.outcome for found in writer.recover()] == [Outcome.PUBLISHED]
        assert numbers_stored(face) == []
        assert write_to(face, writer, face.topic, 5).outcome is Outcome.COMMITTED
    assert values(face, face.topic) == texts(1, 3, 4, 5)
    if cause != "missing":
        assert values(face, REFUSING) == texts(2)


def test_it_is_taken_out_and_the_others_are_published(face: AnyFace, emulator: Emulator) -> None:
    engine = face.database.aside
    with face.writer(**SETTINGS) as writer:
        store(face, writer, REFUSING, face.topic)
        forbid(emulator)
        assert refusal(writer).seq == 1
        for seq in (2, 7):
            with pytest.raises(StateRowError, match="the oldest one is 1"):
                take_out(engine, face.transactional_id, seq, apply=True)
        seen = take_out(engine, face.transactional_id, 1)
        assert (seen.changed, numbers_stored(face)) == (False, [1, 2])
        taken = take_out(engine, face.transactional_id, 1, apply=True)
        assert taken.changed
        assert [(record.topic, record.value, record.key) for record in taken.records] == [
            (REFUSING, text.encode(), b"k") for text in event_texts("1")
        ]
        assert numbers_stored(face) == [-1, 2]
        assert [found.outcome for found in writer.recover()] == [Outcome.PUBLISHED]
        assert write_to(face, writer, face.topic, 3).outcome is Outcome.COMMITTED
        assert numbers_stored(face) == [-1]
        with pytest.raises(StateRowError, match="none is stored"):
            take_out(engine, face.transactional_id, 1)
    allow(emulator)
    assert (values(face, face.topic), values(face, REFUSING)) == (texts(2, 3), [])


def test_blocks_that_are_too_large_only_together_are_published(face: AnyFace, emulator: Emulator) -> None:
    """A batch has records of several blocks; each block by itself fits."""
    emulator.set_config({"max.message.bytes": "120"}, topic=REFUSING)
    with face.writer(**SETTINGS) as writer:
        store(face, writer, *[REFUSING] * 7)
        assert [found.outcome for found in writer.recover()] == [Outcome.PUBLISHED]
        assert numbers_stored(face) == []
    assert values(face, REFUSING) == texts(*range(1, 8))


@pytest.fixture(params=["postgres", "sqlite"])
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[Scenario]:
    with opened(request.param, request, emulator, tmp_path) as scenario:
        yield scenario


def test_the_next_blocks_are_stored_and_the_log_says_why(
    scenario: Scenario, emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    with scenario.writer(**SETTINGS) as writer:
        store(scenario, writer, REFUSING)
        forbid(emulator)
        for number in (2, 3, 4):
            assert_stored(write_to(scenario, writer, scenario.topic, number))
        (error,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert "Kafka refuses a record for 'refusing' of the stored block 1" in error
        assert "WRITE on the topic 'refusing'" in error


def test_a_writer_that_stores_nothing_is_told(scenario: Scenario, emulator: Emulator) -> None:
    with scenario.writer(**SETTINGS) as writer:
        store(scenario, writer, REFUSING)
    forbid(emulator)
    with scenario.writer() as writer:
        assert isinstance(scenario.write(writer, 2).error, StoredBlocksError)
        error = scenario.write(writer, 3).error
        assert isinstance(error, StoredBlocksError)
        assert isinstance(error.__cause__, StoredBlockRefusedError)


def test_a_block_for_a_missing_topic_is_not_stored(face: AnyFace, emulator: Emulator) -> None:
    """Kafka is there, and says that the topic is not: the block would keep all others from being published."""
    patient = SETTINGS | {"unreachable_timeout_ms": None}
    with face.writer(**patient) as writer:
        assert write_to(face, writer, face.topic, 0).outcome is Outcome.COMMITTED
    with face.writer(**IMPATIENT, unreachable_timeout_ms=None) as writer:
        assert isinstance(write_to(face, writer, "missing", 1).error, KafkaTimeoutError)
        assert numbers_stored(face) == []
    with face.writer(**patient) as writer:
        assert write_to(face, writer, face.topic, 2).outcome is Outcome.COMMITTED
    face.assert_both_sides_agree()


def test_a_missing_topic_is_waited_for_once_and_without_the_lock(
    face: AnyFace, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    async def noting(self: Any, topics: Collection[str], beside: Collection[str]) -> Any:
        oldest = numbers_stored(face)[0]
        take_out(face.database.aside, face.transactional_id, oldest)  # which locks the row, and changes nothing
        seen.append((oldest, *topics, *beside))
        return await learn(self, topics, beside)

    with face.writer(**IMPATIENT) as writer:
        store(face, writer, face.topic, face.topic, REFUSING, "missing-too", face.topic)
        CAUSES["missing"].begin(emulator)
        participant = type((writer.awaited if hasattr(writer, "awaited") else writer).coordinator.owned.kafka)
        learn = participant.learn_topics
        monkeypatch.setattr(participant, "learn_topics", noting)
        for _ in range(2):
            assert refusal(writer).seq == 3
            assert values(face, face.topic) == texts(1, 2)
    assert seen[0] == (1, face.topic, REFUSING, "missing-too")
    assert seen[1:] == [(3, REFUSING, "missing-too", face.topic)]


# ---- published by a process with other settings ---------------------------------------------------------------------

KEYS: Final = [f"k{number}" for number in range(20)]


def store_keys(scenario: Scenario, partitioner: Any) -> None:
    """Store one block with a record for each key, for a topic of 16 partitions."""
    scenario.emulator.create_topic("wide", 16)
    with scenario.writer(**SETTINGS, partitioner=partitioner) as writer, kafka_away(scenario.emulator):
        with writer.transaction() as tx:
            for key in KEYS:
                tx.send("wide", key=key, value=key)
        assert tx.outcome is Outcome.STORED


def partitions_of_keys(scenario: Scenario) -> dict[str, str]:
    return {each.key: each.partition for each in read_log(scenario.emulator.bootstrap_servers, "wide")}


def test_another_process_publishes_as_the_one_that_stored_it_would(scenario: Scenario) -> None:
    """It has another partitioner, and a max_request_size that is too small."""
    store_keys(scenario, "consistent_random")
    with service(scenario, max_request_size=50) as recovery:
        assert recovery.recover().is_clean
    assert partitions_of_keys(scenario) == {key: f"wide-{consistent_partition(key.encode(), 16)}" for key in KEYS}


def by_number(_topic: str, key: bytes | None, _value: bytes | None, count: int) -> int:
    return int((key or b"")[1:]) % count


def test_a_function_chooses_the_partitions(scenario: Scenario) -> None:
    store_keys(scenario, by_number)
    with service(scenario) as without:
        (found,) = without.recover().found
        assert (found.action, found.changed) == (Action.REFUSED, False)
        assert "partitioner='tests.recipes.test_refused_blocks:by_number'" in str(found.error)
    with service(scenario, partitioner="tests.recipes.test_refused_blocks:by_number") as recovery:
        assert recovery.recover().is_clean
    assert partitions_of_keys(scenario) == {key: f"wide-{int(key[1:]) % 16}" for key in KEYS}


def fails(_topic: str, _key: bytes | None, _value: bytes | None, _count: int) -> int:
    raise RuntimeError("no such customer")


def test_the_function_fails(scenario: Scenario) -> None:
    store_keys(scenario, fails)
    with service(scenario, partitioner=fails) as recovery:
        (found,) = recovery.recover().found
        assert (found.action, found.changed) == (Action.REFUSED, False)
        assert "no such customer" in str(found.error)
    assert numbers_stored(scenario) == [1]


def test_one_that_is_too_old_for_its_topic_gets_a_new_timestamp(scenario: Scenario, emulator: Emulator) -> None:
    two_hours_ago_ms = int(time.time() * 1000) - 2 * 3_600_000
    with scenario.writer(**SETTINGS) as writer:
        with kafka_away(emulator), writer.transaction() as tx:
            tx.send(REFUSING, "old", timestamp_ms=two_hours_ago_ms)
        emulator.set_config({"message.timestamp.before.max.ms": "3600000"}, topic=REFUSING)
        wait_for_kafka(scenario, writer)
        assert [found.outcome for found in writer.recover()] == [Outcome.PUBLISHED]
        assert writer.coordinator.refused is None
    (record,) = emulator.records(REFUSING)
    assert [tuple(header) for header in record.headers] == [(ORIGINAL_TIMESTAMP, b"%d" % two_hours_ago_ms)]


# ---- a person and processes at the same time ------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
def test_a_lost_commit_that_stored_a_block_which_was_taken_out(
    scenario: Scenario, emulator: Emulator, taken: bool
) -> None:
    """The row is as it was and the block is gone, but it was stored: telling the caller otherwise would double it."""

    def go_away() -> None:
        scenario.database.lose_commit(applied=True)
        scenario.database.refuse_new_connections()

    strike = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, go_away)
    with scenario.writer(strike, **SETTINGS, resolve_timeout_ms=300) as writer:
        with kafka_away(emulator):
            write_to(scenario, writer, REFUSING, 1)
            assert writer.state is SlotState.UNRESOLVED
            if taken:
                assert take_out(scenario.database.aside, scenario.transactional_id, 1, apply=True).changed
            scenario.database.come_back()
            assert [found.outcome for found in writer.recover()] == [Outcome.STORED]
        wait_for_kafka(scenario, writer)
        assert [found.outcome for found in writer.recover()] == ([] if taken else [Outcome.PUBLISHED])
    assert values(scenario, REFUSING) == ([] if taken else texts(1))


def test_it_is_not_taken_out_while_a_process_publishes_it(scenario: Scenario) -> None:
    def take_it_out() -> None:
        with pytest.raises(RowLockTimeoutError):
            take_out(scenario.database.aside, scenario.transactional_id, 1, apply=True)

    during = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, take_it_out, armed=False)
    with scenario.writer(during, **SETTINGS) as writer:
        store(scenario, writer, REFUSING)
        during.arm()
        assert [found.outcome for found in writer.recover()] == [Outcome.PUBLISHED]
    assert during.struck
    assert (values(scenario, REFUSING), numbers_stored(scenario)) == (texts(1), [])


def test_nothing_is_taken_out_if_its_records_cannot_be_kept(scenario: Scenario) -> None:
    def fail(_: object) -> None:
        raise OSError("the disk is full")

    with scenario.writer(**SETTINGS) as writer:
        store(scenario, writer, REFUSING)
        with pytest.raises(OSError, match="the disk is full"):
            take_out(scenario.database.aside, scenario.transactional_id, 1, apply=True, keep=fail)
        assert numbers_stored(scenario) == [1]


# ---- pools and recovery ---------------------------------------------------------------------------------------------


def pool_of(scenario: Scenario, **settings: Any) -> Any:
    return make_pool(scenario, max_writers=2, **(SETTINGS | settings))


@pytest.fixture
def pooled(scenario: Scenario) -> Scenario:
    return Scenario(scenario.database, scenario.emulator, transactional_id=f"{scenario.transactional_id}-0")


def outbox_of(pooled: Scenario) -> str:
    return outbox_id_of(prefix_of(pooled))


def test_blocks_of_a_pool_wait_behind_a_refused_one(pooled: Scenario, emulator: Emulator) -> None:
    with pool_of(pooled) as pool:
        with kafka_away(emulator):
            own, pooled.topic = pooled.topic, REFUSING
            assert write_in_pool(pool, pooled, 1).outcome is Outcome.STORED
            pooled.topic = own
            forbid(emulator)
        until(lambda: pool.status.refused)
        (refused,) = pool.status.refused
        assert (refused.transactional_id, refused.seq, refused.topic) == (outbox_of(pooled), 1, REFUSING)
        assert "WRITE on the topic 'refusing'" in refused.why
        for number in (2, 3):
            assert write_in_pool(pool, pooled, number).outcome is Outcome.STORED
        until(lambda: "StoredBlockRefusedError" in (pool.status.last_background_error or ""))
        with pytest.raises(StoredBlockRefusedError):
            pool.recover()
        allow(emulator)
        pool.recover()
        assert pool.status.refused == ()
    assert (values(pooled, REFUSING), values(pooled, pooled.topic)) == (["1"], ["2", "3"])


def test_a_pool_names_what_is_refused_of_a_dead_process(pooled: Scenario, emulator: Emulator) -> None:
    with kafka_away(emulator), pool_of(pooled) as dead:
        own, pooled.topic = pooled.topic, REFUSING
        write_in_pool(dead, pooled, 1)
        pooled.topic = own
    forbid(emulator)
    with pool_of(pooled) as pool:
        with pytest.raises(StoredBlockRefusedError):
            pool.recover()
        (refused,) = pool.status.refused
        assert refused.transactional_id == outbox_of(pooled)
        assert write_in_pool(pool, pooled, 2).outcome is Outcome.STORED
        assert take_out(pooled.database.aside, refused.transactional_id, refused.seq, apply=True).changed
        pool.recover()
        assert pool.status.refused == ()
    assert values(pooled, pooled.topic) == ["2"]


def test_the_recovery_service_names_it(scenario: Scenario, emulator: Emulator) -> None:
    with scenario.writer(**SETTINGS) as writer:
        store(scenario, writer, scenario.topic, REFUSING)
    forbid(emulator)
    with service(scenario) as recovery:
        assert [found.action for found in recovery.plan().found] == [Action.PUBLISH]
        for _ in range(2):
            (found,) = recovery.recover().found
            assert (found.action, found.changed, found.is_left) == (Action.REFUSED, False, True)
            assert "block 2" in (found.error or "")
        take_out(scenario.database.aside, scenario.transactional_id, 2, apply=True)
        assert recovery.recover().is_clean
    assert values(scenario, scenario.topic) == texts(1)


@pytest.mark.parametrize("tier", [tier for tier in Tier if tier is not Tier.KEEP_PREPARED])
@pytest.mark.parametrize("cause", list(CAUSES))
def test_on_other_tiers(tier: Tier, cause: str, tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path)
    with broker(tier) as emulator:
        scenario = Scenario(database, emulator)
        with scenario.writer(**CAUSES[cause].settings) as writer:
            store(scenario, writer, scenario.topic, REFUSING, scenario.topic)
            CAUSES[cause].begin(emulator)
            error = refusal(writer)
            assert (error.seq, error.topic, CAUSES[cause].why in error.why) == (2, REFUSING, True)
            take_out(database.aside, scenario.transactional_id, 2, apply=True)
            assert [found.outcome for found in writer.recover()] == [Outcome.PUBLISHED]
        assert values(scenario, scenario.topic) == texts(1, 3)
    database.close()


# ---- beside owed records --------------------------------------------------------------------------------------------


@contextmanager
def owing(tier: Tier, tmp_path: Path) -> Iterator[tuple[Site, Any]]:
    """A writer that owes one record, for `orders`, and has a stored block for `others` behind it."""
    database = sqlite_store(tmp_path)
    with site_of(tier, database) as site:
        site.decided("x" * 20)
        let_end(site, Way.OPERATOR)
        with site.writer(**AWAY) as writer:
            with kafka_away(site.emulator), writer.transaction() as tx:
                tx.connection.execute(ROWS.insert().values(value="stored"))
                tx.send("others", "y" * 200, partition=0)
            until(lambda: not writer.coordinator.owned.availability.is_away)
            yield site, writer
    database.close()


@pytest.mark.parametrize("tier", list(Tier))
def test_what_is_owed_is_published_before_a_block_that_is_refused(tier: Tier, tmp_path: Path) -> None:
    with owing(tier, tmp_path) as (site, writer):
        site.emulator.set_config({"max.message.bytes": "100"}, topic="others")
        assert refusal(writer).topic == "others"
        assert site.committed() == ["x" * 20]
        assert take_out(site.store.aside, "tid", 1, apply=True).changed
        write_value(writer, "later")
        assert (site.committed(), site.committed("others")) == (["x" * 20, "later"], [])


@pytest.mark.parametrize("tier", list(Tier))
def test_no_block_is_blamed_for_what_is_owed(tier: Tier, tmp_path: Path) -> None:
    with owing(tier, tmp_path) as (site, writer):
        site.emulator.set_config({"max.message.bytes": "70"}, topic="orders")
        for _ in range(2):
            with pytest.raises(OwedRecordsRefusedError, match="for orders-0 were refused"):
                writer.recover()
            assert writer.coordinator.refused[:3] == ("tid", 0, "orders")
        site.emulator.set_config({"max.message.bytes": None}, topic="orders")
        assert [found.outcome for found in writer.recover()] == [Outcome.REPAIRED]
        assert (site.committed(), site.committed("others")) == (["x" * 20], ["y" * 200])
