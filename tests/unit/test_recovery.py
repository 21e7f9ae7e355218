"""A description's proof about a stored pair: the table, checked against all histories of a transactional id."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest

from dualwrite.client.transactions.recovery import (
    FINDINGS,
    RECOVERIES,
    REFUSALS,
    Described,
    DescribedState,
    Finding,
    Recovery,
    Relation,
    SecondDescription,
    compare_descriptions,
    find,
    relation_of,
)
from dualwrite.prepared_state import PreparedTxnState

D = DescribedState
R = Relation
F = Finding


def pair(producer_id: int, epoch: int) -> PreparedTxnState:
    return PreparedTxnState.of(producer_id=producer_id, producer_epoch=epoch)


@pytest.mark.parametrize(
    ("stored", "described", "expected"),
    [
        ("", "42:7", R.NOTHING_STORED),
        ("", "", R.NOTHING_STORED),
        ("42:7", "42:7", R.SAME),
        ("42:7", "42:8", R.NEXT),
        ("42:7", "42:9", R.FURTHER),
        ("42:7", "42:6", R.BEFORE),
        ("42:7", "43:0", R.OTHER),
        ("42:7", "", R.OTHER),
        ("42:32765", "43:0", R.OTHER),
        ("42:32766", "42:32767", R.NEXT),
        ("42:32766", "43:0", R.ROTATED),
        ("42:32767", "43:0", R.ROTATED),
        ("42:32766", "43:1", R.OTHER),
    ],
)
def test_relations(stored: str, described: str, expected: Relation) -> None:
    assert relation_of(PreparedTxnState(stored), PreparedTxnState(described)) is expected


def test_every_combination_has_one_finding_and_every_finding_a_consequence() -> None:
    assert set(FINDINGS) == set(product((1, 2), D, R))
    assert set(FINDINGS.values()) == set(RECOVERIES) == set(REFUSALS) == set(F)


@pytest.mark.parametrize("version", [1, 2])
def test_rules_that_hold_in_every_row(version: int) -> None:
    for state, relation in product(D, R):
        finding = FINDINGS[version, state, relation]
        recovery = RECOVERIES[finding]
        if recovery is Recovery.COMMIT:
            assert (state, relation) == (D.ONGOING, R.SAME), "nothing is committed but what was stored"
        if relation is R.NOTHING_STORED:
            assert recovery is Recovery.TAKE_OVER, "without a stored pair nothing can be lost"
        if relation is R.BEFORE and state is not D.NOT_FOUND:
            assert recovery is Recovery.LOST, "a decision about what Kafka does not know"
        if state in (D.PREPARE_ABORT, D.COMPLETE_ABORT) and relation in (R.SAME, R.NEXT):
            assert recovery is Recovery.LOST
        if state in (D.PREPARE_COMMIT, D.COMPLETE_COMMIT) and relation is R.SAME:
            assert finding is F.COMMITTED


# ---- every history ------------------------------------------------------------------------------------------------


class Id(NamedTuple):
    """A transactional id as its coordinator stores it, with the outcome of each prepared pair."""

    state: DescribedState
    producer_id: int
    epoch: int
    prepared: PreparedTxnState = PreparedTxnState()
    stored: PreparedTxnState = PreparedTxnState()
    fate: str = "none"  # of the stored pair: none, open, committed, aborted, seen to

    @property
    def described(self) -> Described:
        return Described(self.state, pair(self.producer_id, self.epoch), 1)

    def bumped(self, state: DescribedState) -> Id:
        """Bump the epoch; after the last one comes another producer id, as with transaction.version 2."""
        if self.epoch >= 32766:
            return self._replace(state=state, producer_id=self.producer_id + 1, epoch=0)
        return self._replace(state=state, epoch=self.epoch + 1)


def initialise(was: Id) -> Id:
    """Apply the InitProducerId of a new owner, with nothing open."""
    return was.bumped(D.EMPTY)


def prepare(was: Id, version: int) -> Id:
    """Open and prepare a transaction; before version 2 its pair is two epochs ahead."""
    if version == 1:
        was = was.bumped(D.EMPTY).bumped(D.EMPTY)
    now = was._replace(state=D.ONGOING)
    return now._replace(prepared=pair(now.producer_id, now.epoch))


def end(was: Id, version: int, *, commit: bool) -> Id:
    """End the transaction, as a client with the pair does."""
    to = D.COMPLETE_COMMIT if commit else D.COMPLETE_ABORT
    now = was.bumped(to) if version == 2 else was._replace(state=to)
    return now._replace(prepared=PreparedTxnState(), fate=_fate(was, "committed" if commit else "aborted"))


def time_out(was: Id, version: int) -> Id:
    """Abort as the broker does, which bumps the epoch at any version; before 2 it may reach the very last one."""
    if version == 2 or was.epoch < 32766:
        now = was.bumped(D.COMPLETE_ABORT)
    else:
        now = was._replace(state=D.COMPLETE_ABORT, epoch=32767)
    return now._replace(prepared=PreparedTxnState(), fate=_fate(was, "aborted"))


def _fate(was: Id, fate: str) -> str:
    return fate if was.stored == was.prepared else was.fate


def steps(was: Id, version: int) -> Iterator[Id]:
    if was.state is not D.ONGOING:
        # an owner continues only after the stored pair was completed, or its loss acknowledged
        if was.fate != "aborted":
            yield prepare(was, version)
            yield initialise(was)
        else:
            yield initialise(was)._replace(fate="seen to")
        return
    if was.stored != was.prepared:
        yield was._replace(stored=was.prepared, fate="open")  # the database decides
        yield end(was, version, commit=False)
    else:
        yield end(was, version, commit=True)
    yield time_out(was, version)


def histories(version: int, first_epoch: int, length: int) -> set[Id]:
    seen: set[Id] = set()
    at = {Id(D.EMPTY, 42, first_epoch)}
    for _ in range(length):
        seen |= at
        at = {after for before in at for after in steps(before, version)}
    return seen | at


EXPECTED = {
    "none": Recovery.TAKE_OVER,
    "open": Recovery.COMMIT,
    "committed": Recovery.TAKE_OVER,
    "aborted": Recovery.LOST,
    "seen to": Recovery.TAKE_OVER,
}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("first_epoch", [0, 5, 32755, *range(32760, 32767)])
def test_every_history_is_read_right(version: int, first_epoch: int) -> None:
    """A decided transaction is committed, a lost one is reported, and neither is taken for the other."""
    for was in histories(version, first_epoch, 12):
        finding = find(was.stored, was.described, version)
        expected = EXPECTED[was.fate]
        if was.state is D.ONGOING and was.stored != was.prepared:
            expected = Recovery.TAKE_OVER
        assert RECOVERIES[finding] is expected, (was, finding)


@pytest.mark.parametrize("first_epoch", [5, *range(32760, 32767)])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_loss_is_seen_in_every_version(before: int, after: int, first_epoch: int) -> None:
    for was in histories(before, first_epoch, 8):
        recovery = RECOVERIES[find(was.stored, was.described, after)]
        if was.fate == "aborted":
            assert recovery is Recovery.LOST, was
        elif was.state is not D.ONGOING:
            assert recovery is Recovery.TAKE_OVER, was


GO_ON, WAIT, OVERTAKEN = SecondDescription


@pytest.mark.parametrize(
    ("decided", "now", "expected"),
    [
        (Described(D.EMPTY, pair(1, 1), -1), Described(D.EMPTY, pair(1, 1), -1), GO_ON),
        (Described(D.EMPTY, pair(1, 1), -1), Described(D.EMPTY, pair(1, 2), -1), OVERTAKEN),
        (Described(D.EMPTY, pair(1, 1), -1), Described(D.COMPLETE_COMMIT, pair(1, 9), 5), OVERTAKEN),
        (Described(D.EMPTY, pair(1, 1), -1), Described(D.PREPARE_COMMIT, pair(1, 9), 5), WAIT),
        (Described(D.EMPTY, pair(1, 1), -1), Described(D.ONGOING, pair(1, 1), 5), OVERTAKEN),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.ONGOING, pair(1, 1), 5), GO_ON),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.PREPARE_ABORT, pair(1, 2), 5), WAIT),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.COMPLETE_ABORT, pair(1, 1), 5), GO_ON),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.COMPLETE_ABORT, pair(1, 2), 5), GO_ON),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.COMPLETE_ABORT, pair(1, 2), 6), OVERTAKEN),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.COMPLETE_ABORT, pair(1, 3), 5), OVERTAKEN),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.COMPLETE_COMMIT, pair(1, 2), 5), OVERTAKEN),
        (Described(D.ONGOING, pair(1, 32766), 5), Described(D.COMPLETE_ABORT, pair(2, 0), 5), GO_ON),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.ONGOING, pair(1, 2), 5), OVERTAKEN),
        (Described(D.ONGOING, pair(1, 1), 5), Described(D.ONGOING, pair(1, 1), 6), OVERTAKEN),
        (Described(D.PREPARE_COMMIT, pair(1, 2), 5), Described(D.COMPLETE_COMMIT, pair(1, 2), 5), GO_ON),
        (Described(D.PREPARE_COMMIT, pair(1, 32767), 5), Described(D.COMPLETE_COMMIT, pair(2, 0), 5), GO_ON),
        (Described(D.PREPARE_ABORT, pair(1, 2), 5), Described(D.COMPLETE_ABORT, pair(1, 2), 5), GO_ON),
        (Described(D.PREPARE_ABORT, pair(1, 2), 5), Described(D.COMPLETE_ABORT, pair(1, 4), 5), OVERTAKEN),
        (Described(D.COMPLETE_COMMIT, pair(1, 1), 5), Described(D.ONGOING, pair(1, 1), 5), OVERTAKEN),
        (Described(D.NOT_FOUND, PreparedTxnState(), -1), Described(D.EMPTY, pair(1, 0), -1), GO_ON),
        (Described(D.NOT_FOUND, PreparedTxnState(), -1), Described(D.EMPTY, pair(1, 1), -1), OVERTAKEN),
        (Described(D.NOT_FOUND, PreparedTxnState(), -1), Described(D.ONGOING, pair(1, 0), 5), OVERTAKEN),
    ],
)
def test_a_takeover_continues_only_from_the_decided_state(
    decided: Described, now: Described, expected: SecondDescription
) -> None:
    assert compare_descriptions(decided, now, claimed=False) is expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Described(D.EMPTY, pair(1, 2), -1), GO_ON),
        (Described(D.EMPTY, pair(1, 3), -1), OVERTAKEN),
        (Described(D.COMPLETE_ABORT, pair(1, 2), 5), OVERTAKEN),
        (Described(D.ONGOING, pair(1, 2), 5), OVERTAKEN),
    ],
)
def test_a_claim_that_was_not_answered_may_have_been_carried_out(now: Described, expected: SecondDescription) -> None:
    assert compare_descriptions(Described(D.COMPLETE_COMMIT, pair(1, 1), 5), now, claimed=True) is expected
