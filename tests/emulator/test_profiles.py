"""The table of profiles, and the profiles of KIP-939's open pull requests on the wire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.broker_emulator.profiles import PULL_REQUESTS, behaviours_of, rows
from tests.emulator.api.raw_client import RawClient
from tests.interop.wire import Code, Identity, Wire

PACKAGE = Path(__file__).parents[2] / "dualwrite" / "broker_emulator"
LAST = 32766
"""The last epoch that a transaction can be opened with."""
INVALID_REQUEST = 42
NO_PAIR = (-1, -1)

# --- the table --------------------------------------------------------------------------------------------------------


def test_each_row_has_a_value_in_each_profile_and_a_source() -> None:
    for name, row in rows():
        assert row.values.keys() == set(Profile), name
        assert len(set(row.values.values())) > 1, f"{name} is the same in all profiles"
        assert row.what, name
        assert row.source, name


@pytest.mark.parametrize("profile", PULL_REQUESTS)
def test_a_pull_request_differs_from_the_release_only_where_its_row_names_the_difference(profile: Profile) -> None:
    number = f"#{profile.rpartition('-')[2]}"
    for name, row in rows():
        assert row.values[profile] == row.values[Profile.KAFKA_4_4] or number in row.source, name


def test_the_rules_of_4_3_differ_from_4_4_in_one() -> None:
    """So tests of one profile hold in the other."""
    rules = replace(behaviours_of(Profile.KAFKA_4_3), malformed_subscriptions_are_refused=True)  # KAFKA-20662
    assert rules == behaviours_of(Profile.KAFKA_4_4)


def test_only_the_tables_name_profiles() -> None:
    allowed = {"profiles.py", "config.py", "api/registry.py"}
    naming = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if re.search(r"\bProfile\.", path.read_text())
    }
    assert naming <= allowed


# --- the pull requests ------------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """The response to InitProducerId: error, the client's pair, and that of the open transaction."""

    error: int
    client: tuple[int, int]
    ongoing: tuple[int, int]


