"""Records of sarama."""

from __future__ import annotations

from tests.interop.program_cases import RecordPrograms


class TestRecords(RecordPrograms):
    """The cases of every program."""
