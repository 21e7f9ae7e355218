"""Transactions of rust-rdkafka."""

from __future__ import annotations

import pytest

from tests.interop.program_cases import TransactionPrograms

pytestmark = pytest.mark.matrix  # see test_records.py


class TestTransactions(TransactionPrograms):
    """The cases of every program."""
