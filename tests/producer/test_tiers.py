"""The four tiers against the emulator: detection, and the fate of prepared transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from dualwrite.broker_emulator import BrokerConfig, Profile
from dualwrite.errors import (
    AbortableError,
    DeliveryError,
    FencedError,
    IllegalStateError,
    InvalidTxnStateError,
    KafkaTimeoutError,
    PreparedTransactionLost,
    UnsupportedByBrokerError,
)
from dualwrite.guarantee import Tier
from dualwrite.participant import ParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer, ProducerState, TopicPartition
from tests.interop.wire import Wire
from tests.producer.tiers import (
    BOUNDED,
    LONG_AFTER_MS,
    TIERS,
    World,
    bounded,
    by_stored_pair,
    every_tier,
    on,
    world_of,
)
from tests.producer.tiers import world as world
from tests.support.conditions import until
from tests.support.narrowing import current

# ---- detection ----------------------------------------------------------------------------------------------------


KIP_939_AT_V1: Final = BrokerConfig(transaction_version=1)
UNSTABLE_WITHOUT_2PC: Final = BrokerConfig(
    profile=Profile.KAFKA_4_3, unstable_api_versions_enable=True, transaction_two_phase_commit_enable=False
)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("config", "tier", "words"),
    [
        (TIERS[Tier.KEEP_PREPARED], Tier.KEEP_PREPARED, "without a timeout"),
        (TIERS[Tier.STORED_PAIR], Tier.STORED_PAIR, "hold the lock of the stored pair"),
        (TIERS[Tier.BOUNDED], Tier.BOUNDED, "aborts a prepared transaction 900000 ms after its first record"),
        (UNSTABLE_WITHOUT_2PC, Tier.BOUNDED, "aborts a prepared transaction 900000 ms"),
        (TIERS[Tier.BOUNDED_V1], Tier.BOUNDED_V1, "preceded by InitProducerId"),
        (KIP_939_AT_V1, Tier.BOUNDED_V1, "PreparedTransactionLost"),
    ],
)
def test_the_guarantee_is_detected_and_described(config: BrokerConfig, tier: Tier, words: str, keep: bool) -> None:
    with world_of(tier, config) as world:
        producer = world.producer()
        with pytest.raises(IllegalStateError, match=r"known after init_transactions\(\)"):
            _ = producer.guarantee
        producer.init_transactions(keep_prepared_txn=keep)
        assert producer.guarantee.tier is tier
        assert words in producer.guarantee.sentence
        assert producer.guarantee.bounded_ms == (None if tier <= Tier.STORED_PAIR else 900_000)


@bounded
def test_the_bound_may_be_chosen(world: World) -> None:
    producer = world.ready(transaction_timeout_ms=5_000)
    assert producer.guarantee.bounded_ms == 5_000
    assert "5000 ms" in producer.guarantee.sentence
    (transaction,) = world.emulator.transactions()
    assert transaction.timeout_ms == 5_000


@every_tier
def test_without_two_phase_commit_prepared_transactions_have_no_guarantee(world: World) -> None:
    producer = world.ready(transaction_two_phase_commit_enable=False, accept_bounded_guarantee=False)
    assert producer.guarantee.tier is None
    assert producer.guarantee.bounded_ms == 60_000


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            TIERS[Tier.BOUNDED],
            r"InitProducerId v6.*tier 3.*transaction\.timeout\.ms=900000.*accept\.bounded\.guarantee",
        ),
        (TIERS[Tier.BOUNDED_V1], r"transaction\.version=0.*tier 4.*accept\.bounded\.guarantee"),
        (KIP_939_AT_V1, r"transaction\.version=1.*tier 4.*accept\.bounded\.guarantee"),
    ],
)
def test_a_bound_that_was_not_accepted_is_refused(config: BrokerConfig, words: str, keep: bool) -> None:
    with world_of(Tier.BOUNDED, config) as world:
        before = world.emulator.transactions()
        producer = world.producer(accept_bounded_guarantee=False)
        with pytest.raises(UnsupportedByBrokerError, match=words):
            producer.init_transactions(keep_prepared_txn=keep)
        assert world.emulator.transactions() == before


# ---- plain transactions -------------------------------------------------------------------------------------------


@every_tier
def test_transactions_with_offsets(world: World) -> None:
    producer = world.ready(transaction_two_phase_commit_enable=False, accept_bounded_guarantee=False)
    for number in range(3):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send("orders", f"{partition}-{number}", partition=partition)
        producer.send_offsets_to_transaction({TopicPartition("inputs", 0): number + 1}, "g")
        if number == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    assert world.committed() == ["0-0", "0-2", "1-0", "1-2"]
    with Wire(world.emulator.bootstrap_servers) as wire:
        wire.wait_for_coordinator("g", 0)
        assert wire.offset_fetch("g", "inputs", require_stable=True) == (0, 3)


@every_tier
def test_offsets_alone(world: World) -> None:
    producer = world.ready()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({TopicPartition("inputs", 0): 9}, "g")
    producer.complete_transaction(producer.prepare_transaction())
    world.settle()
    with Wire(world.emulator.bootstrap_servers) as wire:
        wire.wait_for_coordinator("g", 0)
        assert wire.offset_fetch("g", "inputs", require_stable=True) == (0, 9)


@every_tier
def test_a_transaction_without_records_costs_nothing(world: World) -> None:
    producer = world.ready()
    before = world.described()
    for _ in range(3):
        producer.begin_transaction()
        producer.commit_transaction()
        producer.begin_transaction()
        producer.complete_transaction(producer.prepare_transaction())
    assert world.described() == before
    assert world.commit(producer, "v")
    assert world.committed() == ["v"]


@every_tier
def test_the_same_process_prepares_and_completes(world: World) -> None:
    producer = world.ready()
    pairs = []
    for number in range(4):
        state = world.prepare(producer, str(number))
        pairs.append(state)
        assert producer.prepared_txn_state == state
        assert producer.transaction_has_records
        producer.complete_transaction(state if number % 2 else PreparedTxnState())
        assert producer.prepared_txn_state.is_empty
        assert not producer.transaction_has_records
    assert world.committed() == ["1", "3"]
    assert len(set(pairs)) == 4, "a pair names one transaction"


@every_tier
@pytest.mark.parametrize("ends", [Producer.commit_transaction, Producer.abort_transaction])
@pytest.mark.parametrize("two_phase", [True, False])
def test_a_producer_that_slept_aborts_nothing_of_its_successor(
    world: World, ends: Callable[[Producer], None], two_phase: bool
) -> None:
    def one() -> Producer:
        return world.ready(transaction_two_phase_commit_enable=two_phase)

    def send(producer: Producer, value: str) -> None:
        producer.begin_transaction()
        producer.send("orders", value, partition=0)

    sleeper = one()
    send(sleeper, "before")
    sleeper.flush()
    ends(sleeper)
    successor = one()
    send(successor, "of the successor")
    successor.flush()
    send(sleeper, "of the sleeper")
    with pytest.raises((AbortableError, FencedError)):
        sleeper.commit_transaction()
    successor.commit_transaction()
    before = ["before"] if ends is Producer.commit_transaction else []
    assert world.committed() == [*before, "of the successor"]


# ---- another process completes ------------------------------------------------------------------------------------


@every_tier
@pytest.mark.parametrize("decided", [True, False])
def test_another_process_completes_by_the_stored_state(world: World, decided: bool) -> None:
    old = world.commit(world.ready(), "old")
    state = world.prepare(world.ready(), "v")
    recovering = world.recovering()
    assert current(recovering.state) is ProducerState.PREPARED_TRANSACTION
    assert recovering.prepared_txn_state == state
    recovering.complete_transaction(state if decided else old)
    assert recovering.state is ProducerState.READY
    assert recovering.prepared_txn_state.is_empty
    world.commit(recovering, "after")
    assert world.committed() == (["old", "v", "after"] if decided else ["old", "after"])


@every_tier
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_that_was_found_can_be_ended_by_name(world: World, end: str) -> None:
    world.prepared()
    recovering = world.recovering()
    if end == "commit":
        recovering.commit_transaction()
    else:
        recovering.abort_transaction()
    assert recovering.state is ProducerState.READY
    world.commit(recovering, "after")
    assert world.committed() == (["v", "after"] if end == "commit" else ["after"])


@every_tier
def test_recoverers_may_crash_between_any_two_requests(world: World) -> None:
    state = world.prepared()
    for _ in range(3):
        assert world.recovering().prepared_txn_state == state
    world.recovering().complete_transaction(state)
    # crashed after completing and before storing: the same again
    for _ in range(3):
        again = world.recovering()
        assert again.state is ProducerState.READY
        again.complete_transaction(state)
    world.commit(again, "after")
    assert world.committed() == ["v", "after"]


@by_stored_pair
def test_a_recoverer_that_crashed_between_commit_and_takeover(world: World) -> None:
    state = world.prepared()
    with Wire(world.emulator.bootstrap_servers) as wire:
        version = 4 if world.tier is Tier.BOUNDED_V1 else 5
        identity = wire.describe("tid").identity
        assert wire.end("tid", identity, commit=True, version=version).error == 0
    recovering = world.recovering()
    recovering.complete_transaction(state)
    world.commit(recovering, "after")
    assert world.committed() == ["v", "after"]


@every_tier
def test_a_producer_without_keep_prepared_aborts_the_prepared_transaction(world: World) -> None:
    world.prepared()
    world.commit(world.ready(), "after")
    assert world.committed() == ["after"]


@every_tier
def test_beginning_without_completing_is_safe(world: World) -> None:
    state = world.commit(world.ready(), "before")
    recovering = world.recovering()
    recovering.begin_transaction()
    recovering.commit_transaction()
    world.commit(recovering, "after")
    later = world.recovering()
    later.complete_transaction(state)
    world.commit(later, "last")
    assert world.committed() == ["before", "after", "last"]


@every_tier
def test_a_second_initialisation_is_refused(world: World) -> None:
    producer = world.recovering()
    with pytest.raises(IllegalStateError):
        producer.init_transactions(keep_prepared_txn=True)
    producer.complete_transaction(PreparedTxnState())
    producer.complete_transaction(PreparedTxnState())
    world.commit(producer, "v")
    with pytest.raises(InvalidTxnStateError, match="nothing is prepared"):
        producer.complete_transaction(PreparedTxnState())
    assert world.committed() == ["v"]


@every_tier
def test_two_recoverers_at_once(world: World) -> None:
    state = world.prepared()
    first, second = world.recovering(), world.recovering()
    second.complete_transaction(state)
    with pytest.raises(FencedError):
        first.complete_transaction(state)  # the producer cannot see the outcome, and says so
    world.commit(second, "after")
    assert world.committed() == ["v", "after"]


@by_stored_pair
def test_a_recoverer_that_slept_aborts_nothing_of_its_successor(world: World) -> None:
    """The recoverer decided by the transaction that it found; its successor's may be decided already."""
    old = world.commit(world.ready(), "old")
    slow = world.recovering()
    state = world.prepare(world.recovering(), "decided elsewhere")
    with pytest.raises(FencedError, match="has changed since"):
        slow.complete_transaction(old)
    begun_late = world.recovering()
    begun_late.complete_transaction(state)
    assert world.committed() == ["old", "decided elsewhere"]


