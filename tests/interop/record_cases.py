"""Records of other people's clients without transactions: the cases that every library in Python has to pass.

A folder inherits them and names its client by its fixture `client`.
"""

from __future__ import annotations

import pytest

from tests.interop.conftest import Broker
from tests.interop.foreign_client import ForeignClient, Message
from tests.interop.logged_records import CODECS, records_of, values_of
from tests.interop.wire import GROUP, Code, Wire


class RecordCases:
    """Judged by the log, and by the records that the client reads as a member of a group."""

    def test_keys_headers_and_timestamps(
        self, wire: Wire, broker: Broker, client: ForeignClient, topic: str, group: str
    ) -> None:
        sent = [
            Message(b"value", b"key", (("h", b"1"), ("h", b"2")), 1_700_000_000_000),
            Message(None, b"gone", (), 1_700_000_000_001),
        ]
        client.write(broker.bootstrap_servers, topic, sent)
        logged = [Message(each.value, each.key, each.headers, each.timestamp_ms) for each in records_of(wire, topic)]
        assert logged == sent
        wire.wait_for_coordinator(group, GROUP)
        assert client.consume(broker.bootstrap_servers, topic, group, 2) == sent
        assert wire.offset_fetch(group, topic) == (Code.NONE, 2)

    @pytest.mark.parametrize("codec", CODECS)
    def test_compression(
        self, wire: Wire, broker: Broker, client: ForeignClient, topic: str, group: str, codec: str
    ) -> None:
        if codec not in client.codecs:
            pytest.skip(f"{client.name} is without {codec} here")
        values = [b"value %d " % number * 20 for number in range(100)]
        client.write(broker.bootstrap_servers, topic, [Message(value) for value in values], codec=codec)
        written = records_of(wire, topic)
        assert {record.codec for record in written} == {codec}
        assert [record.value for record in written] == values
        assert client.read(broker.bootstrap_servers, topic, 100, committed=True) == values

    def test_idempotent_producer(self, wire: Wire, broker: Broker, client: ForeignClient, topic: str) -> None:
        client.write(broker.bootstrap_servers, topic, [Message(b"a"), Message(b"b")], idempotent=True)
        written = records_of(wire, topic)
        assert [record.value for record in written] == [b"a", b"b"]
        assert written[0].producer_id >= 0

    def test_large_messages(self, wire: Wire, broker: Broker, client: ForeignClient, topic: str) -> None:
        value = b"x" * 1_000_000
        client.write(broker.bootstrap_servers, topic, [Message(value)])
        assert values_of(wire, topic) == [value]
        assert client.read(broker.bootstrap_servers, topic, 1, committed=False) == [value]

    def test_a_message_that_is_too_large_is_refused(
        self, wire: Wire, broker: Broker, client: ForeignClient, topic: str
    ) -> None:
        with pytest.raises(Exception, match=r"(?i)too.?large"):
            client.write(broker.bootstrap_servers, topic, [Message(b"x" * 1_200_000)])
        assert values_of(wire, topic) == []
