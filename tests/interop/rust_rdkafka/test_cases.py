"""The cases that every program has to pass, with rust-rdkafka."""

from __future__ import annotations

from tests.interop.program_cases import RecordPrograms, TransactionPrograms


class TestRecords(RecordPrograms):
    """Without transactions."""

    codecs = ("none", "gzip", "snappy", "lz4")  # zstd is a feature of the crate that is off by default


class TestTransactions(TransactionPrograms):
    """Of one producer after the other."""