@by_stored_pair
def test_a_lazy_beginner_aborts_nothing_of_its_successor(world: World) -> None:
    slow = world.recovering()
    state = world.prepare(world.recovering(), "decided elsewhere")
    slow.begin_transaction()
    slow.send("orders", "late", partition=0)
    with pytest.raises(FencedError, match="another producer has taken the id over"):
        slow.commit_transaction()
    world.recovering().complete_transaction(state)
    assert world.committed() == ["decided elsewhere"]


@every_tier
def test_a_zombie_is_fenced(world: World) -> None:
    zombie = world.ready()
    state = world.prepare(zombie)
    recovering = world.recovering()
    recovering.complete_transaction(PreparedTxnState())
    with pytest.raises(FencedError):
        zombie.complete_transaction(state)
    assert zombie.state is ProducerState.FATAL_ERROR
    with pytest.raises(FencedError):
        zombie.begin_transaction()
    world.commit(recovering, "after")
    assert world.committed() == ["after"]


@every_tier
def test_closing_says_how_long_a_prepared_transaction_lasts(world: World, caplog: pytest.LogCaptureFixture) -> None:
    producer = world.ready()
    world.prepare(producer)
    producer.close()
    assert "it stays in doubt until" in caplog.text
    assert ("no longer than 900000 ms" in caplog.text) is (world.tier in BOUNDED)


