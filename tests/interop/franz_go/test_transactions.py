"""Transactions of franz-go, which speaks the newest protocol of them (KIP-890)."""

from __future__ import annotations

from tests.interop.logged_records import committed_values_of
from tests.interop.program_cases import CopyPrograms, Run, TransactionPrograms
from tests.interop.wire import GROUP, Code, Wire


class TestTransactions(TransactionPrograms, CopyPrograms):
    """The cases of every program."""

    def test_offsets_in_transactions(self, run: Run, wire: Wire, topic: str, transactional_id: str, group: str) -> None:
        """It adds offsets for members of a group only."""
        for value in (b"1", b"2", b"3", b"4", b"5"):
            wire.write(topic, value)
        wire.wait_for_coordinator(group, GROUP)
        committed = run("offsets_in_transactions", topic=topic, transactionalId=transactional_id, group=group)
        assert committed == [3, 3]
        assert wire.offset_fetch(group, topic, require_stable=True) == (Code.NONE, 3)

    def test_state_of_an_open_transaction(self, run: Run, wire: Wire, topic: str, transactional_id: str) -> None:
        assert run("transaction_state", topic=topic, transactionalId=transactional_id) == {
            "is_listed": True,
            "state": "Ongoing",
            "timeout_ms": 40_000,
            "partitions": [0],
            "producers": 1,
        }
        wire.wait_until_settled(transactional_id)
        assert committed_values_of(wire, topic) == [b"open"]
