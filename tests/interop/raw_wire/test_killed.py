"""A killed broker's memory of its producers when it is back: the same on every broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.wire import Code, Produced, Wire, wait_for
from tests.support.real_kafkas import OLDER, RELEASED, real_kafka
from tests.support.unavailable import skip

OLD = 11
REFUSED = Produced(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)


class Restarted(Protocol):
    """A broker that can be killed and started again."""

    def connect(self) -> Wire: ...

    def restart(self) -> None: ...


class Emulated:
    """The emulator, whose node is crashed; or which is started again on its data directory."""

    def __init__(self, emulator: Emulator, data_dir: Path | None) -> None:
        self._emulator = emulator
        self._data_dir = data_dir

    def connect(self) -> Wire:
        return Wire(self._emulator.bootstrap_servers)

    def restart(self) -> None:
        if self._data_dir is None:
            self._emulator.crash_node(0)
            self._emulator.start_node(0)
        else:
            self._emulator.stop()
            self._emulator.start()


class Real:
    """A real Apache Kafka."""

    def __init__(self, version: str) -> None:
        self._kafka = real_kafka(RELEASED if version == "apache_kafka" else OLDER)

    @contextmanager
    def running(self) -> Iterator[Real]:
        try:
            self._kafka.start()
        except ServerUnavailableError as error:
            skip(error)
        yield self
        self._kafka.stop()

    def connect(self) -> Wire:
        return Wire(self._kafka.bootstrap_servers)

    def restart(self) -> None:
        self._kafka.kill()
        self._kafka.start()


@pytest.fixture(params=["emulated", "emulated on disk", "apache_kafka", "apache_kafka_3_9"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restarted]:
    if request.param.startswith("apache"):
        with Real(request.param).running() as real:
            yield real
        return
    data_dir = tmp_path / "data" if "disk" in request.param else None
    with Emulator(data_dir=data_dir) as emulator:
        yield Emulated(emulator, data_dir)


def test_only_the_newest_batch_is_a_duplicate(broker: Restarted) -> None:
    """Kafka keeps five batches of a producer in memory, and one on disk."""
    with broker.connect() as wire:
        wire.create_topic("t")
        identity = wire.init_ok(None)
        sequences = (0, 1, 2)
        stored = [wire.produce(None, identity, "t", at, transactional=False, version=OLD) for at in sequences]
        again = [wire.produce(None, identity, "t", at, transactional=False, version=OLD) for at in sequences]
        assert again == stored == [Produced(Code.NONE, at) for at in sequences]
    broker.restart()
    with broker.connect() as wire:
        wait_for(lambda: wire.fetch("t").error, lambda error: error == Code.NONE)
        retried = [wire.produce(None, identity, "t", at, transactional=False, version=OLD) for at in (2, 1, 0, 3)]
        assert retried == [Produced(Code.NONE, 2), REFUSED, REFUSED, Produced(Code.NONE, 3)]
