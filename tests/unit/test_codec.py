"""Requests and responses, byte by byte. The vectors were written by hand from the protocol guide's schemas."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from dualwrite.client import messages as m
from dualwrite.client.kafka_python import ProduceRequest
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.wire import codec, compiled, frames, versions
from dualwrite.errors import Api

TWO = (TopicPartition("x", 0), TopicPartition("x", 3))
PAIR = "000000000000002a 0007"

# compact strings and arrays: length + 1; a flexible structure ends with 00, its empty tag section
REQUESTS: list[tuple[m.Request, int, str]] = [
    (m.FindCoordinator(m.CoordinatorType.TRANSACTION, "t"), 4, "01 02 0274 00"),
    (m.FindCoordinator(m.CoordinatorType.GROUP, "g"), 4, "00 02 0267 00"),
    (
        m.InitProducerId("t", 2**31 - 1, True, True),
        6,
        "0274 7fffffff ffffffffffffffff ffff 01 01 00",
    ),
    (m.InitProducerId("t", 60_000, False, False), 5, "0274 0000ea60 ffffffffffffffff ffff 00"),
    (m.InitProducerId(None, 1, False, False), 0, "ffff 00000001"),
    (m.EndTxn("t", 42, 7, True), 5, "0274 000000000000002a 0007 01 00"),
    (m.EndTxn("t", 42, 7, False), 5, "0274 000000000000002a 0007 00 00"),
    (
        m.TxnOffsetCommit(
            "t", 42, 7, ConsumerGroupMetadata("g"), {TopicPartition("x", 3): OffsetAndMetadata(9, "n", 2)}
        ),
        5,
        "0274 0267 000000000000002a 0007 ffffffff 01 0002 0278 02 00000003 0000000000000009 00000002 026e 00 00 00",
    ),
    (m.Metadata(("x",)), 9, "02 0278 00 01 00 00 00"),
    # of older brokers
    (m.FindCoordinator(m.CoordinatorType.TRANSACTION, "t"), 1, "0001 74 01"),
    (m.FindCoordinator(m.CoordinatorType.TRANSACTION, "t"), 3, "0274 01 00"),
    (m.InitProducerId("t", 60_000, False, False, 42, 7), 3, "0274 0000ea60 000000000000002a 0007 00"),
    (m.AddPartitionsToTxn("t", 42, 7, TWO), 0, f"0001 74 {PAIR} 00000001 0001 78 00000002 00000000 00000003"),
    (m.AddPartitionsToTxn("t", 42, 7, TWO), 3, f"0274 {PAIR} 02 0278 03 00000000 00000003 00 00"),
    (m.AddOffsetsToTxn("t", 42, 7, "g"), 0, f"0001 74 {PAIR} 0001 67"),
    (m.AddOffsetsToTxn("t", 42, 7, "g"), 4, f"0274 {PAIR} 0267 00"),
    (m.EndTxn("t", 42, 7, True, 1), 0, f"0001 74 {PAIR} 01"),
    (m.EndTxn("t", 42, 7, True, 1), 4, f"0274 {PAIR} 01 00"),
    (m.DescribeTransaction("t"), 0, "02 0274 00"),
    (m.ApiVersions(), 0, ""),
]


@pytest.mark.parametrize(("request_", "version", "expected"), REQUESTS)
def test_requests(request_: m.Request, version: int, expected: str) -> None:
    assert bytes(codec.encode(request_, version)).hex() == expected.replace(" ", "")


ANSWERS: list[tuple[m.Request, int, str, m.Response]] = [
    (
        m.FindCoordinator(m.CoordinatorType.TRANSACTION, "t"),
        1,
        "00000000 0000 ffff 00000003 0001 68 00002384",
        m.FindCoordinatorResponse(0, 3, "h", 9092),
    ),
    (
        m.AddPartitionsToTxn("t", 42, 7, TWO),
        0,
        "00000000 00000001 0001 78 00000002 00000000 0000 00000003 0033",
        m.AddPartitionsToTxnResponse({TWO[0]: 0, TWO[1]: 51}),
    ),
    (
        m.AddPartitionsToTxn("t", 42, 7, TWO),
        3,
        "00000000 02 0278 03 00000000 0000 00 00000003 0033 00 00 00",
        m.AddPartitionsToTxnResponse({TWO[0]: 0, TWO[1]: 51}),
    ),
    (m.AddOffsetsToTxn("t", 42, 7, "g"), 0, "00000000 0033", m.AddOffsetsToTxnResponse(51)),
    (m.AddOffsetsToTxn("t", 42, 7, "g"), 3, "00000000 0033 00", m.AddOffsetsToTxnResponse(51)),
    (m.EndTxn("t", 42, 7, True, 1), 0, "00000000 0000", m.EndTxnResponse(0, -1, -1)),
    (m.EndTxn("t", 42, 7, True, 1), 4, "00000000 0000 00", m.EndTxnResponse(0, -1, -1)),
    (
        m.DescribeTransaction("t"),
        0,
        f"00000000 02 0000 0274 08 4f6e676f696e67 0000ea60 0000000000000384 {PAIR} 01 00 00",
        m.DescribeTransactionResponse(0, "Ongoing", 42, 7, 900, 60_000),
    ),
    (
        m.FindCoordinator(m.CoordinatorType.TRANSACTION, "t"),
        4,
        "00000000 02 0274 00000003 0268 00002384 0000 00 00 00",
        m.FindCoordinatorResponse(0, 3, "h", 9092),
    ),
    (
        m.InitProducerId("t", 1, True, True),
        6,
        "00000000 0000 000000000000002a 0008 000000000000002a 0007 00",
        m.InitProducerIdResponse(0, 42, 8, 42, 7),
    ),
    (
        m.InitProducerId("t", 1, False, False),
        5,
        "00000000 0033 ffffffffffffffff ffff 00",
        m.InitProducerIdResponse(51),
    ),
    (m.EndTxn("t", 42, 7, True), 5, "00000000 0000 000000000000002a 0008 00", m.EndTxnResponse(0, 42, 8)),
    (
        m.TxnOffsetCommit("t", 42, 7, ConsumerGroupMetadata("g"), {}),
        5,
        "00000000 02 0278 03 00000003 0000 00 00000004 0016 00 00 00",
        m.TxnOffsetCommitResponse((0, 22)),
    ),
]


@pytest.mark.parametrize(("request_", "version", "body", "expected"), ANSWERS)
def test_answers(request_: m.Request, version: int, body: str, expected: m.Response) -> None:
    assert codec.decode(request_, memoryview(bytes.fromhex(body)), version) == expected


def test_metadata_orders_leaders_by_partition() -> None:
    body = (
        "00000000 02 00000001 0268 00002384 00 00 00 00000001"
        "02 0000 0278 00 03"
        "0000 00000001 00000007 00000000 01 01 01 00"
        "0005 00000000 ffffffff 00000000 01 01 01 00"
        "80000000 00 80000000 00"
    )
    answer = codec.decode(m.Metadata(("x",)), memoryview(bytes.fromhex(body)), 9)
    assert answer == m.MetadataResponse((m.Broker(1, "h", 9092),), (m.TopicMetadata("x", 0, (-1, 7)),))


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_produce_is_as_kafka_python_writes_it(version: int, transactional_id: str | None) -> None:
    names = ("x", "y" * 200)
    batches = [
        SimpleNamespace(topic=name, partition=partition, data=memoryview(bytes([partition]) * size))
        for partition, size in enumerate((1, 126, 127, 20_000, 3_000_000))
        for name in names
    ]
    topics = ProduceRequest.TopicProduceData
    expected: Any = ProduceRequest(
        version=version,
        transactional_id=transactional_id,
        acks=1,
        timeout_ms=9,
        topic_data=[
            topics(
                version=version,
                name=name,
                partition_data=[
                    topics.PartitionProduceData(version=version, index=batch.partition, records=bytes(batch.data))
                    for batch in batches
                    if batch.topic == name
                ],
            )
            for name in names
        ],
    )
    encoder = frames.ProduceEncoder(transactional_id=transactional_id, acks=1, timeout_ms=9)
    pieces = encoder.encode(batches, version)
    assert b"".join(pieces) == compiled.encode(expected, version)
    by_topic = sorted(batches, key=lambda batch: str(batch.topic))
    assert [piece for piece in pieces if isinstance(piece, memoryview)] == [batch.data for batch in by_topic], "a copy"
    assert b"y" not in b"".join(encoder.encode(batches[:1], version)), "nothing is left of the request before"


def test_produce_answers() -> None:
    body = "02 0278 02 00000001 002d 0000000000000005 ffffffffffffffff 0000000000000000 01 036e6f 00 00 00000000 00"
    (result,) = codec.decode_produce(memoryview(bytes.fromhex(body)), 12)
    assert result == m.PartitionProduced("x", 1, 45, 5, -1, "no")


def test_frames() -> None:
    framer = frames.Framer("cl")
    body = b"BODY"
    flexible = b"".join(framer.frame(Api.END_TXN, 5, 9, body))
    assert flexible.hex() == "00000011" + "001a" + "0005" + "00000009" + "0002636c" + "00" + body.hex()
    classic = b"".join(framer.frame(Api.METADATA, 5, 9, body))
    assert classic.hex() == "00000010" + "0003" + "0005" + "00000009" + "0002636c" + body.hex()


@pytest.mark.parametrize(
    ("api", "version", "header"),
    [
        (Api.END_TXN, 5, "00000009 00"),
        (Api.END_TXN, 5, "00000009 02 8101 02 ffff 05 00"),  # tags of a newer broker
        (Api.METADATA, 5, "00000009"),
        (Api.API_VERSIONS, 3, "00000009"),  # KIP-511
    ],
)
def test_answer_headers(api: Api, version: int, header: str) -> None:
    frame = memoryview(bytes.fromhex(header) + b"BODY")
    assert frames.correlation_id_of(frame) == 9
    assert bytes(frames.Framer("c").body(api, version, frame)) == b"BODY"


def test_api_versions() -> None:
    feature = b"transaction.version"
    name = bytes([len(feature) + 1]) + feature
    finalized = b"\x02" + name + struct.pack(">hh", 2, 2) + b"\x00"
    body = bytes.fromhex("0000 02 0016 0000 0006 00 00000000") + b"\x01" + bytes([2, len(finalized)]) + finalized
    assert codec.decode_api_versions(memoryview(body), 3) == m.BrokerFeatures(0, {22: (0, 6)}, 2)


def test_api_versions_of_an_old_broker() -> None:
    refused = memoryview(bytes.fromhex("0023 00000000"))
    assert codec.decode_api_versions(refused, 3).error_code == 35
    old = memoryview(bytes.fromhex("0000 00000001 0000 0000 0009"))
    assert codec.decode_api_versions(old, 0) == m.BrokerFeatures(0, {0: (0, 9)}, 0)


@pytest.mark.parametrize(
    ("wanted", "offered", "expected"),
    [
        ((3, 12), (0, 13), 12),
        ((3, 12), (0, 9), 9),
        ((12, 12), (0, 11), None),
        ((6, 6), (0, 5), None),
        ((3, 5), (6, 9), None),
        ((3, 5), None, None),
    ],
)
def test_common_version(wanted: tuple[int, int], offered: tuple[int, int] | None, expected: int | None) -> None:
    assert versions.common_version(wanted, offered) == expected


def test_the_unstable_version_is_used_only_where_it_is_needed() -> None:
    assert versions.versions_wanted(m.InitProducerId("t", 1, False, False)) == (0, 5)
    assert versions.versions_wanted(m.InitProducerId("t", 1, True, False)) == (6, 6)
    assert versions.versions_wanted(m.InitProducerId("t", 1, False, True)) == (6, 6)


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.END_TXN, Api.TXN_OFFSET_COMMIT])
def test_each_transaction_version_has_versions_of_its_own(api: Api) -> None:
    least, greatest = versions.SPOKEN_VERSIONS[api]
    for old in (0, 1):
        assert versions.versions_in_transaction(api, old)[0] == least
        assert versions.versions_in_transaction(api, old)[1] + 1 == versions.versions_in_transaction(api, 2)[0]
    assert versions.versions_in_transaction(api, 2)[1] == greatest