# ---- lost ---------------------------------------------------------------------------------------------------------


def facts(error: PreparedTransactionLost) -> tuple[str, str, str, int, int]:
    return (
        error.transactional_id,
        error.prepared_state,
        error.described_state,
        error.described_producer_id,
        error.described_producer_epoch,
    )


@bounded
def test_a_transaction_aborted_by_the_broker_is_lost_and_stays_lost(world: World) -> None:
    state = world.prepared()
    world.abort_by_timeout()
    for _ in range(3):
        recovering = world.recovering()
        with pytest.raises(PreparedTransactionLost, match=r"CompleteAbort.*continue with init_transactions") as raised:
            recovering.complete_transaction(state)
        assert facts(raised.value) == ("tid", str(state), "CompleteAbort", state.producer_id, state.producer_epoch + 1)
        assert raised.value.described_start_ms > 0
        assert recovering.state is ProducerState.UNINITIALIZED
    recovering.init_transactions()
    world.commit(recovering, "after")
    assert world.committed() == ["after"]


@bounded
def test_the_living_owner_gets_the_loss(world: World) -> None:
    producer = world.ready()
    state = world.prepare(producer)
    world.abort_by_timeout()
    with pytest.raises(PreparedTransactionLost) as raised:
        producer.complete_transaction(state)
    assert facts(raised.value)[2:] == ("CompleteAbort", state.producer_id, state.producer_epoch + 1)
    producer.init_transactions(keep_prepared_txn=True)
    with pytest.raises(PreparedTransactionLost):
        producer.complete_transaction(state)
    producer.init_transactions()
    world.commit(producer, "after")
    assert world.committed() == ["after"]


