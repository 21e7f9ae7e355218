"""Blocks of an outbox that Kafka refuses for good: they are named, the others wait in order, and a person ends that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Acl, AclFilter, AclOperation, Emulator, ResourceType
from dualwrite.delivery import Outbox
from dualwrite.errors import AbortableError, RowLockTimeoutError, StateRowError, StoredBlockRefusedError
from dualwrite.guarantee import Tier
from dualwrite.partitioners import consistent_partition
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.stored_blocks import why_refused
from dualwrite.recipes.recovery.plan import Action
from dualwrite.recipes.recovery.taking_out import TakenOut, take_out
from tests.crash.scenario import AnyScenario, AtPoint
from tests.crash.styles import Style
from tests.producer.tiers import TIERS
from tests.recipes.outboxes import any_style as any_style
from tests.recipes.outboxes import elsewhere, outbox_pool, waiting
from tests.recipes.outboxes import open_any_style as open_style
from tests.recipes.outboxes import scenario_anywhere as scenario
from tests.recipes.pools import put
from tests.recipes.test_repair_evidence import ALLOWED
from tests.recovery.world import service
from tests.support.conditions import until
from tests.support.databases import Database
from tests.support.topics import delete_topic, read_log, read_topic

__all__ = ["open_style", "scenario"]  # fixtures

REFUSING: Final = "refusing"
"""The topic that refuses; other blocks go to the scenario's own."""

IMPATIENT: Final = {"max_block_ms": 4_000, "retry_backoff_ms": 20}
"""For a missing topic, which is awaited for as long."""


@dataclass(frozen=True)
class Cause:
    """A cause of Kafka's refusal of the topic's records, how it is brought about, and how it is corrected."""

    begin: Callable[[Emulator], object]
    end: Callable[[Emulator], object]
    why: str
    settings: Mapping[str, Any] = field(default_factory=lambda: {"retry_backoff_ms": 20})


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
        lambda emulator: delete_topic(emulator, REFUSING),
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


def store(scenario: AnyScenario, *topics: str, **settings: Any) -> list[int]:
    """Add one block for each topic, numbered from 1, to the outbox. Return their numbers there."""
    with outbox_pool(scenario, Outbox(publishes=False), **settings) as pool:
        for number, topic in enumerate(topics, start=1):
            own, scenario.topic = scenario.topic, topic
            with pool.transaction() as tx:
                put(tx, scenario, number)
            scenario.topic = own
    return numbers_waiting(scenario)


def numbers_waiting(scenario: AnyScenario) -> list[int]:
    query = "SELECT seq FROM kafka_transaction_outbox WHERE seq > 0 AND transactional_id = :id ORDER BY seq"
    with scenario.database.aside.connect() as connection:
        return list(connection.scalars(sa.text(query), {"id": scenario.transactional_id}))


def values(scenario: AnyScenario, topic: str) -> list[str]:
    return [str(value) for _, value in read_topic(scenario.emulator.bootstrap_servers, topic)]


def refusal(pool: Any) -> StoredBlockRefusedError:
    with pytest.raises(StoredBlockRefusedError) as raised:
        pool.recover()
    return raised.value


def test_the_reported_reason_is_the_refusal_and_not_the_failed_transaction() -> None:
    refusal = AbortableError("batch of 1 records: MESSAGE_TOO_LARGE", error_code=10)
    later = refusal.reworded("send(): the producer is in a transaction that failed; call abort_transaction()")
    later.__cause__ = refusal
    assert why_refused(later) == why_refused(refusal) == "batch of 1 records: MESSAGE_TOO_LARGE"


@pytest.mark.parametrize("cause", list(CAUSES))
def test_a_refused_block_is_named_and_later_blocks_wait_in_order(
    scenario: AnyScenario, open_style: Callable[..., Style], emulator: Emulator, cause: str
) -> None:
    _, second, _third = store(scenario, scenario.topic, REFUSING, scenario.topic)
    CAUSES[cause].begin(emulator)
    style = open_style(**CAUSES[cause].settings)
    for _ in range(2):
        error = refusal(style)
        assert (error.transactional_id, error.seq, error.topic) == (scenario.transactional_id, second, REFUSING)
        assert CAUSES[cause].why in error.why
        assert f"--take-out {scenario.transactional_id}:{second} --apply" in str(error)
    assert [each[:3] for each in style.pool.status.refused] == [(scenario.transactional_id, second, REFUSING)]
    assert values(scenario, scenario.topic) == ["1"]
    style.write(4)
    assert waiting(scenario) == 3
    CAUSES[cause].end(emulator)
    style.recover()
    assert style.pool.status.refused == ()
    style.write(5)
    until(lambda: values(scenario, scenario.topic) == ["1", "3", "4", "5"])
    if cause != "missing":
        assert values(scenario, REFUSING) == ["2"]


