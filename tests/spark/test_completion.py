"""Phase two: the endings of claims if other processes complete them too, and if a step fails in between."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from dualwrite.broker_emulator import CrashAfter, CrashBefore, DropReply, DropRequest, Error, Fault, Hold, VirtualClock
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.errors import AnotherClusterError, KafkaTimeoutError, PreparedTransactionLost
from dualwrite.guarantee import Tier
from spark_sink.errors import AttemptCondemnedError, StoreWentBackError
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import Claim, Ending, Prepared, Verdict
from tests.spark.kafka_world import TIERS, KafkaWorld, Rows, claim, endings, everything, kafka_world, rows
from tests.support.conditions import until

COMMIT, ABORT = Verdict.COMMIT, Verdict.ABORT
COMMITTED, ABORTED, LEFT, FAILED = Ending.COMMITTED, Ending.ABORTED, Ending.LEFT, Ending.FAILED


@pytest.fixture(params=TIERS, ids=lambda tier: f"tier {int(tier)}")
def tier(request: pytest.FixtureRequest) -> Tier:
    found: Tier = request.param
    return found


@pytest.fixture
def world(tier: Tier) -> Iterator[KafkaWorld]:
    with kafka_world(tier) as running:
        yield running


@pytest.fixture
def newest() -> Iterator[KafkaWorld]:
    """The newest broker, for tests where the tier makes no difference."""
    with kafka_world(Tier.KEEP_PREPARED) as running:
        yield running


def prepared(world: KafkaWorld, count: int, verdict: Verdict = COMMIT, first: int = 0) -> list[Claim]:
    """Return claims to prepared transactions, each with one record that is its transactional id."""
    side = world.side()
    ids = [f"s-{number}-0" for number in range(first, first + count)]
    return [claim(each, verdict, world.prepared(side, each, each)) for each in ids]


def ids_of(*claims: Claim) -> list[str]:
    return sorted(each.transactional_id for each in claims)


class Store:
    """The rows of a commit store, as far as completion reads them."""

    def __init__(self) -> None:
        self.over: set[str] = set()

    def still_wanted(self, attempt_ids: Collection[str]) -> set[str]:
        return set(attempt_ids) - self.over


# ---- the ordinary case ------------------------------------------------------------------------------------------


def test_winners_are_committed_and_losers_aborted(world: KafkaWorld) -> None:
    winners, losers = prepared(world, 5), prepared(world, 4, ABORT, first=5)
    at_work = world.sent(world.side(), "s-20-0", "at work")
    never_seen = claim("s-21-0", ABORT)
    claims = [*winners, *losers, claim("s-20-0", ABORT), never_seen]
    ended = world.side(commit__parallelism=3).end(claims, everything)
    assert endings(claims, ended) == [COMMITTED] * 5 + [ABORTED] * 6
    assert all(each.error is None for each in ended.values())
    assert world.committed() == ids_of(*winners)
    assert world.open_ids() == []
    with pytest.raises(AttemptCondemnedError):
        at_work.write(rows("more"))
        at_work.prepare()
    at_work.close()


def test_a_second_time_ends_in_the_same_way(world: KafkaWorld) -> None:
    claims = [*prepared(world, 2), *prepared(world, 2, ABORT, first=2)]
    for side in (world.side(), world.side()):
        for _ in range(2):
            assert endings(claims, side.end(claims, everything)) == [COMMITTED, COMMITTED, ABORTED, ABORTED]
    assert world.committed() == ids_of(*claims[:2])


def test_a_transaction_committed_by_kafka_is_not_reported_as_aborted(world: KafkaWorld) -> None:
    """A failover took the decision back after Kafka knew it: its row wants an abort now."""
    (won,) = prepared(world, 1)
    side = world.side()
    assert endings([won], side.end([won], everything)) == [COMMITTED]
    went_back = claim("s-0-0", ABORT, Rows.row(won))
    for _ in range(2):
        ended = world.side().end([went_back], everything)
        assert endings([went_back], ended) == [FAILED]
        assert isinstance(ended[went_back.attempt_id].error, StoreWentBackError)
    assert world.committed() == ids_of(won)


def test_a_later_transaction_than_the_row_s_is_not_aborted(world: KafkaWorld) -> None:
    """A restored store has forgotten this abort, and the later lease of the id."""
    (first,) = prepared(world, 1, ABORT)
    assert endings([first], world.side().end([first], everything)) == [ABORTED]
    (second,) = prepared(world, 1)
    for _ in range(2):
        ended = world.side().end([first], Rows(lambda ids: [first.attempt_id]))
        assert endings([first], ended) == [FAILED]
        assert isinstance(ended[first.attempt_id].error, StoreWentBackError)
    assert world.open_ids() == ids_of(second)
    assert endings([second], world.side().end([second], everything)) == [COMMITTED]
    assert world.committed() == ids_of(second)


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "open"])
@pytest.mark.parametrize("verdict", [COMMIT, ABORT])
def test_a_transaction_of_another_cluster_is_left_alone(
    world: KafkaWorld, verdict: Verdict, is_committed: bool
) -> None:
    """This cluster has assigned the same pair, under the same id, to a transaction of its own."""
    (own,) = prepared(world, 1)
    if is_committed:
        assert endings([own], world.side().end([own], everything)) == [COMMITTED]
    theirs = claim("s-0-0", verdict, of_another_cluster(Rows.row(own)))
    ended = world.side().end([theirs], everything)
    assert endings([theirs], ended) == [FAILED]
    error = ended[theirs.attempt_id].error
    assert isinstance(error, AnotherClusterError)
    assert error.prepared_in == "gone"
    assert world.committed() == (["s-0-0"] if is_committed else [])
    assert endings([own], world.side().end([own], everything)) == [COMMITTED]


def of_another_cluster(row: Prepared) -> Prepared:
    manifest = Manifest.parse(row.manifest)
    assert manifest is not None
    return Prepared(row.state, str(replace(manifest, cluster_id="gone")))


def test_without_claims_nothing_is_called(newest: KafkaWorld) -> None:
    newest.emulator.crash_node(0)
    assert newest.side().end([], everything) == {}
    newest.emulator.start_node(0)


def test_only_wanted_claims_are_completed(newest: KafkaWorld) -> None:
    claims = prepared(newest, 3)
    side = newest.side()
    wanted = claims[1].attempt_id
    assert endings(claims, side.end(claims, Rows(lambda ids: [wanted]))) == [LEFT, COMMITTED, LEFT]
    assert sorted(newest.open_ids()) == ids_of(claims[0], claims[2])
    assert endings(claims, side.end(claims, everything)) == [COMMITTED] * 3


def test_a_store_that_fails_stops_everything_before_it_is_completed(newest: KafkaWorld) -> None:
    claims = prepared(newest, 2)

    def broken(attempt_ids: Collection[str]) -> Collection[str]:
        raise ConnectionError("no database")

    with pytest.raises(ConnectionError):
        newest.side().end(claims, Rows(broken))
    assert sorted(newest.open_ids()) == ids_of(*claims)
    assert endings(claims, newest.side().end(claims, everything)) == [COMMITTED] * 2


def test_a_test_can_stop_among_completions(newest: KafkaWorld) -> None:
    claims = prepared(newest, 3)
    passed: list[PausePoint] = []

    def pause(point: PausePoint) -> None:
        passed.append(point)
        if len(passed) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        newest.side(pause=pause).end(claims, everything)
    assert set(passed) == {PausePoint.AMONG_COMPLETIONS}
    assert newest.open_ids() == [claims[2].transactional_id]
    assert endings(claims, newest.side().end(claims, everything)) == [COMMITTED] * 3


# ---- several finishers ------------------------------------------------------------------------------------------


def test_another_process_completes_the_batch_first(world: KafkaWorld) -> None:
    claims = prepared(world, 2)
    store, asked = Store(), []

    def overtaken(attempt_ids: Collection[str]) -> Collection[str]:
        asked.append(len(attempt_ids))
        wanted = store.still_wanted(attempt_ids)
        if len(asked) == 1:
            assert endings(claims, world.side().end(claims, everything)) == [COMMITTED] * 2
            store.over |= {each.attempt_id for each in claims}
        return wanted

    assert endings(claims, world.side().end(claims, Rows(overtaken))) == [COMMITTED] * 2
    assert world.committed() == ids_of(*claims)


def test_another_finisher_took_over_and_died(world: KafkaWorld) -> None:
    """The faster process completes nothing and dies: the slower one completes the transaction."""
    claims = prepared(world, 2)
    asked = []

    def overtaken(attempt_ids: Collection[str]) -> Collection[str]:
        asked.append(len(attempt_ids))
        if len(asked) == 1:
            assert endings(claims, world.side().end(claims, Rows(lambda ids: ()))) == [LEFT] * 2
        return attempt_ids

    assert endings(claims, world.side().end(claims, Rows(overtaken))) == [COMMITTED] * 2
    assert world.committed() == ids_of(*claims)


@pytest.mark.parametrize("verdict", [COMMIT, ABORT])
@pytest.mark.parametrize("next_is_prepared", [True, False], ids=["prepared", "at work"])
def test_a_finisher_that_sleeps_until_the_id_has_another_holder(
    world: KafkaWorld, verdict: Verdict, next_is_prepared: bool
) -> None:
    """The claim is outdated: completed, the id free again, and the next owner's rows are in Kafka."""
    claims = prepared(world, 1, verdict)
    store, next_holder = Store(), world.side()
    states: list[Prepared] = []
    at_work = []

    def sleeps(attempt_ids: Collection[str]) -> Collection[str]:
        stale = store.still_wanted(attempt_ids)
        if not store.over:
            world.side().end(claims, everything)
            store.over.add(claims[0].attempt_id)
            if next_is_prepared:
                states.append(world.prepared(next_holder, "s-0-0", "next holder"))
            else:
                at_work.append(world.sent(next_holder, "s-0-0", "next holder"))
        return stale

    assert endings(claims, world.side().end(claims, Rows(sleeps))) == [LEFT]
    assert world.open_ids() == ["s-0-0"], "of the next holder, and nobody's to end"
    for transaction in at_work:
        states.append(transaction.prepare())
        transaction.close()
    again = [claim("s-0-0", COMMIT, states[0])]
    assert endings(again, world.side().end(again, everything)) == [COMMITTED]
    assert world.committed() == ["next holder"] if verdict is ABORT else ["next holder", "s-0-0"]