@bounded
def test_a_transaction_is_lost_between_description_and_commit(world: World) -> None:
    state = world.prepared()
    recovering = world.recovering()
    world.abort_by_timeout()
    with pytest.raises(PreparedTransactionLost):
        recovering.complete_transaction(state)


@bounded
def test_the_broker_may_abort_an_undecided_transaction(world: World) -> None:
    old = world.commit(world.ready(), "old")
    world.prepare(world.ready(), "undecided")
    world.abort_by_timeout()
    recovering = world.recovering()
    recovering.complete_transaction(old)
    world.commit(recovering, "after")
    assert world.committed() == ["old", "after"]


@every_tier
def test_an_abort_of_the_next_transaction_is_not_taken_for_a_loss(world: World) -> None:
    """Before transaction.version 2 the pair of an aborted successor is next to the stored one, if nothing is done."""
    producer = world.ready()
    state = world.commit(producer, "v")
    producer.begin_transaction()
    producer.send("orders", "dropped", partition=0).result(60)
    producer.abort_transaction()
    recovering = world.recovering()
    recovering.complete_transaction(state)
    assert world.committed() == ["v"]


@pytest.mark.parametrize("world", [Tier.KEEP_PREPARED, Tier.STORED_PAIR], indirect=True)
def test_without_a_bound_time_does_nothing(world: World) -> None:
    state = world.prepared()
    world.emulator.advance_clock(3 * LONG_AFTER_MS)
    world.recovering().complete_transaction(state)
    assert world.committed() == ["v"]


