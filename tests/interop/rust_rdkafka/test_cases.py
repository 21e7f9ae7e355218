"""The cases that every program has to pass, with rust-rdkafka."""

from __future__ import annotations

import pytest

from tests.interop.program_cases import RecordPrograms, TransactionPrograms

pytestmark = pytest.mark.matrix  # librdkafka itself is in every run, by confluent-kafka; its build here takes minutes


class TestRecords(RecordPrograms):
    """Without transactions."""

    codecs = ("none", "gzip", "snappy", "lz4")  # zstd is a feature of the crate that is off by default


class TestTransactions(TransactionPrograms):
    """Of one producer after the other."""