def test_a_writer_that_slept_takes_the_id_over_in_between(world: KafkaWorld) -> None:
    """A task leased the id long ago, was given up, and initialises between the two steps of completion."""
    claims = prepared(world, 1)
    asked = []

    def interrupted(attempt_ids: Collection[str]) -> Collection[str]:
        asked.append(len(attempt_ids))
        if len(asked) == 1:
            with pytest.raises(AttemptCondemnedError):
                world.side().open("s-0-0", lambda: False)
        return attempt_ids

    assert endings(claims, world.side().end(claims, Rows(interrupted))) == [COMMITTED]
    assert world.committed() == ids_of(*claims)


@pytest.mark.parametrize(
    ("late_tier", "verdict"),
    [(each, COMMIT) for each in TIERS] + [(each, ABORT) for each in TIERS if each is not Tier.BOUNDED_V1],
    ids=lambda each: each.value if isinstance(each, Verdict) else f"tier {int(each)}",
)
def test_a_request_that_arrives_when_the_id_has_another_holder(late_tier: Tier, verdict: Verdict) -> None:
    """The network delays the EndTxn of a process that has given up, and delivers it after all."""
    with kafka_world(late_tier) as world:
        claims = [claim("s-0-0", verdict, world.prepared(world.side(), "s-0-0", "first"))]
        held = world.faults.add(Fault(api="EndTxn", action=Hold(), client_id="late"))
        late = world.side(kafka__client__id="late", kafka__max__block__ms=100)
        assert endings(claims, late.end(claims, everything)) == [FAILED]
        world.side().end(claims, everything)
        following = [claim("s-0-0", COMMIT, world.prepared(world.side(), "s-0-0", "next"))]
        held.release()
        until(lambda: held.held == 0)
        assert world.open_ids() == ["s-0-0"]
        assert endings(following, world.side().end(following, everything)) == [COMMITTED]
        assert world.committed() == ["first", "next"] if verdict is COMMIT else ["next"]