@bounded
def test_an_expired_id_has_no_state(world: World) -> None:
    state = world.commit(world.ready(), "v")
    world.settle()
    world.emulator.advance_clock(8 * 24 * 3_600_000)
    until(lambda: not world.emulator.transactions())
    recovering = world.recovering()
    recovering.complete_transaction(state)
    world.commit(recovering, "after")
    assert world.committed() == ["v", "after"]


@by_stored_pair
def test_a_stored_pair_that_is_later_than_all_that_kafka_knows(world: World) -> None:
    state = world.prepared()
    later = PreparedTxnState.of(producer_id=state.producer_id, producer_epoch=state.producer_epoch + 3)
    with pytest.raises(PreparedTransactionLost, match="Kafka has lost data, or the stored state belongs to another"):
        world.recovering().complete_transaction(later)
    world.recovering().complete_transaction(state)
    assert world.committed() == ["v"]


# ---- transaction.version changes ----------------------------------------------------------------------------------


def drop(producer: ParticipantProducer) -> None:
    """Send a record and abort: after a transaction the features are read again, which no call waits for."""
    producer.begin_transaction()
    producer.send("orders", "dropped", partition=0)
    producer.abort_transaction()


def follow(producer: ParticipantProducer, tier: Tier) -> None:
    """Drop transactions until the producer has read the features again."""

    def is_followed() -> bool:
        drop(producer)
        return producer.guarantee.tier is tier

    until(is_followed)


@pytest.mark.parametrize("two_phase_commit", [True, False])
def test_the_version_is_followed_between_transactions(two_phase_commit: bool) -> None:
    with world_of(Tier.BOUNDED, BrokerConfig(profile=Profile.KAFKA_4_3)) as world:
        producer = world.ready(
            metadata_max_age_ms=1,
            transaction_two_phase_commit_enable=two_phase_commit,
            accept_bounded_guarantee=two_phase_commit,
        )
        expected = []
        for number, version in enumerate([2, 1, 1, 2, 2, 1, 2]):
            world.emulator.set_transaction_version(version)
            for way in ("commit", "abort", "commit"):
                value = f"{number}-{way}"
                producer.begin_transaction()
                producer.send("orders", value, partition=0)
                if way == "abort":
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    expected.append(value)
            if two_phase_commit:
                follow(producer, Tier.BOUNDED if version == 2 else Tier.BOUNDED_V1)
        assert world.committed() == expected


def test_a_version_that_changes_within_a_transaction_waits_for_its_end() -> None:
    with world_of(Tier.BOUNDED, BrokerConfig(profile=Profile.KAFKA_4_3)) as world:
        for before, after in ((2, 1), (1, 2)):
            world.emulator.set_transaction_version(before)
            producer = world.ready(metadata_max_age_ms=1)
            state = world.prepare(producer, f"{before}")
            world.emulator.set_transaction_version(after)
            producer.complete_transaction(state)
            world.commit(producer, f"{before}, then {after}")
        assert world.committed() == ["2", "2, then 1", "1", "1, then 2"]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 0), (0, 2)])
@pytest.mark.parametrize("decided", [True, False])
def test_recovery_after_the_version_has_changed(before: int, after: int, decided: bool) -> None:
    with world_of(Tier.BOUNDED, BrokerConfig(profile=Profile.KAFKA_4_3)) as world:
        world.emulator.set_transaction_version(before)
        state = world.prepared()
        world.emulator.set_transaction_version(after)
        recovering = world.recovering()
        recovering.complete_transaction(state if decided else PreparedTxnState())
        world.commit(recovering, "after")
        assert world.committed() == (["v", "after"] if decided else ["after"])


