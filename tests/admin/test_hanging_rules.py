"""The rules of kafka-transactions.sh find-hanging (KIP-664): each case, without a broker."""

from __future__ import annotations

import pytest

from dualwrite.admin import ActiveProducer, TopicPartition, TransactionDescription
from dualwrite.client.admin.hanging_transactions import Classified, OpenTransaction, classify

HERE, ELSEWHERE = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS, MAX_MS = 1_000_000, 900_000


def producer(*, last_timestamp_ms: int = 0, start: int | None = 5) -> ActiveProducer:
    return ActiveProducer(7, 1, 0, last_timestamp_ms, None, start)


OPENED = OpenTransaction(HERE, producer())


def description(*partitions: TopicPartition, state: str = "Ongoing") -> TransactionDescription:
    return TransactionDescription("x", 0, state, 7, 1, 60_000, 0, frozenset(partitions))


HANGS, LIVES, OPEN_QUESTION = Classified([OPENED], []), Classified([], []), Classified([], [OPENED])


@pytest.mark.parametrize("all_heard", [True, False])
@pytest.mark.parametrize(
    ("ids", "descriptions", "expected", "expected_without_all"),
    [
        ({}, {}, HANGS, OPEN_QUESTION),  # no coordinator knows the producer
        ({7: "x"}, {"x": None}, HANGS, HANGS),  # the id expired between the two requests
        ({7: "x"}, {"x": description(HERE)}, LIVES, LIVES),
        ({7: "x"}, {"x": description(HERE, ELSEWHERE, state="PrepareAbort")}, LIVES, LIVES),  # its marker is to come
        ({7: "x"}, {"x": description(ELSEWHERE)}, HANGS, HANGS),
        ({7: "x"}, {"x": description(state="CompleteCommit")}, HANGS, HANGS),
        ({7: "x"}, {}, OPEN_QUESTION, OPEN_QUESTION),  # its coordinator did not respond
        ({8: "y"}, {"y": description(HERE)}, HANGS, OPEN_QUESTION),
    ],
)
def test_which_transactions_hang(
    ids: dict[int, str],
    descriptions: dict[str, TransactionDescription | None],
    expected: Classified,
    expected_without_all: Classified,
    all_heard: bool,
) -> None:
    judged = classify([OPENED], ids, descriptions, all_coordinators_responded=all_heard)
    assert judged == (expected if all_heard else expected_without_all)
