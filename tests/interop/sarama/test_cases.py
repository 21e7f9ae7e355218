"""The cases that every program has to pass, with sarama."""

from __future__ import annotations

from tests.interop.program_cases import RecordPrograms, TransactionPrograms


class TestRecords(RecordPrograms):
    """Without transactions."""


class TestTransactions(TransactionPrograms):
    """Of one producer after the other."""