def test_a_loss_is_seen_after_the_version_has_changed() -> None:
    for before, after in ((2, 1), (1, 2)):
        with world_of(Tier.BOUNDED, BrokerConfig(profile=Profile.KAFKA_4_3)) as world:
            world.emulator.set_transaction_version(before)
            state = world.prepared()
            world.emulator.set_transaction_version(after)
            world.abort_by_timeout()
            with pytest.raises(PreparedTransactionLost):
                world.recovering().complete_transaction(state)


def test_a_downgrade_below_the_accepted_tier_stops_the_next_transaction() -> None:
    with world_of(Tier.STORED_PAIR) as world:
        producer = world.ready(accept_bounded_guarantee=False, metadata_max_age_ms=1)
        world.emulator.set_transaction_version(1)
        world.commit(producer, "v")
        with pytest.raises(UnsupportedByBrokerError, match=r"transaction\.version=1 now.*accept\.bounded\.guarantee"):
            while True:
                drop(producer)
        assert world.committed() == ["v"]


def test_a_downgrade_to_a_tier_that_cannot_record_anything() -> None:
    """At level 0 the log has no place for the fields of version 2; the id answers 51 until its coordinator moves."""
    with world_of(Tier.BOUNDED, BrokerConfig(profile=Profile.KAFKA_4_3)) as world:
        producer = world.ready()
        state = world.prepare(producer)
        world.emulator.set_transaction_version(0)
        with pytest.raises(UnsupportedByBrokerError, match="UNSUPPORTED_VERSION"):
            producer.complete_transaction(state)
        with pytest.raises(KafkaTimeoutError, match="CONCURRENT_TRANSACTIONS"):
            world.recovering(max_block_ms=1_500).complete_transaction(state)
        assert world.described() == ("Ongoing", state.producer_id, state.producer_epoch)


# ---- the last epoch -----------------------------------------------------------------------------------------------


def at_epoch(world: World, epoch: int) -> None:
    """Set the epoch as after so many initialisations, which would take half a minute."""
    emulator = world.emulator

    def set_epoch() -> None:
        for partition in emulator.cluster.nodes[0].transactions._partitions.values():
            if "tid" in partition.ids:
                partition.ids["tid"] = partition.ids["tid"]._replace(producer_epoch=epoch)

    emulator.call_in_loop(set_epoch)
    assert world.described()[2] == epoch


@by_stored_pair
@pytest.mark.parametrize("first", [32763, 32764, 32765])
def test_across_the_last_epoch(world: World, first: int) -> None:
    world.ready()
    at_epoch(world, first)
    values = []
    state = PreparedTxnState()
    for number in range(4):
        recovering = world.recovering()
        recovering.complete_transaction(state)
        state = world.prepare(recovering, str(number))
        values.append(str(number))
        if number % 2:
            recovering.complete_transaction(state)
    world.recovering().complete_transaction(state)
    assert world.committed() == values


@bounded
@pytest.mark.parametrize("first", [32762, 32763, 32764, 32765])
def test_a_loss_at_the_last_epoch_is_seen(world: World, first: int) -> None:
    world.ready()
    at_epoch(world, first)
    state = world.prepare(world.ready())
    world.abort_by_timeout()
    for _ in range(2):
        with pytest.raises(PreparedTransactionLost):
            world.recovering().complete_transaction(state)


@pytest.mark.parametrize("world", [Tier.BOUNDED_V1], indirect=True)
def test_plain_transactions_at_the_last_epoch_of_version_1(world: World) -> None:
    """There the epoch stays when a transaction ends, and only InitProducerId leads to another producer id."""
    world.ready()
    at_epoch(world, 32765)
    producer = world.ready(transaction_two_phase_commit_enable=False, accept_bounded_guarantee=False)
    _, old_id, epoch = world.described()
    assert epoch == 32766
    expected = []
    for number in range(4):
        producer.begin_transaction()
        producer.send("orders", str(number), partition=0).result(60)
        if number == 2:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            expected.append(str(number))
    _, new_id, epoch = world.described()
    assert (new_id != old_id, epoch) == (True, 0), "after the abort, the epoch was to be raised"
    assert world.committed() == expected