def test_a_refused_block_is_taken_out_and_the_rest_is_published(
    scenario: AnyScenario, open_style: Callable[..., Style], emulator: Emulator
) -> None:
    engine, of = scenario.database.aside, scenario.transactional_id
    first, second = store(scenario, REFUSING, scenario.topic)
    forbid(emulator)
    style = open_style()
    assert refusal(style).seq == first
    for seq in (second, second + 7):
        with pytest.raises(StateRowError, match=f"the oldest one is {first}"):
            take_out(engine, of, seq, apply=True)
    assert not take_out(engine, of, first).changed
    assert waiting(scenario) == 2
    taken = take_out(engine, of, first, apply=True)
    assert (taken.changed, [(each.topic, each.value) for each in taken.records]) == (True, [(REFUSING, b"1")])
    style.recover()
    style.write(3)
    until(lambda: values(scenario, scenario.topic) == ["2", "3"])
    until(lambda: waiting(scenario) == 0)
    with pytest.raises(StateRowError, match="none is stored"):
        take_out(engine, of, first)
    allow(emulator)
    assert values(scenario, REFUSING) == []


# ---- on SQLite alone: nothing here is about the database -------------------------------------------------------------


@pytest.fixture
def outbox(sqlite: Database, emulator: Emulator) -> AnyScenario:
    return elsewhere(sqlite, emulator)


def test_blocks_that_are_too_large_only_together_are_published(outbox: AnyScenario, emulator: Emulator) -> None:
    """A batch has records of several blocks; each block by itself fits."""
    emulator.set_config({"max.message.bytes": "120"}, topic=REFUSING)
    store(outbox, *[REFUSING] * 14)
    with service(outbox) as recovery:
        assert [(found.action, found.changed) for found in recovery.recover().found] == [(Action.PUBLISH, True)]
    assert waiting(outbox) == 0
    assert values(outbox, REFUSING) == [str(number) for number in range(1, 15)]


def test_a_missing_topic_is_waited_for_once_and_without_the_lock(
    outbox: AnyScenario, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    async def noting(self: Any, topics: Collection[str], beside: Collection[str]) -> Any:
        oldest = numbers_waiting(outbox)[0]
        take_out(outbox.database.aside, outbox.transactional_id, oldest)  # which locks the row, and changes nothing
        seen.append((oldest, *topics, *beside))
        return await learn(self, topics, beside)

    numbers = store(outbox, outbox.topic, outbox.topic, REFUSING, "missing-too", outbox.topic)
    CAUSES["missing"].begin(emulator)
    with outbox_pool(outbox, None, **IMPATIENT) as pool:
        publisher = pool.pool.outbox
        participant = type(publisher._new_coordinator(None).owned.kafka)
        learn = participant.learn_topics
        monkeypatch.setattr(participant, "learn_topics", noting)
        for _ in range(2):
            assert refusal(pool).seq == numbers[2]
            assert values(outbox, outbox.topic) == ["1", "2"]
    assert seen[0] == (numbers[0], outbox.topic, REFUSING, "missing-too")
    assert seen[1:] == [(numbers[2], REFUSING, "missing-too", outbox.topic)]


# ---- published by a process with other settings ---------------------------------------------------------------------

KEYS: Final = [f"k{number}" for number in range(20)]


def store_keys(outbox: AnyScenario, partitioner: Any) -> None:
    """Store one block with a record for each key, for a topic of 16 partitions."""
    outbox.emulator.create_topic("wide", 16)
    with outbox_pool(outbox, Outbox(publishes=False), partitioner=partitioner) as pool:
        with pool.transaction() as tx:
            for key in KEYS:
                tx.send("wide", key=key, value=key)


def partitions_of_keys(outbox: AnyScenario) -> dict[str, str]:
    return {each.key: each.partition for each in read_log(outbox.emulator.bootstrap_servers, "wide")}


def test_another_process_publishes_with_the_partitioner_of_the_block(outbox: AnyScenario) -> None:
    """The other process has another partitioner, and a max_request_size that is too small."""
    store_keys(outbox, "consistent_random")
    with service(outbox, max_request_size=50) as recovery:
        assert recovery.recover().is_clean
    assert partitions_of_keys(outbox) == {key: f"wide-{consistent_partition(key.encode(), 16)}" for key in KEYS}


def by_number(_topic: str, key: bytes | None, _value: bytes | None, count: int) -> int:
    return int((key or b"")[1:]) % count


def test_a_function_chooses_the_partitions(outbox: AnyScenario) -> None:
    store_keys(outbox, by_number)
    with service(outbox) as without:
        (found,) = without.recover().found
        assert (found.action, found.changed) == (Action.REFUSED, False)
        assert "partitioner='tests.recipes.test_refused_blocks:by_number'" in str(found.error)
    with service(outbox, partitioner="tests.recipes.test_refused_blocks:by_number") as recovery:
        assert recovery.recover().is_clean
    assert partitions_of_keys(outbox) == {key: f"wide-{int(key[1:]) % 16}" for key in KEYS}


def fails(_topic: str, _key: bytes | None, _value: bytes | None, _count: int) -> int:
    raise RuntimeError("no such customer")


def test_the_function_fails(outbox: AnyScenario) -> None:
    store_keys(outbox, fails)
    with service(outbox, partitioner=fails) as recovery:
        (found,) = recovery.recover().found
        assert (found.action, found.changed) == (Action.REFUSED, False)
        assert "no such customer" in str(found.error)
    assert waiting(outbox) == 1


# ---- a person and processes at the same time ------------------------------------------------------------------------


def test_a_refused_block_is_not_taken_out_while_a_process_publishes(outbox: AnyScenario) -> None:
    (first,) = store(outbox, REFUSING)

    def take_it_out() -> None:
        with pytest.raises(RowLockTimeoutError):
            take_out(outbox.database.aside, outbox.transactional_id, first, apply=True, lock_timeout_ms=100)

    during = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, take_it_out)
    with outbox_pool(outbox, pause=during) as pool:
        pool.recover()
    assert during.struck
    assert (values(outbox, REFUSING), waiting(outbox)) == (["1"], 0)


