"""A broker that is killed and started again while a client copies records in transactions, exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread
from typing import Any, Final, Protocol

import pytest

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.emulator.killable_broker import KillableBroker
from tests.support.servers.apache_kafka import ApacheKafka
from tests.support.unavailable import skip

from .client_folders import BROKER_FIXTURES, On
from .conftest import KAFKA_VERSION_USED
from .logged_records import committed_values_of
from .wire import GROUP, Code, Wire, wait_for, wait_until

RECORDS: Final = 300
SIZE: Final = 5
KILLS: Final = (RECORDS // 4, RECORDS // 2)
"""How many records are in the target, aborted ones included, when the broker is killed."""

SOURCE: Final = "source"
TARGET: Final = "target"
_DEADLINE_S: Final = 120.0


class KilledBroker(Protocol):
    """The interface of both kinds."""

    def start(self) -> object: ...
    def kill(self) -> None: ...


class KillableCluster:
    """One broker with the topics `source`, which has the records, and `target`."""

    def __init__(self, server: KilledBroker, bootstrap_servers: str) -> None:
        self._server = server
        self.bootstrap_servers = bootstrap_servers

    def prepare(self, group: str) -> None:
        with Wire(self.bootstrap_servers) as wire:
            for topic in (SOURCE, TARGET):
                wire.create_topic(topic)
            for start in range(0, RECORDS, 100):
                values = [b"%d" % number for number in range(start, start + 100)]
                wire.write(SOURCE, *values)
            wire.wait_for_coordinator("any")
            wire.wait_for_coordinator(group, GROUP)

    def kill_while(self, copying: Future[Any]) -> None:
        """Kill it when as much has been written as KILLS says, and start it again; then wait for the copy's end."""
        for count in KILLS:
            wait_until(lambda count=count: copying.done() or self._written() >= count, _DEADLINE_S)  # type: ignore[misc]
            assert not copying.done(), copying.result()
            self._server.kill()
            self._server.start()
        copying.result(_DEADLINE_S)

    def _written(self) -> int:
        with Wire(self.bootstrap_servers) as wire:
            return wire.list_offsets(TARGET)

    def check(self, group: str) -> None:
        """Every record is committed once and in its order, and so is the offset behind the last one."""
        with Wire(self.bootstrap_servers) as wire:
            done = (Code.NONE, RECORDS)
            wait_for(lambda: wire.offset_fetch(group, SOURCE, require_stable=True), lambda found: found == done)
            assert committed_values_of(wire, TARGET) == [b"%d" % number for number in range(RECORDS)]


@pytest.fixture(params=list(BROKER_FIXTURES))
def killable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableCluster]:
    """The emulator with a data directory, and a real Apache Kafka."""
    if BROKER_FIXTURES[request.param] == On.EMULATOR:
        emulator = KillableBroker(tmp_path_factory.mktemp("killed") / "data", "interval").start()
        yield KillableCluster(emulator, emulator.address)
        emulator.kill()
        assert "Traceback" not in emulator.log
        return
    properties = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}
    kafka = ApacheKafka(version=KAFKA_VERSION_USED, properties=properties)
    try:
        kafka.start()
    except ServerUnavailableError as error:
        skip(error)
    yield KillableCluster(kafka, kafka.bootstrap_servers)
    kafka.stop()


def in_background(work: Callable[[], Any]) -> Future[Any]:
    """Return the future result; a call that never ends holds up no test."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    return done
