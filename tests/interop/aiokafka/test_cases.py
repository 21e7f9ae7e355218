"""The cases that every library in Python has to pass, with aiokafka."""

from __future__ import annotations

from tests.interop.killed_brokers import killable
from tests.interop.killed_copy import KilledCopyCases
from tests.interop.record_cases import RecordCases
from tests.interop.transaction_cases import TransactionCases

__all__ = ["TestKilledBroker", "TestRecords", "TestTransactions", "killable"]


class TestRecords(RecordCases):
    """Without transactions."""


class TestTransactions(TransactionCases):
    """Of one producer after the other."""


class TestKilledBroker(KilledCopyCases):
    """While its broker is killed."""