def test_taking_a_block_out_waits_for_the_process_that_publishes(outbox: AnyScenario) -> None:
    (first,) = store(outbox, REFUSING)
    taking_out: list[Future[TakenOut]] = []
    timeouts_ms: list[int] = []

    @sa.event.listens_for(outbox.database.aside, "before_cursor_execute")
    def note_timeout(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("PRAGMA busy_timeout ="):
            timeouts_ms.append(int(statement.rpartition(" ")[2]))

    with ThreadPoolExecutor(1) as aside:

        def hold_the_row() -> None:
            taking_out.append(aside.submit(take_out, outbox.database.aside, outbox.transactional_id, first, apply=True))
            until(lambda: bool(timeouts_ms))
            assert timeouts_ms[0] > 1_000, "a round of recovery leaves such a row after 0.1 s"
            assert not taking_out[0].done()

        with outbox_pool(outbox, pause=AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, hold_the_row)) as pool:
            pool.recover()
        with pytest.raises(StateRowError, match="none is stored"):
            taking_out[0].result(60)
    assert (values(outbox, REFUSING), waiting(outbox)) == (["1"], 0)


def test_nothing_is_taken_out_if_its_records_cannot_be_kept(outbox: AnyScenario) -> None:
    def fail(_: object) -> None:
        raise OSError("the disk is full")

    (first,) = store(outbox, REFUSING)
    with pytest.raises(OSError, match="the disk is full"):
        take_out(outbox.database.aside, outbox.transactional_id, first, apply=True, keep=fail)
    assert waiting(outbox) == 1


@pytest.mark.parametrize("tier", [tier for tier in Tier if tier is not Tier.KEEP_PREPARED])
@pytest.mark.parametrize("cause", list(CAUSES))
def test_refused_blocks_on_other_tiers(tier: Tier, cause: str, sqlite: Database) -> None:
    with broker(tier) as emulator:
        outbox = elsewhere(sqlite, emulator)
        _, second, _ = store(outbox, outbox.topic, REFUSING, outbox.topic)
        CAUSES[cause].begin(emulator)
        with outbox_pool(outbox, **CAUSES[cause].settings) as pool:
            error = refusal(pool)
            assert (error.seq, error.topic, CAUSES[cause].why in error.why) == (second, REFUSING, True)
            take_out(sqlite.aside, outbox.transactional_id, second, apply=True)
            pool.recover()
            assert values(outbox, outbox.topic) == ["1", "3"]
