"""The table of recovery: every combination of facts, checked against the rules written in a second way."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dualwrite.client.log.transaction_end import PartitionEnd, TransactionEnd
from dualwrite.client.transactions.manifest import PartitionManifest
from dualwrite.client.transactions.recovery import Described, DescribedState, Finding, Relation, find, relation_of
from dualwrite.prepared_state import MAX_PRODUCER_EPOCH, PreparedTxnState
from dualwrite.recipes.core.proof import Verdict
from dualwrite.recipes.recovery.plan import ACTIONS, CHANGES, Action, Age, Facts, Row, age_ms_of, decide

MIN_AGE_MS = 1_000
STORED = PreparedTxnState("7:10")
PAIRS = [
    PreparedTxnState(text)
    for text in ("", "7:8", "7:9", "7:10", "7:11", "7:12", "7:13", "8:0", "8:10", f"7:{MAX_PRODUCER_EPOCH}")
]
STORED_STATES = [PreparedTxnState(), STORED, PreparedTxnState(f"7:{MAX_PRODUCER_EPOCH - 1}")]
AGES_MS = [None, 0, MIN_AGE_MS - 1, MIN_AGE_MS, 10**9]
BESIDE_THE_ROW = [
    (False, None, None, False),
    *((True, verdict, None, False) for verdict in (None, *Verdict)),
    *(
        (False, None, age_ms, has_publisher)
        for age_ms in (MIN_AGE_MS - 1, MIN_AGE_MS)
        for has_publisher in (False, True)
    ),
]
"""Whether the records are kept, how the row notes that they ended, the age of the oldest stored block, and
whether a process publishes it."""
VERSIONS = [0, 1, 2]  # tiers 4, 4, and 3 to 1
ENDS = [None, (), *itertools.combinations_with_replacement(PartitionEnd, 2)]
"""The log's answer: not read; of a transaction without records; of one in two partitions."""


def end_of(ends: tuple[PartitionEnd, ...] | None) -> TransactionEnd | None:
    if ends is None:
        return None
    return TransactionEnd({PartitionManifest("t", index, 0, 0, 1): end for index, end in enumerate(ends)})


EVERYTHING = [
    Facts(
        *(row, stored, Described(state, pair, -1), age_ms, version, end_of(ends), is_repairable),
        *(is_kept, verdict, stored_age_ms),
        has_publisher=has_publisher,
    )
    for row, stored, state, pair, age_ms, version, ends, is_repairable, beside in itertools.product(
        Row, STORED_STATES, DescribedState, PAIRS, AGES_MS, VERSIONS, ENDS, (True, False), BESIDE_THE_ROW
    )
    if (row in (Row.FREE, Row.HELD) or stored.is_empty) and (ends is not None or is_repairable)
    if ends is None or not (stored.is_empty or state is DescribedState.ONGOING)
    for is_kept, verdict, stored_age_ms, has_publisher in [beside]
    if verdict is None or state is not DescribedState.ONGOING
    if beside == BESIDE_THE_ROW[0]
    or (version == 2 and (row in (Row.FREE, Row.HELD) or stored_age_ms is not None))
    or (version == 1 and is_kept and row is Row.FREE)
]


def ends_in(facts: Facts) -> set[PartitionEnd]:
    return set(facts.end.by_partition.values()) if facts.end is not None else set()


def found_by(facts: Facts) -> Finding:
    """Return the finding of the coordinator, corrected by the log, or else by the note in the row."""
    finding, ends = find(facts.stored, facts.described, facts.transaction_version), ends_in(facts)
    if finding not in (Finding.COMMITTED, Finding.ABORTED, Finding.VANISHED, Finding.NO_TRACE):
        return finding
    if PartitionEnd.ABORTED in ends:
        return Finding.ABORTED
    if PartitionEnd.COMMITTED in ends:
        return Finding.COMMITTED
    if facts.verdict is not None and finding is not Finding.COMMITTED:
        return Finding.COMMITTED if facts.verdict is Verdict.COMMITTED else Finding.ABORTED
    return finding


def expected(facts: Facts, acknowledged: bool) -> Action:
    """Return the action by the rules of the documentation."""
    is_open = facts.described.state is DescribedState.ONGOING
    is_old = facts.age_ms is not None and facts.age_ms >= MIN_AGE_MS
    finding, ends = found_by(facts), ends_in(facts)
    if facts.row in (Row.MISSING, Row.VOUCHED):
        if is_open:
            if not is_old:
                return Action.YOUNG
            return Action.TERMINATE if facts.row is Row.VOUCHED else Action.NO_ROW
    elif acknowledged and facts.row is Row.FREE and commits_more(facts):
        return Action.ACKNOWLEDGE
    elif facts.row is Row.HELD:
        if is_open or finding in (Finding.ABORTED, Finding.VANISHED):
            return Action.IN_USE
    elif finding is Finding.VANISHED:
        return Action.FORGOTTEN
    elif finding is Finding.ABORTED:
        if acknowledged:
            return Action.ACKNOWLEDGE
        is_whole = PartitionEnd.ABORTED in ends and PartitionEnd.GONE not in ends
        is_proven = facts.transaction_version == 2 or PartitionEnd.ABORTED in ends
        is_proven |= facts.verdict is Verdict.ABORTED
        is_whole_kept = facts.is_kept and is_proven
        if PartitionEnd.COMMITTED in ends and facts.verdict is not Verdict.ABORTED:
            is_whole_kept = False
        if (is_whole or is_whole_kept) and facts.is_repairable:
            return Action.REPAIR
        is_question = facts.is_kept and facts.verdict is not Verdict.ABORTED and not commits_more(facts)
        return Action.NOT_PROVEN if is_question else Action.LOST
    elif is_open:
        if not is_old:
            return Action.YOUNG
        return Action.COMMIT if facts.stored and facts.described.pair == facts.stored else Action.ABORT
    is_question = facts.row is Row.FREE and facts.is_kept and facts.verdict is None and not facts.stored.is_empty
    if is_question and finding is Finding.NO_TRACE and not commits_more(facts):
        return Action.NOT_PROVEN
    if facts.described.state in (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT):
        return Action.ENDING
    if facts.stored_age_ms is None:
        return Action.NOTHING
    if facts.row is Row.HELD:
        return Action.IN_USE
    if facts.stored_age_ms < MIN_AGE_MS:
        return Action.NOTHING if facts.has_publisher else Action.YOUNG
    return Action.OVERDUE if facts.has_publisher else Action.PUBLISH


