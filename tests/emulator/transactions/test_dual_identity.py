"""KIP-939: the open transaction keeps its pair, its recovering client gets another, and only that one may end it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import TWO_PHASE_COMMIT_TIMEOUT_MS
from dualwrite.broker_emulator.transactions.coordinator import verify_partitions
from dualwrite.broker_emulator.transactions.metadata import ProducerPair

from .simulated_id import KIP, MAX, T0, T1, SimulatedId, fresh_at, prepared_at


def test_kip_939_example_a() -> None:
    """Vanilla KIP-890 with epoch overflow, row by row."""
    simulated = fresh_at(42, MAX - 2, KIP, 85)
    assert simulated.init() == (0, 42, MAX - 1, -1, -1)
    assert simulated.row() == ("Empty", 42, MAX - 1, -1, -1, -1)
    assert simulated.add(42, MAX - 1) == 0
    assert simulated.row() == ("Ongoing", 42, MAX - 1, -1, -1, -1)
    assert simulated.commit(42, MAX - 1) == (0, 85, 0)
    assert simulated.row() == ("PrepareCommit", 42, MAX, -1, 85, 0)
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit", 85, 0, 42, -1, -1)


def test_kip_939_example_b() -> None:
    """Two-phase commit with two overflows, row by row."""
    simulated = fresh_at(42, MAX - 2, KIP, 73, 85)
    assert simulated.init(two_pc=True) == (0, 42, MAX - 1, -1, -1)
    assert simulated.row() == ("Empty", 42, MAX - 1, -1, -1, -1)
    assert simulated.add(42, MAX - 1) == 0
    assert simulated.row() == ("Ongoing", 42, MAX - 1, -1, -1, -1)
    # 3: the client has prepared, which the broker does not see, and crashes
    assert simulated.keep() == (0, 73, 0, 42, MAX - 1)
    assert simulated.row() == ("Ongoing", 42, MAX - 1, -1, 73, 0)
    # 5: crash
    assert simulated.keep() == (0, 73, 1, 42, MAX - 1)
    assert simulated.row() == ("Ongoing", 42, MAX - 1, -1, 73, 1)
    # 7: a crash loop
    for epoch in range(2, MAX):
        assert simulated.keep() == (0, 73, epoch, 42, MAX - 1)
    assert simulated.row() == ("Ongoing", 42, MAX - 1, -1, 73, MAX - 1)
    assert simulated.keep() == (0, 73, MAX, 42, MAX - 1)
    assert simulated.row() == ("Ongoing", 42, MAX - 1, -1, 73, MAX)
    assert simulated.commit(73, MAX) == (0, 85, 0)
    assert simulated.row() == ("PrepareCommit", 42, MAX, 73, 85, 0)
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit", 85, 0, 73, -1, -1)
    # the client that did not get the response retries
    assert simulated.commit(73, MAX) == (0, 85, 0)
    # and the ones it had fenced do not get the live pair by retrying
    assert simulated.commit(73, MAX - 1).error == 49
    assert simulated.commit(42, MAX - 1).error == 49


def recovered_at_the_limit() -> SimulatedId:
    """Return example B's state after row 8: open under 42/32766, the client holds 73/32767; 85 is the next new pid."""
    simulated = prepared_at(42, MAX - 1, 73, 85)
    while simulated.known.client_pair != (73, MAX):
        simulated.keep()
    return simulated


@pytest.mark.parametrize(
    ("kept_times", "client", "final"),
    [(1, (42, 101), (42, 102)), (2, (42, 102), (42, 103)), (5, (42, 105), (42, 106))],
)
@pytest.mark.parametrize("commit", [True, False])
def test_each_keep_bumps_the_client_and_the_end_bumps_once_more(
    kept_times: int, client: tuple[int, int], final: tuple[int, int], commit: bool
) -> None:
    simulated = prepared_at(42, 100)
    for number in range(1, kept_times + 1):
        assert simulated.keep() == (0, 42, 100 + number, 42, 100)
        assert simulated.row() == ("Ongoing", 42, 100, -1, 42, 100 + number)
    assert simulated.end(*client, commit=commit) == (0, *final)
    state = "Commit" if commit else "Abort"
    assert simulated.row() == (f"Prepare{state}", 42, 101, -1, *final)
    assert simulated.known.last_producer_epoch == client[1]
    assert simulated.end(*client, commit=commit).error == 51
    simulated.write_markers()
    assert simulated.row() == (f"Complete{state}", *final, 42, -1, -1)
    assert simulated.end(*client, commit=commit) == (0, *final)
    assert simulated.end(*client, commit=not commit).error == (48 if commit else 90)


