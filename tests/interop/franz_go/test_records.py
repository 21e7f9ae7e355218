"""Records of franz-go."""

from __future__ import annotations

import pytest

from tests.interop.logged_records import values_of
from tests.interop.program_cases import RecordPrograms, Run, check_idempotence
from tests.interop.wire import GROUP, Wire


class TestRecords(RecordPrograms):
    """The cases of every program."""

    def test_idempotent_producer(self, run: Run, wire: Wire, topic: str) -> None:
        """It is one unless told otherwise."""
        check_idempotence(run, wire, topic)

    def test_fetch_sessions(self, run: Run, wire: Wire, topic: str) -> None:
        values = [str(number) for number in range(10)]
        assert run("sessions", topic=topic, values=values) == values
        assert values_of(wire, topic) == [value.encode() for value in values]

    def test_reads_without_a_group(self, run: Run, topic: str) -> None:
        run("produce", topic=topic, values=["a"], codec="none")
        assert [message["value"] for message in run("consume", topic=topic, count=1)] == ["a"]

    @pytest.mark.parametrize(
        "consumer_groups",
        # a member of KIP-848 heartbeats every five seconds, and learns of changes no sooner
        [pytest.param(False, id="classic"), pytest.param(True, id="KIP-848")],
    )
    def test_members_share_partitions(  # type: ignore[override]  # has a parameter more
        self, run: Run, wire: Wire, topic: str, group: str, consumer_groups: bool
    ) -> None:
        shared = f"{topic}-shared"
        wire.create_topic(shared, 4)
        wire.wait_for_coordinator(group, GROUP)
        found = run("members", topic=shared, group=group, partitions=4, consumerGroups=consumer_groups)
        assert found == {"counts": [2, 2], "protocol": "Stable"}