def is_hidden_question(facts: Facts) -> bool:
    """Whether an open transaction, or a loss at the coordinator, hides how the last batch of an outbox has ended."""
    finding = find(facts.stored, facts.described, facts.transaction_version)
    return facts.is_kept and finding in (Finding.OTHER_OPEN, Finding.VANISHED)


def commits_more(facts: Facts) -> bool:
    """Whether the coordinator describes a committed transaction that is later than the row's."""
    (stored, described), state = (facts.stored, facts.described.pair), facts.described.state
    if state not in (DescribedState.PREPARE_COMMIT, DescribedState.COMPLETE_COMMIT):
        return False
    if stored.is_empty or described.producer_id != stored.producer_id:
        return relation_of(stored, described) is not Relation.ROTATED
    return described.producer_epoch > stored.producer_epoch + 1


def test_every_combination_of_facts() -> None:
    seen = set()
    for facts, acknowledged in itertools.product(EVERYTHING, (False, True)):
        action = decide(facts, min_age_ms=MIN_AGE_MS, lost_is_acknowledged=acknowledged)
        assert action is expected(facts, acknowledged), facts
        taken = decide(facts, min_age_ms=MIN_AGE_MS, lost_is_acknowledged=acknowledged, owed_is_taken_out=True)
        is_open_question = action is Action.NOT_PROVEN
        if action in (Action.REPAIR, Action.NOT_PROVEN):
            assert taken is Action.TAKE_OUT
        elif not is_hidden_question(facts):
            assert taken is action
        again = decide(facts, min_age_ms=MIN_AGE_MS, lost_is_acknowledged=acknowledged, is_published_again=True)
        if is_open_question:
            assert again is Action.PUBLISH_AGAIN
        elif not is_hidden_question(facts):
            assert again is action
        seen |= {action, taken, again}
    assert seen == set(Action) - {Action.FAILED, Action.REFUSED, Action.HANGS, *BY_ROW}


BY_ROW = (Action.ANOTHER_CLUSTER, Action.WENT_BACK)


def test_a_refusal_by_the_row_is_reported() -> None:
    """Another cluster knows nothing of the row's transaction; one that went back counts if all is over."""
    for facts in EVERYTHING:
        plain = decide(facts, min_age_ms=MIN_AGE_MS)
        elsewhere = decide(replace(facts, refusal=Action.ANOTHER_CLUSTER), min_age_ms=MIN_AGE_MS)
        assert elsewhere is (Action.IN_USE if facts.row is Row.HELD else Action.ANOTHER_CLUSTER)
        behind = decide(replace(facts, refusal=Action.WENT_BACK), min_age_ms=MIN_AGE_MS)
        refused = Action.IN_USE if facts.row is Row.HELD else Action.WENT_BACK
        is_open = facts.described.state is DescribedState.ONGOING
        is_over = not is_open and found_by(facts) not in (Finding.ABORTED, Finding.VANISHED)
        assert behind is (refused if is_over else plain), facts


def test_the_table_is_whole() -> None:
    assert set(ACTIONS) == set(itertools.product(Row, Age, Finding))


def test_what_is_in_use_or_young_or_has_no_row_is_never_changed() -> None:
    for (row, age, _), action in ACTIONS.items():
        if row in (Row.HELD, Row.MISSING) or age is Age.YOUNG:
            assert action not in CHANGES


def test_only_the_row_makes_a_commit() -> None:
    for facts in EVERYTHING:
        if decide(facts, min_age_ms=0) is Action.COMMIT:
            assert facts.stored == facts.described.pair
            assert facts.stored
            assert facts.row is Row.FREE


def test_a_closed_transaction_is_never_aborted() -> None:
    for facts in EVERYTHING:
        if facts.described.state is not DescribedState.ONGOING:
            assert decide(facts, min_age_ms=0) not in (Action.COMMIT, Action.ABORT, Action.TERMINATE)


@pytest.mark.parametrize(
    ("state", "start_ms", "expected_ms"),
    [
        ("Ongoing", 400, 600),
        ("Ongoing", 1_500, 0),  # clocks differ
        ("Ongoing", None, None),
        ("Empty", 400, None),
        ("CompleteCommit", 400, None),
        ("unheard of", 400, None),
    ],
)
def test_an_age_is_that_of_what_is_open(state: str, start_ms: int | None, expected_ms: int | None) -> None:
    assert age_ms_of(state, start_ms, 1_000) == expected_ms


@pytest.mark.parametrize("state", [state for state in DescribedState if state is not DescribedState.ONGOING])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_settled_row_is_done_on_every_cluster(state: DescribedState, pair: PreparedTxnState) -> None:
    facts = Facts(Row.FREE, STORED, Described(state, pair, -1), None, 2, is_settled=True)
    is_ending = state in (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT)
    assert decide(facts, min_age_ms=MIN_AGE_MS) is (Action.ENDING if is_ending else Action.NOTHING)