@pytest.mark.parametrize(
    ("start", "clients", "final"),
    [  # the numbers that do not touch 32767 are the same in the open implementation of KIP-939
        (MAX - 3, [(42, MAX - 2), (42, MAX - 1)], (1000, 0)),
        (MAX - 2, [(42, MAX - 1), (42, MAX)], (1000, 0)),
        (MAX - 2, [(42, MAX - 1), (42, MAX), (1000, 0)], (1000, 1)),
        (MAX - 1, [(1000, 0)], (1000, 1)),
        (MAX - 1, [(1000, 0), (1000, 1)], (1000, 2)),
    ],
)
@pytest.mark.parametrize("commit", [True, False])
def test_recovery_near_the_last_epoch(
    start: int, clients: list[tuple[int, int]], final: tuple[int, int], commit: bool
) -> None:
    simulated = prepared_at(42, start)
    for client in clients:
        assert simulated.keep() == (0, *client, 42, start)
    assert simulated.end(*clients[-1], commit=commit) == (0, *final)
    assert simulated.known.producer_pair == (42, start + 1)  # markers: the open transaction's pid, its epoch + 1
    simulated.write_markers()
    assert simulated.known.producer_pair == final
    assert simulated.known.previous_producer_id == clients[-1][0]
    for earlier in [(42, start), *clients[:-1]]:
        before = simulated.known
        assert simulated.end(*earlier, commit=commit).error in (49, 90)
        assert simulated.known == before
    assert simulated.end(*clients[-1], commit=commit) == (0, *final)
    assert simulated.add(*final) == 0


def test_the_client_at_32767_that_crashes_once_more_gets_a_new_pid() -> None:
    simulated = recovered_at_the_limit()
    assert simulated.keep() == (0, 85, 0, 42, MAX - 1)
    assert simulated.commit(73, MAX).error == 90
    assert simulated.commit(85, 0) == (0, 85, 1)
    assert simulated.row() == ("PrepareCommit", 42, MAX, 85, 85, 1)
    simulated.write_markers()
    assert simulated.row() == ("CompleteCommit", 85, 1, 85, -1, -1)


OLDER_PAIRS = [(42, 100), (42, 101), (42, 99), (42, 103), (41, 102), (73, 0)]


@pytest.mark.parametrize("pair", OLDER_PAIRS)
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_only_the_client_pair_ends(pair: tuple[int, int], commit: bool, version: int) -> None:
    """Also the response to a delayed EndTxn of the incarnation that crashed."""
    simulated = prepared_at(42, 100)
    simulated.keep()
    simulated.keep()
    before = simulated.known
    assert simulated.end(*pair, commit=commit, version=version) == (90, -1, -1)
    assert simulated.known == before


@pytest.mark.parametrize("pair", OLDER_PAIRS)
def test_only_the_client_pair_initialises(pair: tuple[int, int]) -> None:
    simulated = prepared_at(42, 100)
    simulated.keep()
    simulated.keep()
    before = simulated.known
    assert simulated.init(*pair).error == 90
    assert simulated.known == before


@pytest.mark.parametrize("expected", [(), (42, 101)])
def test_init_without_keep_aborts_and_goes_beyond_the_client_pair(expected: tuple[int, ...]) -> None:
    simulated = prepared_at(42, 100)
    simulated.keep()
    assert simulated.init(*expected).error == 51
    assert simulated.row() == ("PrepareAbort", 42, 101, -1, 42, 102)
    simulated.write_markers()
    assert simulated.row() == ("CompleteAbort", 42, 102, 42, -1, -1)
    assert simulated.commit(42, 101).error == 90
    assert simulated.init(*expected)[:3] == ((0, 42, 102) if expected else (0, 42, 103))


def test_init_without_keep_at_the_limit() -> None:
    simulated = recovered_at_the_limit()
    assert simulated.init().error == 51
    assert simulated.row() == ("PrepareAbort", 42, MAX, 73, 85, 0)
    simulated.write_markers()
    assert simulated.row() == ("CompleteAbort", 85, 0, 73, -1, -1)
    assert simulated.abort(73, MAX) == (0, 85, 0)
    assert simulated.commit(73, MAX).error == 90


