"""Group commit on brokers that abort what stays prepared: what could not be repaired is refused, alone if possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.client.admin.results import TopicDescription
from dualwrite.errors import KafkaTimeoutError, UnsupportedByBrokerError
from dualwrite.guarantee import Tier, guarantee_of
from dualwrite.producer import ConsumerGroupMetadata, TopicPartition
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction as Tx
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriterPool
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import AwaitedPsycopgScenario, awaited_psycopg_scenario
from tests.crash.test_group_commit import Unit, Writer, in_order, with_groups
from tests.producer.test_tiers import TIERS
from tests.recipes.pools import written
from tests.support.databases import PostgresDatabase, unique

BOUNDED = (Tier.BOUNDED, Tier.BOUNDED_V1)
COMPACTED = "compacted"
NUMBERS = list(range(1, 6))
BAD = 3


async def send_to_compacted(tx: Tx) -> None:
    tx.send(COMPACTED, key="k", value="refused")


async def send_offsets(tx: Tx) -> None:
    tx.send_offsets({TopicPartition("inputs", 0): 1}, ConsumerGroupMetadata("readers"))


BADLY: dict[str, Unit] = {"compacted topic": send_to_compacted, "consumed offsets": send_offsets}


def scenario_on(tier: Tier, server: PostgresServer) -> Iterator[AwaitedPsycopgScenario]:
    database = PostgresDatabase(server)
    with Emulator(config=TIERS[tier], topics={COMPACTED: 1, "inputs": 1}) as emulator:
        emulator.set_config({"cleanup.policy": "compact"}, topic=COMPACTED)
        with awaited_psycopg_scenario(database, emulator) as made:
            made.transactional_id = f"{unique('group')}-0"
            yield made
    database.close()


@pytest.fixture(params=BOUNDED, ids=[f"tier {tier}" for tier in BOUNDED])
def scenario(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[AwaitedPsycopgScenario]:
    """On brokers that abort what stays prepared."""
    yield from scenario_on(request.param, postgres_server)


def failed(ended: Collection[Tx | BaseException]) -> list[int]:
    """Return the places of those that failed, all for the same reason."""
    assert all(isinstance(each, Tx | UnsupportedByBrokerError) for each in ended), ended
    return [number for number, each in enumerate(ended, start=1) if isinstance(each, BaseException)]


@pytest.mark.parametrize("badly", BADLY)
def test_it_is_refused_alone(scenario: AwaitedPsycopgScenario, badly: str) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        await writer.write(0)
        for first, bad in ((1, BAD), (11, 11)):  # also where it is the first of its group
            numbers = list(range(first, first + 5))
            ended = await writer.together(numbers, {bad: BADLY[badly]})
            assert failed(ended) == [bad - first + 1]

    with_groups(scenario, use)
    expected = ["0", "1", "2", "4", "5", "12", "13", "14", "15"]
    assert written(scenario) == set(expected)
    assert in_order(scenario) == expected
    scenario.assert_nothing_open()


@pytest.mark.parametrize("badly", BADLY)
def test_before_the_first_commit_the_group_is_refused(scenario: AwaitedPsycopgScenario, badly: str) -> None:
    """What the brokers are is known only to a producer that has its transactional id."""

    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        assert failed(await writer.together(NUMBERS, {BAD: BADLY[badly]})) == NUMBERS
        assert failed(await writer.together(NUMBERS, {BAD: BADLY[badly]})) == [BAD]

    with_groups(scenario, use)
    assert written(scenario) == {"1", "2", "4", "5"}


def test_a_topic_that_was_mended_is_used(scenario: AwaitedPsycopgScenario) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        await writer.write(0)
        assert failed(await writer.together(NUMBERS, {BAD: send_to_compacted})) == [BAD]
        scenario.emulator.set_config({"cleanup.policy": "delete"}, topic=COMPACTED)
        assert failed(await writer.together([11, 12, 13], {12: send_to_compacted})) == []

    with_groups(scenario, use)
    assert written(scenario) == {"0", "1", "2", "4", "5", "11", "12", "13"}


@pytest.mark.parametrize("settings", [{"accept_bounded_guarantee": True}, {"redo": "database"}])
def test_what_is_accepted_or_copied_is_not_refused(scenario: AwaitedPsycopgScenario, settings: dict[str, Any]) -> None:
    async def use(pool: AsyncPsycopgDualWriterPool) -> None:
        writer = Writer(scenario, pool)
        await writer.write(0)
        assert failed(await writer.together(NUMBERS, {BAD: send_to_compacted})) == []

    with_groups(scenario, use, **settings)
    assert written(scenario) == {"0", "1", "2", "3", "4", "5"}


@pytest.mark.parametrize("tier", [Tier.KEEP_PREPARED, Tier.STORED_PAIR])
def test_without_a_bound_nothing_is_refused(postgres_server: PostgresServer, tier: Tier) -> None:
    for scenario in scenario_on(tier, postgres_server):

        async def use(pool: AsyncPsycopgDualWriterPool, writes_to: AwaitedPsycopgScenario = scenario) -> None:
            writer = Writer(writes_to, pool)
            await writer.write(0)
            for first, unit in zip((1, 11), BADLY.values(), strict=True):
                numbers = list(range(first, first + 5))
                assert failed(await writer.together(numbers, {first + 2: unit})) == []

        with_groups(scenario, use)


# ---- the check by itself --------------------------------------------------------------------------------------------


def buffer_of(*topics: str) -> RecordBuffer:
    records = RecordBuffer()
    for topic in topics:
        records.send(topic, b"value")
    return records


def looked_up(found: Mapping[str, TopicDescription]) -> Callable[[Collection[str]], Any]:
    async def look_up(topics: Collection[str]) -> Mapping[str, TopicDescription]:
        return {topic: found[topic] for topic in topics}

    return look_up


async def no_response(topics: Collection[str]) -> Mapping[str, TopicDescription]:
    raise KafkaTimeoutError("no broker has responded")


READABLE = TopicDescription(is_readable=True, cleanup_policy="delete")
FORBIDDEN = TopicDescription(is_readable=False, cleanup_policy="delete")
UNSEEN = TopicDescription()


@pytest.mark.parametrize(
    ("found", "is_refused"),
    [
        ({"a": READABLE, "b": READABLE}, False),
        ({"a": READABLE, "b": FORBIDDEN}, True),
        ({"a": READABLE, "b": UNSEEN}, False),
    ],
)
def test_an_early_check_refuses_what_is_known(found: dict[str, TopicDescription], is_refused: bool) -> None:
    checks = Repairability()
    checks.bounded = guarantee_of(Tier.BOUNDED, 60_000)
    check = checks.check_early(buffer_of("a", "b"), looked_up(found))
    if is_refused:
        with pytest.raises(UnsupportedByBrokerError, match="'b'"):
            asyncio.run(check)
    else:
        asyncio.run(check)


def test_an_early_check_without_a_response_leaves_it_to_the_commit() -> None:
    checks = Repairability()
    checks.bounded = guarantee_of(Tier.BOUNDED, 60_000)
    asyncio.run(checks.check_early(buffer_of("a"), no_response))
    with pytest.raises(UnsupportedByBrokerError):
        asyncio.run(checks.check_early(buffer_of("a"), looked_up({"a": FORBIDDEN})))


def test_before_the_first_commit_nothing_is_looked_up() -> None:
    asyncio.run(Repairability().check_early(buffer_of("a"), no_response))