# ---- Kafka's part -----------------------------------------------------------------------------------------------


def test_a_commit_needs_one_request_and_no_take_over(world: KafkaWorld) -> None:
    claims = prepared(world, 3)
    for api in ("InitProducerId", "DescribeTransactions"):
        world.faults.add(Fault(api=api, action=Error(53), client_id="sink", count=None))
    sent = world.faults.add(Fault(api="EndTxn", client_id="sink", count=None))
    assert endings(claims, world.side().end(claims, everything)) == [COMMITTED] * 3
    assert sent.hits == 3
    assert world.committed() == ids_of(*claims)


@pytest.mark.parametrize(
    ("action", "expected", "max_block_ms"),
    [(DropReply(), COMMITTED, 10_000), (DropRequest(), FAILED, 1_000)],
    ids=["reply", "request"],
)
def test_a_commit_without_an_answer_is_repeated_by_the_next_one(
    world: KafkaWorld, action: Any, expected: Ending, max_block_ms: int
) -> None:
    """If it was carried out, the coordinator says so."""
    claims = prepared(world, 2)
    world.faults.add(Fault(api="EndTxn", action=action, client_id="sink", count=None))
    impatient = world.side(kafka__max__block__ms=max_block_ms, kafka__request__timeout__ms=500)
    assert endings(claims, impatient.end(claims, everything)) == [expected] * 2
    world.faults.clear()
    assert endings(claims, world.side().end(claims, everything)) == [COMMITTED] * 2
    assert world.committed() == ids_of(*claims)


