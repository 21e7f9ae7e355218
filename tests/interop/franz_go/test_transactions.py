"""Transactions of franz-go, which speaks the newest protocol of them (KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interop.logged_records import committed_values_of, values_of
from tests.interop.wire import GROUP, NOBODY, Code, Wire


def test_commit_and_abort(run: Any, wire: Wire, topic: str, transactional_id: str) -> None:
    transactions = [
        {"values": ["a", "b"], "commit": True},
        {"values": ["c"], "commit": False},
        {"values": ["d"], "commit": True},
    ]
    run("transactions", topic=topic, transactionalId=transactional_id, transactions=transactions)
    wire.wait_until_settled(transactional_id)
    assert wire.describe(transactional_id).state == "CompleteCommit"
    assert values_of(wire, topic) == [b"a", b"b", b"c", b"d"]
    assert committed_values_of(wire, topic) == [b"a", b"b", b"d"]


def test_second_producer_fences_the_first(run: Any, wire: Wire, topic: str, transactional_id: str) -> None:
    refusal = run("fencing", topic=topic, transactionalId=transactional_id)
    assert refusal in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
    wire.wait_until_settled(transactional_id)
    assert committed_values_of(wire, topic) == [b"of the second"]


def test_offsets_in_transactions(run: Any, wire: Wire, topic: str, transactional_id: str, group: str) -> None:
    for value in (b"1", b"2", b"3", b"4", b"5"):
        assert wire.produce(None, NOBODY, topic, -1, value, transactional=False).error == Code.NONE
    wire.wait_for_coordinator(group, GROUP)
    committed = run("offsets_in_transactions", topic=topic, transactionalId=transactional_id, group=group)
    assert committed == [3, 3]
    assert wire.offset_fetch(group, topic, require_stable=True) == (Code.NONE, 3)


@pytest.mark.matrix
def test_copy_with_aborts_is_exactly_once(run: Any, wire: Wire, topic: str, transactional_id: str, group: str) -> None:
    wire.create_topic(f"{topic}-copy")
    wire.wait_for_coordinator(group, GROUP)
    values = [b"%d" % number for number in range(60)]
    for value in values:
        assert wire.produce(None, NOBODY, topic, -1, value, transactional=False).error == Code.NONE
    names = {"topic": topic, "target": f"{topic}-copy", "transactionalId": transactional_id, "group": group}
    run("copy", count=60, size=7, committed=True, **names)
    wire.wait_until_settled(transactional_id)
    assert committed_values_of(wire, f"{topic}-copy") == values


def test_state_of_an_open_transaction(run: Any, wire: Wire, topic: str, transactional_id: str) -> None:
    assert run("transaction_state", topic=topic, transactionalId=transactional_id) == {
        "is_listed": True,
        "state": "Ongoing",
        "timeout_ms": 40_000,
        "partitions": [0],
        "producers": 1,
    }
    wire.wait_until_settled(transactional_id)
    assert committed_values_of(wire, topic) == [b"open"]