def test_v4_cannot_end_a_recovered_transaction() -> None:
    """Its response has no field for the pair it completes under."""
    simulated = prepared_at(42, 100)
    simulated.keep()
    assert simulated.end(42, 101, commit=True, version=0).error is ErrorCode.unsupported_version


@pytest.mark.parametrize(
    ("pair", "response"),
    [((42, 100), 0), ((42, 101), 48), ((42, 99), 90), ((42, 102), 90), ((41, 100), 90), ((73, 0), 90)],
)
def test_late_writes_of_the_crashed_incarnation_still_belong_to_its_transaction(
    pair: tuple[int, int], response: int
) -> None:
    simulated = prepared_at(42, 100)
    simulated.keep()
    known = verify_partitions(simulated.known, ProducerPair(*pair), [T0])
    assert known == {T0: response}
    assert simulated.add(*pair, T1) == response
    assert simulated.known.topic_partitions == ({T0, T1} if response == 0 else {T0})
    assert simulated.known.next_pair == (42, 101)


def test_the_client_pair_of_another_pid_may_not_write_either() -> None:
    simulated = prepared_at(42, MAX - 1, 73)
    simulated.keep()
    assert simulated.add(73, 0, T1) == 48
    assert simulated.add(42, MAX - 1, T1) == 0


def test_the_example_of_the_review() -> None:
    """42/100, kept as 42/101, completes as 42/102: a delayed EndTxn with 42/101 must not hit the next transaction."""
    simulated = prepared_at(42, 100)
    simulated.keep()
    simulated.commit(42, 101)
    simulated.write_markers()
    assert simulated.add(42, 102) == 0
    before = simulated.known
    for pair in [(42, 100), (42, 101)]:
        for commit in (True, False):
            assert simulated.end(*pair, commit=commit).error == 90
    assert simulated.known == before


def test_a_delayed_end_of_the_resolved_transaction_is_a_retry_before_the_next_one_opens() -> None:
    simulated = prepared_at(42, 100)
    simulated.keep()
    simulated.commit(42, 101)
    simulated.write_markers()
    before = simulated.known
    assert simulated.commit(42, 101) == (0, 42, 102)
    assert simulated.abort(42, 101).error == 48
    assert simulated.known == before


def test_a_two_phase_commit_transaction_never_times_out() -> None:
    simulated = prepared_at(42, 100)
    simulated.keep()
    simulated.now_ms += 10**12
    assert simulated.decide_timeout() is None


def test_recovering_without_two_phase_commit_does_not_put_a_timeout_on_the_prepared_transaction() -> None:
    simulated = prepared_at(42, 100)
    assert simulated.init(keep=True, timeout_ms=5) == (0, 42, 101, 42, 100)
    assert simulated.known.timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS


def test_keep_without_two_phase_commit_can_time_out_and_completes_beyond_the_client_pair() -> None:
    simulated = SimulatedId()
    simulated.init(timeout_ms=1000)
    simulated.add(1000, 0)
    assert simulated.init(keep=True, timeout_ms=2000) == (0, 1000, 1, 1000, 0)
    assert simulated.known.timeout_ms == 2000
    simulated.time_out()
    assert simulated.row() == ("PrepareAbort", 1000, 1, -1, 1000, 2)
    simulated.write_markers()
    assert simulated.commit(1000, 1).error == 90
    assert simulated.abort(1000, 1) == (0, 1000, 2)


def test_recovering_with_two_phase_commit_takes_the_timeout_off() -> None:
    simulated = SimulatedId()
    simulated.init(timeout_ms=1000)
    simulated.add(1000, 0)
    simulated.keep()
    assert simulated.known.is_two_phase_commit


def _commit(simulated: SimulatedId) -> None:
    simulated.commit(42, 101)


def _keep_again(simulated: SimulatedId) -> None:
    simulated.keep()


@pytest.mark.parametrize("step", [_commit, _keep_again])
def test_the_dual_identity_survives_a_failover(step: Callable[[SimulatedId], None]) -> None:
    reloaded, other = prepared_at(42, 100), prepared_at(42, 100)
    for simulated in (reloaded, other):
        simulated.keep()
    reloaded.reload()
    assert reloaded.known == other.known
    for simulated in (reloaded, other):
        step(simulated)
    assert reloaded.known == other.known