# ---- completing for others --------------------------------------------------------------------------------------


@every_tier
def test_completing_for_others_needs_no_take_over(world: World) -> None:
    """The stored pair alone is committed, twice if need be, and the id is free for the next owner."""
    stored = world.prepared()
    for _ in range(2):
        helper = world.recovering()
        before = world.described()
        helper.complete_transaction(stored, take_over=False)
        if world.tier is not Tier.KEEP_PREPARED:
            assert helper.state is ProducerState.UNINITIALIZED
        if before[0] == "CompleteCommit":
            assert world.described() == before, "nothing was sent"
        world.settle()
    assert world.committed() == ["v"]
    world.commit(world.ready(), "next")
    assert world.committed() == ["v", "next"]


@by_stored_pair
def test_completing_for_others_leaves_the_next_owner_alone(world: World) -> None:
    """The completion is so late that another process has done it, and the next owner of the id has prepared."""
    stored = world.prepared()
    late = world.recovering()
    world.recovering().complete_transaction(stored, take_over=False)
    following = world.prepared("next")
    before = world.described()
    with pytest.raises(FencedError):
        late.complete_transaction(stored, take_over=False)
    assert world.described() == before
    world.recovering().complete_transaction(following, take_over=False)
    assert world.committed() == ["v", "next"]


@by_stored_pair
def test_completing_for_others_allows_another_initialisation(world: World) -> None:
    helper = world.producer()
    for value in ("a", "b"):
        stored = world.prepared(value)
        helper.init_transactions(keep_prepared_txn=True)
        helper.complete_transaction(stored, take_over=False)
    with pytest.raises(IllegalStateError, match=r"call init_transactions\(\) first"):
        helper.begin_transaction()
    assert world.committed() == ["a", "b"]


@every_tier
def test_aborting_for_others_fences(world: World) -> None:
    """Without a stored state, abort any open transaction; with transaction.version 2, by the pair that was found."""
    writer = world.ready()
    world.prepare(writer)
    world.recovering().complete_transaction(PreparedTxnState(), take_over=False)
    with pytest.raises(PreparedTransactionLost if world.tier in (Tier.STORED_PAIR, Tier.BOUNDED) else FencedError):
        writer.complete_transaction(writer.prepared_txn_state)
    assert world.committed() == []
    world.commit(world.ready(), "next")
    assert world.committed() == ["next"]


@by_stored_pair
def test_completing_for_others_fences_an_owner_that_is_about_to_begin(world: World) -> None:
    """Nothing is open yet: the writer has the id, and its first record is on its way."""
    writer = world.ready()
    writer.begin_transaction()
    world.recovering().complete_transaction(PreparedTxnState(), take_over=False)
    writer.send("orders", "late", partition=0)
    with pytest.raises(FencedError if world.tier is Tier.BOUNDED_V1 else DeliveryError):
        writer.prepare_transaction()
    assert world.committed() == []


@on(Tier.STORED_PAIR, Tier.BOUNDED)
def test_aborting_for_others_leaves_the_next_owner_alone(world: World) -> None:
    world.prepared("given up")
    late = world.recovering()
    world.recovering().complete_transaction(PreparedTxnState(), take_over=False)
    following = world.prepared("next")
    before = world.described()
    with pytest.raises(FencedError):
        late.complete_transaction(PreparedTxnState(), take_over=False)
    assert world.described() == before
    world.recovering().complete_transaction(following, take_over=False)
    assert world.committed() == ["next"]


@bounded
def test_completing_for_others_reports_a_loss(world: World) -> None:
    stored = world.prepared()
    world.abort_by_timeout()
    helper = world.recovering()
    for keep in (True, False):
        with pytest.raises(PreparedTransactionLost):
            helper.complete_transaction(stored, take_over=False)
        helper.init_transactions(keep_prepared_txn=keep)
    world.commit(helper, "next")
    assert world.committed() == ["next"]
