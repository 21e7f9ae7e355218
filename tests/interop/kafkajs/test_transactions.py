"""Transactions of kafkajs."""

from __future__ import annotations

from tests.interop.logged_records import committed_values_of
from tests.interop.program_cases import CopyPrograms, Run, TransactionPrograms
from tests.interop.wire import GROUP, Wire


class TestTransactions(TransactionPrograms, CopyPrograms):
    """The cases of every program."""

    def test_open_transaction_is_seen_by_uncommitted_readers(
        self, run: Run, wire: Wire, topic: str, transactional_id: str
    ) -> None:
        wire.wait_for_coordinator(f"{topic}-readers", GROUP)
        assert run("openTransaction", topic=topic, transactionalId=transactional_id, value="open") == ["open"]
        wire.wait_until_settled(transactional_id)
        assert committed_values_of(wire, topic) == [b"open"]
