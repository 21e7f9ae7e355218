"""Records of Kafka's console tools and performance tools."""

from __future__ import annotations

import pytest

from tests.interop.java.client import KafkaScripts
from tests.interop.logged_records import CODECS, committed_values_of, records_of, values_of
from tests.interop.wire import Code, Wire

FROM_THE_BEGINNING = ("--from-beginning", "--timeout-ms", "20000")


def test_console_producer_with_keys_and_headers(scripts: KafkaScripts, wire: Wire, topic: str) -> None:
    properties = ("parse.key=true", "parse.headers=true", "null.marker=NIL")
    options = [option for each in properties for option in ("--reader-property", each)]
    lines = "h1:a,h2:b\tkey\tvalue\nh1:c\tgone\tNIL\n"
    scripts.ok("kafka-console-producer", "--topic", topic, *options, stdin=lines)
    assert [(record.key, record.value, record.headers) for record in records_of(wire, topic)] == [
        (b"key", b"value", (("h1", b"a"), ("h2", b"b"))),
        (b"gone", None, (("h1", b"c"),)),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_compression(scripts: KafkaScripts, wire: Wire, topic: str, codec: str) -> None:
    lines = [f"value {number} " * 20 for number in range(100)]
    options = ["--compression-codec", codec, "--topic", topic]
    scripts.ok("kafka-console-producer", *options, stdin="\n".join(lines) + "\n")
    written = records_of(wire, topic)
    assert {record.codec for record in written} == {codec}
    assert [(record.value or b"").decode() for record in written] == lines
    read = scripts.ok("kafka-console-consumer", "--topic", topic, *FROM_THE_BEGINNING, "--max-messages", "100")
    assert read.splitlines() == lines


def test_console_consumer_reads_committed_records_only(scripts: KafkaScripts, wire: Wire, topic: str) -> None:
    identity = wire.init_ok(f"of-{topic}")
    for values, commit in (((b"aborted",), False), ((b"a", b"b"), True)):
        assert wire.produce(f"of-{topic}", identity, topic, 0, *values).error == Code.NONE
        identity = wire.end(f"of-{topic}", identity, commit=commit).identity
        wire.wait_until_settled(f"of-{topic}")
    wire.write(topic, b"c")
    read = ["--topic", topic, *FROM_THE_BEGINNING, "--command-property"]
    committed = scripts.ok("kafka-console-consumer", *read, "isolation.level=read_committed", "--max-messages", "3")
    assert committed.split() == ["a", "b", "c"]
    everything = scripts.ok("kafka-console-consumer", *read, "isolation.level=read_uncommitted", "--max-messages", "4")
    assert everything.split() == ["aborted", "a", "b", "c"]


def test_producer_performance_with_transactions(scripts: KafkaScripts, wire: Wire, topic: str) -> None:
    sizes = ["--topic", topic, "--num-records", "300", "--record-size", "50", "--throughput", "1000"]
    transactions = ["--transactional-id", f"of-{topic}", "--transaction-duration-ms", "50"]
    out = scripts.ok("kafka-producer-perf-test", *sizes, *transactions)
    assert out.startswith("300 records sent")
    wire.wait_until_settled(f"of-{topic}")
    assert wire.describe(f"of-{topic}").state == "CompleteCommit"
    written = records_of(wire, topic)
    assert sum(record.is_control for record in written) >= 3
    assert len(committed_values_of(wire, topic)) == 300


def test_consumer_performance(scripts: KafkaScripts, wire: Wire, topic: str) -> None:
    for _ in range(5):
        wire.write(topic, *([b"x" * 100] * 100))
    out = scripts.ok("kafka-consumer-perf-test", "--topic", topic, "--num-records", "500", "--timeout", "20000")
    assert out.splitlines()[-1].split(", ")[4] == "500"


def test_verifiable_producer_and_consumer(scripts: KafkaScripts, wire: Wire, topic: str, group: str) -> None:
    written = scripts.alone("kafka-verifiable-producer", "--topic", topic, "--max-messages", "200", "--acks", "-1")
    assert '"sent":200,"acked":200' in written.out
    assert [int(value) for value in values_of(wire, topic)] == list(range(200))
    options = ["--topic", topic, "--group-id", group, "--max-messages", "200", "--reset-policy", "earliest"]
    consumed = scripts.alone("kafka-verifiable-consumer", *options)
    assert '"name":"offsets_committed"' in consumed.out
    assert wire.offset_fetch(group, topic) == (Code.NONE, 200)
