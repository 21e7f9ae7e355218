"""The trace of a record: in its headers as a foreign consumer reads them, and in the spans of its sender and reader."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Partition
from opentelemetry import baggage, context, trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

from dualwrite.async_producer import AsyncProducer
from dualwrite.broker_emulator import Error, Fault
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.records import traces
from dualwrite.errors import DualWriteError, InvalidRecordError
from dualwrite.guarantee import Tier
from dualwrite.outcome import Outcome
from dualwrite.producer import Producer, Record
from dualwrite.recipes.consume.consumers import ConsumedRecord
from dualwrite.recipes.consume.tracing import processing
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import Scenario
from tests.recipes.away import AWAY, kafka_away
from tests.recipes.heard import Heard
from tests.recipes.pools import make_pool, write
from tests.recipes.repairs import Way, let_end, site_of, sqlite_store
from tests.support.conditions import until
from tests.support.databases import unique

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
"""A traceparent that the application sets itself."""


def headers_in(emulator: Emulator, topic: str, records: int) -> list[list[tuple[str, bytes]]]:
    """The headers of the committed records of partition 0, as confluent-kafka reads them."""
    settings = {"bootstrap.servers": emulator.bootstrap_servers, "group.id": "headers", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    try:
        consumer.assign([Partition(topic, 0, 0)])
        found: list[list[tuple[str, bytes]]] = []
        while len(found) < records:
            (message,) = consumer.consume(1, 60)
            assert message.error() is None
            found.append(list(message.headers() or ()))  # type: ignore[arg-type]
        return found
    finally:
        consumer.close()


def parent_of(span: Any) -> str:
    """The traceparent of a span's context."""
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def traceparents(emulator: Emulator, topic: str, records: int) -> list[str]:
    found = [[value for name, value in each if name == "traceparent"] for each in headers_in(emulator, topic, records)]
    assert all(len(each) == 1 for each in found)
    return [value.decode() for (value,) in found]


def test_the_names_are_those_of_the_conventions() -> None:
    ours = [name for name in vars(traces).values() if isinstance(name, str) and re.match(r"messaging\.|error\.", name)]
    assert dict(zip(ours, ours, strict=True)) == {
        traces.SYSTEM: messaging_attributes.MESSAGING_SYSTEM,
        traces.OPERATION_NAME: messaging_attributes.MESSAGING_OPERATION_NAME,
        traces.OPERATION_TYPE: messaging_attributes.MESSAGING_OPERATION_TYPE,
        traces.DESTINATION: messaging_attributes.MESSAGING_DESTINATION_NAME,
        traces.PARTITION: messaging_attributes.MESSAGING_DESTINATION_PARTITION_ID,
        traces.CLIENT_ID: messaging_attributes.MESSAGING_CLIENT_ID,
        traces.CONSUMER_GROUP: messaging_attributes.MESSAGING_CONSUMER_GROUP_NAME,
        traces.MESSAGE_COUNT: messaging_attributes.MESSAGING_BATCH_MESSAGE_COUNT,
        traces.KEY: messaging_attributes.MESSAGING_KAFKA_MESSAGE_KEY,
        traces.TOMBSTONE: messaging_attributes.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
        traces.OFFSET: messaging_attributes.MESSAGING_KAFKA_OFFSET,
        traces.ERROR_TYPE: error_attributes.ERROR_TYPE,
    }
    types = messaging_attributes.MessagingOperationTypeValues
    assert {types.CREATE.value, types.SEND.value, types.PROCESS.value} == {"create", "send", "process"}


# ---- dual writes ----------------------------------------------------------------------------------------------------


