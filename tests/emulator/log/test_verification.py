"""The life of a verification guard (KIP-890 part 1)."""

from __future__ import annotations

from dualwrite.broker_emulator.log.verification import VerificationEntry, VerificationGuard, Verifications


def test_the_lowest_sequence_of_the_highest_epoch_is_remembered() -> None:
    verifications = Verifications()
    guard = verifications.begin(1, 4, 5, supports_epoch_bump=False)

    def after(epoch: int, sequence: int, bump: bool) -> VerificationEntry | None:
        verifications.begin(1, epoch, sequence, supports_epoch_bump=bump)
        return verifications.get(1)

    assert after(4, 9, False) == VerificationEntry(guard, 4, 5, False)
    assert after(4, 2, False) == VerificationEntry(guard, 4, 2, False)
    assert after(3, 0, True) == VerificationEntry(guard, 4, 2, False)
    assert after(6, 8, True) == VerificationEntry(guard, 6, 8, False)


def test_entries_expire_after_a_whole_period_between_scans() -> None:
    verifications = Verifications()
    verifications.begin(1, 0, 0, supports_epoch_bump=True)
    verifications.expire(1_000, 500)
    verifications.begin(2, 0, 0, supports_epoch_bump=True)
    verifications.expire(1_499, 500)
    assert verifications.get(1) is not None
    verifications.expire(1_500, 500)
    assert verifications.get(1) is None
    assert verifications.get(2) is not None
    # a new entry of the same producer has its own time
    verifications.begin(1, 0, 0, supports_epoch_bump=True)
    verifications.expire(1_600, 500)
    assert verifications.get(1) is not None


def test_a_marker_ends_what_is_not_of_the_next_transaction() -> None:
    """If each transaction has its own epoch, a marker carries that of the next one (KAFKA-18575)."""

    def is_left(entry_epoch: int, marker_epoch: int, bump: bool) -> bool:
        verifications = Verifications()
        verifications.begin(1, entry_epoch, 0, supports_epoch_bump=bump)
        verifications.end_by_marker(2, entry_epoch)
        assert verifications.get(1) is not None
        verifications.end_by_marker(1, marker_epoch)
        return verifications.get(1) is not None

    assert not is_left(4, 5, bump=True)
    assert is_left(5, 5, bump=True)
    assert not is_left(5, 5, bump=False)
    assert not is_left(4, 5, bump=False)


def test_guards_equal_only_themselves() -> None:
    assert VerificationGuard() != VerificationGuard()
    assert VerificationGuard.SENTINEL == VerificationGuard.SENTINEL
