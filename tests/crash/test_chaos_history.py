"""The journals of the chaos test become the history that they describe: the checker finds its anomalies."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from dualwrite.verify.anomalies import Anomaly
from dualwrite.verify.checker import check
from tests.crash.chaos_history import history_of
from tests.support.topics import Read

POOLED = ["w1.4/2/7 begun 10.0 w1.4/2/7", "w1.4/2/7 committed 11.0 id 7:1"]
LOCKED = [
    "store3.17/0/1 begun 10.0 store-2",
    "store3.17/0/1 unknown 11.0 id 7:1 OutcomeUnknown('...')",
    "store3.17/0/2 begun 12.0 store-2",
    "store3.17/0/3 begun 14.0 store-2",
    "store3.17/0/3 committed 15.0 id 7:9",
]
LOCKED_BODIES = ("store3.17/0/1:0", "store3.17/0/1:1", "store3.17/0/3:0", "store3.17/0/3:1")


def pooled(*offsets: int, in_table: int = 2) -> list[Anomaly]:
    bodies = ["w1.4/2/7:0", "w1.4/2/7:1"]
    in_topic = [Read("chaos-0", offset, "w1.4/2/7", bodies[offset % 2]) for offset in offsets]
    return list(check(history_of(POOLED, dict.fromkeys(bodies[:in_table], 5), in_topic)).counts)


@pytest.mark.parametrize(
    ("offsets", "in_table", "found"),
    [
        ((0, 1), 2, []),
        ((), 2, [Anomaly.LOST_WRITE]),
        ((0,), 2, [Anomaly.TORN]),
        ((0, 1, 3), 2, [Anomaly.DUPLICATE]),
        ((0, 1), 0, [Anomaly.PHANTOM, Anomaly.TOLD_FALSELY]),
        ((), 0, [Anomaly.TOLD_FALSELY]),
        ((0, 1), 1, [Anomaly.TORN]),
    ],
)
def test_a_pool(offsets: tuple[int, ...], in_table: int, found: list[Anomaly]) -> None:
    assert pooled(*offsets, in_table=in_table) == found


def locked(versions: tuple[int, ...], order: tuple[int, ...], repaired: Collection[str] = ()) -> list[Anomaly]:
    in_topic = [Read("chaos-1", offset, "store-2", LOCKED_BODIES[number]) for offset, number in enumerate(order)]
    in_table = dict(zip(LOCKED_BODIES, versions, strict=True))
    return list(check(history_of(LOCKED, in_table, in_topic, repaired)).counts)


@pytest.mark.parametrize(
    ("versions", "order", "found"),
    [
        ((5, 5, 8, 8), (0, 1, 2, 3), []),
        ((5, 5, 8, 8), (2, 3, 0, 1), [Anomaly.OUT_OF_ORDER, Anomaly.WRITE_CYCLE]),
        ((5, 5, 8, 8), (1, 0, 2, 3), [Anomaly.OUT_OF_ORDER]),
        ((8, 8, 5, 5), (2, 3, 0, 1), [Anomaly.WRITE_CYCLE]),  # both sides agree, against the order of the blocks
        ((5, 5, 5, 5), (0, 1, 2, 3), [Anomaly.OUT_OF_ORDER, Anomaly.LOST_UPDATE]),
    ],
)
def test_blocks_that_lock_a_row(versions: tuple[int, ...], order: tuple[int, ...], found: list[Anomaly]) -> None:
    assert locked(versions, order) == found


def test_a_block_that_was_published_again() -> None:
    assert not locked((5, 5, 8, 8), (2, 3, 0, 1), ["store3.17/0/1"])