def test_each_record_of_a_block_carries_where_it_was_created(heard: Heard, scenario: Scenario) -> None:
    with scenario.writer(client_id="shop") as writer, heard.tracer.start_as_current_span("request"):
        with writer.transaction() as tx:
            tx.send(scenario.topic, key="k", value="1")
            tx.send(scenario.topic, key=b"\xff", value=None, partition=0, headers={"mine": "ë"})
    (request,), (commit,), (sent,) = map(heard.spans, ("request", "dualwrite.commit", "send"))
    first, second = heard.spans("create")
    assert traceparents(scenario.emulator, scenario.topic, 2) == [parent_of(first), parent_of(second)]
    assert dict(headers_in(scenario.emulator, scenario.topic, 2)[1])["mine"] == "ë".encode()
    assert (first.kind, first.parent, first.name) == (SpanKind.PRODUCER, request.context, f"create {scenario.topic}")
    of_all = {
        "messaging.system": "kafka",
        "messaging.destination.name": scenario.topic,
        "messaging.client.id": "shop",
    }
    created = {**of_all, "messaging.operation.name": "create", "messaging.operation.type": "create"}
    assert first.attributes == {**created, "messaging.kafka.message.key": "k"}
    tombstone = {"messaging.kafka.message.tombstone": True, "messaging.destination.partition.id": "0"}
    assert second.attributes == {**created, **tombstone}
    assert (sent.kind, sent.parent, commit.parent) == (SpanKind.CLIENT, commit.context, request.context)
    assert [link.context.span_id for link in sent.links] == [first.context.span_id, second.context.span_id]
    assert sent.name == f"send {scenario.topic}"
    assert sent.attributes == {
        **of_all,
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.batch.message_count": 2,
        "messaging.destination.partition.id": "0",
    }


def test_a_context_given_by_the_application_is_the_only_one(heard: Heard, scenario: Scenario) -> None:
    with scenario.writer() as writer, writer.transaction() as tx:
        tx.send(scenario.topic, value="1", headers={"traceparent": GIVEN})
    assert headers_in(scenario.emulator, scenario.topic, 1) == [[("traceparent", GIVEN.encode())]]
    assert heard.spans("create") == []
    (sent,) = heard.spans("send")
    assert [f"{link.context.span_id:016x}" for link in sent.links] == ["b7ad6b7169203331"]


def test_baggage_goes_with_the_record_unless_it_has_its_own(heard: Heard, scenario: Scenario) -> None:
    token = context.attach(baggage.set_baggage("customer", "7"))
    try:
        with scenario.writer() as writer, writer.transaction() as tx:
            tx.send(scenario.topic, value="1")
            tx.send(scenario.topic, value="2", headers=[("baggage", "mine=1")])
    finally:
        context.detach(token)
    found = headers_in(scenario.emulator, scenario.topic, 2)
    assert [[value for name, value in each if name == "baggage"] for each in found] == [[b"customer=7"], [b"mine=1"]]
    assert len(traceparents(scenario.emulator, scenario.topic, 2)) == 2


def test_a_pool_traces_too_and_each_writer_can_turn_tracing_off(heard: Heard, scenario: Scenario) -> None:
    servers = scenario.emulator.bootstrap_servers
    with DualWriter(scenario.database.engine, prefix="traced", bootstrap_servers=servers) as pool:
        with pool.transaction() as tx:
            tx.send(scenario.topic, value="1")
    with scenario.writer(trace_records=False) as writer, writer.transaction() as tx:
        tx.send(scenario.topic, value="2")
    (created,) = heard.spans("create")
    assert headers_in(scenario.emulator, scenario.topic, 2) == [[("traceparent", parent_of(created).encode())], []]


def test_a_block_stored_while_kafka_was_away_keeps_its_context(heard: Heard, scenario: Scenario) -> None:
    scenario.transactional_id = f"{unique('pool')}-0"
    with make_pool(scenario, **AWAY) as pool:
        write(pool, scenario, 0)
        with kafka_away(scenario.emulator):
            assert write(pool, scenario, 1).outcome is Outcome.STORED
        created = [parent_of(span) for span in heard.spans("create")]
        until(lambda: not pool.status.is_diverted)
    assert traceparents(scenario.emulator, scenario.topic, 2) == created
    assert len(heard.spans("create")) == 2
    links = [f"{link.context.span_id:016x}" for link in heard.spans("send")[-1].links]
    assert links == [parent.split("-")[2] for parent in created[1:]]


def test_a_block_published_again_after_a_crash_keeps_its_context(heard: Heard, tmp_path: Path) -> None:
    """The process sleeps after the decision, Kafka aborts, and another process repairs: one context, and one record."""
    store = sqlite_store(tmp_path)
    with site_of(Tier.STORED_PAIR, store) as site:
        site.decided()
        (created,) = heard.spans("create")
        let_end(site, Way.OPERATOR)
        assert site.recover() is Outcome.REPAIRED
        assert traceparents(site.emulator, "orders", 1) == [parent_of(created)]
        assert len(heard.spans("create")) == 1
        assert [link.context.span_id for link in heard.spans("send")[-1].links] == [created.context.span_id]
    store.close()


# ---- plain producers ------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(emulator: Emulator, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    emulator.create_topic(name)
    return str(name)


