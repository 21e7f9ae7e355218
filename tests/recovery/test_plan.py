"""The table of recovery: every combination of facts, checked against the rules written in a second way."""

from __future__ import annotations

import itertools
from copy import copy
from functools import cache
from typing import NamedTuple

import pytest

from dualwrite.admin import TransactionDescription
from dualwrite.client.log.transaction_end import PartitionEnd, TransactionEnd
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.client.transactions.recovery import DescribedState, Finding, Relation, relation_of
from dualwrite.prepared_state import MAX_PRODUCER_EPOCH, PreparedTxnState
from dualwrite.recipes.core.proof import Verdict, noted_text, settled_text
from dualwrite.recipes.recovery.plan import Action, Row, decide
from dualwrite.recipes.recovery.seen import Cluster, Decision, Seen
from dualwrite.recipes.recovery.stored_rows import StoredRecords, StoredRow

NOW_MS = 10**10
MIN_AGE_MS = 1_000
STORED = PreparedTxnState("7:10")
PAIRS = [
    PreparedTxnState(text)
    for text in ("", "7:8", "7:9", "7:10", "7:11", "7:12", "7:13", "8:0", "8:10", f"7:{MAX_PRODUCER_EPOCH}")
]
STORED_STATES = [PreparedTxnState(), STORED, PreparedTxnState(f"7:{MAX_PRODUCER_EPOCH - 1}")]
AGES_MS = [None, MIN_AGE_MS - 1, MIN_AGE_MS]
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


HERE = Cluster("here", 2, lambda _: True)


class Facts(NamedTuple):
    """Return the facts about an id whose row is in this state."""

    row: Row
    seen: Seen


def described_as(state: str, pair: PreparedTxnState, start_ms: int | None) -> TransactionDescription:
    ids = (-1, -1) if pair.is_empty else (pair.producer_id, pair.producer_epoch)
    return TransactionDescription("id", 1, state, *ids, 60_000, start_ms, frozenset())


def manifest_of(stored: PreparedTxnState, *, has_offsets: bool = False, cluster: str = "here") -> str:
    return str(Manifest(stored, cluster, (), has_offsets))


def with_facts(seen: Seen, **changes: object) -> Seen:
    """Return other facts, keeping the texts that were parsed already and all else that the changes leave as it is."""
    changed = copy(seen)
    vars(changed).update(changes)
    if "cluster" in changes:
        for name in ("finding", "in_cluster", "refusal"):
            vars(changed).pop(name, None)
    return changed


@cache
def seen_of(row: StoredRow) -> Seen:
    """Return the facts about an id with this row alone, whose texts are parsed."""
    seen = Seen("id", "id", row, None, HERE, NOW_MS)
    for name in ("stored", "manifest", "verdict"):
        getattr(seen, name)
    return seen


def facts_of(
    row: Row,
    stored: PreparedTxnState,
    state: DescribedState,
    pair: PreparedTxnState,
    age_ms: int | None,
    version: int,
    ends: tuple[PartitionEnd, ...] | None,
    is_repairable: bool,
    beside: tuple[bool, Verdict | None, int | None, bool],
) -> Facts:
    is_kept, verdict, waits_ms, has_publisher = beside
    manifest = manifest_of(stored, has_offsets=not is_repairable)
    state_text = None if row in (Row.MISSING, Row.VOUCHED) else str(stored)
    since_ms = None if waits_ms is None else NOW_MS - waits_ms
    waiting = StoredRecords(since_ms, state_text if is_kept else None, has_publisher)
    text = "" if stored.is_empty else manifest if verdict is None else noted_text(stored, verdict, manifest)
    description = described_as(state.value, pair, None if age_ms is None else NOW_MS - age_ms)
    cluster = Cluster("here", version, lambda _: True)
    seen = seen_of(StoredRow(state_text, text, waiting))
    return Facts(row, with_facts(seen, description=description, cluster=cluster, end=end_of(ends)))


