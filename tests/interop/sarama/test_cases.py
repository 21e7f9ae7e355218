"""The cases that every program has to pass, with sarama."""

from __future__ import annotations

from tests.interop.program_cases import AdministrationPrograms, RecordPrograms, TransactionPrograms


class TestAdministration(AdministrationPrograms):
    """Topics, settings and groups."""


class TestRecords(RecordPrograms):
    """Without transactions."""


class TestTransactions(TransactionPrograms):
    """Of one producer after the other."""