def test_a_producer_traces_only_if_enabled(heard: Heard, emulator: Emulator, topic: str) -> None:
    with Producer(bootstrap_servers=emulator.bootstrap_servers) as producer:
        producer.send(topic, b"1").result(60)
    with Producer({"bootstrap.servers": emulator.bootstrap_servers, "trace.records": "true"}) as producer:
        heard_of: list[Any] = []
        producer.send(topic, b"2", key="k", on_delivery=lambda *outcome: heard_of.append(outcome)).result(60)
        producer.flush()
        producer.send(topic, b"3", headers={"traceparent": GIVEN}).result(60)
    (second, third) = heard.spans("send")
    expected = [[], [("traceparent", parent_of(second).encode())], [("traceparent", GIVEN.encode())]]
    assert headers_in(emulator, topic, 3) == expected
    assert (second.kind, third.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT)
    assert second.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
        "messaging.client.id": "dualwrite",
        "messaging.kafka.message.key": "k",
        "messaging.kafka.offset": 1,
    }
    assert [f"{link.context.span_id:016x}" for link in third.links] == ["b7ad6b7169203331"]
    assert [(metadata.offset, error) for metadata, error in heard_of] == [(1, None)]


def test_a_span_ends_with_the_error_of_its_record(heard: Heard, emulator: Emulator, topic: str) -> None:
    with Producer(bootstrap_servers=emulator.bootstrap_servers, trace_records=True) as producer:
        emulator.faults.add(Fault(api="Produce", action=Error(87)))  # INVALID_RECORD
        with pytest.raises(DualWriteError):
            producer.send(topic, b"1").result(60)
        with pytest.raises(InvalidRecordError):
            producer.send(topic, b"1", partition=5)
    spans = heard.spans("send")
    assert [span.status.status_code for span in spans] == [StatusCode.ERROR, StatusCode.ERROR]
    assert {span.attributes["error.type"] for span in spans} == {"DeliveryError", "InvalidRecordError"}


async def test_an_asynchronous_producer_and_a_batch_are_traced(heard: Heard, emulator: Emulator, topic: str) -> None:
    async with AsyncProducer(bootstrap_servers=emulator.bootstrap_servers, trace_records=True) as producer:
        await (await producer.send(topic, b"1"))
        await producer.send_batch(topic, [b"2", Record(b"3", headers={"traceparent": GIVEN})])
        await producer.flush()
    one, batch = sorted(heard.spans("send"), key=lambda span: span.start_time)
    assert traceparents(emulator, topic, 3) == [parent_of(one), parent_of(batch), GIVEN]
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert [f"{link.context.span_id:016x}" for link in batch.links] == ["b7ad6b7169203331"]


def test_untraceable_records_are_refused() -> None:
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from dualwrite import Producer\n"
        "from dualwrite.errors import ConfigError\n"
        "Producer(bootstrap_servers='127.0.0.1:1').close(0)\n"
        "try: Producer(bootstrap_servers='127.0.0.1:1', trace_records=True)\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.startswith("trace.records needs OpenTelemetry's API, which is not installed"), done.stderr


# ---- consumers ------------------------------------------------------------------------------------------------------


def consumed(headers: list[tuple[str, bytes | None]]) -> ConsumedRecord:
    return ConsumedRecord("orders", 3, 17, b"k", b"v", headers, 0)


@contextmanager
def nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("is_inside", [False, True])
def test_a_consumed_record_continues_its_trace(heard: Heard, *, is_inside: bool) -> None:
    outside = heard.tracer.start_as_current_span("worker") if is_inside else nothing()
    with outside, processing(consumed([("traceparent", GIVEN.encode()), ("other", None)]), "billing"):
        trace.get_current_span().add_event("handled")
    (span,) = heard.spans("process")
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["b7ad6b7169203331"]
    parent = heard.spans("worker")[0].context.span_id if is_inside else int("b7ad6b7169203331", 16)
    assert (span.parent.span_id, span.kind, span.name) == (parent, SpanKind.CONSUMER, "process orders")
    assert [event.name for event in span.events] == ["handled"]
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 17,
        "messaging.kafka.message.key": "k",
        "messaging.consumer.group.name": "billing",
    }


def test_a_handler_that_fails_fails_its_span(heard: Heard) -> None:
    with pytest.raises(ZeroDivisionError), processing(consumed([]), "billing"):
        raise ZeroDivisionError
    (span,) = heard.spans("process")
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "ZeroDivisionError")
    assert span.parent is None
