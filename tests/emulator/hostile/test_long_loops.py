"""Work that is long although no single request is: chunks, pipelines, sessions, segments, and markers that wait."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig, Emulator, VirtualClock
from dualwrite.broker_emulator.slices import at_once
from tests.emulator.api.raw_client import RawClient, plain_batch
from tests.emulator.hostile.turns import LONGEST, watched
from tests.emulator.inside import cluster_of, is_completing, run_in_loop, waits_for_records
from tests.interop.raw_wire.sharing import Sharer
from tests.support.conditions import until

CONFIG = BrokerConfig(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
FEW = 1000
"""Steps of a slice."""
NOW_MS = 1_700_000_000_000


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(config=CONFIG, control="127.0.0.1:0", schema_registry="127.0.0.1:0") as broker:
        yield broker


@pytest.mark.parametrize("of_registry", [False, True])
def test_a_request_in_very_many_chunks(emulator: Emulator, of_registry: bool) -> None:
    url = urlsplit(emulator.schema_registry_url if of_registry else emulator.control_url)
    head = f"POST /v1/topics HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = "".join(f"1\r\n{character}\r\n" for character in '{"name": "' + "x" * 3000 + '"}') + "0\r\n\r\n"
    with watched(emulator, FEW) as turns, socket.create_connection((url.hostname, url.port), 60) as raw:
        raw.sendall((head + body).encode())
        answered = raw.makefile("rb").read()
    assert answered.startswith(b"HTTP/1.1 404 " if of_registry else b"HTTP/1.1 415 "), answered
    assert turns.longest < 20 * FEW


@pytest.mark.parametrize("of_registry", [False, True])
def test_many_http_connections_take_no_more_of_a_turn_than_a_single_one(emulator: Emulator, of_registry: bool) -> None:
    url = urlsplit(emulator.schema_registry_url if of_registry else emulator.control_url)
    count, chunks = 40, "1\r\nx\r\n" * 60
    head = f"POST /v1/topics HTTP/1.1\r\nHost: {url.netloc}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with ExitStack() as stack:
        raws = [stack.enter_context(socket.create_connection((url.hostname, url.port), 60)) for _ in range(count)]
        for raw in raws:
            raw.sendall(head.encode())

        def send_all() -> None:  # the loop sees all of them in one turn
            for raw in raws:
                raw.sendall((chunks + "0\r\n\r\n").encode())

        with watched(emulator, FEW) as turns:
            run_in_loop(emulator, send_all)
            for raw in raws:
                assert raw.recv(4096).startswith(b"HTTP/1.1 4")
    assert turns.longest < 10 * FEW


def test_very_many_small_requests_in_one_piece(emulator: Emulator) -> None:
    count = 1000
    with RawClient(emulator.bootstrap_servers) as client:
        client.call("find_coordinator", 3, key="x", key_type=1)  # makes the codec
        with watched(emulator, FEW) as turns:
            numbers = [client.send("find_coordinator", 3, key="x", key_type=1) for _ in range(count)]
            assert [client.receive("find_coordinator", 3, number).error_code for number in numbers] == [0] * count
    assert turns.longest < 20 * FEW


def test_a_share_session_of_very_many_partitions(emulator: Emulator) -> None:
    """Each later request, which names nothing, looks at all of them; a record in one of them ends its wait."""
    many = 800
    emulator.create_topic("t", many)
    with RawClient(emulator.bootstrap_servers) as client, RawClient(emulator.bootstrap_servers) as other:
        sharer = Sharer(client, "g", "t").join()
        rows = tuple({"partition_index": index, "acknowledgement_batches": ()} for index in range(many))
        topics = ({"topic_id": sharer.topic_id, "partitions": rows},)
        assert sharer.raw_fetch(0, topics=topics, max_wait_ms=0).error_code == ErrorCode.none
        with watched(emulator, FEW) as turns:
            assert sharer.raw_fetch(1, topics=(), max_wait_ms=0).responses == ()
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(sharer.raw_fetch, 2, topics=(), max_wait_ms=60_000)
                until(lambda: run_in_loop(emulator, lambda: waits_for_records(emulator)))
                assert other.produce("t", plain_batch(b"v"), partition=many - 1).error_code == ErrorCode.none
                (topic,) = waiting.result().responses
            assert [row.partition_index for row in topic.partitions] == [many - 1]
            sharer.close()
    assert turns.longest < 20 * FEW


SEGMENTS = 300


@pytest.fixture
def of_segments(tmp_path: Path) -> Iterator[Emulator]:
    """An emulator with a topic whose records have a segment each."""
    config = dataclasses.replace(CONFIG, log_retention_check_interval_ms=60_000)
    with Emulator(config=config, clock=VirtualClock(NOW_MS), data_dir=tmp_path / "data") as broker:
        broker.create_topic("t", 1, {"segment.bytes": "64"})
        with RawClient(broker.bootstrap_servers) as client:
            for index in range(SEGMENTS):
                assert client.produce("t", plain_batch(b"%d" % index)).error_code == ErrorCode.none
        yield broker


def _deletes_records(emulator: Emulator, client: RawClient) -> None:
    assert client.delete_records("t", -1).low_watermark == SEGMENTS


def _deletes_by_age(emulator: Emulator, client: RawClient) -> None:
    emulator.set_config({"retention.ms": "1000"}, topic="t")
    emulator.advance_clock(60_000)


def _deletes_the_topic(emulator: Emulator, client: RawClient) -> None:
    assert client.delete_topic("t").error_code == ErrorCode.none


@pytest.mark.parametrize("delete", [_deletes_records, _deletes_by_age, _deletes_the_topic])
def test_very_many_segments_are_deleted(
    of_segments: Emulator, tmp_path: Path, delete: Callable[[Emulator, RawClient], None]
) -> None:
    """The records are gone when the client is answered, and their files soon after."""

    def files() -> list[Path]:
        return list((tmp_path / "data").glob("t-0*/*.log"))

    assert len(files()) == SEGMENTS
    with RawClient(of_segments.bootstrap_servers) as client, watched(of_segments, FEW) as turns:
        delete(of_segments, client)
        until(lambda: len(files()) < 2)
    assert turns.longest < 20 * FEW


def test_a_log_whose_files_are_deleted_goes_on(of_segments: Emulator) -> None:
    """Records that come between the steps of a deletion stay, even if the process is killed then."""
    log = cluster_of(of_segments).topics["t"].partitions[0].log
    steps = log.delete_records(SEGMENTS - 1)
    run_in_loop(of_segments, lambda: next(steps))
    with RawClient(of_segments.bootstrap_servers) as client:
        assert client.produce("t", plain_batch(b"new")).error_code == ErrorCode.none
    assert [record.offset for record in of_segments.records("t")] == [SEGMENTS - 1, SEGMENTS]
    run_in_loop(of_segments, lambda: at_once(steps))
    assert [record.offset for record in of_segments.records("t")] == [SEGMENTS - 1, SEGMENTS]


@pytest.mark.parametrize("markers", ["wait for replicas", "have no leader"])
def test_a_topic_is_deleted_while_very_many_markers_are_written(markers: str) -> None:
    many = 3000
    with Emulator(config=CONFIG, nodes=2) as emulator:
        cluster = cluster_of(emulator)
        coordinator = run_in_loop(emulator, lambda: cluster.transaction_partition("x").leader_id)
        other = 1 - coordinator
        run_in_loop(emulator, lambda: cluster.create_topic("t", many, assignments=[[other]] * many))
        with RawClient(emulator.bootstrap_servers.split(",")[coordinator]) as client, watched(emulator) as turns:
            producer = client.init_producer_id("x")
            client.add_partitions("x", producer, "t", *range(many))
            if markers == "have no leader":
                emulator.stop_node(other)
            else:
                logs = [partition.log for partition in cluster.topics["t"].partitions]
                for log in logs:
                    run_in_loop(emulator, log.hold_high_watermark)
            assert client.end_txn("x", producer, commit=True).error_code == ErrorCode.none
            until(lambda: run_in_loop(emulator, lambda: is_completing(emulator, "x")))
            assert client.delete_topic("t").error_code == ErrorCode.none
            until(lambda: not run_in_loop(emulator, lambda: is_completing(emulator, "x")))
    assert turns.longest < LONGEST
