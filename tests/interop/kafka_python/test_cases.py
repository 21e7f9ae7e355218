"""The cases that every library in Python has to pass, with kafka-python."""

from __future__ import annotations

from tests.interop.record_cases import RecordCases
from tests.interop.transaction_cases import TransactionCases


class TestRecords(RecordCases):
    """Without transactions."""


class TestTransactions(TransactionCases):
    """Of one producer after the other."""