def requests(*apis: str) -> pytest.MarkDecorator:
    """Return each tier with its requests: tier 3 aborts by the pair, without InitProducerId."""
    sent = [(tier, api) for tier in TIERS for api in apis if (tier, api) != (Tier.BOUNDED, "InitProducerId")]
    cells = [pytest.param(tier, api, id=f"tier {int(tier)}-{api}") for tier, api in sent]
    return pytest.mark.parametrize(("tier", "api"), cells)


@pytest.mark.parametrize("action", [DropReply(), DropRequest()], ids=["reply", "request"])
@requests("FindCoordinator", "ApiVersions", "InitProducerId", "EndTxn")
def test_lost_messages(world: KafkaWorld, api: str, action: Any) -> None:
    claims = [*prepared(world, 2), *prepared(world, 1, ABORT, first=2)]
    fault = world.faults.add(Fault(api=api, action=action, client_id="sink", count=2))
    ended = world.side(kafka__request__timeout__ms=100).end(claims, everything)
    assert fault.hits == 2
    assert endings(claims, ended) == [COMMITTED, COMMITTED, ABORTED]
    assert world.committed() == ids_of(*claims[:2])


@pytest.mark.parametrize("action", [CrashBefore(), CrashAfter()], ids=["before", "after"])
@requests("InitProducerId", "EndTxn")
def test_a_coordinator_crashes(tier: Tier, api: str, action: Any) -> None:
    with kafka_world(tier, nodes=3) as world:
        claims = [*prepared(world, 2), *prepared(world, 1, ABORT, first=2)]
        fault = world.faults.add(Fault(api=api, action=action, client_id="sink"))
        assert endings(claims, world.side().end(claims, everything)) == [COMMITTED, COMMITTED, ABORTED]
        assert fault.hits == 1
        assert world.committed() == ids_of(*claims[:2])


def test_a_coordinator_moves_between_take_over_and_completion(tier: Tier) -> None:
    with kafka_world(tier, nodes=3) as world:
        claims = prepared(world, 2)

        def crash(attempt_ids: Collection[str]) -> Collection[str]:
            world.emulator.crash_node(world.emulator.coordinator(transactional_id="s-0-0"))
            return attempt_ids

        assert endings(claims, world.side().end(claims, Rows(crash))) == [COMMITTED] * 2
        assert world.committed() == ids_of(*claims)


