"""The cases of every program, with kafka-go, and those of its own."""

from __future__ import annotations

from typing import Any

from tests.interop.program_cases import RecordPrograms


class TestRecords(RecordPrograms):
    """The cases of every program."""

    def test_reads_a_partition_without_a_group(self, run: Any, topic: str) -> None:
        """Its Fetch carries the epoch -1 with a session id of its own (KIP-227)."""
        values = [str(number) for number in range(10)]
        run("produce", topic=topic, values=values, codec="none")
        assert [message["value"] for message in run("partition", topic=topic, count=10)] == values
