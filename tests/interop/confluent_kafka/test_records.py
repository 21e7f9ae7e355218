"""Records of confluent-kafka without transactions."""

from __future__ import annotations

from tests.interop.record_cases import RecordCases


class TestRecords(RecordCases):
    """With the fixtures of this folder."""