class World(NamedTuple):
    """An emulator with topic "t", in one profile."""

    emulator: Emulator
    client: RawClient
    wire: Wire

    def init(self, *, keep: bool = True, enable_2pc: bool = True, **changes: Any) -> Kept:
        asked = {"enable2_pc": enable_2pc, "keep_prepared_txn": keep, **changes}
        answer = self.client.init_producer_id("x", **asked)
        return Kept(
            int(answer.error_code),
            (answer.producer_id, answer.producer_epoch),
            (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch),
        )

    def open(self, epoch: int, *, enable_2pc: bool = True) -> tuple[int, int]:
        """The pair of an open transaction, at this epoch."""
        self.emulator.set_next_producer_epoch(epoch, transactional_id="x")
        initialised = self.init(keep=False, enable_2pc=enable_2pc)
        assert initialised.error == Code.NONE
        assert initialised.client[1] == epoch
        assert self.wire.produce("x", Identity(*initialised.client), "t", 0).error == Code.NONE
        return initialised.client

    def commit(self, pair: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        answer = self.wire.end_settled("x", Identity(*pair), commit=True)
        return int(answer.error), (answer.identity.producer_id, answer.identity.producer_epoch)


def running(profile: Profile, **settings: Any) -> Iterator[World]:
    config = BrokerConfig(profile=profile, unstable_api_versions_enable=True, **settings)
    with Emulator(config=config, topics={"t": 1}) as emulator:
        with RawClient(emulator.bootstrap_servers) as client, Wire(emulator.bootstrap_servers) as wire:
            yield World(emulator, client, wire)


@pytest.fixture
def pr_21735() -> Iterator[World]:
    yield from running(Profile.KIP_939_PR_21735)


@pytest.fixture
def pr_22704() -> Iterator[World]:
    yield from running(Profile.KIP_939_PR_22704)


@pytest.mark.parametrize("profile", PULL_REQUESTS)
def test_version_6_is_unstable(profile: Profile) -> None:
    with Emulator(config=BrokerConfig(profile=profile)) as emulator, Wire(emulator.bootstrap_servers) as wire:
        assert {api.api_key: api.max_version for api in wire.api_versions().api_keys}[22] == 5


@pytest.mark.parametrize("profile", PULL_REQUESTS)
def test_nothing_is_open(profile: Profile) -> None:
    for world in running(profile):
        first = world.init()
        assert (first.error, first.ongoing) == (Code.NONE, NO_PAIR)
        assert world.init() == (Code.NONE, (first.client[0], first.client[1] + 1), NO_PAIR)


@pytest.mark.parametrize("profile", PULL_REQUESTS)
def test_two_phase_commit_is_allowed_by_the_broker(profile: Profile) -> None:
    for world in running(profile, transaction_two_phase_commit_enable=False):
        assert world.init(keep=False).error == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_21735_bumps_the_client_and_completes_beyond_it(pr_21735: World) -> None:
    producer_id, epoch = ongoing = pr_21735.open(7)
    assert pr_21735.init() == (Code.NONE, (producer_id, epoch + 1), ongoing)
    assert pr_21735.init(enable_2pc=False) == (Code.NONE, (producer_id, epoch + 2), ongoing)
    assert pr_21735.commit(ongoing)[0] == Code.PRODUCER_FENCED
    assert pr_21735.commit((producer_id, epoch + 1))[0] == Code.PRODUCER_FENCED
    ended = (Code.NONE, (producer_id, epoch + 3))
    assert pr_21735.commit((producer_id, epoch + 2)) == ended
    assert pr_21735.commit((producer_id, epoch + 2)) == ended, "a retry"


def test_21735_refuses_an_expected_pair(pr_21735: World) -> None:
    producer_id, epoch = pr_21735.open(7)
    assert pr_21735.init(producer_id=producer_id, producer_epoch=epoch).error == INVALID_REQUEST


def test_21735_refuses_to_keep_below_transaction_version_2(pr_21735: World) -> None:
    pr_21735.emulator.set_transaction_version(1)
    assert pr_21735.init().error == Code.UNSUPPORTED_VERSION


def test_21735_gives_no_client_the_last_epoch(pr_21735: World) -> None:
    """By its tests: 32764, kept at 32765 and 32766, and replaced when it ends; 32765 is replaced one step before."""
    producer_id, _ = ongoing = pr_21735.open(LAST - 2)
    assert pr_21735.init().client == (producer_id, LAST - 1)
    assert pr_21735.init() == (Code.NONE, (producer_id, LAST), ongoing)
    error, (next_id, next_epoch) = pr_21735.commit((producer_id, LAST))
    assert (error, next_epoch) == (Code.NONE, 0)
    assert next_id != producer_id


def test_21735_replaces_the_producer_id_of_a_client_at_the_last_epoch(pr_21735: World) -> None:
    producer_id, _ = ongoing = pr_21735.open(LAST - 1)
    assert pr_21735.init().client == (producer_id, LAST)
    error, (second_id, second_epoch), told = pr_21735.init()
    assert (error, second_epoch, told) == (Code.NONE, 0, ongoing)
    assert second_id != producer_id
    assert pr_21735.commit((second_id, 0)) == (Code.NONE, (second_id, 1))


def test_21735_survives_a_failover(pr_21735: World) -> None:
    """The second pair is in the log, the epoch before the last bump is not."""
    producer_id, epoch = ongoing = pr_21735.open(7)
    assert pr_21735.init().client == (producer_id, epoch + 1)
    pr_21735.emulator.stop_node(0)
    pr_21735.emulator.start_node(0)
    with RawClient(pr_21735.emulator.bootstrap_servers) as client, Wire(pr_21735.emulator.bootstrap_servers) as wire:
        wire.wait_for_coordinator("x")
        world = World(pr_21735.emulator, client, wire)
        assert world.init() == (Code.NONE, (producer_id, epoch + 2), ongoing)
        assert world.commit((producer_id, epoch + 2)) == (Code.NONE, (producer_id, epoch + 3))


def test_22704_gives_the_pair_of_the_transaction(pr_22704: World) -> None:
    ongoing = pr_22704.open(7)
    assert pr_22704.init() == (Code.NONE, ongoing, ongoing)
    assert pr_22704.init() == (Code.NONE, ongoing, ongoing), "nothing was bumped"
    ended = (Code.NONE, (ongoing[0], ongoing[1] + 1))
    assert pr_22704.commit((ongoing[0], ongoing[1])) == ended


def test_22704_writes_nothing(pr_22704: World) -> None:
    pr_22704.open(7)

    def records() -> int:
        cluster = pr_22704.emulator.cluster
        partitions = cluster.topics["__transaction_state"].partitions
        return pr_22704.emulator.call_in_loop(lambda: sum(partition.log.log_end_offset for partition in partitions))

    before = records()
    assert pr_22704.init().error == Code.NONE
    assert records() == before


def test_22704_keeps_only_two_phase_commit(pr_22704: World) -> None:
    """Without Enable2Pc it is an invalid request; a transaction that has a timeout is aborted."""
    assert pr_22704.init(enable_2pc=False).error == INVALID_REQUEST
    pr_22704.open(7, enable_2pc=False)
    assert pr_22704.init().error == Code.CONCURRENT_TRANSACTIONS
    assert pr_22704.wire.wait_until_settled("x").state == "CompleteAbort"


# --- Redpanda ---------------------------------------------------------------------------------------------------------


def test_redpanda_fences_a_producer_after_its_transaction_is_aborted() -> None:
    for _, _, wire in running(Profile.REDPANDA):
        older = wire.init_ok("x", version=3)
        assert wire.describe("x").started, "it says when the id has changed"
        assert wire.add("x", older, ("t", 0)) == [Code.NONE]
        assert wire.init("x", version=3).error == Code.CONCURRENT_TRANSACTIONS
        aborted = wire.wait_until_settled("x")
        assert (aborted.state, aborted.identity) == ("CompleteAbort", older)
        assert wire.init_ok("x", version=3) == older.bumped()
        assert wire.end("x", older, commit=True, version=3).error == Code.INVALID_PRODUCER_EPOCH
        assert wire.add("x", older, ("t", 0)) == [Code.INVALID_PRODUCER_EPOCH]
