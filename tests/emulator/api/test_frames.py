"""Framing: one request at a time, in order; a malformed frame closes its connection and affects nothing else."""

from __future__ import annotations

import logging
import struct
import threading

import pytest

from dualwrite.broker_emulator import Emulator
from dualwrite.broker_emulator.api.registry import APIS
from tests.emulator.api.raw_client import (
    RawClient,
    encode,
    fetch_fields,
    plain_batch,
    produce_fields,
)

SOFTWARE = {"client_software_name": "raw", "client_software_version": "1"}


def test_pipelined_requests_are_answered_in_order_even_behind_a_waiting_one(
    client: RawClient, emulator: Emulator
) -> None:
    waiting = client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=10_000))
    behind = [client.send("api_versions", 4, **SOFTWARE) for _ in range(3)]
    with RawClient(emulator.bootstrap_servers) as other:
        other.produce("t", plain_batch(b"x"))
    assert client.receive("fetch", 12, waiting).responses[0].partitions[0].high_watermark == 1
    for correlation_id in behind:
        client.receive("api_versions", 4, correlation_id)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">i", 0), "frame size 0"),
        (struct.pack(">i", -5), "frame size -5"),
        (b"GET / HTTP/1.1\r\n", "frame size"),
        (struct.pack(">i", 3) + b"abc", "too few"),
        (struct.pack(">ihhih", 10, 999, 0, 1, -1), "API key 999"),
        (struct.pack(">ihhih", 10, 26, 99, 1, -1), "end_txn v99 is not served"),
        (struct.pack(">ihhih", 10, 0, 2, 1, -1), "produce v2 is not served"),
        (struct.pack(">ihhih", 10, 26, 5, 1, 500), "end_txn v5 does not decode"),
        (struct.pack(">ihhihB", 11, 26, 5, 1, -1, 0), "end_txn v5 does not decode"),
        (struct.pack(">ihhihB", 11, 26, 5, 1, -1, 3), "end_txn v5 does not decode"),
    ],
)
def test_a_malformed_frame_closes_that_connection_and_says_why(
    emulator: Emulator, client: RawClient, caplog: pytest.LogCaptureFixture, frame: bytes, reason: str
) -> None:
    with RawClient(emulator.bootstrap_servers) as broken:
        broken.send_bytes(frame)
        assert broken.is_closed()
    assert reason in caplog.text
    assert client.call("api_versions", 4, **SOFTWARE).error_code == 0


def test_an_exception_in_a_handler_is_unknown_server_error_and_logged(
    client: RawClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(call: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(APIS[61].functions, "handle", broken)
    with caplog.at_level(logging.ERROR):
        response = client.call("describe_producers", 0, topics=({"name": "t", "partition_indexes": (0,)},))
    assert response.topics[0].partitions[0].error_code == -1
    assert "a bug" in caplog.text
    monkeypatch.undo()
    assert client.call("api_versions", 4, **SOFTWARE).error_code == 0


def test_a_client_that_sends_on_while_a_request_waits_is_slowed(emulator: Emulator, client: RawClient) -> None:
    client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=60_000))
    frame = encode("produce", 12, 0, "raw", **produce_fields(12, "t", plain_batch(b"v" * 100_000)))
    sender = threading.Thread(target=client.send_bytes, args=(frame * 50,))
    sender.start()
    with RawClient(emulator.bootstrap_servers) as other:
        other.produce("t", plain_batch(b"x"))
    client.receive_frame()
    for _ in range(50):
        client.receive_frame()
    sender.join()
    assert emulator.log("t").log_end_offset == 51
