"""Kafka's own consumer as a member of a consumer group of KIP-848."""

from __future__ import annotations

from tests.interop.java.client import KafkaScripts
from tests.interop.wire import Wire

READ = ("--from-beginning", "--timeout-ms", "20000", "--command-property", "group.protocol=consumer")


def test_console_consumer_and_group_tools(scripts: KafkaScripts, wire: Wire, topic: str, group: str) -> None:
    wire.write(topic, b"a", b"b", b"c")
    out = scripts.ok("kafka-console-consumer", "--topic", topic, "--group", group, *READ, "--max-messages", "3")
    assert out.split() == ["a", "b", "c"]
    listed = scripts.ok("kafka-consumer-groups", "--list", "--type", "consumer")
    assert group in listed.split()
    described = scripts.ok("kafka-consumer-groups", "--describe", "--group", group, "--state")
    assert "Empty" in described
    by_expression = f"{topic[:-1]}[{topic[-1]}]"
    again = ["--include", by_expression, "--group", f"{group}-again", *READ, "--max-messages", "3"]
    assert scripts.ok("kafka-console-consumer", *again).split() == ["a", "b", "c"]