def test_a_broker_starts_again_between_take_over_and_completion(newest: KafkaWorld) -> None:
    claims = prepared(newest, 2)

    def restart(attempt_ids: Collection[str]) -> Collection[str]:
        newest.emulator.crash_node(0)
        newest.emulator.start_node(0)
        return attempt_ids

    assert endings(claims, newest.side().end(claims, Rows(restart))) == [COMMITTED] * 2
    assert newest.committed() == ids_of(*claims)


@pytest.mark.parametrize("when", ["before", "in between"])
def test_an_unreachable_broker_fails_in_bounded_time(newest: KafkaWorld, when: str) -> None:
    """Far more claims than `parallelism`: the time limit is for all of them, not for each."""
    claims = prepared(newest, 40)
    side = newest.side(kafka__max__block__ms=500, commit__parallelism=1)
    if when == "before":
        newest.emulator.crash_node(0)

    def crash(attempt_ids: Collection[str]) -> Collection[str]:
        newest.emulator.crash_node(0)
        return attempt_ids

    ended = side.end(claims, Rows(crash) if when == "in between" else everything)
    assert endings(claims, ended) == [FAILED] * 40
    assert all(isinstance(each.error, KafkaTimeoutError) for each in ended.values())
    not_tried = sum("not tried" in str(each.error) for each in ended.values())
    assert not_tried == (39 if when == "in between" else 0)
    newest.emulator.start_node(0)
    assert endings(claims, newest.side().end(claims, everything)) == [COMMITTED] * 40


def test_one_failure_does_not_stop_the_other_completions(newest: KafkaWorld) -> None:
    claims = prepared(newest, 3)
    refused = Error(53)  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    newest.faults.add(Fault(api="EndTxn", action=refused, transactional_id="s-1-0", count=None))
    ended = newest.side().end(claims, everything)
    assert endings(claims, ended) == [COMMITTED, FAILED, COMMITTED]
    assert "'s-1-0'" in str(ended[claims[1].attempt_id].error)
    newest.faults.clear()
    assert endings(claims, newest.side().end(claims, everything)) == [COMMITTED] * 3


@pytest.mark.parametrize("bounded", [Tier.BOUNDED, Tier.BOUNDED_V1], ids=lambda tier: f"tier {int(tier)}")
def test_a_transaction_that_the_broker_dropped_and_that_has_no_manifest_is_lost_and_says_so(bounded: Tier) -> None:
    with kafka_world(bounded, clock=VirtualClock()) as world:
        side = world.side(txn__timeoutMs=60_000)
        claims = [claim("s-0-0", COMMIT, Prepared(world.prepared(side, "s-0-0", "lost").state))]
        world.emulator.advance_clock(80_000)
        until(lambda: world.state("s-0-0") == "CompleteAbort")
        claims += [claim("s-1-0", COMMIT, world.prepared(side, "s-1-0", "kept"))]
        for _ in range(2):  # it is not covered up by having been looked at
            ended = side.end(claims, everything)
            assert endings(claims, ended) == [Ending.LOST, COMMITTED]
            error = ended[claims[0].attempt_id].error
            assert isinstance(error, PreparedTransactionLost)
            assert error.transactional_id == "s-0-0"
            assert error.prepared_state == str(claims[0].prepared_state)
            assert error.described_state == "CompleteAbort"
        loser = [claim("s-0-0", ABORT, Rows.row(claims[0]))]
        assert endings(loser, side.end(loser, everything)) == [ABORTED], "who is to be aborted has nothing to lose"
        assert world.committed() == ["kept"]


def test_many_at_once_from_several_processes(newest: KafkaWorld) -> None:
    claims = [*prepared(newest, 30), *prepared(newest, 10, ABORT, first=30)]
    calls: list[Callable[[], Any]] = [lambda: newest.side().end(claims, everything)] * 3
    with ThreadPoolExecutor(3) as threads:
        for ended in threads.map(lambda call: call(), calls):
            assert {each.ending for each in ended.values()} <= {COMMITTED, ABORTED, LEFT}
    assert newest.open_ids() == []
    assert newest.committed() == ids_of(*claims[:30])
