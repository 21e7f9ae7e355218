"""`Emulator`: start and stop, its clock, and its methods for tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from dualwrite.broker_emulator import Emulator, PausePoint
from tests.emulator.api.raw_client import RawClient, batch_of, fetch_fields, plain_batch


def test_start_and_stop_can_be_repeated() -> None:
    before = set(threading.enumerate())
    emulator = Emulator(topics={"t": 1})
    for _ in range(2):
        with emulator:
            assert RawClient(emulator.bootstrap_servers).produce("t", plain_batch(b"1")).base_offset == 0
            with pytest.raises(RuntimeError, match="already"):
                emulator.start()
        emulator.stop()
        assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "broker-emulator"]


def test_nothing_listens_after_stop() -> None:
    with Emulator(nodes=2) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        addresses = emulator.bootstrap_servers.split(",")
        client.send("fetch", 12, **fetch_fields(12, "nope", max_wait_ms=60_000))
    for address in addresses:
        host, _, port = address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))
    with pytest.raises(RuntimeError, match="is not running"):
        emulator.log("t")


def test_stop_does_not_wait_for_waiting_requests() -> None:
    with Emulator(topics={"t": 1}) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        client.send("fetch", 12, **fetch_fields(12, "t", max_wait_ms=60_000))
        assert client.is_silent()
    assert client.is_closed()


@pytest.mark.parametrize("listen", ["127.0.0.1:99999", "127.0.0.1", ":0", "127.0.0.1:http"])
def test_an_address_that_cannot_be_listened_on(listen: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        Emulator(listen=listen)


def test_a_cluster_has_a_node() -> None:
    with pytest.raises(ValueError):
        Emulator(nodes=0)


def test_topics_and_logs() -> None:
    with Emulator(topics={"t": 2}) as emulator:
        emulator.create_topic("u", 3)
        with pytest.raises(ValueError, match="u"):
            emulator.create_topic("u")
        with pytest.raises(KeyError, match="t has no partition 2; it has 2, numbered from 0"):
            emulator.log("t", 2)
        with pytest.raises(KeyError, match="there is no topic 'order'; there are t, u"):
            emulator.log("order")
        assert emulator.records("order") == []
        RawClient(emulator.bootstrap_servers).produce("u", plain_batch(b"1", b"2"), partition=2)
        snapshot = emulator.log("u", 2)
        assert (snapshot.log_start_offset, snapshot.log_end_offset, snapshot.last_stable_offset) == (0, 2, 2)
        assert len(snapshot.batches) == 1
        assert snapshot.producers == []


def test_only_a_virtual_clock_can_be_advanced() -> None:
    with Emulator() as emulator, pytest.raises(TypeError):
        emulator.advance_clock(1)


def test_requests_that_were_begun_are_finished_without_their_client() -> None:
    with Emulator(topics={"t": 1}) as emulator:
        client = RawClient(emulator.bootstrap_servers)
        producer = client.init_producer_id("x")
        client.produce("t", batch_of(producer, b"1"), transactional_id="x")
        hold = emulator.hold(PausePoint.BEFORE_PREPARE_APPEND)
        done = emulator.hold(PausePoint.AFTER_COMPLETE_APPEND)
        fields = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch, "committed": True}
        client.send("end_txn", 5, transactional_id="x", **fields)
        hold.wait_reached()
        emulator.disconnect_clients()
        hold.release()
        done.wait_reached()
        done.release()
        assert emulator.transactions()[0].state == "CompleteCommit"


def run_module(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dualwrite.broker_emulator", *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_as_a_process(stop: signal.Signals) -> None:
    with run_module("--nodes", "2", "--topic", "orders:3", "--config", "num.partitions=4") as process:
        assert process.stdout is not None
        addresses = process.stdout.readline().strip()
        client = RawClient(addresses)
        assert client.produce("orders", plain_batch(b"1"), partition=2).error_code == 0
        process.send_signal(stop)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0
        assert output == ""
        assert len(addresses.split(",")) == 2
