"""Transactions of sarama."""

from __future__ import annotations

from tests.interop.program_cases import TransactionPrograms


class TestTransactions(TransactionPrograms):
    """The cases of every program."""
