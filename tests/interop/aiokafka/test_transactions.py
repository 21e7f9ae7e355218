"""Transactions of aiokafka."""

from __future__ import annotations

from tests.interop.transaction_cases import TransactionCases


class TestTransactions(TransactionCases):
    """With the fixtures of this folder."""
