"""Too many connections, idle and half-open ones, and clients that never read."""

from __future__ import annotations

import logging
import struct
from contextlib import ExitStack

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Fault
from dualwrite.broker_emulator.net import client_transport
from dualwrite.broker_emulator.net.client_transport import LINES_PER_INTERVAL, ClosingLog
from tests.emulator.api.raw_client import RawClient, decode, encode, fetch_fields, plain_batch
from tests.support.conditions import until

SOFTWARE = {"client_software_name": "raw", "client_software_version": "1"}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (BrokerConfig(max_connections=2), "max.connections=2"),
        (BrokerConfig(max_connections_per_ip=2), "max.connections.per.ip=2"),
    ],
)
def test_one_connection_too_many(caplog: pytest.LogCaptureFixture, config: BrokerConfig, limit: str) -> None:
    with Emulator(config=config) as emulator:
        first, second = (RawClient(emulator.bootstrap_servers) for _ in range(2))
        for client in (first, second):
            client.call("api_versions", 4, **SOFTWARE)
        with RawClient(emulator.bootstrap_servers) as third:
            assert third.is_closed()
        assert limit in caplog.text
        first.call("api_versions", 4, **SOFTWARE)
        with first:
            pass
        until(lambda: _is_served(emulator))


def _is_served(emulator: Emulator) -> bool:
    with RawClient(emulator.bootstrap_servers) as client:
        try:
            client.call("api_versions", 4, **SOFTWARE)
        except ConnectionError:
            return False
        return True


@pytest.mark.parametrize("begun", [b"", b"\0", struct.pack(">ihh", 1000, 18, 4)])
def test_an_idle_connection_is_closed(caplog: pytest.LogCaptureFixture, begun: bytes) -> None:
    with Emulator(config=BrokerConfig(connections_max_idle_ms=50)) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            client.send_bytes(begun)
            assert client.is_closed()
    assert "idle for connections.max.idle.ms=50" in caplog.text


def test_waiting_for_an_answer_is_not_idle() -> None:
    # encoded before there is a connection, which is idle until the request comes
    frame = encode("fetch", 12, 1, "raw", **fetch_fields(12, "t", max_wait_ms=1_500))
    with Emulator(config=BrokerConfig(connections_max_idle_ms=500), topics={"t": 1}) as emulator:
        with RawClient(emulator.bootstrap_servers) as client:
            client.send_bytes(frame)
            assert decode("fetch", 12, client.receive_frame())[1].responses[0].partitions[0].error_code == 0


def test_a_client_that_never_reads_is_served_no_more_and_loses_nothing() -> None:
    fetches = 40
    with Emulator(topics={"t": 1}) as emulator, RawClient(emulator.bootstrap_servers) as client:
        with RawClient(emulator.bootstrap_servers) as other:
            for _ in range(4):
                other.produce("t", plain_batch(b"v" * 1_000_000))
            served = emulator.faults.add(Fault(api="Fetch"))
            fields = fetch_fields(12, "t", partition_max_bytes=1 << 22)
            for correlation_id in range(fetches):
                client.send_bytes(encode("fetch", 12, correlation_id, "raw", **fields))
            served.wait()
            for _ in range(20):
                other.produce("t", plain_batch(b"x"))  # others are served
            assert served.hits < 10  # as many as the sockets take, and one more
        for correlation_id in range(fetches):
            client.receive("fetch", 12, correlation_id)
        assert served.hits == fetches


def test_responses_unread_by_all_clients_are_limited_in_total(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection that has gone longest without reading is closed."""
    size = 20_000_000  # twice as much as sockets take
    monkeypatch.setattr(client_transport, "MAX_UNREAD_OF_ALL", size + size // 8)
    config = BrokerConfig(message_max_bytes=2 * size, socket_request_max_bytes=2 * size)
    with Emulator(config=config, topics={"t": 1}) as emulator, ExitStack() as stack:
        clients = [stack.enter_context(RawClient(emulator.bootstrap_servers)) for _ in range(3)]
        assert clients[0].produce("t", plain_batch(bytes(size))).error_code == 0
        fields = fetch_fields(12, "t", partition_max_bytes=2 * size)
        served = emulator.faults.add(Fault(api="Fetch"))
        for number, client in enumerate(clients):
            client.send_bytes(encode("fetch", 12, number, "idle", **fields))
            served.wait(number + 1)
            until(lambda number=number: caplog.text.count("it does not read") == number)  # type: ignore[misc]
        assert len(clients[2].receive("fetch", 12, 2).responses[0].partitions[0].records) > size
        for client in clients[:2]:
            with pytest.raises(ConnectionError):
                client.receive_frame()


def test_a_waiting_fetch_is_given_up_with_its_connection() -> None:
    with Emulator(topics={"t": 1}) as emulator:
        waiters = emulator.cluster.topics["t"].partitions[0].log.on_advance
        with RawClient(emulator.bootstrap_servers) as client:
            client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=2**31 - 1))
            until(lambda: len(waiters) == 1)
        until(lambda: not waiters)


def test_a_flood_of_reasons_is_counted_instead_of_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = ClosingLog(logging.getLogger("flood"))
    for place in range(LINES_PER_INTERVAL + 7):
        log.log(100.0, f"reason {place}")
    assert len(caplog.records) == LINES_PER_INTERVAL
    log.log(100.0, "a bug", RuntimeError("never kept back"))
    log.log(200.0, "later")
    assert [record.getMessage() for record in caplog.records[LINES_PER_INTERVAL:]] == [
        "a bug",
        "7 more connections were closed for similar reasons",
        "later",
    ]
