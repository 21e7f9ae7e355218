"""Records of kafkajs."""

from __future__ import annotations

import pytest

from tests.interop.logged_records import records_of, values_of
from tests.interop.program_cases import RecordPrograms, Run, check_compression, check_idempotence
from tests.interop.wire import GROUP, Wire, wait_for


class TestRecords(RecordPrograms):
    """The cases of every program."""

    @pytest.mark.parametrize("codec", ["gzip", "snappy"])
    def test_compression(self, run: Run, wire: Wire, topic: str, group: str, codec: str) -> None:
        check_compression(run, wire, topic, group, codec)

    def test_tombstones(self, run: Run, wire: Wire, topic: str, group: str) -> None:
        run("produce", topic=topic, values=[None], key="k")
        (record,) = records_of(wire, topic)
        assert (record.key, record.value) == (b"k", None)
        wire.wait_for_coordinator(group, GROUP)
        assert run("consume", topic=topic, group=group, count=1)[0]["value"] is None

    def test_idempotent_producer(self, run: Run, wire: Wire, topic: str) -> None:
        check_idempotence(run, wire, topic)

    @pytest.mark.parametrize("acks", [1, 0])
    def test_acks(self, run: Run, wire: Wire, topic: str, acks: int) -> None:
        run("produce", topic=topic, values=["a"], acks=acks)
        wait_for(lambda: values_of(wire, topic), lambda values: values == [b"a"])