EVERYTHING = [
    facts_of(row, stored, state, pair, age_ms, version, ends, is_repairable, beside)
    for row, stored, state, pair, age_ms, version, ends, is_repairable, beside in itertools.product(
        Row, STORED_STATES, DescribedState, PAIRS, AGES_MS, VERSIONS, ENDS, (True, False), BESIDE_THE_ROW
    )
    if (row in (Row.FREE, Row.HELD) or stored.is_empty) and (ends is not None or is_repairable)
    if ends is None or not (stored.is_empty or state is DescribedState.ONGOING)
    if age_ms is None or state is DescribedState.ONGOING
    for is_kept, verdict, stored_age_ms, has_publisher in [beside]
    if verdict is None or not (stored.is_empty or state is DescribedState.ONGOING)
    if beside == BESIDE_THE_ROW[0]
    or (version == 2 and (row in (Row.FREE, Row.HELD) or stored_age_ms is not None))
    or (version == 1 and is_kept and row is Row.FREE)
]


def action_of(facts: Facts, *decisions: Decision) -> Action:
    seen = with_facts(facts.seen, decisions=frozenset(decisions)) if decisions else facts.seen
    return decide(seen, facts.row, min_age_ms=MIN_AGE_MS)


def ends_in(facts: Facts) -> set[PartitionEnd]:
    return set(facts.seen.end.by_partition.values()) if facts.seen.end is not None else set()


def found_by(facts: Facts) -> Finding:
    """Return the finding of the coordinator, corrected by the log, or else by the note in the row."""
    finding, ends = facts.seen.finding, ends_in(facts)
    if finding not in (Finding.COMMITTED, Finding.ABORTED, Finding.VANISHED, Finding.NO_TRACE):
        return finding
    if PartitionEnd.ABORTED in ends:
        return Finding.ABORTED
    if PartitionEnd.COMMITTED in ends:
        return Finding.COMMITTED
    if facts.seen.verdict is not None and finding is not Finding.COMMITTED:
        return Finding.COMMITTED if facts.seen.verdict is Verdict.COMMITTED else Finding.ABORTED
    return finding


def expected(facts: Facts, acknowledged: bool) -> Action:
    """Return the action by the rules of the documentation."""
    is_open = facts.seen.described.state is DescribedState.ONGOING
    is_old = facts.seen.age_ms is not None and facts.seen.age_ms >= MIN_AGE_MS
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
        is_proven = facts.seen.cluster.transaction_version == 2 or PartitionEnd.ABORTED in ends
        is_proven |= facts.seen.verdict is Verdict.ABORTED
        is_whole_kept = facts.seen.is_kept and is_proven
        if PartitionEnd.COMMITTED in ends and facts.seen.verdict is not Verdict.ABORTED:
            is_whole_kept = False
        if (is_whole or is_whole_kept) and not facts.seen.has_offsets:
            return Action.REPAIR
        is_question = facts.seen.is_kept and facts.seen.verdict is not Verdict.ABORTED and not commits_more(facts)
        return Action.NOT_PROVEN if is_question else Action.LOST
    elif is_open:
        if not is_old:
            return Action.YOUNG
        return Action.COMMIT if facts.seen.stored and facts.seen.described.pair == facts.seen.stored else Action.ABORT
    is_question = (
        facts.row is Row.FREE and facts.seen.is_kept and facts.seen.verdict is None and not facts.seen.stored.is_empty
    )
    if is_question and finding is Finding.NO_TRACE and not commits_more(facts):
        return Action.NOT_PROVEN
    is_gone = PartitionEnd.GONE in ends and facts.seen.waits_ms is None
    if facts.row is Row.FREE and finding is Finding.NO_TRACE and is_gone:
        return Action.ACKNOWLEDGE if acknowledged else Action.NO_EVIDENCE
    if facts.seen.described.state in (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT):
        return Action.ENDING
    if facts.seen.waits_ms is None:
        return Action.NOTHING
    if facts.row is Row.HELD:
        return Action.IN_USE
    if facts.seen.waits_ms < MIN_AGE_MS:
        return Action.NOTHING if facts.seen.row.waiting.has_publisher else Action.YOUNG
    return Action.OVERDUE if facts.seen.row.waiting.has_publisher else Action.PUBLISH


def is_hidden_question(facts: Facts) -> bool:
    """Whether an open transaction, or a loss at the coordinator, hides how the last batch of an outbox has ended."""
    finding = facts.seen.finding
    return facts.seen.is_kept and finding in (Finding.OTHER_OPEN, Finding.VANISHED)


def commits_more(facts: Facts) -> bool:
    """Whether the coordinator describes a committed transaction that is later than the row's."""
    (stored, described), state = (facts.seen.stored, facts.seen.described.pair), facts.seen.described.state
    if state not in (DescribedState.PREPARE_COMMIT, DescribedState.COMPLETE_COMMIT):
        return False
    if stored.is_empty or described.producer_id != stored.producer_id:
        return relation_of(stored, described) is not Relation.ROTATED
    return described.producer_epoch > stored.producer_epoch + 1


def test_every_combination_of_facts() -> None:
    seen = set()
    for facts, lost in itertools.product(EVERYTHING, ((), (Decision.LOST,))):
        action = action_of(facts, *lost)
        assert action is expected(facts, bool(lost)), facts
        taken = action_of(facts, *lost, Decision.TAKEN_OUT)
        is_open_question = action is Action.NOT_PROVEN
        if action in (Action.REPAIR, Action.NOT_PROVEN):
            assert taken is Action.TAKE_OUT
        elif not is_hidden_question(facts):
            assert taken is (Action.FAILED if action is Action.NOTHING else action)
        again = action_of(facts, *lost, Decision.PUBLISHED_AGAIN)
        if is_open_question:
            assert again is Action.PUBLISH_AGAIN
        elif not is_hidden_question(facts):
            assert again is (Action.FAILED if action is Action.NOTHING else action)
        seen |= {action, taken, again}
    assert seen == set(Action) - {Action.REFUSED, Action.HANGS, *BY_ROW}


BY_ROW = (Action.ANOTHER_CLUSTER, Action.WENT_BACK)


def test_a_refusal_by_the_row_is_reported() -> None:
    """Another cluster knows nothing of the row's transaction; one that went back counts if all is over."""
    for facts in EVERYTHING:
        version, plain = facts.seen.cluster.transaction_version, action_of(facts)
        has_row = facts.row in (Row.FREE, Row.HELD)
        if has_row and facts.seen.stored:
            cluster = Cluster("another", version, lambda _: True)
            elsewhere = action_of(facts._replace(seen=with_facts(facts.seen, cluster=cluster)))
            assert elsewhere is (Action.IN_USE if facts.row is Row.HELD else Action.ANOTHER_CLUSTER)
        cluster = Cluster("here", version, lambda _: False)
        behind = action_of(facts._replace(seen=with_facts(facts.seen, cluster=cluster)))
        refused = Action.IN_USE if facts.row is Row.HELD else Action.WENT_BACK
        is_over = has_row and commits_more(facts) and found_by(facts) not in (Finding.ABORTED, Finding.VANISHED)
        assert behind is (refused if is_over else plain), facts


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
def test_the_age_is_that_of_the_open_transaction(state: str, start_ms: int | None, expected_ms: int | None) -> None:
    description = described_as(state, PreparedTxnState(), start_ms)
    assert Seen("id", "id", StoredRow("", ""), description, HERE, 1_000).age_ms == expected_ms


@pytest.mark.parametrize("state", [state for state in DescribedState if state is not DescribedState.ONGOING])
@pytest.mark.parametrize("pair", PAIRS)
def test_a_settled_row_is_done_on_every_cluster(state: DescribedState, pair: PreparedTxnState) -> None:
    row = StoredRow(str(STORED), settled_text(STORED))
    facts = Facts(Row.FREE, Seen("id", "id", row, described_as(state.value, pair, None), HERE, NOW_MS))
    is_ending = state in (DescribedState.PREPARE_COMMIT, DescribedState.PREPARE_ABORT)
    assert action_of(facts) is (Action.ENDING if is_ending else Action.NOTHING)
